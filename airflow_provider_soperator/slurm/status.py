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


#: Parts of a job that are named one by one; of more only the states are counted.
_MOST_NAMED = 8


def sentence(status: JobStatus) -> str:
    """The state of a job as a sentence without its subject."""
    if status.lost:
        return f"is lost: {status.lost}"
    if status.trouble:
        return f"cannot be asked for at present, which does it no harm: {status.trouble}"
    if len(status.parts) > _MOST_NAMED:
        counts: dict[str, int] = {}
        for part in status.parts:
            state = str(part.state)
            counts[state] = counts.get(state, 0) + max(1, sum(1 for _ in part.id.indices()))
        return "is " + ", ".join(f"{count} {state}" for state, count in counts.items())
    said = [_state_of(part) for part in status.parts]
    if len(said) == 1:
        return f"is {said[0]}"
    return "is " + ", ".join(f"{part.id} {one}" for part, one in zip(status.parts, said, strict=True))


def _state_of(part: Job) -> str:
    said = str(part.state)
    if part.state.is_pending and part.reason:
        said += f" ({part.reason})"
    if part.nodelist:
        said += f" on {part.nodelist}"
    if part.restarts:
        said += f", requeued {part.restarts} times" if part.restarts > 1 else ", requeued once"
    if part.state.is_finished and part.started and part.ends:
        said += f" after {part.ends - part.started}"
    return said
