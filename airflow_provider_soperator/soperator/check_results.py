"""Results of active checks, in Soperator's words for the run and Slurm's for its jobs, and reasons to drain nodes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any

from airflow_provider_soperator.slurm import hostlist
from airflow_provider_soperator.slurm.job_records import JobStatus
from airflow_provider_soperator.slurm.node_conditions import DrainReason
from airflow_provider_soperator.slurm.states import JobBase

#: Ends of jobs that say something about their nodes. Others were ended by a person or a program.
_NODE_AT_FAULT = frozenset({"FAILED", "TIMEOUT", "OUT_OF_MEMORY", "NODE_FAIL", "BOOT_FAIL"})
#: Soperator makes a word of the name before the first ": ", and has an error in its log, and no more, if it cannot.
_FOR_SOPERATOR = re.compile(r"\[(?:node|hardware)_problem\] (?:(?!: ).)*[A-Za-z](?:(?!: ).)*: \S.*", re.DOTALL)
_PREFIX = re.compile(r"\[\w+\]")


class RunState(str, Enum):
    """State of a run. All but the last are Soperator's own words."""

    IN_PROGRESS = "InProgress"
    COMPLETE = "Complete"
    #: A job of it has failed.
    FAILED = "Failed"
    #: It could not be carried out, or a job of it has ended otherwise.
    ERROR = "Error"
    CANCELLED = "Cancelled"
    #: There was nothing to check.
    SKIPPED = "Skipped"
    #: It has ended, and how was not noted.
    UNKNOWN = "Unknown"

    @property
    def is_over(self) -> bool:
        return self is not RunState.IN_PROGRESS

    @property
    def is_bad(self) -> bool:
        """True if the check has found something, or could not look."""
        return self in (RunState.FAILED, RunState.ERROR)


@dataclass(frozen=True, kw_only=True)
class JobEnd:
    """A Slurm job of a run."""

    job_id: str
    #: In Slurm's words; empty if only that it has not succeeded is known.
    state: str = ""
    reason: str = ""
    nodes: tuple[str, ...] = ()

    @property
    def succeeded(self) -> bool:
        return self.state == JobBase.COMPLETED.value

    def __str__(self) -> str:
        said = ", ".join(filter(None, (self.state, self.reason)))
        return f"job {self.job_id}{f' ({said})' if said else ''}"


@dataclass(frozen=True, kw_only=True)
class CheckResult:
    """State of a run and of its jobs; from Kubernetes alone only jobs that have not succeeded are known."""

    state: RunState = RunState.IN_PROGRESS
    jobs: tuple[JobEnd, ...] = ()
    why: str = ""

    @property
    def failing(self) -> tuple[str, ...]:
        """The nodes that the check has failed on."""
        return tuple(dict.fromkeys(node for job in self.jobs if job.state in _NODE_AT_FAULT for node in job.nodes))

    @property
    def nodes(self) -> dict[str, dict[str, str]]:
        """Result of the check on each node."""
        return {
            node: {"state": job.state, "job_id": job.job_id, "reason": job.reason}
            for job in self.jobs
            for node in job.nodes
        }

    def describe(self) -> dict[str, Any]:
        """As plain JSON."""
        failed = [
            {"job_id": job.job_id, "state": job.state, "reason": job.reason} for job in self.jobs if not job.succeeded
        ]
        return {
            "state": self.state.value,
            "nodes": self.nodes,
            "failing": list(self.failing),
            "failed_jobs": failed,
            "why": self.why,
        }

    def __str__(self) -> str:
        """For people: what it has come to, where, and why.

        >>> failed = JobEnd(job_id="12", state="FAILED", reason="NonZeroExitCode", nodes=("worker-1",))
        >>> str(CheckResult(state=RunState.FAILED, jobs=(failed,)))
        'Failed: worker-1: job 12 (FAILED, NonZeroExitCode)'
        """
        said = [*self._lines(), *([self.why] if self.why else [])]
        return f"{self.state.value}: {'; '.join(said)}" if said else self.state.value

    def _lines(self) -> Iterator[str]:
        for job in self.jobs:
            if not job.succeeded:
                yield f"{hostlist.fold(job.nodes)}: {job}" if job.nodes else str(job)


def of_slurm(statuses: Iterable[JobStatus]) -> CheckResult:
    """Result of a run by its jobs as Slurm has them: worst first, ranked as Soperator does."""
    statuses = tuple(statuses)
    jobs = tuple(end for status in statuses for end in _ends(status))
    if not all(status.is_over for status in statuses):
        return CheckResult(jobs=tuple(job for job in jobs if job.state))
    states = {job.state for job in jobs}
    if "FAILED" in states:
        return CheckResult(state=RunState.FAILED, jobs=jobs)
    if states - {"COMPLETED", "CANCELLED"}:
        return CheckResult(state=RunState.ERROR, jobs=jobs)
    return CheckResult(state=RunState.CANCELLED if "CANCELLED" in states else RunState.COMPLETE, jobs=jobs)


def _ends(status: JobStatus) -> Iterator[JobEnd]:
    if status.lost:
        yield JobEnd(job_id=str(status.id), reason=status.lost)
    for part in status.parts:
        if part.state.is_finished:
            yield JobEnd(
                job_id=str(part.id),
                state=part.state.base.value if part.state.base else str(part.state),
                reason="" if part.state.succeeded else part.reason,
                nodes=tuple(hostlist.expand(part.nodelist)) if part.nodelist else (),
            )


def drain_reason(owner: str, why: str) -> str:
    """A reason of the provider's own, unless it is written for Soperator.

    >>> drain_reason("nightly", "gpu-checks failed")
    'airflow:nightly: gpu-checks failed'
    >>> drain_reason("nightly", "[hardware_problem] gpu-checks: failed")
    '[hardware_problem] gpu-checks: failed'
    """
    refuse_unread(why)
    return why if _PREFIX.match(why) else str(DrainReason(owner, why))


def refuse_unread(why: str) -> None:
    """Raise ``ValueError`` for what looks as if Soperator would act on it, and is not read by it.

    >>> refuse_unread("[node_problem] broken")
    Traceback (most recent call last):
    ValueError: Soperator does not act on '[node_problem] broken': write it as '[node_problem] name: what is wrong', \
or without brackets if it is to be left alone
    """
    if _PREFIX.match(why) and not _FOR_SOPERATOR.fullmatch(why):
        raise ValueError(
            f"Soperator does not act on {why!r}: write it as '[node_problem] name: what is wrong', or without "
            "brackets if it is to be left alone"
        )
