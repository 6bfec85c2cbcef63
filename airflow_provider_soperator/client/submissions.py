"""Submissions: many jobs in one request, and the jobs of earlier tries."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from functools import cached_property
from typing import TypeVar

from airflow_provider_soperator.client.poller import statuses
from airflow_provider_soperator.client.queue import withdraw
from airflow_provider_soperator.client.refusals import explained_answers
from airflow_provider_soperator.slurm import packs, sbatch_arguments
from airflow_provider_soperator.slurm.cluster_records import RateLimit
from airflow_provider_soperator.slurm.errors import (
    AccountingDisabled,
    InvalidRequest,
    SlurmError,
    SubmitRefused,
    TogetherRefused,
)
from airflow_provider_soperator.slurm.job import BatchJob
from airflow_provider_soperator.slurm.job_description import InvalidJob
from airflow_provider_soperator.slurm.job_ids import JobId
from airflow_provider_soperator.slurm.job_records import AccountingJob, Job, JobStatus
from airflow_provider_soperator.slurm.packs import names_in_queue
from airflow_provider_soperator.slurm.requests import Accounting, ListJobs
from airflow_provider_soperator.slurm.requests.commands import TIMEOUT, Steps
from airflow_provider_soperator.slurm.requests.submission import (
    LOOK_BACK,
    MOST,
    WITHDRAWN,
    SubmitOnce,
    Submitted,
    Together,
    Withdraw,
    in_order,
    readable_job_name,
)
from airflow_provider_soperator.slurm.states import JobBase
from airflow_provider_soperator.slurm.submission_keys import Keys, SubmissionKey


def named(job: BatchJob, key: SubmissionKey) -> BatchJob:
    """The job with its key at the end of its name."""
    return job.replace(name=key.name(job.name or "job"))


@dataclass
class PendingSubmission:
    """A job to submit, whose name ends in its key."""

    job: BatchJob
    #: The earliest possible time of the first try.
    since: datetime | None = None

    @cached_property
    def packable(self) -> packs.Packable | None:
        return packs.packable_of(self.job)

    @property
    def kind(self) -> str:
        """Equal for the jobs of mapped tasks that can go as one array; empty for others."""
        return self.packable.kind if self.packable else ""

    @property
    def size(self) -> int:
        """About the bytes that the job takes in a request."""
        return len(sbatch_arguments.body(self.job) or "") + sum(map(len, self.job.env.values()))


K = TypeVar("K")


def submit(batch: Mapping[K, PendingSubmission]) -> Steps[dict[K, Submitted]]:
    """Submit jobs in one request; those that it did not reach, or slurmctld did not answer about, have no answer."""
    try:
        return (yield from _submit(batch))
    except (InvalidJob, InvalidRequest):
        if len(batch) == 1:
            raise
    # One of them cannot be written as a request, which is no matter of the others.
    items, half, answered = list(batch.items()), len(batch) // 2, dict[K, Submitted]()
    for some in (items[:half], items[half:]):
        try:
            answered |= yield from submit(dict(some))
        except (InvalidJob, InvalidRequest) as error:
            answered[some[0][0]] = Submitted(None, error=SubmitRefused(str(error)))
    return answered


def _submit(batch: Mapping[K, PendingSubmission]) -> Steps[dict[K, Submitted]]:
    jobs, begun = tuple(one.job for one in batch.values()), [one.since for one in batch.values()]
    since = None if None in begun else min(filter(None, begun))
    packables = tuple(one.packable for one in batch.values())
    answers = yield SubmitOnce(jobs=jobs, since=since, packables=packables)
    refused = [answer.error.option if answer.error else "" for answer in answers]
    if alone := [place for place, one in enumerate(batch.values()) if one.kind and refused[place] == "--array"]:
        # The cluster takes no arrays, or none with so many indices.
        some = tuple(jobs[place] for place in alone)
        answered_alone = yield SubmitOnce(jobs=some, since=since, packables=(None,) * len(some))
        instead = dict(zip(alone, answered_alone, strict=True))
        answers = tuple(instead.get(place, answer) for place, answer in enumerate(answers))
    answers = yield from explained_answers(jobs, answers)
    answered = {which: one for which, one in zip(batch, answers, strict=True) if not (one.error and one.error.passing)}
    if not answered:
        raise next(one.error for one in answers if one.error)
    return answered


def submit_together(
    jobs: Sequence[BatchJob], since: datetime | None, limit: RateLimit | None
) -> Steps[tuple[Submitted, ...]]:
    """Submit all jobs or none; none starts before all are accepted. ``TogetherRefused`` names the rejected one.

    Jobs that do not fit into one request stay held until the last one is there. A second request for all of them then
    releases them.
    """
    order, at_once = in_order(jobs), jobs_at_once(limit)
    goes = [order[start : start + at_once] for start in range(0, len(order), at_once)]
    done: dict[int, Submitted] = {}
    for places in goes:
        together = Together.START if len(goes) == 1 else Together.WAIT
        batch = tuple(jobs[place] for place in places)
        answers = yield SubmitOnce(jobs=batch, since=since, together=together)
        answers = yield from explained_answers(batch, answers)
        for place, answer in zip(places, answers, strict=True):
            if answer.error:
                yield from _refuse(jobs, place, answer.error, sorted(done), since)
        done |= zip(places, answers, strict=True)
    if len(goes) > 1:
        answers = yield from _ask_again(jobs, since, Together.START)
        for place, answer in enumerate(answers):
            # They were withdrawn in the meantime.
            if answer.error:
                yield from _refuse(jobs, place, answer.error, range(len(jobs)), since)
    return tuple(done[place] for place in range(len(jobs)))


def _refuse(
    jobs: Sequence[BatchJob], refused: int, error: SlurmError, there: Iterable[int], since: datetime | None
) -> Steps[None]:
    """Cancel those that are there, as one is refused, and raise that."""
    yield from _ask_again([jobs[place] for place in there], since, Together.END)
    raise TogetherRefused(readable_job_name(jobs[refused]), refused, error)


def take_back(jobs: Sequence[BatchJob], since: datetime | None) -> Steps[None]:
    """Cancel what has been submitted of these jobs, and what is being submitted; the next call submits them anew."""
    # The last ones first: none of those in a later request may start as what it waits for ends.
    ended = [jobs[place] for place in reversed(in_order(jobs))]
    names = tuple(readable_job_name(job) + WITHDRAWN for job in ended)
    yield from withdraw(SubmitOnce(jobs=tuple(ended)).submission_keys(), names)
    yield from _ask_again(ended, since, Together.END)


def _ask_again(jobs: Sequence[BatchJob], since: datetime | None, together: Together) -> Steps[list[Submitted]]:
    """Repeat the request for existing jobs, to which no limit on submissions applies."""
    answers: list[Submitted] = []
    for start in range(0, len(jobs), MOST):
        answers += yield SubmitOnce(jobs=tuple(jobs[start : start + MOST]), since=since, together=together)
    return answers


def jobs_at_once(limit: RateLimit | None) -> int:
    """Jobs that one request can submit together: under a rate limit ``sbatch`` waits, but its time is limited, too.

    >>> from datetime import timedelta
    >>> jobs_at_once(None), jobs_at_once(RateLimit(refill=4, period=timedelta(minutes=1)))
    (500, 5)
    """
    if limit is None:
        return MOST
    in_time = limit.refill * TIMEOUT / limit.period.total_seconds() / 2
    return max(1, min(MOST, int(in_time)))


@dataclass(frozen=True)
class Earlier:
    """A job, the keys under which earlier tries can have submitted it, and the earliest time of the first of them."""

    job: BatchJob
    keys: tuple[SubmissionKey, ...]
    since: datetime | None = None
    #: The key of this try, which may have its job from another process.
    own: SubmissionKey | None = None


def find(batch: Mapping[K, Earlier]) -> Steps[dict[K, Submitted | None]]:
    """For each job the newest of its tries, unless that has failed or was cancelled, or this try has one of its own.

    A job that has left the queue while accounting lags looks lost, and may have succeeded: its watch finds out.
    """
    since = min(one.since or datetime.now(timezone.utc) - LOOK_BACK for one in batch.values())
    tries = {key: one.job for one in batch.values() for key in one.keys}
    jobs = yield from jobs_of(tries, since)
    known = {key: job.id for key, job in jobs.items()}
    newest = {which: next((key for key in reversed(one.keys) if key in known), None) for which, one in batch.items()}
    wanted = {known[key]: key.suffix_of(known[key]) for key in newest.values() if key}
    if not wanted:
        return dict.fromkeys(batch)
    # A process that was told to cancel one of them has not done it yet, and from here on it is this try's.
    yield Withdraw(tuple(key for key in newest.values() if key), is_void=True)
    # Without accounting the queue may have forgotten one since.
    found_as = yield from statuses(wanted)
    if any(part.state.base is None for status in found_as.values() for part in status.parts):
        # Of one that is completing squeue does not show whether it was cancelled in the meantime.
        jobs |= yield from jobs_of(tries, since)
    going_on = {
        which: key
        for which, key in newest.items()
        if key and _goes_on(found_as.get(known[key], jobs[key])) and not _is_cancelled(jobs[key])
    }
    # Slurm may have forgotten that one has failed, as of an element of an array, after another process has submitted
    # the job of this try.
    own = {one.own: one.job for which, one in batch.items() if which in going_on and one.own}
    begun = (yield from jobs_of(own, since)) if own else {}
    adopted = {
        which: Submitted(known[key], adopted=True, key=key)
        for which, key in going_on.items()
        if batch[which].own not in begun
    }
    return {which: adopted.get(which) for which in batch}


def earlier_jobs(job: BatchJob, keys: Sequence[SubmissionKey], since: datetime | None) -> Steps[list[JobStatus | None]]:
    """The jobs of several tries, in their order, as Slurm has them; None for one that it does not know (any more)."""
    found = yield from jobs_of(dict.fromkeys(keys, job), since or datetime.now(timezone.utc) - LOOK_BACK)
    return [found.get(key) for key in keys]


def jobs_of(wanted: Mapping[SubmissionKey, BatchJob], since: datetime) -> Steps[dict[SubmissionKey, JobStatus]]:
    """The job of each key that Slurm knows; of several the one with the lowest id, as in the submission."""
    names = tuple(names_in_queue(named(job, key).name or "" for key, job in wanted.items()))
    keys = Keys(wanted)
    # The name may have the number of the try in it, or be another since; sacct finds whole names alone.
    records: list[Job | AccountingJob] = list((yield ListJobs(mine=True, name_suffixes=keys.suffixes)))
    with contextlib.suppress(AccountingDisabled):
        for start in range(0, len(names), MOST):
            records += yield Accounting(names=names[start : start + MOST], mine=True, since=since)
    found = dict[SubmissionKey, dict[JobId, dict[JobId, Job]]]()
    # The queue is more exact than accounting, and comes last here.
    for record in reversed(records):
        part = record if isinstance(record, Job) else record.as_job()
        for key, job in keys.of(record.name, record.id):
            parts = found.setdefault(key, {}).setdefault(job, {})
            if part.state.base is None and (known := parts.get(part.id)):
                # Of a job that is completing squeue does not show how it has ended.
                part = replace(part, state=replace(part.state, base=known.state.base))
            parts[part.id] = part
    lowest = {key: min(jobs) for key, jobs in found.items()}
    return {
        key: JobStatus(id=job, parts=tuple(part for _, part in sorted(found[key][job].items())))
        for key, job in lowest.items()
    }


def _goes_on(status: JobStatus) -> bool:
    """True if another try goes on with a job."""
    return status.succeeded if status.is_finished else not _is_cancelled(status)


def _is_cancelled(status: JobStatus) -> bool:
    """True if a job was cancelled, also while it is completing."""
    # Elements of an array that go on are not affected by others that were cancelled.
    left = [part for part in status.parts if not part.state.is_finished] or status.parts
    return bool(left) and all(part.state.base is JobBase.CANCELLED for part in left)
