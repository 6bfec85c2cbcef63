"""Results of active checks, with Soperator's states for runs and Slurm's for jobs; and drain reasons."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Any

from airflow_provider_soperator.slurm import hostlist
from airflow_provider_soperator.slurm.job_records import JobStatus
from airflow_provider_soperator.slurm.node_conditions import DrainReason, check_reason
from airflow_provider_soperator.slurm.states import JobBase

#: Job states that mean a fault of the node. Other jobs were ended by a person or a program.
_NODE_AT_FAULT = frozenset({"FAILED", "TIMEOUT", "OUT_OF_MEMORY", "NODE_FAIL", "BOOT_FAIL"})
#: Soperator derives a word from the name before the first ": ", and ignores the reason if it cannot.
_FOR_SOPERATOR = re.compile(r"\[(?:node|hardware)_problem\] (?:(?!: ).)*[A-Za-z](?:(?!: ).)*: \S.*", re.DOTALL)
_PREFIX = re.compile(r"\[\w+\]")


class RunState(str, Enum):
    """State of a run. All but the last are Soperator's."""

    IN_PROGRESS = "InProgress"
    COMPLETE = "Complete"
    #: A job of it has failed.
    FAILED = "Failed"
    #: It could not run, or a job of it has ended otherwise.
    ERROR = "Error"
    CANCELLED = "Cancelled"
    SKIPPED = "Skipped"
    #: It has ended, but its result was not noted.
    UNKNOWN = "Unknown"

    @classmethod
    def _missing_(cls, value: object) -> RunState:
        """Of a run that goes on, Soperator has Kubernetes' words, or none."""
        return cls.IN_PROGRESS

    @property
    def is_over(self) -> bool:
        return self is not RunState.IN_PROGRESS

    @property
    def is_bad(self) -> bool:
        """True if the check has found a fault, or could not run."""
        return self in (RunState.FAILED, RunState.ERROR)


@dataclass(frozen=True, kw_only=True)
class JobEnd:
    """A Slurm job of a run."""

    job_id: str
    #: Slurm's state; empty if it is only known that the job did not succeed.
    state: str = ""
    reason: str = ""
    nodes: tuple[str, ...] = ()
    ended: datetime | None = None
    #: The file with what it has printed, if the queue still knew it.
    output: str = ""

    @property
    def succeeded(self) -> bool:
        return self.state == JobBase.COMPLETED.value

    def is_past(self, boot: datetime | None) -> bool:
        """True if its node has booted since, mostly on another machine; but a node may also fail by that."""
        return bool(self.ended and boot and self.ended < boot) and self.state not in ("NODE_FAIL", "BOOT_FAIL")

    def describe(self) -> dict[str, str]:
        return {"job_id": self.job_id, "state": self.state, "reason": self.reason}

    def __str__(self) -> str:
        said = ", ".join(filter(None, (self.state, self.reason)))
        return f"job {self.job_id}{f' ({said})' if said else ''}"


@dataclass(frozen=True, kw_only=True)
class CheckResult:
    """State of a run and its jobs; Kubernetes alone knows only the jobs that did not succeed."""

    state: RunState = RunState.IN_PROGRESS
    jobs: tuple[JobEnd, ...] = ()
    why: str = ""

    @property
    def failing(self) -> tuple[str, ...]:
        return self.failing_since({})

    def failing_since(self, boots: Mapping[str, datetime | None]) -> tuple[str, ...]:
        """The nodes that have failed and not booted since."""
        ends = ((node, job) for job in self.jobs if job.state in _NODE_AT_FAULT for node in job.nodes)
        return tuple(dict.fromkeys(node for node, job in ends if not job.is_past(boots.get(node))))

    @property
    def nodes(self) -> dict[str, dict[str, str]]:
        """Result of the check on each node."""
        return {node: job.describe() for job in self.jobs for node in job.nodes}

    @property
    def failed_jobs(self) -> list[JobEnd]:
        return [job for job in self.jobs if not job.succeeded]

    def describe(self) -> dict[str, Any]:
        return {
            "state": self.state.value,
            "nodes": self.nodes,
            "failing": list(self.failing),
            "failed_jobs": [job.describe() for job in self.failed_jobs],
            "why": self.why,
        }

    def __str__(self) -> str:
        said = [f"{hostlist.fold(job.nodes)}: {job}" if job.nodes else str(job) for job in self.failed_jobs]
        return ": ".join(filter(None, (self.state.value, "; ".join(filter(None, (*said, self.why))))))


def of_slurm(statuses: Iterable[JobStatus]) -> CheckResult:
    """Result of a run from its Slurm jobs; the worst state wins, in Soperator's order."""
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
                ended=part.ends,
                output=part.output,
            )


def drain_reason(owner: str, why: str) -> str:
    """A drain reason with the provider's prefix, unless it is written for Soperator."""
    refuse_unread(why)
    return why if _PREFIX.match(why) else str(DrainReason(owner, why))


def refuse_unread(why: str) -> None:
    """Raise ``ValueError`` for a reason that looks as if Soperator acted on it, but cannot be parsed by it."""
    prefix = _PREFIX.match(why)
    check_reason(why[prefix.end() :] if prefix else why)
    if prefix and not _FOR_SOPERATOR.fullmatch(why):
        raise ValueError(
            f"Soperator does not act on {why!r}: write it as '[node_problem] name: what is wrong', or without "
            "brackets if Soperator should ignore it"
        )
