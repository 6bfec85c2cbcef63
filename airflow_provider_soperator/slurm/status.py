"""What is known of a job as a whole, from the queue and from accounting together."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from airflow_provider_soperator.slurm.ids import JobId
from airflow_provider_soperator.slurm.records import Job
from airflow_provider_soperator.slurm.states import UNKNOWN_JOB, JobBase, JobState

#: What a job made of parts is said to be once they have ended: the first of these that any of them is.
_WORST_FIRST = (
    JobBase.NODE_FAIL,
    JobBase.BOOT_FAIL,
    JobBase.OUT_OF_MEMORY,
    JobBase.FAILED,
    JobBase.TIMEOUT,
    JobBase.DEADLINE,
    JobBase.PREEMPTED,
    JobBase.CANCELLED,
    JobBase.COMPLETED,
)


@dataclass(frozen=True, kw_only=True)
class JobStatus:
    """A job and its parts: elements of an array, components of a heterogeneous job, or the one that it is itself.

    >>> status = JobStatus(id=JobId(7), parts=(Job(id=JobId(7), state=JobState.parse("COMPLETED")),))
    >>> str(status.state), status.is_over
    ('COMPLETED', True)
    """

    #: As it was asked for.
    id: JobId
    parts: tuple[Job, ...] = ()
    #: There may be parts that have ended before, of which nothing is known yet.
    is_partial: bool = False
    #: Why nobody can tell what has become of it; it may have run, failed, or never have been.
    lost: str = ""
    #: Why the cluster cannot be asked at present. What is known is older than that.
    trouble: str = ""

    @property
    def is_finished(self) -> bool:
        """Every part has ended, and Slurm has said how."""
        if not self.parts or self.is_partial or self.lost:
            return False
        return all(part.state.is_finished for part in self.parts)

    @property
    def is_over(self) -> bool:
        """There is nothing more to wait for."""
        return bool(self.lost) or self.is_finished

    @property
    def succeeded(self) -> bool:
        return self.is_finished and all(part.state.succeeded for part in self.parts)

    @cached_property
    def state(self) -> JobState:
        """Of several parts the one that matters most: whoever runs, then whoever waits, then the worst end."""
        states = [part.state for part in self.parts]
        unfinished = [state for state in states if state.is_active] + [state for state in states if state.is_pending]
        if unfinished:
            return unfinished[0]
        ends = {state.base: state for state in states}
        return next((ends[base] for base in _WORST_FIRST if base in ends), states[0] if states else UNKNOWN_JOB)

    @cached_property
    def news(self) -> tuple[Any, ...]:
        """What a waiter wants to be told of when it changes; not the clock, nor a guess at when it may start."""
        parts = tuple(
            (part.id, part.state, part.reason, part.nodelist, part.restarts, part.exit_code) for part in self.parts
        )
        return (parts, self.is_partial, self.lost, self.trouble)
