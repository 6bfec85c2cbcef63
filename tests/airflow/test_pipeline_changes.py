"""What a pipeline makes of what happens to it: retries, clears, kills, requeues, and jobs that are refused."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import pytest

from tests.airflow.pipelines import HEAD, OPTIONS, PastJob, Pipeline
from tests.airflow.stack import Run, Stack
from tests.airflow.stories import Stories
from tests.integration.cluster import Cluster

#: Each pipeline is of the same three stages in a row, of which the first one or two want to be let go.
BODY = """
once = "mkdir /root/failed-once-{{ run_id | replace(':', '_') }} || exit 0; exit 1"

def chain(name, a="true", b="true", c="true", **options):
    with SbatchPipeline(name, **options) as group:
        fails = {"retries": 1, "retry_delay": timedelta(seconds=1)} if a is once else {}
        # Two jobs of most tasks are over by the time that these begin.
        job("a", a, **fails) >> job("b", b, deferrable=False) >> job("c", c, deferrable=False)
    return group

chain("retried", once)
chain("cleared")
chain("alone", default_args={"deferrable": False})
chain("failed_first", once.replace("failed-once", "failed-first"))
chain("marked_failed", HELD)
chain("marked_success", HELD)
chain("marked_early", HELD, c=HELD)
chain("in_worker", HELD, default_args={"deferrable": False})
chain("cancelled", HELD)
chain("requeued", HELD)
chain("held_back", HELD)
chain("dry", plan_only="{{ 1 == 1 }}")

SbatchPipeline.from_shell("imported", '''
A=$(sbatch --parsable --wrap 'echo ${#HOME}')
B=$(sbatch --parsable -d afterok:$A --wrap true)
sbatch --dependency=afterany:$A:$B --job-name=c --wrap true
''')

with SbatchPipeline("refused"):
    job("a") >> job("b", partition="nowhere") >> job("c")

with SbatchPipeline("followed"):
    once_of_two = once.replace("failed-once", "failed-of-two")
    job("a", once_of_two, array="0-1") >> aftercorr() >> job("b", array="0-1", deferrable=True)

with SbatchPipeline("asks"):
    job("a") >> job("b", "echo {{ ti.xcom_pull('asks.a') }}")

with SbatchPipeline("sides"):
    job("a", "exit 1")
    job("other", HELD) >> job("end")
