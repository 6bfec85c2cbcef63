"""What the objects say of active checks, and what they leave open."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_soperator.slurm.job_ids import JobId
from airflow_provider_soperator.slurm.job_records import Job, JobStatus
from airflow_provider_soperator.slurm.states import JobState
from airflow_provider_soperator.soperator.active_checks import (
    FOLLOWS,
    CheckSeen,
    find,
    job_name,
    job_of,
    judged,
    newest,
    under_way,
)
from airflow_provider_soperator.soperator.check_results import (
    CheckResult,
    JobEnd,
    RunState,
    drain_reason,
    of_slurm,
    refuse_unread,
)
from airflow_provider_soperator.soperator.objects import ObjectMissing
from tests.unit.soperator.active_checks import NOW, active_check, ago, job

JUST_NOW = ago(seconds=FOLLOWS.total_seconds() / 2)


@pytest.mark.parametrize(
    ("check", "run", "state"),
    [
        # A check of Kubernetes is over with its Job.
        (active_check(kind="k8sJob"), job(), "InProgress"),
        (active_check(kind="k8sJob"), job(end="Complete"), "Complete"),
        (active_check(kind="k8sJob"), job(end="Failed"), "Failed"),
        (active_check(kind="k8sJob"), job(end="SuccessCriteriaMet"), "InProgress"),
        (active_check(kind="k8sJob", lastJobName="run-0", lastJobStatus="Complete"), job(end="Failed"), "Failed"),
        # One of Slurm is not: it has begun only.
        (active_check(), job(slurm_job_id="7,8"), "InProgress"),
        (active_check(), job(end="Complete", slurm_job_id="7,8", ended=JUST_NOW), "InProgress"),
        (active_check(), job(end="Complete", ended=JUST_NOW), "InProgress"),
        (active_check(), job(end="Complete", slurm_skipped_reason="no GPU nodes"), "Skipped"),
        (active_check(), job(end="Failed", message="no nodes to run on"), "Error"),
        # Soperator tells of a run by its first job in Slurm.
        (
            active_check(lastRunId="7", lastRunStatus="InProgress"),
            job(end="Complete", slurm_job_id="7,8"),
            "InProgress",
        ),
        (active_check(lastRunId="7", lastRunStatus="Complete"), job(end="Complete", slurm_job_id="7,8"), "Complete"),
        (active_check(lastRunId="7", lastRunStatus="Failed"), job(end="Complete", slurm_job_id="7,8"), "Failed"),
        (active_check(lastRunId="7", lastRunStatus="Cancelled"), job(end="Complete", slurm_job_id="7"), "Cancelled"),
        (active_check(lastRunId="7", lastRunStatus="Error"), job(end="Complete", slurm_job_id="7"), "Error"),
        (
            active_check(lastRunId="7", lastRunStatus="of-a-later-version"),
            job(end="Complete", slurm_job_id="7"),
            "InProgress",
        ),
        # What it says of another run says nothing of this one, ...
        (
            active_check(lastRunId="5", lastRunStatus="Failed"),
            job(end="Complete", slurm_job_id="7", ended=JUST_NOW),
            "InProgress",
        ),
        (active_check(lastRunId="8", lastRunStatus="Failed"), job(end="Complete", slurm_job_id="7,8"), "Unknown"),
        (
            active_check(lastRunId="No slurm job", lastRunName="run-0", lastRunStatus="Error"),
            job(end="Complete", slurm_job_id="7"),
            "Unknown",
        ),
        (
            active_check(lastRunId="No slurm job", lastRunName="run-1", lastRunStatus="Error"),
            job(end="Failed", slurm_job_id="7"),
            "Error",
        ),
        # ... but from 5.0 on the Job notes what Soperator still has to deal with.
        (active_check(), job(end="Complete", slurm_job_id="7,8", unhandled_slurm_job_id="8"), "InProgress"),
        (active_check(), job(end="Complete", slurm_job_id="7,8", unhandled_slurm_job_id=""), "Unknown"),
        (active_check(), job(end="Complete"), "Unknown"),
    ],
)
def test_what_a_run_is_by_kubernetes_alone(check: CheckSeen, run: Any, state: str) -> None:
    assert judged(check, run, NOW).state.value == state


def test_what_failed_is_told_as_far_as_soperator_notes_it() -> None:
    check = active_check(
        lastRunId="7",
        lastRunStatus="Failed",
        lastRunFailJobsAndReasons=[{"jobID": "8", "reason": "NonZeroExitCode"}],
        lastRunErrorJobsAndReasons=[{"jobID": "9", "reason": "TimeLimit"}],
        lastRunCancelledJobs=["10"],
    )
    outcome = judged(check, job(end="Complete", slurm_job_id="7,8,9,10"), NOW)
    assert str(outcome) == "Failed: job 8 (FAILED, NonZeroExitCode); job 9 (TimeLimit); job 10 (CANCELLED)"
    said = outcome.describe()
    assert (said["nodes"], said["failing"]) == ({}, [])
    assert [one["job_id"] for one in said["failed_jobs"]] == ["8", "9", "10"]


def test_a_run_that_submitted_nothing_says_why() -> None:
    outcome = judged(active_check(), job(end="Failed", message="Job has reached the backoff limit"), NOW)
    assert outcome.why == "it has submitted no job to Slurm (R: Job has reached the backoff limit)"
    assert judged(active_check(), job(end="Complete", slurm_skipped_reason="no GPUs"), NOW).why == "no GPUs"


def in_slurm(number: int, state: str, nodes: str = "", reason: str = "", lost: str = "") -> JobStatus:
    part = Job(id=JobId(number), state=JobState.parse(state), nodelist=nodes, reason=reason)
    return JobStatus(id=JobId(number), parts=() if lost else (part,), lost=lost)


@pytest.mark.parametrize(
    ("states", "state"),
    [
        (["COMPLETED", "COMPLETED"], "Complete"),
        (["COMPLETED", "RUNNING"], "InProgress"),
        (["FAILED", "PENDING"], "InProgress"),
        (["FAILED", "COMPLETING+COMPLETED"], "InProgress"),
        (["COMPLETED", "FAILED", "TIMEOUT", "CANCELLED"], "Failed"),
        (["COMPLETED", "TIMEOUT", "CANCELLED"], "Error"),
        (["NODE_FAIL"], "Error"),
        (["COMPLETED", "CANCELLED by 0"], "Cancelled"),
    ],
)
def test_what_a_run_is_by_its_jobs_in_slurm(states: list[str], state: str) -> None:
    assert of_slurm(in_slurm(number, said) for number, said in enumerate(states, 7)).state.value == state


def test_a_job_that_nobody_knows_is_no_success() -> None:
    outcome = of_slurm([in_slurm(7, "COMPLETED"), in_slurm(8, "", lost="it is in neither the queue nor accounting")])
    assert outcome.state is RunState.ERROR
    assert str(outcome) == "Error: job 8 (it is in neither the queue nor accounting)"


def test_nodes_are_told_apart() -> None:
    outcome = of_slurm(
        [
            in_slurm(7, "COMPLETED", "worker-0", "None"),
            in_slurm(8, "FAILED", "worker-[1-2]", "NonZeroExitCode"),
            in_slurm(9, "TIMEOUT", "worker-3", "TimeLimit"),
            in_slurm(10, "CANCELLED", "worker-4"),
            in_slurm(11, "PREEMPTED", "worker-5"),
        ]
    )
    # Whoever was cancelled or preempted may be as well as any.
    assert outcome.failing == ("worker-1", "worker-2", "worker-3")
    assert outcome.nodes["worker-0"] == {"state": "COMPLETED", "job_id": "7", "reason": ""}
    assert outcome.nodes["worker-2"] == {"state": "FAILED", "job_id": "8", "reason": "NonZeroExitCode"}
    assert outcome.nodes.keys() == {f"worker-{number}" for number in range(6)}
    assert str(outcome).startswith("Failed: worker-[1-2]: job 8 (FAILED, NonZeroExitCode); worker-3: job 9 (TIMEOUT, ")


def test_what_is_said_of_a_run_without_jobs() -> None:
    assert str(CheckResult(state=RunState.COMPLETE, jobs=(JobEnd(job_id="7", state="COMPLETED"),))) == "Complete"
    assert str(CheckResult(state=RunState.SKIPPED, why="no GPU nodes")) == "Skipped: no GPU nodes"


def test_which_runs_another_one_would_disturb() -> None:
    old, new = (job(f"run-{hours}", began=ago(hours=hours), end="Complete", slurm_job_id="7") for hours in (3, 2))
    waiting = job("run-1", began=ago(hours=1))
    # Of a run whose jobs are submitted a later one has ended the jobs.
    assert under_way(active_check(), [old, new], NOW) == ()
    busy = active_check(lastRunId="7", lastRunStatus="InProgress")
    assert under_way(busy, [new, old], NOW) == (new,)
    assert under_way(busy, [old, new, waiting], NOW) == (waiting,)
    # Soperator has noted the end of another run since, and that it has dealt with all jobs of this one.
    just_over = {"end": "Complete", "ended": JUST_NOW, "slurm_job_id": "9"}
    assert under_way(busy, [job(**just_over)], NOW) == (job(**just_over),)
    assert under_way(busy, [job(**just_over, unhandled_slurm_job_id="")], NOW) == ()
    assert newest([old, waiting, new]) == waiting
    assert newest([old, new], since=waiting.created) is None


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ("gpu-checks", "soperator-gpu-checks"),
        ("soperator-gpu-checks", "soperator-gpu-checks"),
        ("ssh-check", "ssh-check"),
        # The name that it has from 5.0 on, in a cluster before that.
        ("soperator-ssh-check", "ssh-check"),
    ],
)
def test_a_check_is_found_by_the_names_of_either_version(said: str, found: str) -> None:
    assert find([active_check("soperator-gpu-checks"), active_check("ssh-check")], said, "soperator").name == found


@pytest.mark.parametrize(
    ("names", "said", "words"),
    [
        ([], "x", "there is no check x, and no other check"),
        (
            ["gpu-fryer", "ssh-check"],
            "gpu-friar",
            "there is no check gpu-friar: did you mean 'gpu-fryer'? There are gpu-fryer, ",
        ),
        (["gpu-fryer", "ssh-check"], "x", "there is no check x: there are gpu-fryer, ssh-check"),
    ],
)
def test_a_check_that_is_not_there(names: list[str], said: str, words: str) -> None:
    with pytest.raises(ObjectMissing) as refused:
        find([active_check(name) for name in names], said, "soperator")
    assert str(refused.value).startswith(words)


def test_a_short_name_that_two_clusters_have() -> None:
    checks = [CheckSeen(name=f"{cluster}-x", cluster=cluster) for cluster in ("one", "two")]
    with pytest.raises(ObjectMissing, match="x is ambiguous: name one of one-x, two-x"):
        find(checks, "x", "soperator")


def test_a_job_is_named_within_what_kubernetes_has_room_for() -> None:
    name = job_name("all-reduce-perf-nccl-with-ib-and-then-some-x-more", "q6befiawjvkz")
    assert name == "all-reduce-perf-nccl-with-ib-and-then-some-airflow-q6befiawjvkz"
    assert len(name) <= 63


def test_a_job_is_made_as_kubectl_makes_it() -> None:
    labels = {"app.kubernetes.io/component": "soperatorchecks"}
    spec = {
        "backoffLimit": 0,
        "template": {"metadata": {"labels": labels, "annotations": {"a": "of the Pod"}}, "spec": {}},
    }
    template = {"metadata": {"annotations": {"b": "of the template"}}, "spec": spec}
    made = job_of(
        {"metadata": {"name": "gpu", "uid": "u"}, "spec": {"jobTemplate": template}}, "gpu-1", "dag/run/task/-1"
    )
    assert made["spec"] == spec
    # Soperator follows it by this one, which only the Pod template has.
    assert made["metadata"]["labels"] == labels
    assert made["metadata"]["annotations"] == {
        "b": "of the template",
        "cronjob.kubernetes.io/instantiate": "manual",
        "airflow.apache.org/task": "dag/run/task/-1",
    }
    owner = {"apiVersion": "batch/v1", "kind": "CronJob", "name": "gpu", "uid": "u", "controller": True}
    assert made["metadata"]["ownerReferences"] == [owner]


def test_reasons_for_soperator_and_others() -> None:
    assert drain_reason("nightly", "gpu-checks failed") == "airflow:nightly: gpu-checks failed"
    assert drain_reason("nightly", "[hardware_problem] gpu: x") == "[hardware_problem] gpu: x"
    refuse_unread("[node_problem] airflow:nightly 2: a: b")
    # It would be drained for ever, and nobody would act.
    for unread in (
        "[node_problem] gpu",
        "[node_problem]: gpu",
        "[hardware_problem] gpu:",
        "[user_problem] gpu: x",
        "[node_problem] 8: x",
        "[x] y: z",
    ):
        with pytest.raises(ValueError, match="Soperator does not act on"):
            refuse_unread(unread)
