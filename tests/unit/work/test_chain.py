"""Changes to jobs around that of a task, whose numbers may be those of other jobs by now."""

from __future__ import annotations

import logging
import time
from typing import Any

import pytest

from airflow_provider_soperator.client.client import AsyncSlurmClient
from airflow_provider_soperator.client.job_run import JobRun
from airflow_provider_soperator.slurm.errors import ControllerUnreachable
from airflow_provider_soperator.slurm.job import BatchJob
from airflow_provider_soperator.slurm.job_ids import JobId
from airflow_provider_soperator.slurm.job_records import JobStatus
from airflow_provider_soperator.slurm.requests import CancelJobs, UpdateJob
from airflow_provider_soperator.slurm.submission_keys import SubmissionKey
from airflow_provider_soperator.work.sbatch import Chain
from tests.unit.client.tracking import Slurm, queued, run_without_waiting

LOG = logging.getLogger(__name__)
OURS, EARLIER, THEIRS = (SubmissionKey(letter * 12) for letter in "abz")


def pending(job: str, key: SubmissionKey, after: str = "") -> Any:
    return queued(job, "PENDING", name=key.name("fit"), raw_id=int(job), dependency=after)


async def free(chain: Chain, slurm: Slurm, states: Any) -> None:
    """End the wait of the task's job, job 7."""
    run = JobRun(AsyncSlurmClient(slurm), BatchJob(command="fit", name="fit"), [OURS])
    await run.submit()
    await chain.free(run, JobId(7), states, LOG)


def test_jobs_that_can_never_run_are_cancelled_by_their_numbers_and_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = Slurm(pending("8", OURS), pending("9", THEIRS))
    chain = Chain(doomed={"8": OURS.text, "9": OURS.text, "10": OURS.text})
    run_without_waiting(chain.give_up(AsyncSlurmClient(slurm)), monkeypatch)
    assert slurm.orders == [CancelJobs(ids=(JobId(8),), waiting=True)]


def test_jobs_that_wait_are_told_of_the_new_job_by_their_numbers_and_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    waits = "afterok:5(unfulfilled)"
    slurm = Slurm(pending("8", OURS, waits), pending("9", THEIRS, waits), queued("5", "FAILED", EARLIER.name("fit")))
    chain = Chain(ahead="4", waiting={"8": OURS.text, "9": OURS.text})
    relink = chain.relink(AsyncSlurmClient(slurm), JobId(7), [EARLIER], LOG)
    run_without_waiting(relink, monkeypatch)
    assert slurm.orders == [UpdateJob(JobId(8), {"Dependency": "afterok:7"})]


def test_a_job_waits_for_none_of_its_name_that_is_to_wait_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """By ``singleton`` another try waits for what is in the queue; Slurm refuses a circle, and none would start."""
    alike = ",".join(f"afterany:{job}(unfulfilled)" for job in (6, 8, 9, 10))
    slurm = Slurm(
        queued("5", "FAILED", EARLIER.name("fit")),
        queued("6", "RUNNING", THEIRS.name("fit")),
        pending("7", OURS, alike),
        pending("8", OURS, "afterok:5(failed),afterany:6(unfulfilled)"),
        # Of another run, of the same name, too.
        pending("9", THEIRS, "afterany:10(unfulfilled)"),
        pending("10", THEIRS, "afterany:6(unfulfilled),afterany:8(unfulfilled)"),
    )
    relink = Chain(ahead="5", waiting={"8": OURS.text}).relink(AsyncSlurmClient(slurm), JobId(7), [EARLIER], LOG)
    run_without_waiting(relink, monkeypatch)
    assert slurm.orders == [
        UpdateJob(JobId(7), {"Dependency": "afterany:6"}),
        UpdateJob(JobId(8), {"Dependency": "afterok:7,afterany:6"}),
    ]


