"""Jobs of the queue by what they have in common, and their number: what sensors and queue orders select."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow_provider_soperator.errors import nearest
from airflow_provider_soperator.slurm.errors import InvalidRequest
from airflow_provider_soperator.slurm.job_records import Job, count_by_state
from airflow_provider_soperator.slurm.states import JobBase, JobState
from airflow_provider_soperator.values import comma_separated, is_template

if TYPE_CHECKING:
    from airflow_provider_soperator.slurm.requests import ListJobs


@dataclass(frozen=True, kw_only=True)
class QueueFilter:
    """Conditions on jobs, all of which must hold. Each element of an array counts as a job."""

    #: Slurm's states, in full: PENDING, RUNNING and so on. Empty: all jobs that have not ended.
    states: tuple[str, ...] = ()
    partition: str = ""
    user: str = ""
    account: str = ""
    qos: str = ""
    #: A pattern with ``*`` and ``?``.
    name: str = ""
    #: The reason why they wait: Resources, Priority, QOSMaxJobsPerUserLimit and so on.
    reason: str = ""
    #: The minimum time that they have waited, or did wait before they started.
    waited: timedelta | None = None

    @classmethod
    def of(cls, said: object) -> QueueFilter:
        """That of conditions by their names, as a DAG file has them."""
        if not isinstance(said, Mapping):
            raise InvalidRequest(f"job_filter={said!r} has no conditions by their names")
        names = [one.name for one in fields(cls)]
        if unknown := [name for name in said if name not in names]:
            raise InvalidRequest(f"job_filter: unknown condition {', '.join(unknown)}; known are {', '.join(names)}")
        states, waited = comma_separated(said.get("states")), said.get("waited")
        # Others are for squeue to judge: it has abbreviations, and a newer Slurm has more states.
        for strange in (state for state in states if not is_template(state) and JobState.parse(state).unknown):
            if near := nearest(strange.upper(), [state.value for state in JobBase]):
                raise InvalidRequest(f"job_filter: Slurm has no {strange}: did you mean {near!r}?")
        if isinstance(waited, int | float):
            waited = timedelta(seconds=waited)
        return cls(**{**said, "states": tuple(states), "waited": waited})

    def request(self) -> ListJobs:
        """The request to send; filters that differ only in what the server cannot select have equal requests."""
        from airflow_provider_soperator.slurm.requests import ListJobs

        return ListJobs(states=tuple(self.states), partition=self.partition, user=self.user)

    def admits(self, job: Job, now: datetime) -> bool:
        return (bool(self.states) or not job.state.is_finished) and self.fits(job, now)

    def fits(self, job: Job, now: datetime) -> bool:
        """True if the conditions that squeue does not know are met, in any state."""
        for wanted, has in ((self.account, job.account), (self.qos, job.qos)):
            if wanted and wanted != has:
                return False
        if self.reason and self.reason.replace(" ", "_") not in (job.reason, *job.reasons):
            return False
        if self.name and not fnmatch.fnmatchcase(job.name, self.name):
            return False
        return self.waited is None or job.waited(now) >= self.waited

    def picked(self, jobs: Iterable[Job], now: datetime) -> list[Job]:
        return [job for job in jobs if self.admits(job, now)]

    def tally(self, jobs: Iterable[Job], now: datetime) -> dict[str, Any]:
        """The number of these jobs, in all and in each state."""
        states = count_by_state(self.picked(jobs, now))
        return {"count": sum(states.values()), "states": states}


def within(count: int, at_most: int | None, at_least: int | None) -> bool:
    return (at_most is None or count <= at_most) and (at_least is None or count >= at_least)


class Lasting:
    """Condition that must hold for some time.

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
