"""Tasks on nodes beside those of Airflow's own executor: whatever kind they are, they end as they would there."""

from __future__ import annotations

from tests.airflow.executors import HEAD, wait_told
from tests.airflow.jobs import Jobs
from tests.airflow.stack import Run, Stack
from tests.integration.cluster import Cluster

MIXED = """
from airflow.sdk import get_current_context
from airflow.providers.standard.sensors.time_delta import TimeDeltaSensor

def job():
    import os
    return os.environ.get("SLURM_JOB_ID"), os.environ.get("SLURM_ARRAY_JOB_ID")

@task(**ON_NODE)
def on_node():
    import shutil
    assert shutil.which("airflow")
    return job()[0]

@task
def beside(number):
    assert number and job() == (None, None)

# Before those of other DAGs, so that a scheduler which is busy finds them together.
@task(priority_weight=1000, **ON_NODE)
def mapped(index):
    print("in array", job()[1])

@task.sensor(mode="reschedule", poke_interval=1, **ON_NODE)
def rescheduled(dag_run=None):
    import os
    poked = Path(os.environ["AIRFLOW_HOME"], f"poked-{dag_run.dag_id}")
    if job()[0] and poked.exists():
        return True
    poked.touch()

SHARING = {"partition": "main", "share": 4, "cpus_per_task": 2}

@task(executor="SlurmExecutor", executor_config=SHARING, priority_weight=1000)
def sharing(index):
    print("in job", job()[0])

beside(on_node())
mapped.expand(index=[1, 2, 3, 4, 5])
sharing.expand(index=[1, 2, 3, 4, 5])
rescheduled()
TimeDeltaSensor(task_id="deferred", delta=timedelta(seconds=0), deferrable=True, **ON_NODE)
BashOperator(task_id="fails", bash_command="exit 3", **ON_NODE)
NOWHERE = {"partition": "nowhere"}
BashOperator(task_id="rejected", bash_command="true", executor="SlurmExecutor", executor_config=NOWHERE)
"""


def start(stack: Stack, slurm: Cluster) -> Run:
    # Those that go together must not wait for slots one by one.
    stack.call("POST", "/pools", json={"name": "nodes", "slots": 20})
    return stack.add_dag("executors", MIXED, head=HEAD, dag_options="default_args={'pool': 'nodes'}").trigger()


def test_tasks_of_all_kinds_succeed_on_nodes_beside_others(run: Run) -> None:
    for task_id in ("on_node", "beside", "rescheduled", "deferred"):
        assert run.wait(task_id, "success")["try_number"] == 1
    assert run.task("on_node")["hostname"].startswith("worker")
    for index in range(5):
        run.wait("mapped", "success", index=index)
        run.wait("sharing", "success", index=index)


def test_mapped_tasks_are_one_array_and_sharing_ones_one_job(run: Run, slurm: Cluster) -> None:
    for task_id in ("mapped", "sharing"):
        for index in range(5):
            run.wait(task_id, "success", index=index)
    # As many go together as a scheduler that is busy with other DAGs finds at a time.
    assert len(Jobs(slurm, run, "mapped").states()) < 5
    logs = [run.wait_log("sharing", "in job", index) for index in range(5)]
    numbers = {line for log in logs for line in log.splitlines() if line.startswith("in job")}
    assert len(numbers) < 5


def test_the_page_knows_the_task_of_each_job(run: Run, stack: Stack) -> None:
    run.wait("on_node", "success")
    run.wait("mapped", "success", index=3)
    asked = {"connection": "soperator_default", "jobs": "ended", "search": run.dag_id}
    for task_id in ("on_node", "mapped[3]"):
        link = f"{run.dag_id} &rsaquo; {task_id}</a>"
        stack.wait(
            f"the page has {task_id}",
            lambda link=link: link in stack.api.get(f"{stack.api.url}/soperator/", params=asked).text,
        )


def test_a_task_that_fails_has_failed_though_its_job_did_its_work(run: Run, slurm: Cluster) -> None:
    run.wait("fails", "failed")
    assert "exit code 3" in run.log("fails")
    Jobs(slurm, run, "fails").wait("COMPLETED")


def test_what_slurm_rejects_is_told_in_its_words(run: Run) -> None:
    run.wait("rejected", "failed")
    wait_told(run, "rejected", "partition 'nowhere'")
    run.wait_log("rejected", "The job could not be submitted")
