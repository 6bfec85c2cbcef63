"""Exactly one job for each key over slurmrestd, where no lock can be had.

Each job is submitted held. Only then is the queue asked who has its key: the job with the lowest id is let go, any
other is cancelled before it can ever start. A later submission has a higher id, looks later, and finds the one that
was let go, in the queue or in accounting; so whatever breaks and however many race, two of one key never run. (The
dependency ``singleton`` would not do: it is satisfied as soon as the first job has ended, which can be before anybody
looks, and it makes the elements of an array run one by one.)

A job that waits held because its submitter died says so in its comment, and is let go by the next to ask for the key.
The comment that it is to have is set in the same call that lets it go, or in one after it.

What a job waits for may be named by keys, so two submitters of the same jobs can have had different ids in mind. Those
that stay are told to wait for those that stay, before the others are cancelled.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

from airflow_provider_soperator.slurm.errors import (
    AccountingDisabled,
    JobFinished,
    SlurmError,
    SubmitRefused,
    TransientSlurmError,
    TryAgain,
    UnknownJob,
)
from airflow_provider_soperator.slurm.job_ids import JobId, SubmissionKey, key_of, strip_key
from airflow_provider_soperator.slurm.requests import submission
from airflow_provider_soperator.slurm.requests.accounting import Accounting
from airflow_provider_soperator.slurm.requests.jobs import CancelJobs, ListJobs
from airflow_provider_soperator.slurm.requests.submission import (
    HELD,
    LOOK_BACK,
    PLACEHOLDER,
    WITHDRAWN,
    SubmitOnce,
    Submitted,
    Together,
    unknown_key,
)
from airflow_provider_soperator.slurm.rest.accounting import accounting
from airflow_provider_soperator.slurm.rest.calls import RestCall, Site, Steps, asked, handles
from airflow_provider_soperator.slurm.rest.jobs import cancel, list_jobs, payload_of, submitted


@dataclass
class _KnownJob:
    """A job that is known under a key."""

    lowest: int
    #: Those that have not ended: of their number only the lowest may ever run.
    unfinished: set[int] = field(default_factory=set)
    #: Those that wait to be let go, or have been and are to get their comments yet.
    held: set[int] = field(default_factory=set)
    #: What the lowest waits for, as the queue has it.
    dependency: str = ""


@dataclass
class _Item:
    """One of the jobs to submit."""

    key: SubmissionKey
    #: Without its key.
    name: str
    waits: submission.KeyedDependency
    body: dict[str, Any]
    #: For each part of the job, the changes that let it go and make it what it is to be.
    changes: list[list[dict[str, Any]]]

    @property
    def parts(self) -> list[dict[str, Any]]:
        return _parts(self.body)

    def wait_for(self, dependency: str) -> None:
        for part in self.parts:
            part["dependency"] = dependency


@handles
def submit_once(request: SubmitOnce, site: Site) -> Steps[tuple[Submitted, ...]]:
    keys = request.submission_keys()
    # Whatever cannot be said to slurmrestd is refused before anything is asked.
    items = [_item(request, place, site) for place in request.order]
    named = {key for item in items for key in item.waits.keys}
    known = yield from _in_queue({*keys, *named}, site)
    seen_at_first = len(known)
    if not request.fresh:
        yield from _add_past(known, request, site)
    # What accounting alone has may be the loser of a race that has been run since: then the winner is in the queue.
    look_again = len(known) > seen_at_first
    alike = (yield from _alike(site)) if any(item.waits.is_singleton for item in items) else {}
    mine: dict[SubmissionKey, int] = {}
    refused: dict[SubmissionKey, SlurmError] = {}
    for item in items:
        if item.key in known or _is_over(request, refused):
            continue
        try:
            if not item.waits.is_plain:
                item.wait_for(item.waits.resolve(_ids(known), alike.get(item.name, ())))
            job = mine[item.key] = (yield from submitted(item.body)).job
        except TransientSlurmError:
            # It may have been taken all the same.
            raise
        except SlurmError as error:
            refused[item.key] = error
        else:
            known[item.key] = _KnownJob(job, {job})
            alike.setdefault(item.name, []).append(job)
    others_too = False
    if mine or look_again or _is_over(request, refused):
        for key, seen in (yield from _in_queue(keys, site)).items():
            before = known.get(key)
            others_too = others_too or before is None or seen.lowest < before.lowest
            seen.lowest = min(seen.lowest, before.lowest if before else seen.lowest)
            known[key] = seen
    if _is_over(request, refused):
        if others_too:
            raise TryAgain("another process submits the same jobs", "sbatch")
        yield from _withdraw([item for item in items if item.key in known], known, site)
        return tuple(Submitted(None, error=refused.get(key)) for key in keys)
    if request.together is not Together.WAIT:
        surplus = {job for key in keys if key in known for job in known[key].unfinished - {known[key].lowest}}
        for item in items:
            if item.key not in refused and known[item.key].lowest in known[item.key].held:
                yield from _let_go(item, known, surplus, alike.get(item.name, ()))
        if surplus:
            yield from cancel(CancelJobs(ids=tuple(map(JobId, sorted(surplus)))), site)
    return tuple(
        Submitted(None, error=refused[key])
        if key in refused
        else Submitted(JobId(known[key].lowest), adopted=mine.get(key) != known[key].lowest)
        for key in keys
    )


def _is_over(request: SubmitOnce, refused: dict[SubmissionKey, SlurmError]) -> bool:
    """True if nothing of it is to stay."""
    return request.together is Together.END or (request.together is not None and bool(refused))


def _item(request: SubmitOnce, place: int, site: Site) -> _Item:
    job = request.jobs[place]
    waits_for = submission.dependency_of(job)
    if not waits_for.is_plain:
        job = submission.with_extra_args(job).replace(dependency=PLACEHOLDER)
    body = payload_of(job, site)
    changes = []
    for part in _parts(body):
        own = {"comment": part.get("comment", "")}
        if part.get("hold"):
            changes.append([own])
        elif "priority" in part:
            # A job that is held keeps the priority 0, whatever else is said in the call that lets it go.
            changes.append([{"hold": False}, own | {"priority": part.pop("priority")}])
        else:
            changes.append([{"hold": False} | own])
        part |= {"hold": True, "comment": HELD}
    return _Item(request.submission_keys()[place], submission.readable_job_name(job), waits_for, body, changes)


def _parts(body: dict[str, Any]) -> list[dict[str, Any]]:
    return body["jobs"] if "jobs" in body else [body["job"]]


def _ids(known: dict[SubmissionKey, _KnownJob]) -> submission.IdOf:
    def id_of(key: SubmissionKey) -> int:
        if key not in known:
            raise SubmitRefused(unknown_key(key), option="--dependency")
        return known[key].lowest

    return id_of


def _in_queue(keys: Iterable[SubmissionKey], site: Site) -> Steps[dict[SubmissionKey, _KnownJob]]:
    suffixes = tuple(key.suffix for key in keys)
    jobs = yield from list_jobs(ListJobs(name_suffixes=suffixes, mine=bool(site.user)), site)
    found: dict[SubmissionKey, _KnownJob] = {}
    for job in jobs:
        key = key_of(job.name)
        assert key is not None
        known = found.setdefault(key, _KnownJob(job.id.job))
        if job.id.job <= known.lowest:
            known.lowest, known.dependency = job.id.job, job.dependency
        if not job.state.is_finished:
            known.unfinished.add(job.id.job)
            if job.comment == HELD:
                known.held.add(job.id.job)
    return found


def _alike(site: Site) -> Steps[dict[str, list[int]]]:
    """The user's jobs that have not ended, by their names without keys."""
    found: dict[str, dict[int, None]] = {}
    for job in (yield from list_jobs(ListJobs(mine=True), site)):
        if not job.state.is_finished:
            found.setdefault(strip_key(job.name), {})[job.id.job] = None
    return {name: list(ids) for name, ids in found.items()}