"""

# The last test ends the run that all share.
pytestmark = pytest.mark.in_order


@dataclass
class Pipelines:
    run: Run
    cluster: Cluster

    def __getitem__(self, name: str) -> Pipeline:
        return Pipeline(self.run, self.cluster, name)

    def running(self, name: str, stage: str = "a") -> tuple[Pipeline, str]:
        """A pipeline once the job of its first stage runs, and that job."""
        pipeline = self[name]
        self.run.wait_log(f"{name}.{stage}", "begun", number=1)
        return pipeline, pipeline.ahead(stage)


def a_retry_takes_those_along_that_wait(pipelines: Pipelines) -> None:
    retried = pipelines["retried"]
    retried.wait_ends()
    assert retried.states() == {"a": "success", "b": "success", "c": "success"}
    retried.wait_jobs({"a": ["FAILED", "COMPLETED"], "b": ["COMPLETED"], "c": ["COMPLETED"]})
    [failed, second], [b] = retried.jobs("a"), retried.jobs("b")
    # The job of b is that of the beginning, and waited for the second job of a, not for its own task.
    assert [failed.id, b.id] == [retried.ahead("a"), retried.ahead("b")]
    assert second.ended <= b.started
    assert b.submitted < retried.began("b")
    assert f"Job {b.id} waits for job {second.id} now" in retried.run.log("retried.a", number=2)


def a_refusal_leaves_nothing(pipelines: Pipelines) -> None:
    refused = pipelines["refused"]
    refused.run.wait("refused.submit", "failed")
    log = refused.run.wait_log("refused.submit", "refused.b: ")
    assert "invalid partition specified: nowhere" in log
    assert "no job of the group was left in the queue" in log
    refused.run.stack.wait("all are done", lambda: set(refused.states().values()) == {"upstream_failed"})
    assert refused.waiting() == []
    refused.run.stack.wait(
        "accounting has none but cancelled ones",
        lambda: {job.state for stage in "abc" for job in refused.jobs(stage)} <= {"CANCELLED"},
    )


def a_template_cannot_ask_for_what_is_yet_to_come(pipelines: Pipelines) -> None:
    run = pipelines.run
    run.wait("asks.submit", "failed")
    assert "asks.b asks in its templates for what asks.a leaves behind" in run.wait_log("asks.submit", "asks.b asks")


def a_dry_run_tells_what_it_would_do(pipelines: Pipelines) -> None:
    dry = pipelines["dry"]
    dry.run.wait("dry.submit", "skipped")
    log = dry.run.wait_log("dry.submit", "sbatch --parsable")
    assert "--dependency=afterok:$" in log
    dry.run.stack.wait("all are skipped", lambda: set(dry.states().values()) == {"skipped"})


def a_shell_script_is_run_as_a_pipeline(pipelines: Pipelines) -> None:
    imported = pipelines["imported"]
    imported.wait_ends()
    assert imported.states() == dict.fromkeys("abc", "success")
    assert imported.ahead_jobs().keys() == set("abc")


def what_cannot_run_any_more_leaves_the_queue_while_others_go_on(pipelines: Pipelines) -> None:
    sides, other = pipelines.running("sides", "other")
    sides.run.wait("sides.a", "failed")
    assert sides.states()["end"] is None
    sides.let_go(other)
    sides.wait_ends()
    assert sides.states() == {"a": "failed", "other": "success", "end": "success"}


def a_stage_that_is_marked_as_failed_takes_the_rest_along(pipelines: Pipelines, name: str = "marked_failed") -> None:
    pipeline, _ = pipelines.running(name)
    pipeline.run.mark(f"{name}.a", "failed")
    pipeline.run.stack.wait("the queue has none of them", lambda: pipeline.waiting() == [])
    pipeline.wait_ends()
    assert pipeline.states() == {"a": "failed", "b": "upstream_failed", "c": "upstream_failed"}
    pipeline.wait_jobs({stage: ["CANCELLED"] for stage in "abc"})


def after_a_stage_that_is_marked_as_successful_the_next_one_runs(pipelines: Pipelines) -> None:
    pipeline, _ = pipelines.running("marked_success")
    pipeline.run.mark("marked_success.a", "success")
    pipeline.wait_ends()
    assert pipeline.states() == dict.fromkeys("abc", "success")
    pipeline.wait_jobs({"a": ["CANCELLED"], "b": ["COMPLETED"], "c": ["COMPLETED"]})
    assert [job.id for job in pipeline.jobs("b")] == [pipeline.ahead("b")]


def a_stage_that_is_marked_as_successful_before_its_turn_leaves_no_job(pipelines: Pipelines) -> None:
    pipeline, job = pipelines.running("marked_early")
    pipeline.run.mark("marked_early.c", "success")
    pipeline.let_go(job)
    pipeline.wait_ends()
    assert pipeline.states() == dict.fromkeys("abc", "success")
    pipeline.wait_job("c", 0, "CANCELLED")
    pipeline.wait_jobs({"a": ["COMPLETED"], "b": ["COMPLETED"], "c": ["CANCELLED"]})
    assert pipeline.waiting() == []


def a_job_that_somebody_cancels_takes_the_rest_along(pipelines: Pipelines) -> None:
    pipeline, job = pipelines.running("cancelled")
    pipelines.cluster.run("scancel", job)
    pipeline.wait_ends()
    assert pipeline.states() == {"a": "failed", "b": "upstream_failed", "c": "upstream_failed"}
    pipeline.wait_jobs({stage: ["CANCELLED"] for stage in "abc"})
    assert pipeline.waiting() == []


def a_requeue_keeps_the_chain(pipelines: Pipelines) -> None:
    pipeline, job = pipelines.running("requeued")
    pipelines.cluster.run("scontrol", "requeue", job)
    pipeline.run.wait_log("requeued.a", "requeued once")
    # Slurm lets two minutes pass, which is a matter of its own.
    pipelines.cluster.start_soon(job)
    pipelines.cluster.let_go(job)
    pipeline.wait_ends()
    assert pipeline.states() == dict.fromkeys("abc", "success")
    assert [job.id for job in pipeline.jobs("b")] == [pipeline.ahead("b")]
    pipeline.wait_jobs({"c": ["COMPLETED"]})


def a_stage_and_what_follows_it_is_cleared(pipelines: Pipelines) -> None:
    pipeline = pipelines["cleared"]
    pipeline.wait_ends()
    pipeline.run.clear("cleared.b", with_downstream=True)
    pipeline.run.wait("cleared.c", "success", least_try=2)
    assert pipeline.states() == dict.fromkeys("abc", "success")
    pipeline.wait_jobs({"a": ["COMPLETED"], "b": ["COMPLETED"] * 2, "c": ["COMPLETED"] * 2})
    b, c = pipeline.jobs("b")[1], pipeline.jobs("c")[1]
    assert [b.id, c.id] == [pipeline.ahead("b"), pipeline.ahead("c")]
    assert b.ended <= c.started
    assert c.submitted < pipeline.began("c")


def a_stage_is_cleared_alone(pipelines: Pipelines) -> None:
    pipeline = pipelines["alone"]
    pipeline.wait_ends()
    pipeline.run.clear("alone.b")
    pipeline.run.wait("alone.b", "success", least_try=2)
    pipeline.wait_jobs({"a": ["COMPLETED"], "b": ["COMPLETED"] * 2, "c": ["COMPLETED"]})


def what_has_failed_is_cleared(pipelines: Pipelines) -> None:
    """Nothing else, so `submit` does not run again: the jobs that it submitted are cancelled by now."""
    pipeline = pipelines["failed_first"]
    pipeline.wait_ends()
    assert pipeline.states() == {"a": "failed", "b": "upstream_failed", "c": "upstream_failed"}
    pipeline.run.clear("failed_first.a", with_downstream=True, only_failed=True)
    pipeline.run.wait("failed_first.c", "success")
    assert pipeline.states() == dict.fromkeys("abc", "success")
    new = ["CANCELLED", "COMPLETED"]
    pipeline.wait_jobs({"a": ["FAILED", "COMPLETED"], "b": new, "c": new})


def one_that_follows_task_by_task_is_cleared_with_what_has_failed(pipelines: Pipelines) -> None:
    """It begins at once, and takes no slot until there is a new job for it to follow."""
    pipeline = pipelines["followed"]
    pipeline.wait_ends()
    assert pipeline.states() == {"a": "failed", "b": "failed"}
    pipeline.run.clear("followed.a", with_downstream=True, only_failed=True)
    pipeline.run.wait("followed.b", "success")
    assert pipeline.states() == dict.fromkeys("ab", "success")

    def submitted_again(stage: str) -> list[PastJob]:
        return [job for job in pipeline.jobs(stage) if job.id.partition("_")[0] != pipeline.ahead(stage)]

    pipeline.run.stack.wait("accounting has both", lambda: [len(submitted_again(stage)) for stage in "ab"] == [2, 2])
    assert max(job.ended for job in submitted_again("a")) <= min(job.started for job in submitted_again("b"))
    # Unless there was one when it looked.
    new, log = submitted_again("a")[0].id.partition("_")[0], pipeline.run.log("followed.b")
    assert "followed.a, which this is to follow (aftercorr), has no job yet" in log or f"aftercorr:{new}" in log


def stages_are_cleared(pipelines: Pipelines) -> None:
    """One after the other: Airflow counts the clears of a run, and a job is that of its clear."""
    a_stage_and_what_follows_it_is_cleared(pipelines)
    a_stage_is_cleared_alone(pipelines)
    what_has_failed_is_cleared(pipelines)
    one_that_follows_task_by_task_is_cleared_with_what_has_failed(pipelines)


def the_same_in_a_worker(pipelines: Pipelines) -> None:
    a_stage_that_is_marked_as_failed_takes_the_rest_along(pipelines, "in_worker")


STORIES = (
    a_retry_takes_those_along_that_wait,
    a_refusal_leaves_nothing,
    a_template_cannot_ask_for_what_is_yet_to_come,
    a_dry_run_tells_what_it_would_do,
    a_shell_script_is_run_as_a_pipeline,
    what_cannot_run_any_more_leaves_the_queue_while_others_go_on,
    a_stage_that_is_marked_as_failed_takes_the_rest_along,
    after_a_stage_that_is_marked_as_successful_the_next_one_runs,
    a_stage_that_is_marked_as_successful_before_its_turn_leaves_no_job,
    a_job_that_somebody_cancels_takes_the_rest_along,
    a_requeue_keeps_the_chain,
    stages_are_cleared,
    the_same_in_a_worker,
)


def start(stack: Stack, slurm: Cluster) -> tuple[Pipelines, Stories]:
    run = stack.add_dag("changes", BODY, head=HEAD, dag_options=OPTIONS).trigger()
    pipelines = Pipelines(run, slurm)
    return pipelines, Stories({story.__name__: partial(story, pipelines) for story in STORIES})


@pytest.mark.parametrize("story", [story.__name__ for story in STORIES])
def test_it_changes_with_what_happens_to_it(begun: tuple[Pipelines, Stories], story: str) -> None:
    begun[1].end(story)


def test_a_run_that_is_ended_leaves_nothing(begun: tuple[Pipelines, Stories]) -> None:
    """The last of all, as it ends whatever still goes on."""
    pipelines, stories = begun
    stories.wait()
    pipeline, _ = pipelines.running("held_back")
    pipeline.run.end("failed")
    pipeline.run.stack.wait("the queue has none of them", lambda: pipeline.waiting() == [])
    pipeline.wait_jobs({stage: ["CANCELLED"] for stage in "abc"})
