"""The state of one watched job, derived from the queue and accounting; lost jobs.

The queue forgets a job some minutes after its end, each element of an array separately. Accounting lags behind, and
elements that were cancelled before they started are in neither. So neither is complete, and a job is lost only if
it has been missing in both for a while.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Set
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from airflow_provider_soperator.slurm.job_ids import JobId, array_indices, array_text
from airflow_provider_soperator.slurm.job_records import AccountingJob, Job, JobStatus
from airflow_provider_soperator.slurm.requests.accounting import name_in_accounting
from airflow_provider_soperator.slurm.states import JobBase, JobState
from airflow_provider_soperator.slurm.submission_keys import key_of

#: An element of an array and a component of a heterogeneous job; of a plain job both are None.
_Key = tuple[int | None, int | None]
_PLAIN: _Key = (None, None)

_CANCELLED = JobState(JobBase.CANCELLED)
_ARRAY_OPTION = re.compile(r"\s(?:--array[= ]|-a ?)([0-9,:%-]+)(?=\s|$)")


@dataclass(frozen=True)
class LossLimits:
    """Seconds for which a job may be missing before it is lost."""

    #: Neither the queue nor accounting has it.
    unknown: float = 60.0
    #: Accounting has it as pending or running, and slurmctld does not know it.
    runaway: float = 300.0
    #: Seconds for which the queue has a job that has ended (MinJobAge).
    remembered: float = 300.0


@dataclass(slots=True)
class TrackedJob:
    """A watched job, by its number and, if given, the name that it must have."""

    number: int
    name: str = ""
    #: Those who are told of it, by identity, in order of arrival.
    waiters: dict[int, Any] = field(default_factory=dict)
    #: The indices of the submitted array, as far as they are known, and those that were submitted in any case.
    _expected: set[int] = field(default_factory=set)
    _submitted: set[int] = field(default_factory=set)
    #: Why accounting could not be asked, or a record of the job could not be read.
    trouble: str = ""
    #: The newest record of each part; None for a part that was never seen but must exist.
    _known: dict[_Key, Job | None] = field(default_factory=dict)
    #: Parts that the queue has.
    here: set[_Key] = field(default_factory=set)
    #: Parts that accounting has as unfinished and the queue does not have.
    _stale: dict[_Key, Job] = field(default_factory=dict)
    #: True if the cluster has no accounting.
    _is_unaccounted: bool = False
    #: Without accounting: parts that may have run and been forgotten between two looks; and when the last one was.
    _overlooked: set[_Key] = field(default_factory=set)
    _looked_at: float | None = None
    #: True if all parts are known, even those that had left the queue before the first look.
    _complete: bool = False
    #: Seconds for which each part was missing while both could be asked, and when that was last seen.
    _missing_for: dict[_Key, float] = field(default_factory=dict)
    _missed_at: float | None = None
    #: The name of another job that has this number.
    _stranger: str = ""
    _lost: str = ""
    #: The same for the elements that are missing while others have not ended.
    _gone: dict[_Key, str] = field(default_factory=dict)
    #: The key at the end of the name, if it has one.
    _suffix: str = field(init=False)

    def __post_init__(self) -> None:
        key = key_of(self.name)
        self._suffix = key.suffix if key else ""

    def expect(self, job: JobId, indices: Collection[int]) -> None:
        """Note that this job, or an element of it, was submitted, and all indices of the array, if they are known."""
        self._expected.update(indices)
        if self.name and job.element is not None:
            self._submitted.add(job.element)

    def look_at_queue(self, rows: Collection[Job]) -> None:
        self.trouble = self._stranger = ""
        self.here = set()
        # All rows are of one job, of which further components may have names of their own.
        if rows and not any(self._is_named(row.name) for row in rows):
            self._stranger = next(iter(rows)).name
            rows = ()
        for row in rows:
            if row.unreadable:
                self.trouble = f"its record in the queue cannot be read: {row.unreadable}"
                continue
            for key in _keys(row.id):
                self.here.add(key)
                self._known[key] = row
        # A plain job is complete. Of others some parts may have left the queue already.
        self._complete = self._complete or _PLAIN in self.here
        self._forget_the_whole()

    @property
    def is_open(self) -> bool:
        """True if accounting must be asked."""
        return not self._complete or not self._known or bool(self._missing())

    def look_at_accounting(self, rows: Collection[AccountingJob], here: Set[_Key] = frozenset()) -> None:
        """``here``: parts that the queue had when accounting was asked; what is known of these is newer."""
        self._stale = {}
        is_ours = any(map(self._ours, rows))
        for row in rows:
            ours = self._ours(row) or (row if is_ours and row.id.part else None)
            if ours is None:
                self._stranger = row.name
                continue
            if ours.unreadable:
                self.trouble = f"its record in accounting cannot be read: {ours.unreadable}"
                continue
            self._complete = True
            job = ours.as_job()
            for key in _keys(job.id):
                known = self._known.setdefault(key, None)
                if key in self.here or key in here:
                    continue
                if not job.state.is_finished:
                    self._stale[key] = job
                elif not (known and known.state.is_finished):
                    # The queue's record of an end is more exact.
                    self._known[key] = job
            self._expect(_elements_asked_for(ours))
        self._expect_submitted()
        self._forget_the_whole()

    def do_without_accounting(self) -> None:
        """Use the queue alone: the cluster has no accounting."""
        self._complete, self._is_unaccounted, self._stale = True, True, {}
        self._expect(self._expected)
        self._expect_submitted()

    def could_not_ask(self) -> None:
        """Note that the queue or accounting did not answer: this time does not count."""
        self.trouble, self._missed_at = "", None

    def judge(self, now: float, patience: LossLimits) -> None:
        """Declare parts lost that have been missing for too long; call it after both have answered."""
        if self.trouble:
            # What cannot be read may not be missing.
            self._missed_at = None
            return
        missing = self._missing()
        if self._is_unaccounted and self._looked_at is not None and now - self._looked_at > patience.remembered:
            self._overlooked |= missing
        self._overlooked &= missing
        self._looked_at = now
        if self._known and self._complete and not missing:
            self._missing_for, self._missed_at, self._lost, self._gone = {}, None, "", {}
            return
        self._gone = {key: why for key, why in self._gone.items() if key in missing}
        spent = 0.0 if self._missed_at is None else now - self._missed_at
        self._missed_at = now
        # The elements of an array leave the queue one by one: each has its own time.
        before = self._missing_for
        self._missing_for = {key: before[key] + spent if key in before else 0.0 for key in missing or {_PLAIN}}
        if stale := missing & self._stale.keys():
            gone = self._gone_for(patience.runaway)
            self._gone |= {key: _runaway([self._stale[key]]) for key in stale & gone}
            if self._have_ended_without(gone):
                self._lost = _runaway(self._stale[key] for key in stale)
        elif gone := self._gone_for(patience.unknown):
            self._complete = True
            self._give_up(missing & gone)

    def _gone_for(self, patience: float) -> set[_Key]:
        return {key for key, seconds in self._missing_for.items() if seconds >= patience}

    def _have_ended_without(self, missing: Set[_Key]) -> bool:
        """True if all other parts are known to have ended: while one may run, the job must be followed."""
        return all(job and job.state.is_finished for key, job in self._known.items() if key not in missing)

    def parts(self) -> tuple[Job, ...]:
        """The newest record of each part."""
        if len(self._known) == 1:
            [known] = self._known.values()
            return (known,) if known else tuple(self._stale.values())
        newest: dict[JobId, Job] = {}
        for key, known in self._known.items():
            job = known or self._stale.get(key)
            if job is None:
                continue
            # One row may stand for many pending elements; those that have left it have records of their own.
            if job.id.elements and key not in self.here and not job.state.is_finished:
                job = replace(job, id=JobId(self.number, element=key[0]))
            newest[job.id] = job
        return tuple(sorted(newest.values(), key=lambda job: job.id))

    def status_of(self, job: JobId, parts: tuple[Job, ...], trouble: str) -> JobStatus | None:
        """The status of the job or of one part of it; None if nothing is known yet."""
        is_whole = job == job.whole
        lost = self._lost
        if job.element is not None and job == JobId(job.job, job.element):
            parts = self._element(job)
            if all(part.state.is_finished for part in parts):
                # What is unknown of others is no matter of its own.
                lost = "" if parts else lost
            else:
                lost = lost or self._gone.get((job.element, None), "")
        elif not is_whole:
            parts = tuple(part for part in parts if job.covers(part.id) or part.id.covers(job))
        if self._known and not parts and not lost and not self.is_open:
            lost = f"job {self.number} exists, but has no part {job}"
        trouble = trouble or self.trouble
        if not parts and not lost and not trouble:
            return None
        has_all = self._complete and all(one or key in self._stale for key, one in self._known.items())
        is_partial = is_whole and not has_all
        return JobStatus(id=job, parts=parts, lost=lost, trouble=trouble, is_partial=is_partial)

    def _element(self, job: JobId) -> tuple[Job, ...]:
        """The record of one element, which may be one entry of the queue with others."""
        key = (job.element, None)
        found = self._known.get(key) or self._stale.get(key)
        # With others it has the number of the array, and gets its own when it starts.
        return (replace(found, id=job, raw_id=0 if found.id.elements else found.raw_id),) if found else ()

    def _expect(self, elements: Set[int]) -> None:
        # Another word of the command line may look like the option, and the script may have been changed since an
        # earlier try; that would hardly fit the known elements.
        if elements >= {element for element, _ in self._known}:
            for element in elements:
                self._known.setdefault((element, None), None)

    def _expect_submitted(self) -> None:
        for element in self._submitted if self._known else ():
            self._known.setdefault((element, None), None)

    def _forget_the_whole(self) -> None:
        # Accounting shows a pending heterogeneous job as a plain one, and later by its components.
        if len(self._known) > 1:
            self._known.pop(_PLAIN, None)
            self._stale.pop(_PLAIN, None)

    def _missing(self) -> set[_Key]:
        away = self._known.keys() - self.here
        return {key for key in away if not ((job := self._known[key]) and job.state.is_finished)}

    def _ours(self, row: AccountingJob) -> AccountingJob | None:
        """The newest job of the right name among those with this number."""
        runs = [run for run in (*row.earlier_runs, row) if self._is_named(run.name)]
        return replace(runs[-1], earlier_runs=tuple(runs[:-1])) if runs else None

    def _is_named(self, name: str) -> bool:
        if self._suffix:
            return name.endswith(self._suffix)
        return not self.name or name in (self.name, name_in_accounting(self.name))

    def _give_up(self, missing: set[_Key]) -> None:
        others = [job for key, job in self._known.items() if job and key not in missing]
        have_ended = self._have_ended_without(missing)
        unseen = {key for key in missing if key[0] is not None and (not self._known[key] or key in self._overlooked)}
        if self._is_unaccounted and unseen:
            # They have ended, how is unknown.
            if have_ended:
                said = array_text(key[0] for key in unseen if key[0] is not None)
                self._lost = f"elements {said} are not in the queue, and without accounting their ends are unknown"
            missing = missing - unseen
        for key in missing:
            last, was_submitted = self._known[key], key[0] in self._submitted
            if others and key[0] is not None and not was_submitted and (last is None or last.state.is_pending):
                # An element that was cancelled before it started has no row anywhere.
                never_ran = JobId(self.number, element=key[0])
                self._known[key] = Job(id=never_ran, name=others[0].name, user=others[0].user, state=_CANCELLED)
            elif last or was_submitted:
                seen = f"it was {last.state} when last seen, and" if last else "it"
                why = f"{seen} is in neither the queue nor accounting now"
                self._gone[key] = why
                self._lost = why if have_ended else self._lost
        if not self._known:
            self._lost = "it is in neither the queue nor accounting"
        if self._stranger and (self._lost or not self._known):
            self._lost = f"Slurm lost it and reused its id for a job named {self._stranger}"


def _runaway(parts: Iterable[Job]) -> str:
    states = ", ".join(sorted({str(part.state) for part in parts}))
    return f"accounting has it as {states}, but slurmctld does not know it"


def _keys(job: JobId) -> Iterator[_Key]:
    if job.elements:
        for index in job.indices():
            yield index, job.part
    else:
        yield job.element, job.part


def _elements_asked_for(job: AccountingJob) -> frozenset[int]:
    """The indices of a whole array, if the command line that submitted it has them.

    >>> line = "sbatch --array=1-3%2 job.sh"
    >>> sorted(_elements_asked_for(AccountingJob(id=JobId.parse("7_1"), submit_line=line)))
    [1, 2, 3]
    """
    if job.id.element is None and not job.id.elements:
        return frozenset()
    # Arguments of the script may look like the option, such as -a -3; those of ours follow /dev/stdin.
    with suppress(ValueError):
        if found := _ARRAY_OPTION.search(job.submit_line.partition(" /dev/stdin ")[0]):
            return frozenset(array_indices(found[1]))
    return frozenset()
