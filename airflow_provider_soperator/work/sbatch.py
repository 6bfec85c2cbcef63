"""A task's job: its name and keys, its course in the task's log, and the jobs that wait for it."""

from __future__ import annotations

import asyncio
import posixpath
import shlex
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from airflow.sdk import Context
from airflow.sdk.bases.xcom import BaseXCom
from airflow.sdk.execution_time.xcom import XCom

from airflow_provider_soperator.client.client import AsyncSlurmClient
from airflow_provider_soperator.client.job_run import JobRun, NewestLine, Printed
from airflow_provider_soperator.errors import ClusterError
from airflow_provider_soperator.hooks.forms import LINKS
from airflow_provider_soperator.logger import Logger
from airflow_provider_soperator.pipelines.graph import EARLY, is_ended, is_met
from airflow_provider_soperator.slurm import links, sbatch_arguments
from airflow_provider_soperator.slurm.dependencies import Unmet
from airflow_provider_soperator.slurm.job import BatchJob, job_of
from airflow_provider_soperator.slurm.job_description import InvalidJob
from airflow_provider_soperator.slurm.job_failures import failure
from airflow_provider_soperator.slurm.job_ids import JobId
from airflow_provider_soperator.slurm.job_records import Job, JobStatus, sentence
from airflow_provider_soperator.slurm.job_reports import figures, in_words, usage_of
from airflow_provider_soperator.slurm.requests import ListJobs
from airflow_provider_soperator.slurm.requests.submission import Submitted
from airflow_provider_soperator.slurm.submission_keys import (
    Keys,
    SubmissionKey,
    key_of_try,
    output_path,
    read_keys,
    readable_name,
)

#: The states of the instances of some tasks of the run, by task and map index.
StatesOf = Callable[[Sequence[str]], Awaitable[dict[str, dict[int, str | None]]]]
#: Pushes an XCom to a backend.
Push = Callable[[str, str, type[BaseXCom]], Awaitable[None]]
#: XCom key of the report of a task that returns what its job has computed.
REPORT = "job"


#: Options for which such a text means something, or which must not be left out unseen.
_KEPT = frozenset({"array", "dependency", "export", "extra", "no_kill", "profile"})


