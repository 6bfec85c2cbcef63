"""Tasks on nodes that are cleared or cancelled, wait for long, or lose their scheduler: each try has one job."""

from __future__ import annotations

import signal

import pytest

from tests.airflow.executors import HEAD, wait_told
from tests.airflow.jobs import Jobs
from tests.airflow.stack import Run, Stack
from tests.integration.cluster import Cluster

DEATHS = """
held("running")
held("waiting", hold=True)
held("ended")
held("cancelled")
held("cleared", hold=True)
"""

# One run: the last test kills the scheduler under all that is left of it.
pytestmark = [pytest.mark.lane("airflow of the executor"), pytest.mark.in_order]


@pytest.fixture(scope="module")
def deaths(stack: Stack) -> Run:
    return stack.add_dag("executor_deaths", DEATHS, head=HEAD).trigger()


def test_a_log_is_read_while_the_task_runs(deaths: Run) -> None:
    deaths.wait("running", "running")
    assert "On the cluster: /" in deaths.wait_log("running", "begun")


def test_a_task_may_wait_for_longer_than_airflow_would_let_it(deaths: Run, stack: Stack, slurm: Cluster) -> None:
    jobs = Jobs(slurm, deaths, "waiting")
    jobs.wait("PENDING")
    wait_told(deaths, "waiting", "its owner holds it (JobHeldUser)")
    before = stack.components["scheduler"].log.read_text().count("resetting orphaned tasks")
    age = "UPDATE task_instance SET queued_dttm = queued_dttm - interval '1 hour' WHERE dag_id = :dag"
    stack.change(age, dag=deaths.dag_id)

    def has_looked() -> bool:
        # It looks for these twice as rarely as for tasks that are stuck.
        return stack.components["scheduler"].log.read_text().count("resetting orphaned tasks") > before + 2

    stack.wait("the scheduler has looked for tasks that are stuck", has_looked)
    assert deaths.task("waiting")["state"] == "queued"
    jobs.wait("PENDING")


def test_a_task_that_is_cleared_while_it_waits_ends_its_job(deaths: Run, slurm: Cluster) -> None:
    jobs = Jobs(slurm, deaths, "cleared")
    jobs.wait("PENDING")
    deaths.clear("cleared")
    jobs.wait("CANCELLED", "PENDING")
    deaths.mark("cleared", "failed")
    jobs.wait("CANCELLED", "CANCELLED")


def test_the_end_of_a_job_is_explained(deaths: Run, slurm: Cluster) -> None:
    jobs = Jobs(slurm, deaths, "cancelled")
    deaths.wait("cancelled", "running")
    jobs.cancel()
    deaths.wait("cancelled", "failed")
    assert "Diagnosis of job" in deaths.wait_log("cancelled", " by root")
    wait_told(deaths, "cancelled", " by root")


def test_a_scheduler_that_is_killed_leaves_one_job_for_each_try(deaths: Run, stack: Stack, slurm: Cluster) -> None:
    ended = Jobs(slurm, deaths, "ended")
    node = deaths.wait("ended", "running")["hostname"]
    stack.end("scheduler", signal.SIGKILL)
    # With the supervisor of the task, which can report nothing.
    [job] = ended.states()
    slurm.run("sh", "-c", f"kill -9 $(scontrol listpids {job} | awk 'NR > 1 && $1 > 0 {{print $1}}')", pod=node)
    ended.wait("FAILED")
    stack.components["scheduler"].start()
    for task_id in ("running", "waiting"):
        jobs = Jobs(slurm, deaths, task_id)
        [job] = jobs.states()
        slurm.try_run("scontrol", "release", job)
        jobs.let_go()
        deaths.wait(task_id, "success")
        jobs.wait("COMPLETED")
    deaths.wait("ended", "failed")
    # What has ended while no scheduler lived is not run again.
    ended.wait("FAILED")
    deaths.wait_log("ended", "Diagnosis of job")


@pytest.mark.soak
def test_what_a_dead_scheduler_has_not_submitted_is_submitted_in_the_same_try(stack: Stack, slurm: Cluster) -> None:
    """slurmctld is away meanwhile, so that nothing says yet whether there is a job."""
    dag = stack.add_dag("never_submitted", 'held("late")', head=HEAD)
    slurm.fault("slurmctld-down")
    run = dag.trigger()
    run.wait("late", "queued")

    def adopted_by() -> int:
        [(job,)] = stack.ask("SELECT queued_by_job_id FROM task_instance WHERE dag_id = :dag", dag=dag.dag_id)
        return int(job or 0)

    first = stack.wait("it is the scheduler's", adopted_by, is_cheap=True)
    stack.end("scheduler", signal.SIGKILL)
    stack.components["scheduler"].start()
    stack.wait("it is the next scheduler's", lambda: adopted_by() > first, is_cheap=True)
    slurm.sandbox.up()
    run.wait("late", "running")
    jobs = Jobs(slurm, run, "late")
    jobs.wait("RUNNING")
    jobs.let_go()
    assert run.wait("late", "success")["try_number"] == 1
    jobs.wait("COMPLETED")
