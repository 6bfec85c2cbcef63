"""Finished jobs, each reported once: for tasks that wait for any job that fits a filter."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from typing import Any

from airflow_provider_soperator.client.poller import Waiter, WatchList
from airflow_provider_soperator.slurm.cluster_records import ClusterConfig
from airflow_provider_soperator.slurm.errors import AccountingDisabled
from airflow_provider_soperator.slurm.job_ids import JobId
from airflow_provider_soperator.slurm.job_records import AccountingJob, Job, JobStatus
from airflow_provider_soperator.slurm.queue_filter import QueueFilter
from airflow_provider_soperator.slurm.requests import Accounting, ShowConfig
from airflow_provider_soperator.slurm.requests.commands import Steps
from airflow_provider_soperator.slurm.states import JobFlag
from airflow_provider_soperator.slurm.submission_keys import CLOCKS
from airflow_provider_soperator.transports.transport_errors import NotSupported

#: How long a reported end is remembered after a later one: accounting may lag by less than this.
_OVERLAP = timedelta(minutes=10)
#: Limit on the look back: a DAG that was paused for a month does not run for every job of that month, and a job that
#: hangs in COMPLETING does not keep all later ones in memory.
FURTHEST = timedelta(days=1)
#: The horizon moves in steps of this many seconds: the memory seldom changes, and requests can be shared.
_STEP = 600


class FinishedJobs:
    """Reads the queue in each round, and accounting for jobs that the queue may have forgotten since the last one.

    An array or a heterogeneous job is one job, finished when all its parts are. A job that is requeued after its end
    finishes again.
    """

    def __init__(self, wanted: QueueFilter, since: datetime) -> None:
        # Slurm keeps whole seconds: a job that ends within the current second must not seem earlier.
        self._wanted, self._since = wanted, since.replace(microsecond=0)
        #: Ends before this have been reported; later ones if they are in ``_told``.
        self._horizon = _step(since - CLOCKS - _OVERLAP)
        self._told: dict[int, datetime] = {}
        #: Arrays and heterogeneous jobs of which not all parts are known to have ended, as while accounting is away.
        self._open: WatchList[Waiter] = WatchList()
        self._asked: datetime | None = None
        self._remembered: timedelta | None = None
        #: Why jobs may have been missed; empty if none can have been.
        self.trouble = ""

    def memory(self) -> dict[str, Any]:
        """State from which another instance continues, as JSON."""
        told = {str(job): int(ended.timestamp()) for job, ended in self._told.items()}
        return {"horizon": int(self._horizon.timestamp()), "told": told}

    def remember(self, memory: Mapping[str, Any]) -> None:
        """Continue from the state of another instance."""
        furthest = _step(datetime.now(timezone.utc) - FURTHEST)
        self._since = self._horizon = max(furthest, _moment(memory["horizon"]))
        self._told = {int(job): _moment(ended) for job, ended in memory["told"].items()}

    def round(self) -> Steps[list[JobStatus]]:
        """The jobs that have finished since the last round."""
        now = datetime.now(timezone.utc)
        jobs: dict[JobId, Job] = {job.id: job for job in (yield self._wanted.request())}
        if self._asked is None or now - self._asked > (yield from self._safe()):
            # The queue is more exact than accounting.
            jobs = {**(yield from self._past()), **jobs}
        over, ending = self._sorted(jobs.values(), now)
        news = yield from self._whole(over)
        ends = {status.id.job: max(_end(status.parts), _end(over.get(status.id.job, ()))) for status in news}
        seen = {one: _end(filter(_has_ended, one.told.parts)) for one in self._open if one.told}
        if self._asked is None:
            # In the first round only: later it would depend on which clock is right.
            news = [status for status in news if ends[status.id.job] >= self._since]
            ends |= {one.job.job: end for one, end in seen.items() if end < self._since}
        self._asked = now
        # Slurm's clock may be behind. After a long epilog, the end is long past when it is reported.
        newest = min(now, _end(filter(_has_ended, jobs.values())))
        earliest = min([newest - _OVERLAP, *ending, *seen.values()])
        self._horizon = max(self._horizon, _step(max(newest - FURTHEST, earliest)))
        for one in [one for one, end in seen.items() if end < self._horizon or one.job.job in ends]:
            self._open.remove(one)
        self._told = {job: end for job, end in (self._told | ends).items() if end >= self._horizon}
        return news

    def _safe(self) -> Steps[timedelta]:
        """How long finished jobs certainly stay in the queue."""
        if self._remembered is None:
            try:
                config: ClusterConfig = yield ShowConfig()
            except NotSupported:
                config = ClusterConfig(version="")
            # It counts from the end, which is seen only in the next round.
            self._remembered = config.min_job_age / 2
        return self._remembered

    def _past(self) -> Steps[dict[JobId, Job]]:
        try:
            found: tuple[AccountingJob, ...] = yield Accounting(
                user=self._wanted.user, everyone=not self._wanted.user, since=self._horizon
            )
        except AccountingDisabled:
            since = f"{self._horizon:%Y-%m-%d %H:%M} UTC"
            self.trouble = f"jobs that ended after {since} and have left the queue are not found without accounting"
            return {}
        self.trouble = ""
        # A job that is unfinished in accounting only is a runaway, or about to appear in the queue.
        partition = self._wanted.partition
        past = (job.as_job() for job in found if partition in ("", job.partition) and job.state.is_finished)
        return {job.id: job for job in past}

    def _sorted(self, jobs: Iterable[Job], now: datetime) -> tuple[dict[int, list[Job]], list[datetime]]:
        """Parts of the jobs that may have to be reported, and the ends of jobs that are still completing."""
        groups: dict[int, list[Job]] = {}
        for job in jobs:
            groups.setdefault(job.id.job, []).append(job)
        over: dict[int, list[Job]] = {}
        ending: list[datetime] = []
        for number, parts in groups.items():
            if not any(self._wanted.fits(part, now) for part in parts):
                continue
            if not all(part.state.is_finished for part in parts):
                ending += [part.ends for part in parts if JobFlag.COMPLETING in part.state.flags and part.ends]
            elif _end(parts) >= self._horizon and _end(parts) > self._told.get(number, _LONG_AGO):
                over[number] = parts
        return over, ending

    def _whole(self, over: Mapping[int, Sequence[Job]]) -> Steps[list[JobStatus]]:
        """Jobs that are over as a whole; parts of others may have left the queue, or be in other partitions."""
        told: list[JobStatus] = []
        watched = {one.job.job for one in self._open}
        for number, parts in over.items():
            if parts[0].id == (job := JobId(number)):
                told.append(JobStatus(id=job, parts=tuple(parts)))
            elif number not in watched:
                self._open.add(Waiter(job))
        others = list(self._open)
        yield from self._open.round()
        return [*told, *(one.told for one in others if one.told and one.told.is_over)]


def _has_ended(part: Job) -> bool:
    return part.state.is_finished


def _end(parts: Iterable[Job]) -> datetime:
    return max((part.ends for part in parts if part.ends), default=_LONG_AGO)


def _step(when: datetime) -> datetime:
    return _moment(int(when.timestamp()) // _STEP * _STEP)


def _moment(seconds: int) -> datetime:
    return datetime.fromtimestamp(seconds, timezone.utc)


_LONG_AGO = _moment(0)
