"""The page *Soperator* in an Airflow that runs tasks: it knows which task a job is of, from Airflow's own database."""

from __future__ import annotations

import json
import re
import subprocess
import sys

from tests.airflow.jobs import HELD, Jobs
from tests.airflow.stack import Dag, Stack
from tests.integration.cluster import Cluster

#: Two that wait in the triggerer, each for a job of its own.
BODY = f"""
SbatchOperator.partial(task_id="fit", script='{HELD}', deferrable=True, poll_interval=1).expand(nice=[1, 2])
"""


#: The folder of files of function calls, and one whose call has long ended.
FOLDER, OLD = "/root/.airflow-soperator", "aaaaaaaaaaaa.zip"
ACTIONS = """
from airflow_provider_soperator.operators.action_dags import action_dags

action_dags("page", is_paused_upon_creation=False, default_args={"poll_interval": 1})
"""


def test_what_the_page_triggers_is_done(stack: Stack, slurm: Cluster) -> None:
    job = slurm.held_job("--nodelist=worker-0")
    slurm.wait_job(job, "RUNNING")
    drain = stack.add_source("page_drain", ACTIONS)
    slurm.drained.add("worker-0")
    assert drain.trigger(nodes="worker-0", reason="too hot").wait_all() == {"drain": "success"}
    assert re.fullmatch(r"airflow:page: too hot \(\w+\)", slurm.node("worker-0").reason)
    undrain, cancel = Dag(stack, "page_undrain"), Dag(stack, "page_cancel")
    assert undrain.trigger(nodes="worker-0", drain_owner="others").wait_all() == {"undrain": "failed"}
    assert undrain.trigger(nodes="worker-0", drain_owner="page").wait_all() == {"undrain": "success"}
    slurm.wait_node("worker-0", lacks={"DRAIN"})
    assert cancel.trigger(job_ids=job).wait_all() == {"cancel": "success"}
    slurm.run("mkdir", "-p", "-m", "700", FOLDER)
    slurm.run("touch", "--date=2 days ago", f"{FOLDER}/{OLD}")
    assert Dag(stack, "page_release").trigger(name=f"{FOLDER}/{OLD}").wait_all() == {"release": "success"}
    assert OLD not in slurm.run("ls", FOLDER)
    slurm.wait_job(job, "CANCELLED")


def test_a_job_leads_to_its_task_and_a_task_to_its_job(stack: Stack, slurm: Cluster) -> None:
    run = stack.add_dag("page_of_jobs", BODY).trigger()
    jobs = [Jobs(slurm, run, f"fit.{index}") for index in (0, 1)]
    ids = [job for one in jobs for job in one.wait("RUNNING")]
    page = f"{stack.api.url}/soperator"

    def board() -> str | None:
        shown = stack.api.get(f"{page}/", params={"connection": "soperator_default", "search": "page_of_jobs"}).text
        return shown if all(f"page_of_jobs &rsaquo; fit[{index}]" in shown for index in (0, 1)) else None

    shown = stack.wait("the page has both tasks", board)
    assert all(f'<td class="brief">{job}</td>' in shown for job in ids)
    ids_of = {"dag_id": run.dag_id, "run_id": run.run_id, "task_id": "fit"}
    for index, job in enumerate(ids):
        assert f"<h2>Job {job} " in stack.api.get(f"{page}/job", params={**ids_of, "map_index": str(index)}).text
    printed = {"connection": "soperator_default", "job": ids[0]}
    stack.wait(
        "the page has what the job prints", lambda: "begun" in stack.api.get(f"{page}/output", params=printed).text
    )
    for one in jobs:
        one.let_go()
    assert set(run.wait_all().values()) == {"success"}

    def ended() -> bool:
        asked = {"connection": "soperator_default", "jobs": "ended", "search": "page_of_jobs"}
        return stack.api.get(f"{page}/", params=asked).text.count("task has ended") == len(ids)

    # The queue keeps a job for some minutes, and the page its task.
    stack.wait("the page has the tasks that have ended", ended)
    # A process that has not seen them at work finds them as well.
    command = [sys.executable, "-m", "airflow_provider_soperator", "jobs", "--state", "ended", "--output", "json"]

    def told() -> bool:
        said = subprocess.run(command, env=stack.environment, capture_output=True, text=True, check=True).stdout
        tasks = {str(row["job"]): row["task"] for row in json.loads(said[said.index("[") :])}
        return [tasks[job] for job in ids] == [f"page_of_jobs › fit[{index}]" for index in (0, 1)]

    # It does without tasks where Airflow is slow to answer.
    stack.wait("the command has the tasks", told)
