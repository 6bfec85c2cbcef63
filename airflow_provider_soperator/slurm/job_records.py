"""Records of jobs in the queue and in accounting, the status of a whole job from both, and its report."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from functools import cached_property
from pathlib import PurePosixPath
from typing import Any

from airflow_provider_soperator.slurm.job_ids import JobId
from airflow_provider_soperator.slurm.notations import ZERO, Duration, ExitCode, NoDuration
from airflow_provider_soperator.slurm.states import UNKNOWN_JOB, JobBase, JobFlag, JobState

Json = dict[str, Any]

_HOLDS = {"JobHeldUser", "JobHeldAdmin"}
_GPU = re.compile(r"(?:^|,)(?:gres/)?gpu(?::[^:,=()]+)?[:=](\d+)")
_GPU_TOTAL = re.compile(r"(?:^|,)gres/gpu=(\d+)")


def count_gpus(resources: str) -> int:
    """The number of GPUs of any type in a node's GRES or a job's TRES.

    >>> count_gpus("gpu:h100:8(S:0-1),shard:4"), count_gpus("cpu=16,gres/gpu=8,gres/gpu:h100=8")
    (8, 8)
    """
    # TRES has a total, and the count of each type besides.
    total = _GPU_TOTAL.search(resources)
    return int(total[1]) if total else sum(map(int, _GPU.findall(resources)))


def resource(tres: str, name: str) -> str:
    """The amount of a resource in a job's TRES; empty if it has none.

    >>> resource("cpu=16,mem=1000M,gres/gpu=8", "mem")
    '1000M'
    """
    found = re.search(rf"(?:^|,){re.escape(name)}=([^,]*)", tres)
    return found[1] if found else ""


@dataclass(frozen=True, kw_only=True)
class JobRecord:
    """What the queue and accounting both have of a job, or of a part of one."""

    id: JobId
    #: The id of this part; for arrays and heterogeneous jobs not the one that was submitted.
    raw_id: int = 0
    name: str = ""
    user: str = ""
    account: str = ""
    partition: str = ""
    qos: str = ""
    state: JobState = UNKNOWN_JOB
    #: Why it is pending or has failed, mostly one word (``Resources``, ``DependencyNeverSatisfied``); or empty.
    reason: str = ""
    #: The nodes it has, as a hostlist.
    nodelist: str = ""
    submitted: datetime | None = None
    #: Since when it may start, by its dependencies and its time to begin, which may be ahead; None while it depends.
    eligible: datetime | None = None
    #: When it started; for a pending job when Slurm expects it to.
    started: datetime | None = None
    time_limit: Duration = NoDuration.UNKNOWN
    exit_code: ExitCode = ZERO
    #: Resources, as ``cpu=1,mem=1000M,node=1,gres/gpu=8``.
    tres: str = ""
    #: Accounting keeps comments only where AccountingStoreFlags says so.
    comment: str = ""
    workdir: str = ""
    #: Why the end of the job cannot be judged by this record; fields that could not be read have their defaults.
    unreadable: str = ""

    @property
    def gpus(self) -> int:
        return count_gpus(self.tres)


@dataclass(frozen=True, kw_only=True)
class Job(JobRecord):
    """A job, or a part of one, in the queue."""

    #: The node of the batch script; for a job that ``srun`` started, squeue shows the host of that ``srun``.
    batch_host: str = ""
    #: When it ended; for a running job when its time limit ends.
    ends: datetime | None = None
    time_used: Duration = NoDuration.UNKNOWN
    priority: int | None = None
    #: Number of requeues.
    restarts: int = 0
    #: It may be requeued (``--requeue``, or JobRequeue of the cluster).
    may_requeue: bool = True
    dependency: str = ""
    reservation: str = ""
    stdout: str = ""
    #: What operators have noted at it.
    admin_comment: str = ""

    @property
    def count(self) -> int:
        """The number of jobs that it is: pending elements of an array are one entry of the queue."""
        return max(1, sum(1 for _ in self.id.indices()))

    def waited(self, now: datetime) -> timedelta:
        """The time that it has waited, or did wait before it started, since it could start as far as that is known."""
        since = self.eligible or self.submitted
        # The start of a pending job is an estimate.
        until = self.started if self.started and not self.state.is_pending else now
        # The cluster's clock may differ.
        return max(until - since, timedelta(0)) if since else timedelta(0)

    @property
    def output(self) -> str:
        """The path of its output; empty if it is unknown (yet)."""
        return expand_filename(self.stdout, self)

    @property
    def has_failed(self) -> bool:
        return self.state.is_finished and not self.state.succeeded

    @property
    def reasons(self) -> list[str]:
        """Pending array elements in one entry have a reason each; some reasons go on with what they mean."""
        return self.reason.split(",")

    @property
    def is_held(self) -> bool:
        """True if the job must be released to start."""
        # Some holds have reasons of their own.
        by_reason = not _HOLDS.isdisjoint(self.reasons)
        return self.state.is_held or (self.state.is_pending and (self.priority == 0 or by_reason))

    @property
    def is_wholly_held(self) -> bool:
        """True if every array element of the entry is held."""
        return self.is_held and (self.priority in (0, None) or {*self.reasons} <= _HOLDS)


@dataclass(frozen=True, kw_only=True)
class AccountingStep:
    """A step of a job in accounting; ``batch`` is the script itself."""

    id: JobId
    state: JobState = UNKNOWN_JOB
    exit_code: ExitCode = ZERO
    elapsed: timedelta | None = None
    nodelist: str = ""
    #: CPU time of all its tasks.
    cpu_time: timedelta | None = None
    #: Maximum memory of one of its tasks, in bytes.
    max_rss: int | None = None
    #: Sum of the maxima of all its tasks, in bytes.
    total_rss: int | None = None


@dataclass(frozen=True, kw_only=True)
class AccountingJob(JobRecord):
    """A job in accounting: its last run, and the requeued runs before it.

    Before 25.11 ``sacct`` takes 128 off an exit code: what the queue has as 137:0 is 9:0 here. Ask the queue first.
    """

    ended: datetime | None = None
    elapsed: timedelta | None = None
    #: The command line that submitted it.
    submit_line: str = ""
    steps: tuple[AccountingStep, ...] = ()
    earlier_runs: tuple[AccountingJob, ...] = ()
    #: False if Slurm does not count the GPUs of jobs, so that it is not known how many this one had.
    counts_gpus: bool = True

    @property
    def restarts(self) -> int:
        # A job that is resized has a record of each size.
        return sum(not run.state.has(JobFlag.RESIZING) for run in self.earlier_runs)

    def as_job(self) -> Job:
        """The job as the queue would have it."""
        shared = {field.name: getattr(self, field.name) for field in fields(JobRecord)}
        elapsed = NoDuration.UNKNOWN if self.elapsed is None else self.elapsed
        return Job(**shared, ends=self.ended, time_used=elapsed, restarts=self.restarts)


def count_by_state(jobs: Iterable[Job]) -> dict[str, int]:
    """The number of jobs in each state, the most frequent first."""
    counts: Counter[str] = Counter()
    for job in jobs:
        counts[str(job.state)] += job.count
    return dict(counts.most_common())


#: The state of a job whose parts have ended: the first of these that any part is in.
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


def _relevance(state: JobState) -> tuple[bool, bool, int]:
    """The lowest comes first."""
    end = _WORST_FIRST.index(state.base) if state.base in _WORST_FIRST else len(_WORST_FIRST)
    return (not state.is_active, not state.is_pending, end)


@dataclass(frozen=True, kw_only=True)
class JobStatus:
    """A job and its parts: elements of an array, components of a heterogeneous job, or the job itself."""

    #: The id that was asked for.
    id: JobId
    parts: tuple[Job, ...] = ()
    #: True if parts may be missing that have ended before.
    is_partial: bool = False
    #: Why its end is unknown; it may have run, failed, or never existed.
    lost: str = ""
    #: Why the cluster cannot be polled at present; the rest is older.
    trouble: str = ""
    #: The records of its parts in accounting, once it is over, as far as they are there.
    accounted: tuple[AccountingJob, ...] = ()

    @property
    def is_finished(self) -> bool:
        """True if every part has ended, in a known state."""
        if not self.parts or self.is_partial or self.lost:
            return False
        return all(part.state.is_finished for part in self.parts)

    @property
    def is_over(self) -> bool:
        return bool(self.lost) or self.is_finished

    @property
    def is_array(self) -> bool:
        """True if the parts are elements of an array, and the job is not one of these."""
        return self.id.element is None and any(part.id.element is not None or part.id.elements for part in self.parts)

    @property
    def succeeded(self) -> bool:
        return self.is_finished and all(part.state.succeeded for part in self.parts)

    @cached_property
    def telling(self) -> Job | None:
        """The most relevant part: a running one, else a pending one, else the first of those with the worst end."""
        return min(self.parts, key=lambda part: _relevance(part.state), default=None)

    @property
    def state(self) -> JobState:
        return self.telling.state if self.telling else UNKNOWN_JOB

    @cached_property
    def news(self) -> tuple[Any, ...]:
        """The fields whose change is reported to a watch; not times, such as the estimated start."""
        parts = tuple(
            (part.id, part.state, part.reason, part.nodelist, part.restarts, part.exit_code) for part in self.parts
        )
        return (parts, self.is_partial, self.lost, self.trouble)


#: A width for padding with zeros, and the letter.
_PATTERN = re.compile(r"%(?:%|([0-9]*)([A-Za-z]))")
#: Letters by which the files of any two elements of an array differ, and by which those of some do.
OF_EACH_ELEMENT, OF_ELEMENTS = "aJj", "aJjbNS"
#: Slurm's array index of a job without an array.
_NO_INDEX = 0xFFFFFFFE
_MOST_PADDING = 10


def absolute_pattern(pattern: str, job: Job) -> str:
    """The pattern from the root on: the names of folders are no patterns."""
    return str(PurePosixPath(job.workdir.replace("%", "%%"), pattern))


def letters_of(pattern: str) -> set[str]:
    """The letters of the patterns in the name of a file; a backslash turns off all of them.

    >>> sorted(letters_of("100%%a-%A_%3a.out")), letters_of(r"fit\\%j")
    (['A', 'a'], set())
    """
    return set() if "\\" in pattern else {letter for _, letter in _PATTERN.findall(pattern) if letter}


def with_name(pattern: str, name: str) -> str:
    """The name of a file with that of its job.

    >>> with_name("logs/%x-%j.out", "fit 5%"), with_name("100%%x", "fit")
    ('logs/fit 5%%-%j.out', '100%%x')
    """
    if "\\" in pattern + name:
        return pattern
    return _PATTERN.sub(lambda found: name.replace("%", "%%") if found[2] == "x" else found[0], pattern)


def expand_filename(pattern: str, job: Job, keep: str = "") -> str:
    """The path that the batch script writes to; empty if it is unknown (yet). Letters to ``keep`` stay patterns."""
    if not pattern or job.id.elements:
        return ""
    if "\\" in pattern:
        # A backslash turns off the expansion.
        return str(PurePosixPath(job.workdir, pattern.replace("\\", "")))
    path = absolute_pattern(pattern, job)
    index = _NO_INDEX if job.id.element is None else job.id.element
    # The batch script of a heterogeneous job runs in the first component, which has the number of the whole.
    number = str(job.raw_id or "") if job.id.part is None else str(job.id.job)
    values = {
        "A": str(job.id.job),
        "a": str(index),
        "b": str(index % 10),
        "J": number,
        "j": number,
        "N": job.batch_host.partition(".")[0],
        # A batch script is one task, on the first node.
        "n": "0",
        "t": "0",
        "r": str(job.restarts),
        # In newer versions a number that the queue does not show.
        "S": "",
        "s": "batch",
        "u": job.user,
        "x": job.name,
    }
    if any(letter and letter not in keep and values.get(letter) == "" for _, letter in _PATTERN.findall(path)):
        return ""

    def value(found: re.Match[str]) -> str:
        if found[0] == "%%":
            return "%"
        said = None if found[2] in keep else values.get(found[2])
        if said is None:
            return found[0]
        return said.zfill(min(int(found[1] or 0), _MOST_PADDING)) if said.isdecimal() else said

    return _PATTERN.sub(value, path)


#: Failed elements of an array that are named in each state.
_MOST_NAMED = 8


def sentence(status: JobStatus) -> str:
    """The state of a job as a sentence without its subject."""
    if status.lost:
        return f"is lost: {status.lost}"
    if status.trouble and not status.is_finished:
        return f"cannot be polled at present, which does not affect it: {status.trouble}"
    if len(status.parts) > 1 and status.is_array:
        return _tally(status.parts)
    said = [state_of(part) for part in status.parts]
    if len(said) == 1:
        return f"is {said[0]}"
    return "is " + ", ".join(f"{part.id} {one}" for part, one in zip(status.parts, said, strict=True))


def _tally(parts: Iterable[Job]) -> str:
    """The elements of an array by state, with the names of those that have failed."""
    said, total = [], 0
    for state, count in count_by_state(parts).items():
        total += count
        failed = [str(part.id) for part in parts if str(part.state) == state and part.has_failed]
        named = ", ".join(failed[:_MOST_NAMED]) + (", …" if len(failed) > _MOST_NAMED else "")
        said.append(f"{count} {state}" + (f" ({named})" if named else ""))
    return f"has {', '.join(said)} of {total} elements"


def state_of(part: Job) -> str:
    """The state of a job or of a part of one, with what belongs to it."""
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
