"""Which jobs of the queue are meant, and how many they are: what sensors wait for."""

from __future__ import annotations

import fnmatch
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from airflow_provider_soperator.slurm.records import Job
from airflow_provider_soperator.slurm.requests import ListJobs


@dataclass(frozen=True, kw_only=True)
class QueueFilter:
    """Jobs that fit every condition given. An element of an array is a job.

    >>> from airflow_provider_soperator.slurm.ids import JobId
    >>> from airflow_provider_soperator.slurm.states import JobState
    >>> waiting = Job(id=JobId.parse("7_[1-3]"), name="fit-1", state=JobState.parse("PENDING"), reason="Resources")
    >>> QueueFilter(states=("PENDING",), name="fit-*").tally([waiting], datetime.now())
    {'count': 3, 'states': {'PENDING': 3}}
    """

    #: Slurm's, in full: PENDING, RUNNING and so on. Empty: all that have not ended.
    states: tuple[str, ...] = ()
    partition: str = ""
    user: str = ""
    account: str = ""
    qos: str = ""
    #: With ``*`` and ``?`` for any letters and any one.
    name: str = ""
    #: Why they wait: Resources, Priority, QOSMaxJobsPerUserLimit and so on.
    reason: str = ""
    #: They have waited for at least so long, or did before they started.
    waited: timedelta | None = None

    def request(self) -> ListJobs:
        """What to ask; equal filters of what the server can pick out make equal questions."""
        return ListJobs(states=tuple(self.states), partition=self.partition, user=self.user)

    def admits(self, job: Job, now: datetime) -> bool:
        return (bool(self.states) or not job.state.is_finished) and self.fits(job, now)

    def fits(self, job: Job, now: datetime) -> bool:
        """Whether all conditions are met that squeue does not know, whatever the job's state."""
        for wanted, has in ((self.account, job.account), (self.qos, job.qos), (self.reason, job.reason)):
            if wanted and wanted != has:
                return False
        if self.name and not fnmatch.fnmatchcase(job.name, self.name):
            return False
        return self.waited is None or _waited(job, now) >= self.waited

    def picked(self, jobs: Iterable[Job], now: datetime) -> list[Job]:
        return [job for job in jobs if self.admits(job, now)]

    def tally(self, jobs: Iterable[Job], now: datetime) -> dict[str, Any]:
        """How many they are, and how many in each state."""
        states = summary(self.picked(jobs, now))
        return {"count": sum(states.values()), "states": states}


def within(count: int, at_most: int | None, at_least: int | None) -> bool:
    return (at_most is None or count <= at_most) and (at_least is None or count >= at_least)


class Lasting:
    """Since when something is so, and whether for long enough.

    >>> queue, noon = Lasting(timedelta(minutes=5)), datetime(2026, 11, 21, 12)
    >>> [queue.look(True, noon), queue.look(True, noon + timedelta(minutes=5)), queue.look(False, noon)]
    [False, True, False]
    """

    def __init__(self, enough: timedelta) -> None:
        self._enough = enough
        self.since: datetime | None = None

    def look(self, is_so: bool, now: datetime) -> bool:
        self.since = (self.since or now) if is_so else None
        return self.since is not None and now - self.since >= self._enough


def summary(jobs: Iterable[Job]) -> dict[str, int]:
    """How many jobs there are in each state.

    >>> summary([])
    {}
    """
    counts: Counter[str] = Counter()
    for job in jobs:
        counts[str(job.state)] += size(job)
    return dict(counts.most_common())


def size(job: Job) -> int:
    """How many jobs an entry of the queue stands for: elements of an array that wait are one."""
    return max(1, sum(1 for _ in job.id.indices()))


def _waited(job: Job, now: datetime) -> timedelta:
    if job.submitted is None:
        return timedelta(0)
    # Of a waiting job it is a guess when it starts.
    until = job.started if job.started and not job.state.is_pending else now
    return until - job.submitted
