"""Submissions: many jobs in one request, and explanations of rejected ones.

Jobs that many tasks submit at the same moment, as in a wide fan-out, go to the cluster together.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from itertools import islice
from typing import TypeVar

from airflow_provider_soperator.client.poller import statuses
from airflow_provider_soperator.errors import name_remedy
from airflow_provider_soperator.slurm import hostlist, options
from airflow_provider_soperator.slurm.cluster_records import Node, Partition, RateLimit, UserRights
from airflow_provider_soperator.slurm.errors import (
    AccountingDisabled,
    NotReached,
    SlurmError,
    SubmitRefused,
    TogetherRefused,
)
from airflow_provider_soperator.slurm.job import BatchJob
from airflow_provider_soperator.slurm.job_ids import JobId, SubmissionKey
from airflow_provider_soperator.slurm.job_records import AccountingJob, Job
from airflow_provider_soperator.slurm.requests import (
    Accounting,
    ListJobs,
    ListNodes,
    ListPartitions,
    ShowRights,
    WhoAmI,
    submission,
)
from airflow_provider_soperator.slurm.requests.accounting import name_in_accounting
from airflow_provider_soperator.slurm.requests.commands import TIMEOUT, Steps
from airflow_provider_soperator.slurm.requests.submission import (
    LOOK_BACK,
    MOST,
    SubmitOnce,
    Submitted,
    Together,
    in_order,
    readable_job_name,
)
from airflow_provider_soperator.slurm.states import JobBase
from airflow_provider_soperator.transports.transport_errors import TransportError


def named(job: BatchJob, key: SubmissionKey) -> BatchJob:
    """The job with its key at the end of its name."""
    return job.replace(name=key.name(job.name or "job"))


def submit_many(jobs: Sequence[BatchJob], since: datetime | None, fresh: bool) -> Steps[tuple[Submitted, ...]]:
    """Submit jobs in as many requests as the cluster needs."""
    done: dict[int, Submitted] = {}
    while left := [place for place in range(len(jobs)) if place not in done]:
        done |= yield from _submit_some({place: jobs[place] for place in left[:MOST]}, since, fresh)
    return tuple(done[place] for place in range(len(jobs)))


K = TypeVar("K")


def _submit_some(jobs: Mapping[K, BatchJob], since: datetime | None, fresh: bool) -> Steps[dict[K, Submitted]]:
    """Submit jobs in one request; jobs that it did not reach have no answer."""
    batch = tuple(jobs.values())
    answers = yield from explained_answers(batch, (yield SubmitOnce(jobs=batch, since=since, fresh=fresh)))
    answered = zip(jobs, answers, strict=True)
    return {which: answer for which, answer in answered if not isinstance(answer.error, NotReached)}


def submit_together(
    jobs: Sequence[BatchJob], since: datetime | None, fresh: bool, limit: RateLimit | None
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
        answers = yield SubmitOnce(jobs=batch, since=since, fresh=fresh, together=together)
        answers = yield from explained_answers(batch, answers)
        for place, answer in zip(places, answers, strict=True):
            if answer.error:
                yield from _ask_again([jobs[place] for place in sorted(done)], since, Together.END)
                raise TogetherRefused(readable_job_name(jobs[place]), place, answer.error)
        done |= zip(places, answers, strict=True)
    if len(goes) > 1:
        yield from _ask_again(jobs, since, Together.START)
    return tuple(done[place] for place in range(len(jobs)))


def _ask_again(jobs: Sequence[BatchJob], since: datetime | None, together: Together) -> Steps[None]:
    """Repeat the request for existing jobs, to which no limit on submissions applies."""
    for start in range(0, len(jobs), MOST):
        yield SubmitOnce(jobs=tuple(jobs[start : start + MOST]), since=since, together=together)


def jobs_at_once(limit: RateLimit | None) -> int:
    """Jobs that one request can submit together: under a rate limit ``sbatch`` waits, but its time is limited, too.

    >>> from datetime import timedelta
    >>> jobs_at_once(None), jobs_at_once(RateLimit(bucket=40, refill=4, period=timedelta(minutes=1)))
    (500, 5)
    """
    if limit is None:
        return MOST
    in_time = limit.refill * TIMEOUT / limit.period.total_seconds() / 2
    return max(1, min(MOST, int(in_time)))


def find(job: BatchJob, keys: Sequence[SubmissionKey], since: datetime | None) -> Steps[Submitted | None]:
    """The newest of several tries of a job, unless it has failed or was cancelled.

    A job that has left the queue while accounting lags looks lost, and may have succeeded: its watch finds out.
    """
    names = tuple(named(job, key).name or "" for key in keys)
    found: list[Job | AccountingJob] = list((yield ListJobs(mine=True, names=names)))
    since = since or datetime.now(timezone.utc) - LOOK_BACK
    with contextlib.suppress(AccountingDisabled):
        found += yield Accounting(names=names, mine=True, since=since)
    # The lowest id of each name counts, as in the submission.
    ids: dict[str, JobId] = {}
    for one in sorted(found, key=lambda one: one.id, reverse=True):
        ids[name_in_accounting(one.name)] = one.id.whole
    known = {name_in_accounting(name): key for name, key in zip(names, keys, strict=True)}
    name = next((name for name in reversed(known) if name in ids), None)
    if name is None:
        return None
    newest = ids[name]
    status = (yield from statuses([newest], name))[newest]
    if status.is_finished and not status.succeeded:
        return None
    if status.state.base is JobBase.CANCELLED:
        # It is being cancelled.
        return None
    return Submitted(newest, adopted=True, key=known[name])


#: Seconds that the first submission waits for others.
BATCH_PAUSE = 0.05


@dataclass
class _PendingSubmission:
    """A job, and the futures of its submission."""

    job: BatchJob
    since: datetime | None
    fresh: bool
    answers: list[asyncio.Future[Submitted]] = field(default_factory=list)


class Batcher:
    """Collects jobs, submits them together, and returns each its own answer.

    One request is under way at a time, as a second one would wait for the lock of the first; what is collected
    meanwhile is the next.
    """

    def __init__(self, take: Callable[[Steps[dict[str, Submitted]]], Awaitable[dict[str, Submitted]]]) -> None:
        self._take = take
        self._waiting: dict[str, _PendingSubmission] = {}
        self._task: asyncio.Task[None] | None = None

    async def submit(self, job: BatchJob, *, since: datetime | None, fresh: bool) -> Submitted:
        # An invalid job must not keep the others from being submitted.
        job.check()
        [key] = SubmitOnce(jobs=(job,)).submission_keys()
        answer: asyncio.Future[Submitted] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(key.text, _PendingSubmission(job, since, fresh)).answers.append(answer)
        if self._task is None:
            self._task = asyncio.create_task(self._send_all(), name="slurm-submit")
        return await answer

    async def _send_all(self) -> None:
        try:
            await asyncio.sleep(BATCH_PAUSE)
            while self._waiting:
                await self._send(dict(islice(self._waiting.items(), MOST)))
        finally:
            self._task = None

    async def _send(self, batch: Mapping[str, _PendingSubmission]) -> None:
        jobs = {key: one.job for key, one in batch.items()}
        begun = [one.since for one in batch.values() if one.since]
        earliest = min(begun) if len(begun) == len(batch) else None
        try:
            submitted = await self._take(_submit_some(jobs, earliest, all(one.fresh for one in batch.values())))
        except BaseException as error:
            for answer in (answer for key in batch for answer in self._waiting.pop(key).answers if not answer.done()):
                answer.set_exception(error)
            if not isinstance(error, Exception):
                raise
            return
        for key, result in submitted.items():
            for answer in (answer for answer in self._waiting.pop(key).answers if not answer.done()):
                answer.set_result(result)


def explained_answers(jobs: Sequence[BatchJob], answers: tuple[Submitted, ...]) -> Steps[tuple[Submitted, ...]]:
    """The answers, with errors about accounts, QOS, partitions and nodes that name what may be used instead."""
    refused = {option_of(answer.error) for answer in answers} - {""}
    if not refused:
        return answers
    rights: UserRights | None = None
    partitions: tuple[Partition, ...] = ()
    nodes: tuple[Node, ...] = ()
    try:
        if refused & {*OF_ACCOUNTING}:
            rights = yield ShowRights((yield WhoAmI()))
        if OF_PARTITIONS in refused:
            partitions = yield ListPartitions()
        if refused & {*OF_NODES}:
            nodes = yield ListNodes()
    except (SlurmError, TransportError):
        # Slurm's own message is raised in any case.
        pass
    return tuple(
        dataclasses.replace(answer, error=explained_refusal(answer.error, job, rights, partitions, nodes))
        if answer.error and option_of(answer.error)
        else answer
        for job, answer in zip(jobs, answers, strict=True)
    )


#: Options that are explained by the user's associations, by the names of partitions, and by what nodes have.
OF_ACCOUNTING = ("--account", "--qos")
OF_PARTITIONS = "--partition"
OF_NODES = ("--nodes", "--gres")


def option_of(error: SlurmError | None) -> str:
    """The rejected option, if Slurm names it."""
    return error.option if isinstance(error, SubmitRefused) else ""


def explained_refusal(
    refusal: SlurmError,
    job: BatchJob,
    rights: UserRights | None = None,
    partitions: Iterable[Partition] = (),
    nodes: Iterable[Node] = (),
) -> SlurmError:
    """The error with what may be used instead, or the parameter if it is not called as the option."""
    option, asked = option_of(refusal), submission.asked_for(job)
    wanted = [asked.partition] if isinstance(asked.partition, str) else list(asked.partition or ())
    why = ""
    if option == OF_PARTITIONS:
        why = _about_partition(wanted, tuple(partitions))
    elif option in OF_NODES:
        why = _about_nodes({name for said in wanted for name in said.split(",")}, nodes)
    elif rights is None:
        pass
    elif not rights.is_known:
        why = f"user {rights.user} is not in accounting (`sacctmgr add user {rights.user} account=NAME`)"
    elif option == "--account":
        why = _about_account(asked.account or "", wanted, rights)
    elif option == "--qos":
        why = _about_qos(asked.qos or "", asked.account or "", rights)
    long = option.removeprefix("--")
    if (typed := options.typed(long)) and typed.field != long.replace("-", "_"):
        why = f"see the parameter {typed.field}"
    return SubmitRefused(refusal.said, refusal.command, why, option) if why else refusal


def _unknown(what: str, name: str, known: Iterable[str]) -> str:
    return f"{what} {name!r}: {name_remedy(name, known, '')}".rstrip()


def _about_partition(wanted: Iterable[str], partitions: Sequence[Partition]) -> str:
    names = {one.name for one in partitions}
    unknown = [one for said in wanted for one in said.split(",") if one not in names]
    if not unknown or not names:
        return ""
    # Hidden partitions are not for every user.
    shown = [one.name for one in partitions if not one.is_hidden]
    return f"{_unknown('partition', unknown[0], shown)} the partitions are {', '.join(shown)}"


def _about_nodes(wanted: set[str], nodes: Iterable[Node]) -> str:
    found = [node for node in nodes if not wanted or not wanted.isdisjoint(node.partitions)]
    if not found:
        return ""
    where = f"partition {', '.join(sorted(wanted))}" if wanted else "the cluster"
    gpus = max(node.gpus for node in found)
    best = [node for node in found if node.gpus == gpus]
    kinds = ", ".join(sorted({node.gres for node in best}))
    has = f"{gpus} GPUs ({hostlist.fold(node.name for node in best)}: {kinds})" if gpus else "no GPUs"
    most = f"{max(node.cpus for node in found)} CPUs and {max(node.memory for node in found)} MiB"
    return f"{where} has {len(found)} nodes, and at most {has}, {most} on one"


def _about_account(said: str, partitions: Sequence[str], rights: UserRights) -> str:
    may = f"user {rights.user} may use {_accounts(rights)}"
    if not said:
        return f"no account is given, and the user has no default account: {may}"
    only = [one.partition for one in rights.associations if one.account == said]
    if not only:
        return f"{_unknown('account', said, rights.accounts)} {may}"
    if "" in only or not {*only}.isdisjoint(partitions):
        return ""
    return f"user {rights.user} may use account {said} in partition {', '.join(only)} only"


def _accounts(rights: UserRights) -> str:
    default = [name for name in rights.accounts if name == rights.default_account]
    others = [name for name in rights.accounts if name not in default]
    return ", ".join([*(f"{name} (default)" for name in default), *others]) or "none"


def _about_qos(said: str, account: str, rights: UserRights) -> str:
    if not said:
        return ""
    account = account or rights.default_account
    by_account = {name: [one for one in rights.associations if one.account == name] for name in rights.accounts}
    allowed = {name: dict.fromkeys(qos for one in held for qos in one.qos) for name, held in by_account.items()}
    with_it = allowed.get(account, {})
    if said in with_it:
        return ""
    may = f"user {rights.user} may use {', '.join(with_it) or 'none'} with account {account}"
    others = [name for name, qos in allowed.items() if said in qos]
    if others:
        return f"qos {said} needs account {', '.join(others)}: {may}"
    return f"{_unknown('qos', said, with_it)} {may}"
