"""What an edge between two stages means: for the job in Slurm, and for the task in Airflow."""

from __future__ import annotations

import pytest

from sandbox.airflow import interpreter
from tests.airflow.pipelines import HEAD, OPTIONS, Pipeline
from tests.airflow.stack import Run, Stack
from tests.integration.cluster import Cluster

BODY = """
sleeper = "sleep 2"
# What may be deferred is with the pipelines that change: each stage that is takes another second of two processes.
with SbatchPipeline("kinds", default_args={"deferrable": False}):
    good, bad, unhappy = job("good"), job("bad", "exit 3"), job("unhappy", "exit 4", on_finish={4: "succeed"})
    good >> job("ok_of_good")
    bad >> job("ok_of_bad") >> job("ok_of_ok_of_bad")
    bad >> afterany() >> job("any_of_bad")
    bad >> afternotok() >> job("not_ok_of_bad")
    not_ok = job("not_ok_of_good")
    good >> afternotok() >> not_ok >> job("ok_of_skipped")
    not_ok >> afterany() >> job("any_of_skipped")
    unhappy >> job("ok_of_unhappy")
    both = job("ok_and_any")
    good >> both
    bad >> afterany() >> both
    unmet = job("ok_and_not_ok")
    bad >> unmet
    good >> afternotok() >> unmet

with SbatchPipeline("early"):
    slow = job("slow", HELD, array="0-1")
    slow >> after() >> job("after")
    slow >> aftercorr() >> job("corr", 'test "$SLURM_ARRAY_TASK_ID" = 0', array="0-1")

with SbatchPipeline("alike"):
    for number in range(3):
        job(f"single_{number}", sleeper, name="alike", dependency="singleton")

with SbatchPipeline("shapes", default_args={"deferrable": False}) as shapes:
    @task
    def numbers():
        return ["one", "two"]

    @task.sbatch(python=PYTHON)
    def square(number):
        return number * number

    @task
    def between():
        return "seen"

    prepare, last = job("prepare"), job("last")
    fan = SbatchOperator.partial(task_id="fan").expand(env=[{"N": "1"}, {"N": "2"}, {"N": "3"}])
    late = SbatchOperator.partial(task_id="late", command="true").expand(name=numbers())
    parts = [{"ntasks": 1, "mem": "20M"}]
    prepare >> fan >> job("joined") >> job("mixed", het=parts) >> square(3) >> last
    prepare >> between() >> job("cut", "echo {{ ti.xcom_pull('shapes.between') }}") >> last
    late >> last
    prepare >> job("elsewhere", slurm_conn_id="soperator_kubernetes") >> last
    square.override(task_id="of_square")(square.override(task_id="first_square")(2)) >> last

@task
def report():
    pass

shapes >> report()
""".replace('SbatchOperator.partial(task_id="fan")', 'SbatchOperator.partial(task_id="fan", command="echo $N")')


def start(stack: Stack, slurm: Cluster) -> Run:
    head = f"{HEAD}PYTHON = {interpreter.install(slurm.sandbox.init.root())!r}\n"
    return stack.add_dag("edges", BODY, head=head, dag_options=OPTIONS).trigger()


@pytest.fixture(scope="module")
def kinds(run: Run, slurm: Cluster) -> Pipeline:
    pipeline = Pipeline(run, slurm, "kinds")
    pipeline.wait_ends()
    return pipeline


@pytest.mark.parametrize(
    ("stage", "task", "jobs"),
    [
        ("good", "success", ["COMPLETED"]),
        ("bad", "failed", ["FAILED"]),
        ("ok_of_good", "success", ["COMPLETED"]),
        ("ok_of_bad", "upstream_failed", ["CANCELLED"]),
        ("ok_of_ok_of_bad", "upstream_failed", ["CANCELLED"]),
        ("any_of_bad", "success", ["COMPLETED"]),
        ("not_ok_of_bad", "success", ["COMPLETED"]),
        ("not_ok_of_good", "skipped", ["CANCELLED"]),
        ("ok_of_skipped", "skipped", ["CANCELLED"]),
        ("any_of_skipped", "success", ["COMPLETED"]),
        ("unhappy", "success", ["FAILED"]),
        ("ok_of_unhappy", "success", ["COMPLETED"]),
        ("ok_and_any", "success", ["COMPLETED"]),
        ("ok_and_not_ok", "failed", ["CANCELLED"]),
    ],
)
def test_task_and_job_agree(kinds: Pipeline, stage: str, task: str, jobs: list[str]) -> None:
    assert kinds.states()[stage] == task, kinds.run.log(f"kinds.{stage}")
    kinds.wait_jobs({stage: jobs})


def test_one_job_follows_the_other_at_once(kinds: Pipeline) -> None:
    [before], [after] = kinds.jobs("good"), kinds.jobs("ok_of_good")
    assert before.id == kinds.ahead("good")
    assert after.id == kinds.ahead("ok_of_good")
    # Neither waited for its task to begin.
    assert before.ended <= after.started
    assert after.submitted < kinds.began("ok_of_good")


def test_nothing_is_left_in_the_queue(kinds: Pipeline) -> None:
    assert kinds.waiting() == []


def test_a_job_that_may_begin_early_is_seen_early(run: Run, slurm: Cluster) -> None:
    early = Pipeline(run, slurm, "early")
    run.wait("early.after", "success")
    # Its task may be on its way to the triggerer.
    run.wait("early.slow", "deferred")
    [slow] = {job.whole for job in early.jobs("slow")}
    slurm.let_go(f"{slow}_0")
    early.wait_job("corr", 0, "COMPLETED")
    early.wait_jobs({"slow": ["COMPLETED", "RUNNING"]})
    slurm.let_go(f"{slow}_1")
    early.wait_ends()
    assert early.states()["slow"] == "success"
    assert early.states()["corr"] == "failed"
    early.wait_jobs({"corr": ["COMPLETED", "FAILED"]})


def test_jobs_of_one_name_run_one_by_one(run: Run, slurm: Cluster) -> None:
    alike = Pipeline(run, slurm, "alike")
    alike.wait_ends()
    jobs = sorted((alike.jobs(f"single_{number}")[0] for number in range(3)), key=lambda job: job.started)
    assert {job.state for job in jobs} == {"COMPLETED"}
    assert jobs[0].ended <= jobs[1].started
    assert jobs[1].ended <= jobs[2].started


def test_shapes(run: Run, slurm: Cluster) -> None:
    shapes = Pipeline(run, slurm, "shapes")
    shapes.wait_ends()
    assert set(shapes.states().values()) == {"success"}, shapes.states()
    # Submitted together, up to the tasks of Airflow's that stand between.
    together = set(shapes.ahead_jobs("submit"))
    assert {"prepare", "fan[0]", "fan[2]", "joined", "mixed", "square", "first_square"} <= together
    assert not {"cut", "late[0]", "last", "of_square", "elsewhere"} & together
    assert {"elsewhere"} in [set(shapes.ahead_jobs(f"submit_{number}")) for number in range(2, 7)]
    assert len(shapes.jobs("fan")) == 3
    assert max(job.ended for job in shapes.jobs("fan")) <= shapes.jobs("joined")[0].started
    assert run.xcom("shapes.square") == 9
    assert run.xcom("shapes.of_square") == 16
    assert "seen" in run.wait_log("shapes.cut", "seen").splitlines()
    run.wait("report", "success")