@pytest.mark.parametrize("state", ["success", "failed"])
@pytest.mark.parametrize("key", [OURS, THEIRS])
def test_a_job_that_waits_in_vain_is_freed_by_its_number_and_key(
    key: SubmissionKey, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm = Slurm(accounting=[])
    chain = Chain(ahead="7", follows=[["prepare", "aftercorr"]])

    async def states(names: Any) -> dict[str, dict[int, str | None]]:
        slurm.queue = [pending("7", key, "afterok:5(failed)")]
        return {"prepare": {-1: state}}

    run_without_waiting(free(chain, slurm, states), monkeypatch)
    freed = UpdateJob(JobId(7), {"Dependency": ""})
    expected = freed if state == "success" else CancelJobs(ids=(JobId(7),), waiting=True)
    assert slurm.orders == [expected] * (key is OURS)


@pytest.mark.parametrize("end", ["success", "failed"])
def test_a_task_that_begins_early_waits_for_what_its_job_follows(end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = Slurm(accounting=[])
    course = iter(["deferred", "up_for_retry", "running", end])

    async def states(names: Any) -> dict[str, dict[int, str | None]]:
        assert not slurm.orders
        slurm.queue = [pending("7", OURS, "afterok:5(failed)")]
        return {"prepare": {-1: "success"}, "fit": {-1: next(course)}}

    chain = Chain(ahead="7", follows=[["prepare", "after"], ["fit", "afterok"]])
    run_without_waiting(free(chain, slurm, states), monkeypatch)
    freed, cancelled = UpdateJob(JobId(7), {"Dependency": ""}), CancelJobs(ids=(JobId(7),), waiting=True)
    assert slurm.orders == [freed if end == "success" else cancelled]


@pytest.mark.parametrize("failed", ["5", "6"])
def test_a_job_never_runs_without_what_its_own_dependency_asks_for(
    failed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm = Slurm(accounting=[])

    async def states(names: Any) -> dict[str, dict[int, str | None]]:
        waits = ",".join(f"afterok:{job}({'failed' if job == failed else 'unfulfilled'})" for job in "56")
        slurm.queue = [pending("7", OURS, waits)]
        return {"prepare": {-1: "success"}}

    chain = Chain(ahead="7", own=[6, 9], follows=[["prepare", "afterok"]])
    run_without_waiting(free(chain, slurm, states), monkeypatch)
    # The task has gone past job 5, of a stage.
    freed, cancelled = UpdateJob(JobId(7), {"Dependency": "afterok:6"}), CancelJobs(ids=(JobId(7),), waiting=True)
    assert slurm.orders == [cancelled if failed == "6" else freed]


@pytest.mark.parametrize(("state", "is_left"), [("upstream_failed", True), (None, False)])
def test_jobs_of_stages_that_have_ended_leave_the_way_free(
    state: str | None, is_left: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after the death of an Airflow worker, which cannot cancel the jobs that can never run any more."""
    slurm = Slurm(pending("5", EARLIER, "afterok:4(failed)"), pending("6", THEIRS), accounting=[])
    jobs = {"prepare": {"5": EARLIER.text, "6": EARLIER.text}}
    chain = Chain(ahead="7", follows=[["prepare", "afterany"]], before=jobs)

    async def states(names: Any) -> dict[str, dict[int, str | None]]:
        return {"prepare": {-1: state}}

    run_without_waiting(free(chain, slurm, states), monkeypatch)
    assert slurm.orders == [CancelJobs(ids=(JobId(5),), waiting=True)] * is_left


@pytest.mark.parametrize(
    ("reasons", "expected"),
    [
        (["Resources", "Dependency"], "Dependency"),
        # Pending elements of an array in one entry of the queue.
        (["Priority,Dependency"], "Dependency"),
        (["Dependency", "DependencyNeverSatisfied"], "DependencyNeverSatisfied"),
        (["Priority"], ""),
    ],
)
def test_a_job_waits_for_others_as_slurm_says(reasons: list[str], expected: str) -> None:
    parts = tuple(queued(f"7_{index}", "PENDING", reason=reason) for index, reason in enumerate(reasons))
    status = JobStatus(id=JobId(7), parts=parts)
    # It may have been submitted ahead although its task was not told so.
    chains = [Chain(ahead="7"), Chain(follows=[["prepare", "afterok"]]), Chain()]
    assert [chain.wait_of(status) for chain in chains] == [expected, expected, ""]


def test_a_job_that_waits_in_vain_is_freed_once_the_cluster_is_back(monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = Slurm(accounting=[])
    chain = Chain(ahead="7")

    def away() -> None:
        if time.monotonic() < 3000:
            raise ControllerUnreachable("Unable to contact slurm controller")

    async def free() -> None:
        run = JobRun(AsyncSlurmClient(slurm), BatchJob(command="fit", name="fit"), [OURS])
        await run.submit()
        slurm.queue = [pending("7", OURS, "afterok:5(failed)")]
        slurm.before_look = away

        async def states(names: Any) -> dict[str, dict[int, str | None]]:
            return {}

        await chain.free(run, JobId(7), states, LOG)

    run_without_waiting(free(), monkeypatch)
    assert slurm.orders == [UpdateJob(JobId(7), {"Dependency": ""})]
