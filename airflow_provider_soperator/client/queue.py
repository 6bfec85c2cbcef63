"""The queue: jobs by filters, and changes to pending ones."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import Any, TypeVar

from airflow_provider_soperator.slurm.dependencies import Unmet
from airflow_provider_soperator.slurm.errors import MOVED_ON, SlurmError
from airflow_provider_soperator.slurm.job_ids import JobId, JobIdSet
from airflow_provider_soperator.slurm.job_records import Job
from airflow_provider_soperator.slurm.queue_filter import QueueFilter
from airflow_provider_soperator.slurm.requests import (
    CancelJobs,
    HoldJobs,
    ListJobs,
    ReleaseJobs,
    Request,
    RequeueJobs,
    TopJobs,
    UpdateJob,
    batches,
)
from airflow_provider_soperator.slurm.requests.commands import Steps
from airflow_provider_soperator.slurm.requests.submission import KeyedDependency, Withdraw
from airflow_provider_soperator.slurm.states import JobFlag
from airflow_provider_soperator.slurm.submission_keys import Keys, SubmissionKey
from airflow_provider_soperator.transports.transport_errors import NotSupported

K = TypeVar("K")

#: Reads of the queue. A job may start or end between a read and a change, which then fails for it.
_LOOKS = 4


@dataclass(frozen=True)
class OrderedJobs:
    """Outcome of a change: the jobs that have it, those among them that had it before, and those that were gone."""

    jobs: tuple[JobId, ...]
    already: tuple[JobId, ...]
    gone: tuple[JobId, ...] = ()


@dataclass(frozen=True)
class JobSelection:
    """Jobs by their ids or, without any, by a filter."""

    ids: tuple[JobId, ...] | None = None
    filter: QueueFilter = field(default_factory=QueueFilter)

    def request(self) -> ListJobs:
        return self.filter.request() if self.ids is None else ListJobs(ids=self.ids)

    def among(self, jobs: Iterable[Job]) -> list[Job]:
        """Selected jobs that have not ended."""
        there = [job for job in jobs if not job.state.is_finished]
        if self.ids is None:
            return self.filter.picked(there, datetime.now(timezone.utc))
        place = {job: number for number, job in enumerate(self.ids)}
        # In the order of ``ids``.
        return sorted(there, key=lambda job: place.get(job.id, place.get(job.id.whole, len(place))))

    def gone_from(self, jobs: Sequence[Job]) -> tuple[JobId, ...]:
        """Selected ids that are not among these jobs."""
        there = JobIdSet(job.id for job in jobs)
        return tuple(job for job in self.ids or () if not there.touches(job))


def hold(meant: JobSelection) -> Steps[OrderedJobs]:
    """Hold pending jobs; running ones continue."""
    return _order(meant, lambda job: not job.is_wholly_held, lambda jobs: map(HoldJobs, batches(_ids(jobs))))


def release(meant: JobSelection) -> Steps[OrderedJobs]:
    """Release held jobs."""
    return _order(meant, lambda job: job.is_held, lambda jobs: map(ReleaseJobs, batches(_ids(jobs))))


def top(meant: JobSelection) -> Steps[OrderedJobs]:
    """Move jobs before all others of their users, in the order of their ids or of the queue."""
    return _order(meant, lambda job: not job.is_held, _tops)


def cancel(meant: JobSelection) -> Steps[OrderedJobs]:
    """Cancel jobs, running ones too; of an entry with pending elements only those that are named."""
    listed: tuple[Job, ...] = yield meant.request()
    found = meant.among(listed)
    gone = meant.gone_from(found)
    jobs = _ids(found) if meant.ids is None else tuple(job for job in meant.ids if job not in gone)
    yield from cancel_many(jobs)
    return OrderedJobs(jobs, (), gone)


def is_ending(job: Job) -> bool:
    """True for a job that has done its work, or was ended: from the queue it would do that again."""
    return job.state.is_finished or job.state.has(JobFlag.COMPLETING)


async def requeue_or_cancel(
    job: Job, ask: Callable[[Request[None]], Awaitable[None]], *, may_cancel: bool = True
) -> str:
    """Put a job back into the queue, a heterogeneous one as a whole; if Slurm refuses that, cancel it, if it may be.

    Returns what becomes of it, in words. An error that may pass is raised: the job may have been requeued nevertheless,
    and must not be cancelled in the queue. Neither must it where its requeue cannot be asked for.
    """
    try:
        await ask(RequeueJobs((job.id.without_part,)))
    except MOVED_ON:
        return "is requeued, or over"
    except SlurmError as error:
        # Such as of an allocation of salloc, which has no script to start again.
        if error.passing:
            raise
        if not may_cancel:
            return f"cannot be requeued, and is waited for: {error}"
        await ask(CancelJobs(ids=(job.id,)))
        return f"is cancelled, as it cannot be requeued: {error}"
    return "is requeued"


def update(
    meant: JobSelection, changes: Mapping[str, str], is_so: Callable[[Job], bool], also_running: bool
) -> Steps[OrderedJobs]:
    """Change fields of jobs, except those that have them already (``is_so``)."""

    def orders(jobs: Sequence[Job]) -> Iterable[Request[None]]:
        return (UpdateJob(job.id, changes) for job in jobs)

    return _order(meant, lambda job: not is_so(job), orders, also_running)


def _order(
    meant: JobSelection,
    is_due: Callable[[Job], bool],
    orders: Callable[[Sequence[Job]], Iterable[Request[None]]],
    also_running: bool = False,
) -> Steps[OrderedJobs]:
    already: frozenset[JobId] | None = None
    failure: SlurmError | None = None
    for _ in range(_LOOKS):
        listed: tuple[Job, ...] = yield meant.request()
        found = [job for job in meant.among(listed) if also_running or job.state.is_pending]
        due = [job for job in found if is_due(job)]
        if already is None:
            already = frozenset(job.id for job in found if job not in due)
        try:
            if due:
                yield from tried(orders(due))
        except MOVED_ON as error:
            failure = error
            continue
        ids = _ids(found)
        return OrderedJobs(ids, tuple(job for job in ids if job in already), meant.gone_from(found))
    assert failure is not None
    raise failure


def _ids(jobs: Sequence[Job]) -> tuple[JobId, ...]:
    return tuple(job.id for job in jobs)


def _tops(jobs: Sequence[Job]) -> Iterable[Request[None]]:
    by_user: dict[str, dict[JobId, None]] = {}
    for job in jobs:
        by_user.setdefault(job.user, {})[job.id.whole] = None
    return (TopJobs(tuple(ids)) for ids in by_user.values())


def has_fields(job: Job, wanted: Mapping[str, str | int | timedelta]) -> bool:
    """True if the fields of a job's record have these values."""
    return all(getattr(job, name) == value for name, value in wanted.items())


