"""Tasks on nodes beside those of Airflow's own executor: whatever dies or waits, each try has one job."""

from __future__ import annotations

import signal

import pytest

from tests.airflow.jobs import Jobs
from tests.airflow.stack import Run, Stack
from tests.integration.cluster import Cluster, until

HEAD = f"""
ON_NODE = dict(executor="SlurmExecutor", executor_config={{"partition": "main"}})

def held(task_id, **asked):
    BashOperator(
        task_id=task_id,
        bash_command='echo begun; {until("/root/go-$SLURM_JOB_ID")}; echo let go',
        executor="SlurmExecutor",
        executor_config={{"partition": "main", **asked}},
    )
"""
MIXED = """
from airflow.sdk import get_current_context
from airflow.providers.standard.sensors.time_delta import TimeDeltaSensor

def job():
    import os
    return os.environ.get("SLURM_JOB_ID"), os.environ.get("SLURM_ARRAY_JOB_ID")

@task(**ON_NODE)
def on_node():
    return job()[0]

@task
def beside(number):
    assert number and job() == (None, None)

@task(**ON_NODE)
def mapped(index):
    print("in array", job()[1])

@task.sensor(mode="reschedule", poke_interval=1, **ON_NODE)
def rescheduled(dag_run=None):
    import os
    poked = Path(os.environ["AIRFLOW_HOME"], f"poked-{dag_run.dag_id}")
    if job()[0] and poked.exists():
        return True
    poked.touch()

@task(executor="SlurmExecutor", executor_config={"partition": "main", "share": 4, "cpus_per_task": 2})
def sharing(index):
    print("in job", job()[0])

beside(on_node())
mapped.expand(index=[1, 2, 3])
sharing.expand(index=[1, 2, 3])
rescheduled()
TimeDeltaSensor(task_id="deferred", delta=timedelta(seconds=0), deferrable=True, **ON_NODE)
BashOperator(task_id="fails", bash_command="exit 3", **ON_NODE)
NOWHERE = {"partition": "nowhere"}
BashOperator(task_id="rejected", bash_command="true", executor="SlurmExecutor", executor_config=NOWHERE)
"""
DEATHS = """
held("running")
held("waiting", hold=True)
held("ended")
held("cancelled")
held("cleared", hold=True)
"""


def start(stack: Stack, slurm: Cluster) -> Run:
    return stack.add_dag("executors", MIXED, head=HEAD).trigger()


def told(run: Run, task_id: str) -> str:
    """The audit log of a task."""
    found = run.stack.call("GET", "/eventLogs", params={"dag_id": run.dag_id, "task_id": task_id, "limit": 100})
    return "\n".join(f"{row['event']}: {row['extra']}" for row in found["event_logs"])


def test_tasks_of_all_kinds_succeed_on_nodes_beside_others(run: Run) -> None:
    for task_id in ("on_node", "beside", "rescheduled", "deferred"):
        assert run.wait(task_id, "success")["try_number"] == 1
    assert run.task("on_node")["hostname"].startswith("worker")
    for index in range(3):
        run.wait("mapped", "success", index=index)
        run.wait("sharing", "success", index=index)


def test_mapped_tasks_are_one_array_and_sharing_ones_one_job(run: Run, slurm: Cluster) -> None:
    for task_id in ("mapped", "sharing"):
        for index in range(3):
            run.wait(task_id, "success", index=index)
    # Two, if the scheduler was interrupted between them.
    assert len(Jobs(slurm, run, "mapped").states()) < 3
    logs = [run.wait_log("sharing", "in job", index) for index in range(3)]
    numbers = {line for log in logs for line in log.splitlines() if line.startswith("in job")}
    assert len(numbers) < 3


def test_a_task_that_fails_has_failed_though_its_job_did_its_work(run: Run, slurm: Cluster) -> None:
    run.wait("fails", "failed")
    assert "exit code 3" in run.log("fails")
    Jobs(slurm, run, "fails").wait("COMPLETED")


def test_what_slurm_rejects_is_told_in_its_words(run: Run) -> None:
    run.wait("rejected", "failed")
    assert "partition 'nowhere'" in told(run, "rejected")
    run.wait_log("rejected", "The job could not be submitted")


@pytest.mark.in_order
class TestDeaths:
    """One run, as each scheduler is missed for half a minute."""

    @pytest.fixture(scope="class")
    def deaths(self, stack: Stack) -> Run:
        return stack.add_dag("executor_deaths", DEATHS, head=HEAD).trigger()

    def test_a_log_is_read_while_the_task_runs(self, deaths: Run) -> None:
        deaths.wait("running", "running")
        assert "On the cluster: /" in deaths.wait_log("running", "begun")

    def test_a_task_may_wait_for_longer_than_airflow_would_let_it(
        self, deaths: Run, stack: Stack, slurm: Cluster
    ) -> None:
        jobs = Jobs(slurm, deaths, "waiting")
        jobs.wait("PENDING")
        stack.wait("it is told why it waits", lambda: "its owner holds it (JobHeldUser)" in told(deaths, "waiting"))
        before = stack.components["scheduler"].log.read_text().count("resetting orphaned tasks")
        age = "UPDATE task_instance SET queued_dttm = queued_dttm - interval '1 hour' WHERE dag_id = :dag"
        stack.change(age, dag=deaths.dag_id)

        def has_looked() -> bool:
            # It looks for these twice as rarely as for tasks that are stuck.
            return stack.components["scheduler"].log.read_text().count("resetting orphaned tasks") > before + 2

        stack.wait("the scheduler has looked for tasks that are stuck", has_looked)
        assert deaths.task("waiting")["state"] == "queued"
        jobs.wait("PENDING")

    def test_a_task_that_is_cleared_while_it_waits_ends_its_job(self, deaths: Run, slurm: Cluster) -> None:
        jobs = Jobs(slurm, deaths, "cleared")
        jobs.wait("PENDING")
        deaths.clear("cleared")
        jobs.wait("CANCELLED", "PENDING")
        deaths.mark("cleared", "failed")
        jobs.wait("CANCELLED", "CANCELLED")

    def test_the_end_of_a_job_is_explained(self, deaths: Run, slurm: Cluster) -> None:
        jobs = Jobs(slurm, deaths, "cancelled")
        deaths.wait("cancelled", "running")
        jobs.cancel()
        deaths.wait("cancelled", "failed")
        assert "Diagnosis of job" in deaths.wait_log("cancelled", " by root")
        assert " by root" in told(deaths, "cancelled")

    def test_a_scheduler_that_is_killed_leaves_one_job_for_each_try(
        self, deaths: Run, stack: Stack, slurm: Cluster
    ) -> None:
        ended = Jobs(slurm, deaths, "ended")
        node = deaths.wait("ended", "running")["hostname"]
        scheduler = stack.components["scheduler"]
        scheduler.end(signal.SIGKILL)
        # With the supervisor of the task, which can report nothing.
        [job] = ended.states()
        slurm.run("sh", "-c", f"kill -9 $(scontrol listpids {job} | awk 'NR > 1 && $1 > 0 {{print $1}}')", pod=node)
        ended.wait("FAILED")
        scheduler.start()
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
