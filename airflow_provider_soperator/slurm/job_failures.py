"""Failures of jobs: an exception for each kind, with a remedy and whether a retry can help."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from airflow_provider_soperator.slurm.job_records import Job, JobRecord, JobStatus, count_by_state, expand_filename
from airflow_provider_soperator.slurm.states import JobBase

#: Elements of an array that a message names; there may be thousands.
_MOST_NAMED = 10


class JobError(Exception):
    """A job failed. The message begins with the remedy, and ends with the last lines of the job's output, if given.

    ``retry_helps``: the same job may succeed if it is submitted again unchanged.
    """

    retry_helps: ClassVar[bool] = False
    #: The failure, as the continuation of "job 7".
    what: ClassVar[str] = "failed"
    remedy: ClassVar[str] = ""

    def __init__(self, status: JobStatus, part: Job | None = None, failed: str = "", last: Sequence[str] = ()) -> None:
        self.status = status
        #: The part that failed, or the first of several.
        self.part = part
        said = ": ".join(filter(None, (self._remedy(), f"job {status.id} {self._said()}{failed}")))
        super().__init__("\n".join([said, *last]))

    def _remedy(self) -> str:
        return self.remedy

    def _said(self) -> str:
        return f"{self.what}{_where(self.part)}"


class JobFailed(JobError):
    """The script ended with an exit code other than 0, or was killed by a signal."""

    # As for any other task: a file may have been missing, or a server may not have answered.
    retry_helps = True
    remedy = "see its output"

    def _remedy(self) -> str:
        path = expand_filename(self.part.stdout, self.part) if self.part else ""
        return f"{self.remedy}, {path}" if path else self.remedy

    def _said(self) -> str:
        if self.part is None:
            return super()._said()
        end = self.part.exit_code
        if end.signal and not end.code:
            return f"was {end}{_where(self.part)}"
        return f"{super()._said()} with {end}"


class JobNotStarted(JobFailed):
    """The node could not start the script."""

    # Another node may be able to.
    remedy = "see whether output, error and input can be opened there (names have 255 bytes at most), and slurmd's log"

    def _remedy(self) -> str:
        return self.remedy


class JobOutOfMemory(JobError):
    """A task used more memory than the job had asked for."""

    what = "ran out of memory"
    remedy = "request more (mem, mem_per_cpu, mem_per_gpu), or use less"


class JobTimedOut(JobError):
    """The job ran longer than its time limit."""

    what = "reached its time limit"
    remedy = "raise time_limit, or save a checkpoint and resume (signal, requeue)"


class JobMissedDeadline(JobError):
    """The job could not have ended by its deadline."""

    what = "could no longer meet its deadline"
    remedy = "move the deadline or submit it sooner, and see what it waited for"


class JobNodeFailed(JobError):
    """A node went away under the job."""

    retry_helps = True
    what = "lost a node"
    remedy = "set requeue=True to let Slurm requeue it"


class JobBootFailed(JobError):
    """The nodes that were powered up for the job did not boot."""

    retry_helps = True
    what = "got no nodes: they did not power up"
    remedy = "see the nodes' reasons (`sinfo -R`) and the capacity that is left"


class JobPreempted(JobError):
    """A job of higher priority took the nodes."""

    retry_helps = True
    what = "was preempted"
    remedy = "set requeue=True to let Slurm requeue it"


class JobCancelled(JobError):
    """The job was cancelled."""

    what = "was cancelled"

    def _said(self) -> str:
        return super()._said() + (canceller(self.part) if self.part else "")


class JobLost(JobError):
    """Slurm does not know the job any more. It may have run, or still be running."""

    def _said(self) -> str:
        return f"is lost: {self.status.lost}"

    remedy = "see whether its work was done before you run it again"


def canceller(part: JobRecord) -> str:
    """Who has cancelled it, if that is known: " by root"."""
    by = part.state.cancelled_by
    return "" if by is None else " by root" if by == 0 else f" by the user with id {by}"


def _where(part: Job | None) -> str:
    return f" on {part.nodelist}" if part and part.nodelist else ""


_BY_STATE: dict[JobBase, type[JobError]] = {
    JobBase.FAILED: JobFailed,
    JobBase.OUT_OF_MEMORY: JobOutOfMemory,
    JobBase.TIMEOUT: JobTimedOut,
    JobBase.DEADLINE: JobMissedDeadline,
    JobBase.NODE_FAIL: JobNodeFailed,
    JobBase.BOOT_FAIL: JobBootFailed,
    JobBase.PREEMPTED: JobPreempted,
    JobBase.CANCELLED: JobCancelled,
}


def failure(status: JobStatus, last: Sequence[str] = ()) -> JobError | None:
    """The failure of a job that is over, with the last lines of its output; None if it succeeded."""
    if status.lost:
        return JobLost(status, last=last)
    if not status.is_finished:
        raise ValueError(f"job {status.id} is not over: {status.state}")
    failed = [part for part in status.parts if not part.state.succeeded]
    if not failed:
        return None
    worst = next((part for part in failed if part.state == status.state), failed[0])
    kind = _BY_STATE.get(worst.state.base or JobBase.FAILED, JobError)
    if kind is JobFailed and worst.exit_code.is_not_started:
        kind = JobNotStarted
    return kind(status, worst, f" ({_tally(failed, len(status.parts))})" if len(status.parts) > 1 else "", last)


def _tally(failed: list[Job], total: int) -> str:
    named = ", ".join(str(part.id) for part in failed[:_MOST_NAMED]) + (", …" if len(failed) > _MOST_NAMED else "")
    kinds = ", ".join(f"{count} {state}" for state, count in count_by_state(failed).items())
    return f"{len(failed)} of its {total} parts: {kinds}: {named}"
