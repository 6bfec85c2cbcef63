"""Exactly one job for each key over slurmrestd, where no lock can be had.

Each job is submitted held. Only then is the queue asked who has its key: the job with the lowest id is let go, any
other is cancelled before it can ever start. Whoever submits later has a higher id, looks later, and finds the one that
was let go, in the queue or in accounting; so whatever breaks and whoever races, two of one key never run. (The
dependency ``singleton`` would not do: it is satisfied as soon as the first job has ended, which can be before anybody
looks, and it makes the elements of an array run one by one.)

A job that waits held because its submitter died says so in its comment, and is let go by whoever asks for the key next.
The comment that it is to have is set in the same call that lets it go.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

from airflow_provider_soperator.slurm.errors import (
    AccountingDisabled,
    JobFinished,
    SlurmError,
    TransientSlurmError,
    UnknownJob,
)
from airflow_provider_soperator.slurm.ids import JobId
from airflow_provider_soperator.slurm.keys import SubmissionKey, key_of
from airflow_provider_soperator.slurm.requests.accounting import Accounting
from airflow_provider_soperator.slurm.requests.jobs import CancelJobs, ListJobs
from airflow_provider_soperator.slurm.requests.once import LOOK_BACK, SubmitOnce, Submitted
from airflow_provider_soperator.slurm.rest.accounting import accounting
from airflow_provider_soperator.slurm.rest.answers import asked
from airflow_provider_soperator.slurm.rest.calls import Call, Site, Steps, handles
from airflow_provider_soperator.slurm.rest.jobs import cancel, list_jobs, payload_of, submitted

#: The comment of a job that is held until it is sure that no other has its key.
HELD = "airflow-provider-soperator: held until no other job has its key"


@dataclass
class _Known:
    """What is there of one key."""

    lowest: int
    #: Those that have not ended: of their number only the lowest may ever run.
    unfinished: set[int] = field(default_factory=set)
    #: Those that wait to be let go.
    held: set[int] = field(default_factory=set)


@handles
def submit_once(request: SubmitOnce, site: Site) -> Steps[tuple[Submitted, ...]]:
    keys = request.submission_keys()
    # Whatever cannot be said to slurmrestd is refused before anything is asked.
    bodies = [_held(payload_of(job, site)) for job in request.jobs]
    known = yield from _in_queue(keys, site)
    seen_at_first = len(known)
    if not request.fresh:
        yield from _add_past(known, request, site)
    # What accounting alone has may be the loser of a race that has been run since: then the winner is in the queue.
    look_again = len(known) > seen_at_first
    mine: dict[SubmissionKey, int] = {}
    refused: dict[SubmissionKey, SlurmError] = {}
    for key, (body, _) in zip(keys, bodies, strict=True):
        if key in known:
            continue
        try:
            job = mine[key] = (yield from submitted(body)).job
            known[key] = _Known(job, {job})
        except TransientSlurmError:
            # It may have been taken all the same.
            raise
        except SlurmError as error:
            refused[key] = error
    if mine or look_again:
        for key, seen in (yield from _in_queue(tuple(known), site)).items():
            known[key] = _Known(min(known[key].lowest, seen.lowest), seen.unfinished, seen.held)
    surplus = [JobId(job) for key in known for job in known[key].unfinished - {known[key].lowest}]
    if surplus:
        yield from cancel(CancelJobs(ids=tuple(surplus)), site)
    answers = []
    for key, (_, changes) in zip(keys, bodies, strict=True):
        if key in refused:
            answers.append(Submitted(None, error=refused[key]))
            continue
        job = known[key].lowest
        if job in known[key].held:
            yield from _let_go(job, changes)
        answers.append(Submitted(JobId(job), adopted=mine.get(key) != job))
    return tuple(answers)


def _held(body: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The body of a job that is held, and for each part of it the change that makes it what it is to be."""
    changes = []
    for part in body["jobs"] if "jobs" in body else [body["job"]]:
        release = {} if part.get("hold") else {"hold": False}
        changes.append({**release, "comment": part.get("comment", "")})
        part |= {"hold": True, "comment": HELD}
    return body, changes


def _in_queue(keys: tuple[SubmissionKey, ...], site: Site) -> Steps[dict[SubmissionKey, _Known]]:
    suffixes = tuple(key.suffix for key in keys)
    jobs = yield from list_jobs(ListJobs(name_suffixes=suffixes, mine=bool(site.user)), site)
    found: dict[SubmissionKey, _Known] = {}
    for job in jobs:
        key = key_of(job.name)
        assert key is not None
        known = found.setdefault(key, _Known(job.id.job))
        known.lowest = min(known.lowest, job.id.job)
        if not job.state.is_finished:
            known.unfinished.add(job.id.job)
        if job.is_held and job.comment == HELD:
            known.held.add(job.id.job)
    return found


def _add_past(known: dict[SubmissionKey, _Known], request: SubmitOnce, site: Site) -> Steps[None]:
    since = request.since or datetime.now(timezone.utc) - LOOK_BACK
    names = tuple(job.name or "" for job in request.jobs)
    try:
        jobs = yield from accounting(Accounting(names=names, since=since), site)
    except AccountingDisabled:
        return
    for job in jobs:
        key = key_of(job.name)
        if key is not None:
            found = known.setdefault(key, _Known(job.id.job))
            found.lowest = min(found.lowest, job.id.job)


def _let_go(job: int, changes: list[dict[str, Any]]) -> Steps[None]:
    # The numbers of the parts of a heterogeneous job follow each other.
    for number, change in enumerate(changes, start=job):
        try:
            yield from asked(Call("POST", f"slurm/job/{number}", body=change))
        except (JobFinished, UnknownJob):
            # Somebody else has let it go, and it has ended since.
            continue