def relink(jobs: Iterable[JobId], old: JobId, new: JobId) -> Steps[tuple[JobId, ...]]:
    """Replace the dependency on ``old`` by one on ``new`` in these jobs; returns the jobs that had it.

    Their other dependencies stay. ``old`` may be gone, and the jobs may be in ``DependencyNeverSatisfied``. By
    ``singleton`` ``new`` may wait for them, or for what waits for them: it no longer does.
    """
    wanted = tuple(jobs)
    queue: tuple[Job, ...] = (yield ListJobs(mine=True)) if wanted else ()
    waits_for = [(job.id.job, KeyedDependency(job.dependency, is_singleton=False).numbers) for job in queue]
    behind, more = set[int](), {job.job for job in wanted}
    while more:
        behind |= more
        more = {number for number, others in waits_for if not others.isdisjoint(more)} - behind
    if new.job in behind:
        yield from _change([new], lambda unmet: unmet.without(behind))
    return (yield from _change(wanted, lambda unmet: unmet.relinked(old, new)))


def let_go(job: JobId, kept: Collection[int] = ()) -> Steps[bool]:
    """Drop the dependencies of a job that can never be satisfied, so that it runs; False if it has none.

    Those on ``kept`` jobs stay.
    """
    return bool((yield from _change([job], lambda unmet: unmet.possible(kept) if unmet.is_vain else unmet)))


def _change(ids: Iterable[JobId], change: Callable[[Unmet], Unmet]) -> Steps[tuple[JobId, ...]]:
    """Change the dependencies of these jobs; returns the jobs that were changed."""
    wanted = tuple(dict.fromkeys(ids))
    listed: tuple[Job, ...] = (yield ListJobs(ids=wanted)) if wanted else ()
    waiting: dict[JobId, list[Job]] = {}
    for job in listed:
        if job.state.is_pending:
            waiting.setdefault(job.id.whole, []).append(job)
    changed: dict[JobId, None] = {}
    failures: list[SlurmError] = []
    for whole, parts in waiting.items():
        for target, text in _updates(whole, parts, change):
            try:
                yield UpdateJob(target, {"Dependency": text})
            except MOVED_ON:
                # It has started meanwhile. For an array, Slurm says so of running elements and changes the others.
                if all(part.id.elements for part in parts):
                    changed[whole] = None
            except SlurmError as error:
                failures.append(error)
            else:
                changed[whole] = None
    if failures:
        raise failures[0]
    return tuple(changed)