def _add_past(known: dict[SubmissionKey, _KnownJob], request: SubmitOnce, site: Site) -> Steps[None]:
    since = request.since or datetime.now(timezone.utc) - LOOK_BACK
    names = tuple(job.name or "" for job in request.jobs)
    try:
        jobs = yield from accounting(Accounting(names=names, since=since), site)
    except AccountingDisabled:
        return
    for job in jobs:
        key = key_of(job.name)
        if key is not None:
            found = known.setdefault(key, _KnownJob(job.id.job))
            found.lowest = min(found.lowest, job.id.job)


def _let_go(
    item: _Item, known: dict[SubmissionKey, _KnownJob], surplus: set[int], same_name: Iterable[int]
) -> Steps[None]:
    job = known[item.key].lowest
    of_others = {}
    if surplus & set(map(int, re.findall(r"[0-9]+", known[item.key].dependency))):
        before = [other for other in same_name if other < job and other not in surplus]
        of_others = {"dependency": item.waits.resolve(_ids(known), before)}
    yield from _change(job, [[changes[0] | of_others, *changes[1:]] for changes in item.changes])


def _withdraw(items: list[_Item], known: dict[SubmissionKey, _KnownJob], site: Site) -> Steps[None]:
    """Held, none starts because another has ended; under another name, none is found by the next try."""
    gone = [JobId(job) for item in items for job in sorted(known[item.key].unfinished)]
    for item in items:
        withdrawn = [[{"hold": True, "name": item.name + WITHDRAWN}] for _ in item.parts]
        for job in known[item.key].unfinished:
            yield from _change(job, withdrawn)
    if gone:
        yield from cancel(CancelJobs(ids=tuple(gone)), site)


def _change(job: int, changes: list[list[dict[str, Any]]]) -> Steps[None]:
    # The numbers of the parts of a heterogeneous job follow each other.
    for number, of_part in enumerate(changes, start=job):
        try:
            for change in of_part:
                yield from asked(RestCall("POST", f"slurm/job/{number}", body=change))
        except (JobFinished, UnknownJob):
            # Another process has let it go, and it has ended since.
            continue