def given(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The options that are set. What an empty field of a form renders to, "" or "None", leaves its option out."""
    unset = (None, "", "None")
    said = {
        name: value for name, value in fields.items() if value not in unset or (value is not None and name in _KEPT)
    }
    if isinstance(components := said.get("het"), (list, tuple)):
        said["het"] = [given(one) if isinstance(one, Mapping) else one for one in components]
    if isinstance(words := said.get("extra_args"), (list, tuple)):
        said["extra_args"] = [word for word in words if word not in (None, "")]
    return said


def job_for(ti: Any, script: str | None, fields: Mapping[str, Any]) -> BatchJob:
    """The job of a task, named after it; ``InvalidJob`` if Slurm would refuse it."""
    try:
        job = job_of({"script": script, **given(fields)})
        job.check()
        job = sbatch_arguments.with_lines(job)
    except InvalidJob as error:
        raise InvalidJob(error.of_parameters) from None
    # Names in the script's own lines win over those made here.
    asked = sbatch_arguments.named_files(sbatch_arguments.asked_for(job))
    instance = (ti.dag_id, ti.run_id, ti.task_id, -1 if ti.map_index is None else ti.map_index)
    file = f"{output_path(*instance)}-{'%j' if asked.array is None else '%A_%a'}.out"
    made = readable_name(*instance)
    if sbatch_arguments.is_singleton(asked):
        # No job of another run would have that name.
        made = posixpath.basename(job.remote_script or f"{ti.task_id}.{ti.dag_id}")
    name, output = asked.name or made, asked.output or file
    # Also in those of a script on the cluster, which are read where the job is submitted.
    ours = tuple(one for one in ("name", "output") if job.remote_script is not None and getattr(asked, one) is None)
    return job.replace(name=name, output=output, error=asked.error, by_default=ours)


def keys_of(context: Context, retries: int) -> tuple[list[SubmissionKey], list[SubmissionKey]]:
    """The keys of the tries before the task was last cleared, and of those since then; the last is this try's.

    ``retries`` is the number that the task is granted each time that it is cleared.
    """
    ti: Any = context["ti"]
    keys = [key_of_try(ti, context["dag_run"].start_date, number) for number in range(1, ti.try_number + 1)]
    before = _tries_before_clear(context, retries)
    return keys[:before], keys[before:]


#: Key in the state that Airflow keeps of a task instance.
_CLEARED = "soperator_cleared"


def _tries_before_clear(context: Context, retries: int) -> int:
    """How many tries the task had had when it was last cleared, which Airflow does not say."""
    ti: Any = context["ti"]
    earlier = ti.try_number - 1
    # A cleared task is granted as many tries as at first: the DAG may say another number by now, and Airflow 3.3 grants
    # nothing to one that is cleared while it runs, unless its executor then reports a success: KubernetesExecutor does
    # not.
    granted = min(max(0, ti.max_tries - retries), earlier)
    store: Any = context.get("task_state_store")
    # dag.test() may have none. Nor has it a scheduler that could die.
    if store is None:
        return int(granted if retries else earlier)
    from airflow.sdk.execution_time.context import NEVER_EXPIRE

    # So the first try since a clear leaves a note. Airflow 3.4 removes it at a clear, 3.3 has another maximum then.
    known = store.get(_CLEARED) if earlier else None
    # Where that is the same, the run has counted a clear; maybe that of another task. Without retries it is taken for
    # one of this task: only a scheduler that dies makes another try without any.
    cleared = context["dag_run"].clear_number or 0
    if known and known[0] == ti.max_tries and (retries or known[2:] == [cleared]):
        return int(known[1])
    # A try in the triggerer cannot leave one.
    before = granted if context["task"].start_from_trigger else earlier
    store.set(_CLEARED, [ti.max_tries, before, cleared], retention=NEVER_EXPIRE)
    return int(before)


#: Lines that make one event of the log. A triggerer passes some thousand events a second, for all of its triggers, and
#: one that is busy with them for half a minute is taken for dead.
_BLOCK = 100
#: Characters of a line in the title of a group.
_TITLE = 100


async def follow(
    run: JobRun, log: Logger, published: Published, chain: Chain, states: StatesOf, way: str = ""
) -> tuple[JobStatus, list[str]]:
    """Submit and wait, with events and output in the log; returns the job's end, and if it failed its last lines.

    ``way`` says how the cluster is reached.
    """
    log.info("Job%s: %s", way, shlex.join(sbatch_arguments.command_line(run.job)))
    submitted = await run.submit()
    assert submitted.id is not None
    for job in run.ended:
        log.info("Job %s of an earlier try was still there: cancelled, as the task has been cleared since", job)
    log.info("%s", _begin(submitted, chain))
    await chain.relink(run.client, submitted.id, run.keys[:-1], log)
    await published.begin(submitted.id)
    status: JobStatus | None = None
    said, place, is_told = "", "", False
    freeing: asyncio.Future[None] | None = None
    freed = {""}
    try:
        async for news in run.follow():
            if isinstance(news, Printed):
                await _print(news, submitted.id, log)
                continue
            if isinstance(news, NewestLine):
                log.info("Job %s %s; %s: %s", submitted.id, said, news.part, news.line[:_TITLE])
                continue
            if news.parts and not place:
                place = run.place(news.parts[0])
                about = [] if is_told else await _home(run, news.parts[0])
                is_told = True
                if about := about + [f"writes to {place}"] * bool(place):
                    log.info("Job %s %s", submitted.id, ", ".join(about))
            status = news
            before, said = said, sentence(status)
            if status.is_over and not status.succeeded:
                log.error("Job %s %s", status.id, said)
            elif said != before:
                log.info("Job %s %s", status.id, said)
                for line in await run.hindrances(status):
                    log.info("  %s", line)
            await published.update(status)
            if (why := chain.wait_of(status)) not in freed and (freeing is None or freeing.done()):
                freed.add(why)
                freeing = asyncio.ensure_future(chain.free(run, submitted.id, states, log))
    finally:
        if freeing:
            freeing.cancel()
    assert status is not None, "the last news is the end"
    if used := in_words(figures(map(usage_of, status.accounted))):
        log.info("Job %s %s", status.id, used)
    if status.succeeded:
        return status, []
    if diagnosis := await run.diagnosis(status):
        for line in (f"::group::{diagnosis[0]}", *diagnosis[1:], "::endgroup::"):
            log.warning("%s", line)
    last = await run.last_lines(status)
    # At the end, where a page shows a log first.
    log.error("%s", failure(status, last))
    return status, last


async def _home(run: JobRun, part: Job) -> list[str]:
    """Whose job it is, and on which cluster."""
    cluster = ""
    with suppress(ClusterError):
        cluster = (await run.client.config()).cluster
    return [f"{verb} {what}" for verb, what in (("belongs to", part.user), ("is on cluster", cluster)) if what]


def _begin(submitted: Submitted, chain: Chain) -> str:
    if str(submitted.id) == chain.ahead:
        return f"Job {submitted.id} was submitted ahead"
    if submitted.adopted:
        return f"Job {submitted.id} was submitted by an earlier try: going on with it"
    return f"Job {submitted.id} submitted"


async def _print(printed: Printed, job: JobId, log: Logger) -> None:
    prefix = "stderr: " if printed.is_error else ""
    lines = [prefix + line for line in printed.lines]
    if printed.part == job:
        await _log(lines, log)
        return
    title = f"{printed.part}{f' is {printed.end}' * bool(printed.end)}"
    if len(lines) == 1:
        log.info("%s: %s", title, lines[0])
    else:
        # The marks make a group that Airflow's page folds. Its title shows the last line when folded.
        log.info("::group::%s: %s", title, lines[-1][:_TITLE])
        await _log(lines, log)
        log.info("::endgroup::")


async def _log(lines: list[str], log: Logger) -> None:
    size = _BLOCK if len(lines) > _BLOCK else 1
    for start in range(0, len(lines), size):
        log.info("%s", "\n".join(lines[start : start + size]))
        if size > 1:
            # Lets other triggers run.
            await asyncio.sleep(0)


#: Seconds between two looks at tasks that may be tried once more.
_LOOK = 10.0
#: Slurm's reasons of a job that waits for others: for one that can never come, and for one that has not come yet.
_NEVER, _NOT_YET = "DependencyNeverSatisfied", "Dependency"


@dataclass(frozen=True)
class Chain:
    """The jobs around that of a task, by their ids; those to change with their submission keys."""

    #: The job that was submitted ahead for the task itself.
    ahead: str = ""
    #: The numbers of the jobs in the task's own dependency, which Airflow cannot go past.
    own: Sequence[int] = ()
    #: Jobs that wait for it.
    waiting: Mapping[str, str] = field(default_factory=dict)
    #: Jobs that can never run once it has failed.
    doomed: Mapping[str, str] = field(default_factory=dict)
    #: Upstream stages, with the kind of link to each.
    follows: Sequence[Sequence[str]] = ()
    #: Jobs that were submitted ahead for those, by stage.
    before: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @classmethod
    def read(cls, said: dict[str, Any] | None) -> Chain:
        return cls(**said) if said else cls()

    async def relink(self, client: AsyncSlurmClient, job: JobId, earlier: Sequence[SubmissionKey], log: Logger) -> None:
        """Make jobs that wait for an earlier try's job wait for this one; ``earlier`` has the keys of those jobs."""
        if not self.waiting or str(job) == self.ahead:
            return
        try:
            keys = Keys(earlier)
            known = await client.ask(ListJobs(mine=True, name_suffixes=keys.suffixes)) if earlier else ()
            before = {own for found in known for _, own in keys.of(found.name, found.id)}
            before |= {JobId.parse(self.ahead)} if self.ahead else set()
            for old in sorted(before - {job}):
                for relinked in await client.relink(await client.unfinished(read_keys(self.waiting)), old, job):
                    log.info("Job %s waits for job %s now, and no longer for job %s", relinked, job, old)
        except ClusterError as error:
            # Their own tasks do it when it is their turn.
            log.warning("The jobs that wait for this one could not be told of it: %s", error)

    def wait_of(self, status: JobStatus) -> str:
        """Slurm's reason if the task's turn has come and its job still waits for others; otherwise empty."""
        parts = status.parts if self.ahead or self.follows else ()
        reasons = {reason for part in parts for reason in part.reasons}
        return next((reason for reason in (_NEVER, _NOT_YET) if reason in reasons), "")

    async def free(self, run: JobRun, job: JobId, states_of: StatesOf, log: Logger) -> None:
        """End the wait of a job for others, once Airflow has gone past those that it waits for.

        Their jobs may be left in the queue, as when a task before them was marked by hand or its Airflow worker died:
        those are cancelled. The job itself is released, or cancelled where its dependency was not met.
        """
        names = [name for name, _ in self.follows]
        # Of a task that begins early all may still run, and another try of theirs may succeed.
        awaited = self.follows if any(kind in EARLY for _, kind in self.follows) else ()
        states = await states_of(names)
        while not all(_has_ended(states[name]) for name, _ in awaited):
            await asyncio.sleep(_LOOK)
            states = await states_of(names)
        left = {id: key for name, jobs in self.before.items() if _has_ended(states[name]) for id, key in jobs.items()}
        is_due = all(is_met(kind, state) for name, kind in awaited for state in states[name].values())
        # One that waits while the cluster is away.
        client = run.client.patient(log)
        try:
            if waiting := await _cancel_waiting(client, left):
                those = ", ".join(map(str, waiting))
                log.info("Job %s waits for %s, whose tasks have ended: what had not begun is cancelled", job, those)
            assert run.submitted is not None
            assert run.submitted.key is not None
            if not await client.unfinished({job: run.submitted.key}):
                return
            vain = [job]
            if is_due:
                parts = await client.ask(ListJobs(ids=(job,))) if self.own else ()
                unmet = {part.id: Unmet.parse(part.dependency) for part in parts if part.state.is_pending}
                vain = [part for part, terms in unmet.items() if terms.possible(self.own).is_vain]
            if vain:
                await client.cancel_many(vain, waiting=True)
                log.info("Job %s waits for what can never come: what had not begun of it is cancelled", job)
            if is_due and await client.let_go(job, self.own):
                log.info("Job %s need not wait for jobs that have failed: its task's turn has come", job)
        except ClusterError as error:
            log.warning("Job %s waits in vain, and could not be let go: %s", job, error)

    async def give_up(self, client: AsyncSlurmClient) -> None:
        """Cancel the jobs that can never run."""
        await _cancel_waiting(client, self.doomed)


async def _cancel_waiting(client: AsyncSlurmClient, jobs: Mapping[str, str]) -> Sequence[JobId]:
    """Cancel those of these jobs that still wait; returns those that have not ended."""
    left = await client.unfinished(read_keys(jobs))
    await client.cancel_many(left, waiting=True)
    return left


def _has_ended(states: Mapping[int, str | None]) -> bool:
    return all(map(is_ended, states.values()))


class Published:
    """XComs of a task, pushed whenever they change; ``pushed`` records those of links."""

    def __init__(
        self, push: Push, client: AsyncSlurmClient, templates: Mapping[str, str], pushed: dict[str, str], log: Logger
    ) -> None:
        self._push_xcom, self._client, self._log = push, client, log
        self._templates = {links.xcom_key(field): template for field, template in templates.items()}
        self._values: dict[str, str] = {}
        self._pushed = pushed

    async def begin(self, job: JobId) -> None:
        """The job is submitted."""
        await self._push("job_id", str(job), XCom)
        if any("cluster" in links.placeholders_of(template) for template in self._templates.values()):
            # Without it links that need it are hidden; the job must still be followed.
            with suppress(ClusterError):
                self._values["cluster"] = (await self._client.config()).cluster
        await self.update(JobStatus(id=job))

    async def update(self, status: JobStatus) -> None:
        """Something about the job has changed."""
        if not self._templates:
            return
        # Values may be lost again, as when the job is read from accounting.
        self._values |= {name: value for name, value in links.placeholder_values(status).items() if value}
        for key, template in self._templates.items():
            link = links.link_of(template, self._values)
            if link and link != self._pushed.get(key):
                # The API server reads it from the database, even with another XCom backend.
                await self._push(key, link, BaseXCom)
                self._pushed[key] = link

    async def _push(self, key: str, value: str, backend: type[BaseXCom]) -> None:
        try:
            await self._push_xcom(key, value, backend)
        except Exception as error:
            # Airflow's, or whatever an XCom backend of one's own raises, which writes from here.
            self._log.info("The XCom %s could not be stored, which does the job no harm: %s", key, error)


def forget_published(ti: Any) -> None:
    """Delete the XComs of earlier tries, as Airflow does for a try that begins in a worker."""
    where = {name: getattr(ti, name) for name in ("dag_id", "run_id", "task_id", "map_index")}
    for key in (XCom.XCOM_RETURN_KEY, REPORT, "job_id", *map(links.xcom_key, LINKS)):
        # Another backend may know only how to purge what is there.
        if BaseXCom.get_one(key=key, **where) is not None:
            XCom.delete(key=key, **where)