def _updates(whole: JobId, parts: Iterable[Job], change: Callable[[Unmet], Unmet]) -> Iterator[tuple[JobId, str]]:
    """New dependencies of parts of a job, by the ids under which they can be changed.

    Array elements that are one entry of the queue go by the id of the whole array, which changes all other pending
    elements, too; these get their own dependencies back.
    """
    # The one entry, if there is one, comes first.
    text_of_all: str | None = None
    for part in sorted(parts, key=lambda part: not part.id.elements):
        unmet = Unmet.parse(part.dependency)
        changed = change(unmet)
        if changed != unmet or text_of_all not in (None, str(changed)):
            yield (whole if part.id.elements else JobId(part.raw_id)), str(changed)
        if part.id.elements and changed != unmet:
            text_of_all = str(changed)


def unfinished(jobs: Mapping[JobId, SubmissionKey]) -> Steps[tuple[JobId, ...]]:
    """Those of these jobs that have not ended: ask right before a change of jobs that were submitted long ago.

    A slurmctld that was killed forgets its last jobs, and gives their numbers to others, of other keys or users.
    """
    listed = (yield from _own(ids=tuple(jobs))) if jobs else ()
    keys = Keys(jobs.values())
    there: dict[JobId, list[Job]] = {}
    for job in listed:
        there.setdefault(job.id.whole, []).append(job)

    def has_not_ended(job: JobId) -> bool:
        parts = [part for part in there.get(job.whole, ()) if job.covers(part.id) or part.id.covers(job)]
        # Further components of a heterogeneous job may have names of their own.
        is_own = any((jobs[job], job) in keys.of(part.name, part.id) for part in parts)
        return is_own and not all(part.state.is_finished for part in parts)

    return tuple(filter(has_not_ended, jobs))


def cancel_keys(batch: Mapping[K, Sequence[SubmissionKey]]) -> Steps[dict[K, tuple[JobId, ...]]]:
    """Cancel whatever has these keys, also a job whose submission has begun; returns the jobs that had not ended.

    What is begun here and not completed, as slurmctld does not answer, the next submission on the cluster completes.
    """
    keys = tuple(dict.fromkeys(key for some in batch.values() for key in some))
    yield from withdraw(keys)
    ended = yield from with_keys(keys)
    yield from cancel_many(job for jobs in ended.values() for job in jobs)
    return {which: tuple(job for key in some for job in ended.get(key, ())) for which, some in batch.items()}


def withdraw(keys: tuple[SubmissionKey, ...], names: tuple[str, ...] = ()) -> Steps[None]:
    """Withdraw the submissions of these keys that have begun."""
    try:
        yield Withdraw(keys, names=names)
    except SlurmError as error:
        if error.passing:
            raise
        # No file can be written, such as on a full disk: no submission can begin there either, but the job may run.


def with_keys(keys: Collection[SubmissionKey]) -> Steps[dict[SubmissionKey, dict[JobId, None]]]:
    """The jobs with these keys that have not ended, in the order of their ids."""
    wanted = Keys(keys)
    listed = (yield from _own(name_suffixes=wanted.suffixes)) if keys else ()
    found: dict[SubmissionKey, dict[JobId, None]] = {}
    for job in sorted(listed, key=lambda job: job.id):
        if not job.state.is_finished:
            for key, own in wanted.of(job.name, job.id):
                found.setdefault(key, {})[own] = None
    return found


def _own(**conditions: Any) -> Steps[tuple[Job, ...]]:
    """The user's own jobs in the queue: a number may be another's by now, and anybody can give a job any name."""
    try:
        return (yield ListJobs(mine=True, **conditions))  # type: ignore[no-any-return]
    except NotSupported:
        # The token names no user, or nothing tells its number. No result is read from these jobs: they are to be
        # cancelled or changed, which Slurm lets no user but operators do to others.
        return (yield ListJobs(**conditions))  # type: ignore[no-any-return]


def cancel_many(jobs: Iterable[JobId], *, waiting: bool = False) -> Steps[None]:
    """Cancel any number of jobs, or those of them that are ``waiting``: running elements of an array continue."""
    yield from tried(CancelJobs(ids=batch, waiting=waiting) for batch in batches(dict.fromkeys(jobs)))


def tried(requests: Iterable[Request[None]]) -> Steps[None]:
    """Send all requests, even after a failure; raises the first failure in the end."""
    failure: SlurmError | None = None
    for request in requests:
        try:
            yield request
        except SlurmError as error:
            failure = failure or error
    if failure:
        raise failure
