"""The program of jobs that are submitted together, and of their end."""

from __future__ import annotations

import contextlib
from datetime import timedelta
from typing import Any, cast

import pytest

from airflow_provider_soperator.client import submissions
from airflow_provider_soperator.slurm.cluster_records import RateLimit
from airflow_provider_soperator.slurm.errors import (
    SlurmError,
    SubmissionWithdrawn,
    SubmitIncomplete,
    SubmitRefused,
    TogetherRefused,
)
from airflow_provider_soperator.slurm.job import BatchJob
from airflow_provider_soperator.slurm.requests import Request
from airflow_provider_soperator.slurm.requests.commands import run_steps
from airflow_provider_soperator.slurm.requests.submission import HELD, CancelWithdrawn, SubmitOnce, Together, Withdraw
from airflow_provider_soperator.slurm.submission_keys import key_of
from tests.submissions import after, new_jobs
from tests.unit.slurm.machine import Slurm, keys_of


def chain() -> tuple[BatchJob, ...]:
    first, second, third = new_jobs(3)
    return first, after(second, first), after(third, second, kind="afterany")


def taken_back(*jobs: BatchJob) -> Withdraw:
    """The first request of the process that takes them back."""
    return cast("Withdraw", next(submissions.take_back(jobs, None)))


# One is submitted last, beside others or at an earlier time.
@pytest.mark.parametrize("number", [0, 1, 2])
def test_what_is_withdrawn_as_its_jobs_are_submitted_together_frees_their_keys(slurm: Slurm, number: int) -> None:
    jobs = chain()
    slurm.meanwhile("sbatch", jobs[number])
    together = SubmitOnce(jobs=jobs, together=Together.START)
    answers = slurm.take(together)
    assert isinstance(answers[number].error, SubmissionWithdrawn)
    assert {row[1:] for row in slurm.rows()} == {("CANCELLED", "once.withdrawn")}
    assert "release" not in slurm.calls("scontrol")
    # Nothing is left for the next one to do.
    assert slurm.withdrawn() == {str(key_of(jobs[number].name or ""))}


def test_whoever_cancels_what_was_submitted_together_frees_its_keys(slurm: Slurm) -> None:
    jobs = chain()
    slurm.take(SubmitOnce(jobs=jobs, together=Together.START))
    slurm.take(taken_back(*jobs))
    # It is renamed first; a job that cannot be renamed is left to the next one.
    slurm.fail("scontrol", "slurm_update error: Unable to contact slurm controller (connect failure)")
    slurm.take(CancelWithdrawn())
    assert {state for _, state, _ in slurm.rows()} == {"PENDING"}
    (slurm.state / "scontrol.fails").unlink()
    slurm.ask(*new_jobs())
    assert [row[1:] for row in slurm.rows()[:3]] == [("CANCELLED", "once.withdrawn")] * 3
    hold, rename = slurm.calls("scontrol").splitlines()[-2:]
    assert sorted(hold.removeprefix("hold ").split(",")) == ["1", "2", "3"]
    assert rename.endswith(" JobName=once.withdrawn")
    answers = slurm.take(SubmitOnce(jobs=jobs, together=Together.START))
    assert [one.adopted for one in answers] == [False] * 3


@pytest.mark.parametrize("ends", [CancelWithdrawn(), None])
def test_a_job_that_has_lost_its_key_is_cancelled_by_the_next_one(slurm: Slurm, ends: CancelWithdrawn | None) -> None:
    """slurmctld renames it, and then goes away, or the process ends."""
    jobs = chain()
    end = ends or SubmitOnce(jobs=jobs, together=Together.END)
    slurm.take(SubmitOnce(jobs=jobs, together=Together.START))
    slurm.take(taken_back(*jobs))
    slurm.fail("scancel", "scancel: error: Kill job error on job id 1: Socket timed out on send/recv operation")
    with contextlib.suppress(SlurmError):
        slurm.take(end)
    assert {row[1:] for row in slurm.rows()} == {("PENDING", "once.withdrawn")}
    (slurm.state / "scancel.fails").unlink()
    slurm.put_in_queue("8 PENDING once.withdrawn")
    slurm.take(CancelWithdrawn())
    assert slurm.rows() == [
        *((str(number), "CANCELLED", "once.withdrawn") for number in (1, 2, 3)),
        # Somebody's own.
        ("8", "PENDING", "once.withdrawn"),
    ]
    slurm.take(CancelWithdrawn())
    assert slurm.withdrawn() == {key.text for key in keys_of(*jobs)}


def array_with_an_element_that_has_ended(slurm: Slurm) -> BatchJob:
    [job] = new_jobs()
    slurm.put_in_queue(f"5_0 COMPLETED {job.name}", f"5_1 RUNNING {job.name}", f"5_[2-3] PENDING {job.name}")
    return job


