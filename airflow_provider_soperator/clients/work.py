"""What takes more than one question: many jobs to submit or cancel, where jobs stand, a file of any length."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable, Sequence
from datetime import datetime, timezone

from airflow_provider_soperator.clients.book import JobBook
from airflow_provider_soperator.clients.refusals import told
from airflow_provider_soperator.clients.steps import Steps
from airflow_provider_soperator.clients.watched import Patience
from airflow_provider_soperator.slurm.errors import AccountingDisabled, SlurmError, TogetherRefused
from airflow_provider_soperator.slurm.files import PIECE, FileError, Piece, ReadPieces
from airflow_provider_soperator.slurm.ids import JobId
from airflow_provider_soperator.slurm.job import BatchJob
from airflow_provider_soperator.slurm.keys import SubmissionKey
from airflow_provider_soperator.slurm.records import AccountingJob, Job, RateLimit
from airflow_provider_soperator.slurm.requests import Accounting, CancelJobs, ListJobs, Request, batches
from airflow_provider_soperator.slurm.requests.accounting import name_in_accounting
from airflow_provider_soperator.slurm.requests.base import TIMEOUT
from airflow_provider_soperator.slurm.requests.once import LOOK_BACK, MOST, SubmitOnce, Submitted, Together
from airflow_provider_soperator.slurm.states import JobBase
from airflow_provider_soperator.slurm.status import JobStatus
from airflow_provider_soperator.slurm.waits import in_order, readable
from airflow_provider_soperator.transports.errors import TransportError

#: Bytes of a file that are read unless more are asked for.
MOST_OF_A_FILE = 64 << 20


def named(job: BatchJob, key: SubmissionKey) -> BatchJob:
    """The job under a name by which it is found again."""
    return job.replace(name=key.name(job.name or "job"))


def submit_many(
    jobs: Sequence[BatchJob], since: datetime | None, fresh: bool, limit: RateLimit | None
) -> Steps[tuple[Submitted, ...]]:
    """In as few goes as the site's rate limit lets through in time."""
    at_once = jobs_at_once(limit)
    done: list[Submitted] = []
    for start in range(0, len(jobs), at_once):
        batch = tuple(jobs[start : start + at_once])
        done += yield from told(batch, (yield SubmitOnce(jobs=batch, since=since, fresh=fresh)))
    return tuple(done)


def submit_together(
    jobs: Sequence[BatchJob], since: datetime | None, fresh: bool, limit: RateLimit | None
) -> Steps[tuple[Submitted, ...]]:
    """All of them or none, and none starts before all are accepted; ``TogetherRefused`` names the one that was not.

    What does not go in one request waits on, held, until the last of it is there. Then all are asked for once more,
    which finds them and lets them go.
    """
    order, at_once = in_order(jobs), jobs_at_once(limit)
    goes = [order[start : start + at_once] for start in range(0, len(order), at_once)]
    done: dict[int, Submitted] = {}
    for places in goes:
        together = Together.START if len(goes) == 1 else Together.WAIT
        batch = tuple(jobs[place] for place in places)
        answers = yield SubmitOnce(jobs=batch, since=since, fresh=fresh, together=together)
        answers = yield from told(batch, answers)
        for place, answer in zip(places, answers, strict=True):
            if answer.error:
                yield from _ask_again([jobs[place] for place in sorted(done)], since, Together.END)
                raise TogetherRefused(readable(jobs[place]), place, answer.error)
        done |= zip(places, answers, strict=True)
    if len(goes) > 1:
        yield from _ask_again(jobs, since, Together.START)
    return tuple(done[place] for place in range(len(jobs)))


def _ask_again(jobs: Sequence[BatchJob], since: datetime | None, together: Together) -> Steps[None]:
    """For jobs that are there already, which no limit on submissions holds back."""
    for start in range(0, len(jobs), MOST):
        yield SubmitOnce(jobs=tuple(jobs[start : start + MOST]), since=since, together=together)


