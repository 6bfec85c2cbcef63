"""Failures of jobs: an exception for each kind, with a remedy and whether a retry can help, changes for a retry, and
what an end means for a task.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

from airflow_provider_soperator.errors import name_remedy
from airflow_provider_soperator.slurm import hostlist
from airflow_provider_soperator.slurm.job_description import FIELDS, InvalidJob
from airflow_provider_soperator.slurm.job_records import Job, JobRecord, JobStatus, count_by_state, resource
from airflow_provider_soperator.slurm.notations import parse_bytes
from airflow_provider_soperator.slurm.option_values import in_megabytes, in_seconds, is_unlimited
from airflow_provider_soperator.slurm.sbatch_arguments import asked_for
from airflow_provider_soperator.slurm.states import JobBase, JobState

if TYPE_CHECKING:
    from airflow_provider_soperator.slurm.job import BatchJob

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
        path = self.part.output if self.part else ""
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
        # Slurm itself may have cancelled it for that; other reasons are of the time when it waited.
        why = " (DependencyNeverSatisfied)" if self.part and self.part.reason == "DependencyNeverSatisfied" else ""
        return super()._said() + (canceller(self.part) if self.part else "") + why


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


_FACTOR = re.compile(r"x([0-9]+(?:\.[0-9]+)?)")
#: Options of which a job has one at most.
_MEMORY = ("mem", "mem_per_cpu", "mem_per_gpu")


@dataclass(frozen=True)
class Retry:
    """Another try, with a changed job; ``retry`` makes it."""

    exclude_nodes: bool = False
    changes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def fixed(self) -> dict[str, Any]:
        """The new values that are no multiples; None for the fields that they exclude."""
        # Imported here, as DAG files import this module.
        from airflow_provider_soperator.slurm.job import EXCLUSIVE

        new = {name: value for name, value in self.changes.items() if _factor(value) is None}
        given = {name for name, value in new.items() if value is not None and value is not False}
        excluded = [name for group in EXCLUSIVE if not given.isdisjoint(group) for name in group]
        return dict.fromkeys(excluded) | new

    def changed(self, job: BatchJob, end: JobStatus, failed: Sequence[str] = ()) -> dict[str, Any]:
        """The fields to change of a job that has ended this way on ``failed`` nodes, with their new values."""
        asked = asked_for(job)
        if asked.het:
            raise InvalidJob(["on_finish: retry(...) cannot change a heterogeneous job: use 'retry'"])
        fixed = self.fixed.items()
        new = {name: value for name, value in fixed if value is not None or getattr(job, name) is not None}
        for name, value in self.changes.items():
            if (factor := _factor(value)) is None:
                continue
            if name == "mem":
                new |= _more_memory(asked, end.telling, factor)
            else:
                new |= _more_time(asked, end.telling, factor)
        if self.exclude_nodes and failed:
            before = [asked.exclude] if isinstance(asked.exclude, str) else list(asked.exclude or ())
            new["exclude"] = hostlist.fold([*before, *failed])
        return new


def retry(*, exclude_nodes: bool = False, **changes: Any) -> Retry:
    """Try a task once more with a changed job, as an action of ``on_finish``.

        on_finish={"OUT_OF_MEMORY": retry(mem="x2"), "NODE_FAIL": retry(exclude_nodes=True)}

    The changes are options of the job by the names of their parameters. ``mem`` and ``time_limit`` may be multiples of
    what the job of the earlier try had; ``mem`` then stands for ``mem_per_cpu`` and ``mem_per_gpu``, too. A value takes
    the place of parameters that exclude it: ``mem="64G"`` also that of ``mem_per_cpu``.

    :param exclude_nodes: leave out the nodes on which it failed; of several only the one that it lost (NODE_FAIL)
    """
    for name, value in changes.items():
        if name not in FIELDS:
            remedy = name_remedy(name, FIELDS, "expected the name of a parameter")
            raise ValueError(f"retry: a job has no option {name}: {remedy}")
        if _factor(value) is not None and name not in ("mem", "time_limit"):
            raise ValueError(
                f"retry: expected a value of {name}, got {value!r}: only mem and time_limit are multiplied"
            )
    # Imported here, as DAG files import this module.
    from airflow_provider_soperator.slurm.job import literal_problems

    told = {name: value for name, value in changes.items() if _factor(value) is None}
    for problem in literal_problems(told, ["script"]):
        multiple = ", or a multiple such as 'x2'" if problem.startswith(("mem:", "time_limit:")) else ""
        raise ValueError(f"retry: {problem}{multiple}")
    if not (exclude_nodes or changes):
        raise ValueError("retry: nothing changes: use 'retry'")
    return Retry(exclude_nodes, changes)


def retry_problems(policy: Policy, said: Mapping[str, Any], hidden: Collection[str]) -> list[str]:
    """The problems of a job that a policy has changed, whatever its ``hidden`` fields will be."""
    from airflow_provider_soperator.slurm.job import literal_problems

    changed = [action.fixed for action in policy.values() if isinstance(action, Retry) and action.fixed]
    found = [one for new in changed for one in literal_problems({**said, **new}, {*hidden} - {*new})]
    return [f"on_finish: retry(...): {problem}" for problem in found]


def _factor(value: Any) -> float | None:
    found = _FACTOR.fullmatch(value) if isinstance(value, str) else None
    return float(found[1]) if found else None


def _more_memory(asked: BatchJob, had: Job | None, factor: float) -> dict[str, Any]:
    for name in _MEMORY:
        amount = getattr(asked, name)
        if amount is not None:
            return {name: math.ceil(in_megabytes(amount) * factor)}
    # The default of the partition or the cluster: of all nodes together.
    total = parse_bytes(resource(had.tres, "mem")) if had else None
    if had is None or not total:
        return {}
    nodes = int(resource(had.tres, "node") or 1)
    return {"mem": math.ceil(total / nodes / 2**20 * factor)}


def _more_time(asked: BatchJob, had: Job | None, factor: float) -> dict[str, Any]:
    if asked.time_limit is not None and is_unlimited(asked.time_limit):
        return {}
    limit = None if asked.time_limit is None else timedelta(seconds=in_seconds(asked.time_limit))
    if limit is None and had and isinstance(had.time_limit, timedelta):
        limit = had.time_limit
    return {} if limit is None else {"time_limit": limit * factor}


#: What the end of a job means for its task.
Action = Literal["retry", "fail", "skip", "succeed"]
#: By a state of Slurm's, LOST, or an exit code.
Policy = Mapping[str | int, Action | Retry]
_LOST = "LOST"


def check_policy(policy: Policy) -> None:
    """Raise ``ValueError`` for what would never apply."""
    known = [*(str(state) for state in map(JobState, JobBase) if state.is_finished and not state.succeeded), _LOST]
    if not isinstance(policy, Mapping):
        raise ValueError(f'on_finish must be a dict such as {{"PREEMPTED": "retry"}}, got {policy!r}')
    for end, action in policy.items():
        if isinstance(end, str) and end not in known:
            raise ValueError(f"on_finish: jobs do not end as {end!r}: {name_remedy(end.upper(), known)}")
        # Jobs that are killed, cancelled or out of time have the code 0.
        if not isinstance(end, str) and (isinstance(end, bool) or end not in range(1, 256)):
            raise ValueError(f"on_finish: {end!r} is neither a state nor an exit code of a failure (1 to 255)")
        if not isinstance(action, Retry) and action not in get_args(Action):
            raise ValueError(f"on_finish: {action!r} must be one of {', '.join(get_args(Action))}")


def action_after(status: JobStatus, policy: Policy) -> Action | Retry:
    """What the end of a job means for its task. No element of an array hides that another has failed."""
    parts = sorted(status.parts, key=lambda part: part.state != status.state)
    ends = [status] if status.lost else [replace(status, parts=(part,)) for part in parts]
    actions = [_action_after(error, policy) for end in ends if (error := failure(end))]
    return next((one for one in actions if one not in ("skip", "succeed")), "skip" if "skip" in actions else "succeed")


def _action_after(error: JobError, policy: Policy) -> Action | Retry:
    part = error.part
    state = part.state.base.value if part and part.state.base else _LOST
    action = policy.get(state, "retry" if error.retry_helps else "fail")
    return policy.get(part.exit_code.code, action) if part else action
