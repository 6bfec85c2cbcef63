"""Tasks that start and end in the triggerer: what holds there, and what sends a task to a worker after all."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.airflow.jobs import Jobs
from tests.airflow.stack import Run, Stack
from tests.integration.cluster import Cluster

FILES = {"free.sh": "#!/bin/bash\necho file of {{ run_id }}\n"}
#: In each log of a worker's, and in no other.
WORKER = "::group::Pre Execute"
#: A script that fails once for each run.
FAILS_ONCE = 'test -e "/root/seen {{{{ run_id }}}} {}" && exit; touch "/root/seen {{{{ run_id }}}} {}"; exit 1'


def tasks(folder: Path) -> str:
    return f"""
free = {{"start_from_trigger": True, "end_from_trigger": True, "poll_interval": 1}}

def note(context):
    Path({str(folder)!r}, context["task"].task_id).write_text(context["run_id"])

def plain(task_id, command="true", **options):
    return SbatchOperator(task_id=task_id, command=command, **free | options)

@task
def take(one):
    print("took:", one)

@task
def show(report):
    print("what came:", type(report).__name__, report["state"])

text = SbatchOperator(
    task_id="text", script="#!/bin/bash\\necho run {{{{ run_id }}}} $WHAT\\n", env={{"WHAT": "{{{{ 1 + 1 }}}}"}}, **free
)
show(text.output)
SbatchOperator(task_id="file", script="free.sh", **free)
text >> plain("pulled", "echo job {{{{ ti.xcom_pull('text')['job_id'] }}}}")
hopeless = {{"retries": 3, "retry_delay": timedelta(seconds=1)}}
plain("invalid", mem="{{{{ 'much' }}}}", **hopeless)
plain("refused", partition="nowhere", **hopeless)
plain("skipped", "exit 7", on_finish={{7: "skip"}})
plain("retried", {FAILS_ONCE.format("retried", "retried")!r}, retries=1, retry_delay=timedelta(seconds=1))
plain(
    "grown", {FAILS_ONCE.format("grown", "grown")!r}, mem="20M", retries=1, retry_delay=timedelta(seconds=1),
    on_finish={{"FAILED": retry(mem="x2", exclude_nodes=True)}},
)
plain(
    "emptied", "exit 1", mem="{{{{ '20M' if ti.try_number == 1 else 'much' }}}}", retries=1,
    retry_delay=timedelta(seconds=1),
)
plain("failed", "exit 3", on_failure_callback=note)
plain("noted", on_success_callback=note)
plain("limited", execution_timeout=timedelta(minutes=5))
plain("pooled", pool="default_pool", outlets=[])
SbatchOperator.partial(task_id="mapped", command="echo $WHAT", **free).expand(env=[{{"WHAT": "x"}}, {{"WHAT": "y"}}])
SbatchOperator(task_id="from_task", command="true", nodes=task(lambda: 1, task_id="one")(), **free)
plain("starts", end_from_trigger=False)
# Of a job of less than a second there are no figures.
plain("computed", "sleep 2; echo '[1, 2]'", result="json")
plain("elements", "echo $SLURM_ARRAY_TASK_ID", array="0,2", result="json", start_from_trigger=False, deferrable=False)
take.expand(one=plain("listed", "echo '[1, 2]'", result="json").output)
plain("ends", start_from_trigger=False, deferrable=True)
"""


def start(stack: Stack, slurm: Cluster) -> Run:
    callbacks(stack).mkdir()
    head = "from airflow_provider_soperator.operators.sbatch import retry"
    return stack.add_dag("without_worker", tasks(callbacks(stack)), files=FILES, head=head).trigger()


def callbacks(stack: Stack) -> Path:
    """Where callbacks leave their marks."""
    return stack.folder / "callbacks"


def log_of_success(run: Run, task_id: str, index: int = -1) -> str:
    run.wait(task_id, "success", index=index)
    return run.wait_log(task_id, "is COMPLETED", index)


@pytest.mark.parametrize(
    ("task_id", "said"), [("text", "run {run_id} 2"), ("file", "file of {run_id}"), ("pooled", "is COMPLETED")]
)
def test_no_worker_is_there_and_templates_are_rendered(run: Run, task_id: str, said: str) -> None:
    log = log_of_success(run, task_id)
    assert WORKER not in log
    assert said.format(run_id=run.run_id) in log


def test_the_result_is_what_it_would_be_from_a_worker(run: Run) -> None:
    log_of_success(run, "text")
    assert run.xcom("text")["state"] == "COMPLETED"
    run.wait("show", "success")
    run.wait_log("show", "what came: dict COMPLETED")


def test_what_a_job_has_computed_is_the_result_and_its_report_is_there_too(run: Run) -> None:
    # The one ends in the triggerer, the other in a worker.
    assert WORKER not in log_of_success(run, "computed")
    assert run.xcom("computed") == [1, 2]
    assert run.xcom("computed", key="job")["state"] == "COMPLETED"
    run.wait("elements", "success")
    assert run.xcom("elements") == [0, 2]
    assert [part["state"] for part in run.xcom("elements", key="job")["parts"]] == ["COMPLETED"] * 2


def test_tasks_are_mapped_over_what_a_job_has_computed(run: Run) -> None:
    assert WORKER in log_of_success(run, "listed")
    for index in range(2):
        run.wait("take", "success", index=index)
        run.wait_log("take", f"took: {index + 1}", index)


def test_the_figures_of_accounting_are_in_log_and_report(run: Run) -> None:
    log_of_success(run, "computed")
    run.wait_log("computed", "of its CPU time")
    assert run.xcom("computed", key="job")["cpu_efficiency"] is not None


def test_a_failed_job_is_tried_again_as_a_job_of_its_own(run: Run, slurm: Cluster) -> None:
    assert run.wait("retried", "success")["try_number"] == 2
    Jobs(slurm, run, "retried").wait("FAILED", "COMPLETED")


def test_a_try_that_has_no_job_has_not_that_of_the_one_before_either(run: Run) -> None:
    assert run.wait("emptied", "failed")["try_number"] == 2
    found = run.api.call("GET", f"{run.path}/taskInstances/emptied/xcomEntries")["xcom_entries"]
    # Airflow stores what buttons show, here nothing.
    assert {entry["key"] for entry in found} <= {"_link_job_link", "_link_output_link", "_link_grafana_link"}


def test_a_retry_has_what_it_was_to_change(run: Run, slurm: Cluster) -> None:
    assert run.wait("grown", "success")["try_number"] == 2
    first, second = Jobs(slurm, run, "grown").wait("FAILED", "COMPLETED")
    shown = slurm.run("squeue", "--noheader", "--states=all", f"--jobs={first},{second}", "--format=%A|%m|%N")
    rows = {row.split("|")[0]: row.split("|")[1:] for row in shown.splitlines()}
    assert [rows[job][0] for job in (first, second)] == ["20M", "40M"]
    assert rows[first][1] != rows[second][1]


@pytest.mark.parametrize(
    ("task_id", "said"), [("invalid", "mem: "), ("refused", "invalid partition specified: nowhere")]
)
def test_what_another_try_would_not_mend_is_not_tried_again(run: Run, task_id: str, said: str) -> None:
    run.wait_failed_for_good(task_id)
    run.wait_log(task_id, said)


def test_an_end_means_what_on_finish_says(run: Run) -> None:
    run.wait("skipped", "skipped")


@pytest.mark.parametrize(("task_id", "state"), [("failed", "failed"), ("noted", "success")])
def test_callbacks_are_called(run: Run, task_id: str, state: str) -> None:
    run.wait(task_id, state)
    mark = callbacks(run.stack) / task_id
    run.stack.wait("the callback was called", mark.exists)
    assert mark.read_text() == run.run_id


@pytest.mark.parametrize(
    ("task_id", "index"),
    [("limited", -1), ("pulled", -1), ("mapped", 0), ("mapped", 1), ("from_task", -1), ("ends", -1)],
)
def test_what_needs_a_worker_to_start_gets_one(run: Run, task_id: str, index: int) -> None:
    log = log_of_success(run, task_id, index)
    assert log.rindex(WORKER) < log.index(" submitted")


@pytest.mark.parametrize("task_id", ["noted", "starts"])
def test_what_needs_a_worker_to_end_gets_one(run: Run, task_id: str) -> None:
    run.wait(task_id, "success")
    log = run.wait_log(task_id, WORKER)
    assert log.index(WORKER) > log.index("is COMPLETED")