@pytest.mark.parametrize("ends", [CancelWithdrawn(), None])
def test_an_array_is_cancelled_whatever_has_ended_of_it(slurm: Slurm, ends: CancelWithdrawn | None) -> None:
    job = array_with_an_element_that_has_ended(slurm)
    slurm.take(taken_back(job))
    slurm.take(ends or SubmitOnce(jobs=(job,), together=Together.END))
    assert [state for _, state, _ in slurm.rows()] == ["COMPLETED", "CANCELLED", "CANCELLED"]


def test_an_array_that_a_cut_has_left_is_completed_whatever_has_ended_of_it(slurm: Slurm) -> None:
    job = array_with_an_element_that_has_ended(slurm)
    (slurm.state / "comment").write_text(HELD)
    slurm.take(SubmitOnce(jobs=(job.replace(comment="own"),), together=Together.START))
    assert slurm.calls("scontrol").splitlines() == ["release 5", "update JobId=5 Comment=own"]


def test_a_priority_that_only_operators_may_set_is_ignored_as_by_sbatch(slurm: Slurm) -> None:
    [job] = new_jobs(priority=7, comment="own")
    (slurm.state / "comment").write_text(HELD)
    refusal = "Access/permission denied for job 1"
    (slurm.state / "scontrol.meanwhile").write_text(f'case $* in *Priority*) echo "{refusal}" >&2; exit 1 ;; esac\n')
    slurm.take(SubmitOnce(jobs=(job,), together=Together.START))
    # slurmctld sets no priority while a job is held.
    changes = ["release 1", "update JobId=1 Priority=7", "update JobId=1 Comment=own"]
    assert slurm.calls("scontrol").splitlines() == changes


def test_what_is_withdrawn_as_several_requests_are_completed_is_refused(slurm: Slurm) -> None:
    jobs = chain()
    slow = RateLimit(refill=1, period=timedelta(seconds=75))

    def ask(request: Request[Any]) -> Any:
        if isinstance(request, SubmitOnce) and request.together is Together.START:
            slurm.meanwhile("squeue", jobs[1])
        return slurm.take(request)

    with pytest.raises(TogetherRefused) as refused:
        run_steps(submissions.submit_together(jobs, None, slow), ask)
    assert isinstance(refused.value.__cause__, SubmissionWithdrawn)
    assert {row[1:] for row in slurm.rows()} == {("CANCELLED", "once.withdrawn")}


def test_who_takes_jobs_back_before_they_are_submitted_still_meets_their_submission(slurm: Slurm) -> None:
    jobs = chain()
    slurm.take(taken_back(*jobs))
    slurm.take(SubmitOnce(jobs=jobs, together=Together.END))
    assert slurm.withdrawn() == {key.text for key in keys_of(*jobs)}
    # The next try begins after that.
    assert [one.error for one in slurm.take(SubmitOnce(jobs=jobs, together=Together.START))] == [None] * 3
    assert slurm.withdrawn() == set()


def killed_during(slurm: Slurm, name: str, *, refuses: bool) -> None:
    """slurmctld is killed before the sbatch of this job, and forgets the job before it."""
    said = "Batch job submission failed: Job dependency problem"
    words = f"""case "$*" in *--job-name={name}*)
        rm "$SLURM_STATE/sbatch.meanwhile"
        sed -i '$d' "$SLURM_STATE/queue"
        {f'echo "sbatch: error: {said}" >&2; exit 1' if refuses else ""} ;;
    esac
    """
    (slurm.state / "sbatch.meanwhile").write_text(words)


@pytest.mark.parametrize("refuses", [True, False])
def test_what_slurmctld_forgets_in_the_midst_is_submitted_anew(slurm: Slurm, refuses: bool) -> None:
    """It refuses a job that waits for one that it has forgotten, unless that number is another's by now."""
    jobs = chain()
    killed_during(slurm, jobs[2].name or "", refuses=refuses)
    request = SubmitOnce(jobs=jobs, together=Together.START)
    with pytest.raises(SubmitIncomplete, match="has forgotten jobs") as caught:
        slurm.take(request)
    assert caught.value.retryable
    answers = slurm.take(request)
    assert [one.adopted for one in answers] == [True, False, not refuses]
    assert set(slurm.states()) == {job.name for job in jobs}
    [second, third] = [str(one.id) for one in answers[1:]]
    update = f"update JobId={third} Dependency=afterany:{second}\n"
    # A job that was there waited for the number of the forgotten one.
    assert (update in slurm.calls("scontrol")) == (not refuses)
    assert (f"--dependency=afterany:{second}\n" in slurm.calls("sbatch")) == refuses
    slurm.take(request)
    assert slurm.calls("scontrol").count("Dependency=") == (not refuses)


def test_a_dependency_that_slurm_refuses_otherwise_is_refused(slurm: Slurm) -> None:
    jobs = chain()
    slurm.fail("sbatch", "sbatch: error: Batch job submission failed: Job dependency problem")
    answers = slurm.take(SubmitOnce(jobs=jobs, together=Together.START))
    assert isinstance(answers[0].error, SubmitRefused)
