"""One job that is waited for: what the queue and accounting have said of it so far, and what follows from that.

The queue forgets a job some minutes after its end, each element of an array for itself. Accounting lags behind, and of
elements that were cancelled before they started it says nothing. So neither alone has the whole truth, and only what
both have failed to know for a while is given up.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from airflow_provider_soperator.slurm.ids import JobId
from airflow_provider_soperator.slurm.records import AccountingJob, Job
from airflow_provider_soperator.slurm.requests.accounting import name_in_accounting
from airflow_provider_soperator.slurm.states import JobBase, JobState
from airflow_provider_soperator.slurm.status import JobStatus

#: An element of an array and a component of a heterogeneous job; of a plain job both are None.
_Key = tuple[int | None, int | None]
_PLAIN: _Key = (None, None)

_CANCELLED = JobState(JobBase.CANCELLED)


@dataclass(frozen=True)
class Patience:
    """Seconds for which a job may be missing before it is given up."""

    #: Neither the queue nor accounting has it.
    unknown: float = 60.0
    #: Accounting has it as waiting or running, and slurmctld does not know it.
    runaway: float = 300.0


@dataclass
class WatchedJob:
    """A job number, and if it is given the name that the job must have."""

    number: int
    name: str = ""
    #: Why accounting could not be asked, if it was to be.
    trouble: str = ""
    _here: tuple[Job, ...] = ()
    _here_keys: set[_Key] = field(default_factory=set)
    #: Parts that have ended, and that the queue may have forgotten since.
    _ended: dict[_Key, Job] = field(default_factory=dict)
    #: Parts that accounting has as unfinished and the queue does not have.
    _stale: dict[_Key, Job] = field(default_factory=dict)
    #: All parts that have ever been seen.
    _expected: set[_Key] = field(default_factory=set)
    #: Whether it is known which parts had gone before the first look.
    _complete: bool = False
    #: Seconds for which something has been missing, as far as both could be asked.
    _missing_for: float = 0.0
    #: The name of another job that has this number.
    _stranger: str = ""
    _lost: str = ""

    def look_at_queue(self, rows: Iterable[Job]) -> None:
        self.trouble = self._stranger = ""
        ours = []
        for row in rows:
            if self.name and row.name != self.name:
                self._stranger = row.name
            else:
                ours.append(row)
        self._here = tuple(ours)
        self._here_keys = set()
        for row in ours:
            for key in _keys(row.id):
                self._here_keys.add(key)
                if row.state.is_finished:
                    self._ended[key] = row
                else:
                    # It may have been requeued after its end.
                    self._ended.pop(key, None)
        self._expected |= self._here_keys
        # A plain job is all there is to it. Of others some parts may have gone already.
        self._complete = self._complete or _PLAIN in self._here_keys

    @property
    def is_open(self) -> bool:
        """Whether accounting is to be asked."""
        return not self._complete or not self._expected or bool(self._missing())

    def look_at_accounting(self, rows: Iterable[AccountingJob]) -> None:
        self._complete = True
        self._stale = {}
        for row in rows:
            if self.name and row.name != name_in_accounting(self.name):
                self._stranger = row.name
                continue
            job = row.as_job()
            for key in _keys(row.id):
                self._expected.add(key)
                if key not in self._here_keys:
                    (self._ended if row.state.is_finished else self._stale)[key] = job

    def judge(self, elapsed: float, patience: Patience) -> None:
        """Give up what has been missing for long enough. ``elapsed`` has the seconds since the look before."""
        missing = self._missing()
        if self._expected and not missing:
            self._missing_for, self._lost = 0.0, ""
            return
        if self.trouble:
            return
        if runaways := missing & self._stale.keys():
            if self._missing_for >= patience.runaway:
                states = ", ".join(sorted({str(self._stale[key].state) for key in runaways}))
                self._lost = f"accounting has it as {states}, but slurmctld does not know it"
        elif self._missing_for >= patience.unknown:
            if self._here or self._ended:
                self._bury(missing)
            elif self._stranger:
                self._lost = f"Slurm has lost it, and given its number to a job named {self._stranger}"
            else:
                self._lost = "neither the queue nor accounting knows it"
        self._missing_for += elapsed

    def _bury(self, missing: set[_Key]) -> None:
        """Elements that were cancelled before they started have no row of their own anywhere."""
        like = next(iter((*self._here, *self._ended.values())))
        for element, part in missing:
            gone = JobId(self.number, element=element, part=part)
            self._ended[element, part] = Job(id=gone, name=like.name, user=like.user, state=_CANCELLED)

    def parts(self) -> tuple[Job, ...]:
        """Everything that is known of it, the newest knowledge of each part."""
        gone = [job for key, job in self._ended.items() if key not in self._here_keys]
        gone += [self._stale[key] for key in self._missing() & self._stale.keys()]
        if not gone and len(self._here) == 1:
            return self._here
        # One row of accounting may stand for many elements.
        return tuple(sorted({job.id: job for job in (*gone, *self._here)}.values(), key=lambda job: job.id))

    def status_of(self, job: JobId, parts: tuple[Job, ...], trouble: str) -> JobStatus | None:
        """What there is to say of the job or of one part of it; None: nothing yet."""
        if job != job.whole:
            parts = tuple(part for part in parts if job.covers(part.id) or part.id.covers(job))
        lost = self._lost
        if self._expected and not parts and not lost and not self.is_open:
            lost = f"job {self.number} is there, but has no {job}"
        if self._missing() or not parts:
            trouble = trouble or self.trouble
        if not parts and not lost and not trouble:
            return None
        partial = not self._complete and job == job.whole
        return JobStatus(id=job, parts=parts, lost=lost, trouble=trouble, is_partial=partial)

    def _missing(self) -> set[_Key]:
        return self._expected - self._here_keys - self._ended.keys()


def _keys(job: JobId) -> Iterator[_Key]:
    if job.elements:
        for index in job.indices():
            yield index, job.part
    else:
        yield job.element, job.part