def jobs_at_once(limit: RateLimit | None) -> int:
    """Jobs that can be submitted in one go: under a limit ``sbatch`` waits, but its time is limited, too.

    >>> from datetime import timedelta
    >>> jobs_at_once(None), jobs_at_once(RateLimit(bucket=40, refill=4, period=timedelta(minutes=1)))
    (500, 5)
    """
    if limit is None:
        return MOST
    in_time = limit.refill * TIMEOUT / limit.period.total_seconds() / 2
    return max(1, min(MOST, int(in_time)))


def find(job: BatchJob, keys: Sequence[SubmissionKey], since: datetime | None) -> Steps[Submitted | None]:
    """The newest of several tries of a job, if it waits, runs or has succeeded; None if it failed, or none was made."""
    names = tuple(named(job, key).name or "" for key in keys)
    found: list[Job | AccountingJob] = list((yield ListJobs(mine=True, names=names)))
    since = since or datetime.now(timezone.utc) - LOOK_BACK
    with contextlib.suppress(AccountingDisabled):
        found += yield Accounting(names=names, since=since)
    # The lowest number of each name counts, as it does where they are submitted.
    ids: dict[str, JobId] = {}
    for one in sorted(found, key=lambda one: one.id, reverse=True):
        ids[name_in_accounting(one.name)] = one.id.whole
    newest = next((ids[name] for name in map(name_in_accounting, reversed(names)) if name in ids), None)
    if newest is None:
        return None
    status = (yield from statuses([newest]))[newest]
    if status.is_over and not status.succeeded:
        return None
    if status.state.base is JobBase.CANCELLED:
        # It is being ended.
        return None
    return Submitted(newest, adopted=True)


def accepted(submitted: Submitted) -> Submitted:
    if submitted.error:
        raise submitted.error
    return submitted


def cancel_many(ids: Iterable[JobId]) -> Steps[None]:
    yield from tried(CancelJobs(ids=batch) for batch in batches(dict.fromkeys(ids)))


def tried(requests: Iterable[Request[None]]) -> Steps[None]:
    """All of them are tried, also after one that fails."""
    failure: SlurmError | None = None
    for request in requests:
        try:
            yield request
        except SlurmError as error:
            failure = failure or error
    if failure:
        raise failure


class _Asked:
    """One who wants to know now."""

    name = ""
    mine = False

    def __init__(self, job: JobId) -> None:
        self.job = job
        self.told: JobStatus | None = None

    def tell(self, status: JobStatus) -> None:
        self.told = status


def statuses(ids: Iterable[JobId]) -> Steps[dict[JobId, JobStatus]]:
    """Where each job stands now; one that nobody knows is ``lost``."""
    book: JobBook[_Asked] = JobBook(Patience(unknown=0, runaway=0))
    asked = [_Asked(job) for job in dict.fromkeys(ids)]
    for one in asked:
        book.add(one)
    yield from book.round()
    return {one.job: one.told for one in asked if one.told}


def attributed(status: JobStatus) -> Steps[JobStatus]:
    """The same with whoever cancelled parts of it, which only accounting tells."""
    if all(part.state.base is not JobBase.CANCELLED or part.state.cancelled_by is not None for part in status.parts):
        return status
    with contextlib.suppress(SlurmError, TransportError):
        accounted = {job.id: job.state for job in (yield Accounting(ids=(status.id.whole,)))}
        parts = tuple(
            dataclasses.replace(part, state=accounted[part.id])
            if part.state.base is JobBase.CANCELLED and accounted.get(part.id) == part.state
            else part
            for part in status.parts
        )
        return dataclasses.replace(status, parts=parts)
    return status


def read_file(path: str, most: int) -> Steps[bytes]:
    """A whole file, as it grows; ``FileError`` if there is none, or it is longer than ``most``."""
    data = bytearray()
    while True:
        [piece] = yield ReadPieces((Piece(path, len(data), min(PIECE, most + 1 - len(data))),))
        if piece.size is None:
            raise FileError(f"there is no file {path}")
        data += piece.data
        if len(data) > most:
            raise FileError(f"{path} has more than {most} bytes")
        if not piece.data or len(data) >= piece.size:
            return bytes(data)
