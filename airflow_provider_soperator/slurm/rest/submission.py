"""Submission exactly once over slurmrestd, where no lock is available.

Each job is submitted held. Then the key is looked up in the queue: the job with the lowest id is released, any other
is cancelled before it can start. A later submission has a higher id, looks later, and finds the released one, in the
queue or in accounting; so two jobs of one key never run, across failures and races. (The dependency ``singleton``
would not do: it is satisfied when the first job has ended, perhaps before the lookup, and it makes the elements of an
array run one by one.)

A job that stays held because its submitter died has a comment that says so, and is released by the next submission of
the key, which a task that follows it makes. Its own comment is set in the call that releases it, or in one after it.

Dependencies may name keys, so two submitters of the same jobs may have used different ids. The jobs that stay get
dependencies on those that stay, before the others are cancelled.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

from airflow_provider_soperator.slurm import errors, packs, requests, sbatch_arguments
from airflow_provider_soperator.slurm.job_ids import JobId
from airflow_provider_soperator.slurm.requests import submission
from airflow_provider_soperator.slurm.rest.accounting import accounting
from airflow_provider_soperator.slurm.rest.calls import RestCall, RestSteps, Site, asked, handles
from airflow_provider_soperator.slurm.rest.jobs import cancel, list_jobs, submitted
from airflow_provider_soperator.slurm.sbatch_arguments import DEPENDENCY
from airflow_provider_soperator.slurm.submission_keys import Keys, SubmissionKey, strip_key


@dataclass
class _KnownJob:
    """The jobs of a key."""

    lowest: JobId
    #: Jobs that have not ended; only the lowest id may ever run.
    unfinished: set[JobId] = field(default_factory=set)
    #: Jobs to release, and released jobs that still need their comments.
    held: set[JobId] = field(default_factory=set)
    #: The dependency of the lowest id in the queue.
    dependency: str = ""


@dataclass
class _Item:
    """A job to submit."""

    key: SubmissionKey
    #: Without its key.
    name: str
    waits: submission.KeyedDependency
    body: dict[str, Any]
    #: For each part of the job, the changes that release it and set its own values.
    changes: list[list[dict[str, Any]]]


@handles
def submit_once(request: submission.SubmitOnce, site: Site) -> RestSteps[tuple[submission.Submitted, ...]]:
    keys = request.submission_keys()
    # Options that slurmrestd does not have are rejected before any call.
    items = [_item(request, place, site) for place in submission.in_order(request.jobs)]
    named = {key for item in items for key in item.waits.keys}
    known = yield from _in_queue({*keys, *named}, site)
    seen_at_first = len(known)
    if not request.fresh:
        yield from _add_past(known, request, site)
    # A job in accounting only may have lost a race since: then the winner is in the queue.
    look_again = len(known) > seen_at_first
    alike = (yield from _alike(site)) if any(item.waits.is_singleton for item in items) else {}
    mine: dict[SubmissionKey, JobId] = {}
    refused: dict[SubmissionKey, errors.SlurmError] = {}
    for item in items:
        if item.key in known or _is_over(request, refused):
            continue
        try:
            if not item.waits.is_plain:
                dependency = item.waits.resolve(_ids(known), alike.get(item.name, ()))
                told = {f"{DEPENDENCY}={submission.PLACEHOLDER}": f"{DEPENDENCY}={dependency}"}
                for part in _parts(item.body):
                    part["dependency"] = dependency
                    part["environment"] = [told.get(pair, pair) for pair in part["environment"]]
            job = mine[item.key] = (yield from submitted(item.body, site)).whole
        except errors.SlurmError as error:
            # It may have been accepted nevertheless. Those that were must not stay held until there is room for others.
            is_full = isinstance(error, errors.QueueFull) and not request.together
            if isinstance(error, errors.TransientSlurmError) and not is_full:
                raise
            refused[item.key] = error
        else:
            known[item.key] = _KnownJob(job, {job})
            alike.setdefault(item.name, []).append(job.job)
    others_too = False
    if mine or look_again or _is_over(request, refused):
        there = yield from _in_queue(keys, site)
        if request.together and mine.keys() - there.keys():
            raise errors.TryAgain("slurmctld has forgotten jobs that it had accepted", "sbatch")
        for key, seen in there.items():
            before = known.get(key)
            others_too = others_too or before is None or seen.lowest < before.lowest
            seen.lowest = min(seen.lowest, before.lowest if before else seen.lowest)
            known[key] = seen
    if _is_over(request, refused):
        if others_too:
            raise errors.TryAgain("another process submits the same jobs", "sbatch")
        yield from _withdraw([item for item in items if item.key in known], known, site)
        return tuple(submission.Submitted(None, error=refused.get(key)) for key in keys)
    if request.together is not submission.Together.WAIT:
        surplus = {job for key in keys if key in known for job in known[key].unfinished - {known[key].lowest}}
        for item in items:
            if item.key not in refused and known[item.key].lowest in known[item.key].held:
                # One that was there may wait for a forgotten job that was submitted anew.
                is_outdated = item.key not in mine and not mine.keys().isdisjoint(item.waits.keys)
                yield from _let_go(item, known, surplus, alike.get(item.name, ()), is_outdated)
        if surplus:
            yield from cancel(requests.CancelJobs(ids=tuple(sorted(surplus))), site)
    return tuple(
        submission.Submitted(None, error=refused[key])
        if key in refused
        else submission.Submitted(known[key].lowest, adopted=mine.get(key) != known[key].lowest)
        for key in keys
    )


@handles(submission.Withdraw)
@handles(submission.CancelWithdrawn)
def withdraw(request: object, site: Site) -> RestSteps[None]:
    """Do nothing: a submission ends with the process that makes these calls."""
    yield from ()


def _is_over(request: submission.SubmitOnce, refused: dict[SubmissionKey, errors.SlurmError]) -> bool:
    """True if no job of the request may stay."""
    return request.together is submission.Together.END or (request.together is not None and bool(refused))


def _item(request: submission.SubmitOnce, place: int, site: Site) -> _Item:
    job = request.jobs[place]
    waits_for = submission.dependency_of(job)
    if not waits_for.is_plain:
        job = sbatch_arguments.with_lines(job).replace(dependency=submission.PLACEHOLDER)
    body = job.to_payload(f"v0.0.{site.version}", site.user, site.home)
    changes = []
    for part in _parts(body):
        own = {"comment": part.get("comment", "")}
        if part.get("hold"):
            changes.append([own])
        elif "priority" in part:
            # A held job keeps priority 0 in the call that releases it. The comment comes last, by which it is known.
            changes.append([{"hold": False}, {"priority": part.pop("priority")}, own])
        else:
            changes.append([{"hold": False} | own])
        part |= {"hold": True, "comment": submission.HELD}
    return _Item(request.submission_keys()[place], submission.readable_job_name(job), waits_for, body, changes)


def _parts(body: dict[str, Any]) -> list[dict[str, Any]]:
    return body["jobs"] if "jobs" in body else [body["job"]]


def _ids(known: dict[SubmissionKey, _KnownJob]) -> submission.IdOf:
    def id_of(key: SubmissionKey) -> int:
        if key not in known:
            raise errors.SubmitRefused(submission.unknown_key(key), option="--dependency")
        return known[key].lowest.job

    return id_of


def _in_queue(keys: Iterable[SubmissionKey], site: Site) -> RestSteps[dict[SubmissionKey, _KnownJob]]:
    wanted = Keys(keys)
    jobs = yield from list_jobs(requests.ListJobs(name_suffixes=wanted.suffixes, mine=True), site)
    found: dict[SubmissionKey, _KnownJob] = {}
    for job in jobs:
        for key, own in wanted.of(job.name, job.id):
            known = found.setdefault(key, _KnownJob(own))
            if own <= known.lowest:
                known.lowest, known.dependency = own, job.dependency
            if not job.state.is_finished:
                known.unfinished.add(own)
                if job.comment == submission.HELD:
                    known.held.add(own)
    return found


def _alike(site: Site) -> RestSteps[dict[str, list[int]]]:
    """The user's unfinished jobs, by their names without keys."""
    found: dict[str, dict[int, None]] = {}
    for job in (yield from list_jobs(requests.ListJobs(mine=True), site)):
        if not job.state.is_finished:
            found.setdefault(strip_key(job.name), {})[job.id.job] = None
    return {name: list(ids) for name, ids in found.items()}


