"""Files that go to the cluster with a task and come back, and the links on its page while its job runs and after."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.airflow.jobs import Jobs
from tests.airflow.stack import Run, Stack
from tests.integration.cluster import Cluster, until

LINKS = {
    "job_link": "https://portal.test/{cluster}/{user}/{name}/{job_id}",
    "output_link": "https://portal.test/files{output}",
    "grafana_link": "https://grafana.test/d/gpus?first={node}&all={nodes}&from={start_ms}&to={end_ms}",
}
TASKS = '''
work = """#!/bin/bash
set -e
UNTIL
mkdir -p results/deep
./project/run.sh > results/said.txt
echo 1 > results/deep/1.csv
"""
common = dict(slurm_conn_id="linked", name="links", chdir="/root/data/{{ run_id }}-{{ ti.task_id }}")
for task_id, deferrable in (("deferred", True), ("in_worker", False)):
    SbatchOperator(
        task_id=task_id, script=work, deferrable=deferrable, **common,
        upload={"project": "project", "{{ dag.dag_id }}.txt": "project/inputs/"},
        download={"results/said.txt": f"got/{task_id}/", "results/**/*.csv": f"got/{task_id}"},
    )
SbatchOperator(
    task_id="failed", command="echo 7 > core; exit 7", **common,
    download={"core": "got/failed/", "more": "got/failed/"}, download_on="always", retries=0,
)
SbatchOperator(
    task_id="again", command="echo done", **common, upload={"project": "project"}, download={"no-such-file": "got/"},
    retries=1, retry_delay=timedelta(seconds=0),
)
SbatchOperator(
    task_id="no_worker", command="true", slurm_conn_id="linked", start_from_trigger=True, end_from_trigger=True
)
SbatchOperator(task_id="missing", command="true", **common, upload={"no-such-folder": "project"})
SbatchOperator(task_id="unreachable", command="true", slurm_conn_id="without_files", download={"x": "got/"})
'''.replace("UNTIL", until("/root/go-$SLURM_JOB_ID"))


def start(stack: Stack, slurm: Cluster) -> Run:
    """One run of all, in which nobody has let go of the jobs that wait for it."""
    rest = slurm.access["rest"]["url"]
    token = slurm.run("scontrol", "token", "lifespan=3600", pod="slurmctld").strip().partition("=")[2]
    add_connection(stack, "linked", {"ssh_conn_id": "ssh_default", **LINKS})
    add_connection(stack, "without_files", {"rest_url": rest, "jwt_token": token})
    project = stack.dags / "project"
    (project / "lib").mkdir(parents=True)
    (project / "lib" / "words").write_text("from the library\n")
    (project / "run.sh").write_text("#!/bin/sh\ncd ${0%/*}; cat lib/words inputs/*.txt\n")
    (project / "run.sh").chmod(0o755)
    files = {"files_and_links.txt": "and from a file\n"}
    options = "default_args={'poll_interval': 1}"
    return stack.add_dag("files_and_links", TASKS, files=files, dag_options=options).trigger()


def add_connection(stack: Stack, name: str, extra: dict[str, str]) -> None:
    body = {"connection_id": name, "conn_type": "soperator", "extra": json.dumps(extra)}
    stack.call("POST", "/connections", json=body)


def links(run: Run, task_id: str) -> dict[str, Any]:
    path = f"/dags/{run.dag_id}/dagRuns/{run.run_id}/taskInstances/{task_id}/links"
    found: dict[str, Any] = run.stack.call("GET", path)["extra_links"]
    return found


@pytest.mark.parametrize("task_id", ["deferred", "in_worker"])
def test_files_and_links_of_a_job(run: Run, slurm: Cluster, task_id: str) -> None:
    log = run.wait_log(task_id, "is RUNNING")
    assert "Uploaded project to /root/data/" in log
    assert "2 of 2 files" in log
    [job] = [line.split()[1] for line in log.splitlines() if line.endswith(" submitted")]
    assert run.xcom(task_id, key="job_id") == job
    found = run.stack.wait("the links are there", lambda: all((now := links(run, task_id)).values()) and now)
    node = slurm.job(job)["batch_host"]
    grafana = parse_qs(urlsplit(found["Grafana"]).query)
    assert (grafana["first"], grafana["all"], grafana["to"]) == ([node], [node], ["now"])
    start = slurm.job(job)["start_time"]["number"]
    assert grafana["from"] == [f"{start}000"]
    assert found["Job"].startswith("https://portal.test/soperator/root/links.af-")
    assert found["Job"].endswith(f"/{job}")

    slurm.let_go(job)
    run.wait(task_id, "success")
    result = run.xcom(task_id)
    after = links(run, task_id)
    assert after["Job"] == found["Job"]
    # Airflow names runs with a + and colons.
    assert after["Output"].startswith("https://portal.test/files/root/data/manual__")
    assert after["Output"].endswith(f"{job}.out")
    assert result["job_id"] == job
    end = slurm.job(job)["end_time"]["number"]
    assert parse_qs(urlsplit(after["Grafana"]).query)["to"] == [f"{end}000"]
    got = run.stack.dags / "got" / task_id
    assert (got / "said.txt").read_text() == "from the library\nand from a file\n"
    # Folders below the part without wildcards are kept.
    assert (got / "deep" / "1.csv").read_text() == "1\n"


def test_a_task_without_a_worker_has_links_too(run: Run) -> None:
    run.wait("no_worker", "success")
    job = run.xcom("no_worker", key="job_id")
    assert run.xcom("no_worker")["job_id"] == job
    assert links(run, "no_worker")["Job"].endswith(f"/{job}")
    assert not links(run, "no_worker")["Grafana"].endswith("now")


def test_a_job_that_failed_gives_what_there_is(run: Run) -> None:
    run.wait("failed", "failed")
    log = run.wait_log("failed", "more is not downloaded: listing /root/data/")
    assert (run.stack.dags / "got" / "failed" / "core").read_text() == "7\n"
    assert "failed on worker" in log
    assert "exit code 7" in log


def test_what_is_not_there_fails_the_task_and_the_next_try_goes_on_with_the_job(run: Run, slurm: Cluster) -> None:
    run.wait("again", "failed", least_try=2)
    first, second = (run.wait_log("again", "no-such-file", number=number) for number in (1, 2))
    assert "No such file or directory" in first
    [job] = Jobs(slurm, run, "again").states() or [run.xcom("again", key="job_id")]
    assert f"Nothing is uploaded, as job {job} of an earlier try has its files" in second
    assert "Uploaded" not in second


def test_a_file_that_is_not_here_is_named_before_there_is_a_job(run: Run) -> None:
    run.wait("missing", "failed")
    log = run.wait_log("missing", "there is no ")
    assert f"there is no {run.stack.dags}/no-such-folder" in log
    assert "submitted" not in log


def test_a_connection_without_files_is_told_before_there_is_a_job(run: Run) -> None:
    run.wait("unreachable", "failed")
    log = run.wait_log("unreachable", "name an SSH or Kubernetes connection beside it for files")
    assert "submitted" not in log


def test_without_a_template_there_is_no_link(stack: Stack) -> None:
    run = stack.add_dag("no_links", "SbatchOperator(task_id='plain', command='true', poll_interval=1)").trigger()
    run.wait("plain", "success")
    assert links(run, "plain") == {"Job": None, "Output": None, "Grafana": None}