def _add_past(known: dict[SubmissionKey, _KnownJob], request: submission.SubmitOnce, site: Site) -> RestSteps[None]:
    since = request.since or datetime.now(timezone.utc) - submission.LOOK_BACK
    names, wanted = tuple(packs.names_in_queue(job.name or "" for job in request.jobs)), Keys(request.submission_keys())
    try:
        jobs = yield from accounting(requests.Accounting(names=names, mine=True, since=since), site)
    except errors.AccountingDisabled:
        return
    for job in jobs:
        for key, own in wanted.of(job.name, job.id):
            found = known.setdefault(key, _KnownJob(own))
            found.lowest = min(found.lowest, own)


def _let_go(
    item: _Item, known: dict[SubmissionKey, _KnownJob], surplus: set[JobId], same_name: Iterable[int], is_outdated: bool
) -> RestSteps[None]:
    job = known[item.key].lowest
    of_others = {}
    numbers = {other.job for other in surplus}
    if is_outdated or numbers & set(map(int, re.findall(r"[0-9]+", known[item.key].dependency))):
        before = [other for other in same_name if other < job.job and other not in numbers]
        of_others = {"dependency": item.waits.resolve(_ids(known), before)}
    yield from _change(job, [[changes[0] | of_others, *changes[1:]] for changes in item.changes])


def _withdraw(items: list[_Item], known: dict[SubmissionKey, _KnownJob], site: Site) -> RestSteps[None]:
    """Cancel jobs: first held, so that none starts as another ends, and renamed, so that the next try finds none."""
    gone = [job for item in items for job in sorted(known[item.key].unfinished)]
    for item in items:
        withdrawn = [[{"hold": True, "name": item.name + submission.WITHDRAWN}] for _ in item.changes]
        for job in known[item.key].unfinished:
            yield from _change(job, withdrawn)
    if gone:
        yield from cancel(requests.CancelJobs(ids=tuple(gone)), site)


def _change(job: JobId, changes: list[list[dict[str, Any]]]) -> RestSteps[None]:
    # The parts of a heterogeneous job have consecutive ids.
    for number, of_part in enumerate(changes, start=job.job):
        try:
            for change in of_part:
                try:
                    yield from asked(RestCall("POST", f"slurm/job/{number}", body=change))
                except errors.SlurmError as error:
                    # slurmctld lets operators alone set it; sbatch ignores those of others.
                    if error.passing or "priority" not in change:
                        raise
        except (errors.JobFinished, errors.UnknownJob):
            # Another process has released it, and it has ended since.
            continue
