"""Triggers of a job: one submits it and waits for its end, others start its task, later or without a worker."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from airflow.sdk.execution_time.xcom import XCom
from airflow.triggers.base import BaseTrigger, TriggerEvent
from async_timeout import timeout

from airflow_provider_soperator.client.client import AsyncSlurmClient
from airflow_provider_soperator.client.job_run import JobRun
from airflow_provider_soperator.client.pace import polled
from airflow_provider_soperator.client.poller import POLL_INTERVAL
from airflow_provider_soperator.errors import ClusterError, ConnectionMistake, LastingError
from airflow_provider_soperator.hooks.slurm import SlurmHook
from airflow_provider_soperator.slurm.errors import SlurmError
from airflow_provider_soperator.slurm.job import fields_of, job_of
from airflow_provider_soperator.slurm.job_description import InvalidJob
from airflow_provider_soperator.slurm.job_records import JobStatus
from airflow_provider_soperator.slurm.job_reports import check_result, gauges, read_result, report_of, status_of
from airflow_provider_soperator.slurm.requests.commands import run_steps_async
from airflow_provider_soperator.slurm.submission_keys import SubmissionKey, key_of_try, submitted_since
from airflow_provider_soperator.transports.transport_errors import NotSupported
from airflow_provider_soperator.triggers.base import NO_WORKER, KillableTrigger, SlurmTrigger, call
from airflow_provider_soperator.work.polling import may_pass
from airflow_provider_soperator.work.protocols import emit, failed, refused, succeeded, timed_out
from airflow_provider_soperator.work.sbatch import REPORT, Chain, Published, follow, job_for

_RETURN = XCom.XCOM_RETURN_KEY
#: Seconds between two tries to cancel a job over a connection that has to be corrected first.
_PAUSE = 60.0
_NO_FILES = "result: the connection {} cannot read files: name an SSH or Kubernetes connection in it (files_via)"


async def _unasked(client: AsyncSlurmClient) -> AsyncSlurmClient:
    return client


@dataclass(eq=False, repr=False)
class SbatchTrigger(KillableTrigger):
    """One job, from its submission to its end.

    ``job`` has the fields of a ``BatchJob``, ``keys`` those of all tries that can have submitted it, the own one last;
    jobs with keys in ``replaced`` are cancelled. ``deadline`` is the end of the task's time, in seconds since 1970.
    ``chain`` has the fields of a ``Chain``. ``result`` is what the task returns of the job; by default its report.
    """

    slurm_conn_id: str
    job: dict[str, Any]
    keys: list[str]
    replaced: list[str] = field(default_factory=list)
    since: str | None = None
    poll_interval: float = POLL_INTERVAL
    stream_logs: bool = True
    deadline: float | None = None
    cancel_on_kill: bool = True
    chain: dict[str, Any] | None = None
    result: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        #: Values published so far.
        self.links: dict[str, str] = {}
        self._begun: JobRun | None = None
        self._gather = False

    def has_succeeded(self, event: dict[str, Any]) -> bool:
        return super().has_succeeded(event) and status_of(event["result"]).succeeded

    def returned(self, event: dict[str, Any]) -> dict[str, Any]:
        report = event["result"]
        return {_RETURN: report} if self.result is None else {REPORT: report, _RETURN: event["value"]}

    async def event(self) -> dict[str, Any]:
        """The job's report and its ``last_lines``, or the reason for their lack; with the ``links`` of the task's page.

        If the task returns a result, that is the ``value``; null for a job that has not succeeded.
        """
        try:
            hook = SlurmHook(self.slurm_conn_id)
            # Airflow may be away for a moment, and with it the connection of a job that runs.
            opened = polled(hook.async_client, _unasked, self.poll_interval, self.log, is_borne=may_pass)
            async with aclosing(opened):
                async with timeout(self._left):
                    client = await anext(opened)
                settings = await hook.async_settings()
                if self.result is not None and not settings.reaches_files:
                    raise ConnectionMistake(_NO_FILES.format(self.slurm_conn_id))
                # Over slurmrestd each job is submitted on its own.
                self._gather = not self.is_in_worker and settings.transport != "rest"
                published = Published(self.push, client, dict(settings.links), self.links, self.log)
                way = f" over {settings.transport} (connection {settings.conn_id})"
                outcome = await self._in_time(self._run_with(client), published, way)
        except (ClusterError, LastingError) as error:
            outcome = (refused if isinstance(error, LastingError) else failed)(str(error))
        except asyncio.TimeoutError:
            if self._left is None:
                raise
            self.log.warning("A job that an earlier try has submitted is left: Airflow does not tell the connection")
            outcome = timed_out(f"the wait for the connection {self.slurm_conn_id}")
        return outcome | {"links": self.links}

    @property
    def _left(self) -> float | None:
        """Seconds of the task's time."""
        return None if self.deadline is None else max(0.0, self.deadline - time.time())

    async def _in_time(self, run: JobRun, published: Published, way: str) -> dict[str, Any]:
        try:
            async with timeout(self._left):
                await run.read_lines()
                try:
                    check_result(self.result, run.job)
                except InvalidJob:
                    # A script on the cluster may have been changed since.
                    if not await run.is_submitted():
                        raise
                status, last = await follow(run, self.log, published, Chain.read(self.chain), self.states, way)
                report = report_of(status)
                if ti := self.task_instance:
                    # Airflow looks up the address of its StatsD at first.
                    await call(emit, gauges(report), dag_id=ti.dag_id, task_id=ti.task_id)
                return succeeded(report) | {"last_lines": last} | await self._value(run.client, status)
        except asyncio.TimeoutError:
            if self._left is None:
                raise
        if self.cancel_on_kill:
            self.log.warning("The task's time is over (execution_timeout): it ends once no job of it is left")
            await self._until_done(self._cancel_job)
        return timed_out(self._job_ids or "the submission")

    async def _value(self, client: AsyncSlurmClient, status: JobStatus) -> dict[str, Any]:
        if self.result is None:
            return {}
        ask, has_one = client.patient(self.log).ask, status.succeeded
        return {"value": await run_steps_async(read_result(self.result, status), ask) if has_one else None}

    async def cancel(self) -> None:
        """Cancel the job, if there is one and the task asks for it, and those that can never run after that."""
        await self._until_done(self._cancel_with)

    async def _until_done(self, step: Callable[[AsyncSlurmClient], Awaitable[None]]) -> None:
        """Try a step until it is done: the cluster may be away for hours, and the connection have to be corrected."""
        done = polled(
            lambda: SlurmHook(self.slurm_conn_id).async_client(),
            step,
            _PAUSE,
            self.log,
            is_borne=lambda error: may_pass(error) or not isinstance(error, (SlurmError, NotSupported)),
        )
        async with aclosing(done):
            await anext(done)

    async def _cancel_job(self, client: AsyncSlurmClient) -> None:
        await self._run_with(client).cancel()

    async def _cancel_with(self, client: AsyncSlurmClient) -> None:
        if self.cancel_on_kill:
            await self._cancel_job(client)
        chain = Chain.read(self.chain)
        # Others follow a task that was marked as successful. In a run that takes too long all are skipped.
        if chain.doomed and await self.state() in ("failed", "skipped"):
            await chain.give_up(client.patient(self.log))

    @property
    def fate(self) -> str:
        """The result of the cancellation, as the rest of a sentence."""
        if not self._job_ids:
            return ""
        return f", and {self._job_ids} was {'cancelled' if self.cancel_on_kill else 'left alone'}"

    @property
    def _job_ids(self) -> str:
        """The job, in words; empty if there is none."""
        run = self._begun
        submitted = run.submitted.id if run and run.submitted else None
        ids = (run.cancelled if run else ()) or ((submitted,) if submitted else ())
        return f"job {', '.join(map(str, ids))}" if ids else ""

    def _run_with(self, client: AsyncSlurmClient) -> JobRun:
        # A trigger that is killed has begun, and its submission may be under way.
        if self._begun:
            self._begun.client = client
            return self._begun
        self._begun = JobRun(
            client,
            job_of(self.job),
            [SubmissionKey(key) for key in self.keys],
            replaced=[SubmissionKey(key) for key in self.replaced],
            since=datetime.fromisoformat(self.since) if self.since else None,
            poll_interval=self.poll_interval,
            show_output=self.stream_logs,
            log=self.log,
            gather=self._gather,
            tell_of_nodes=SlurmHook(self.slurm_conn_id).tell_of_pods,
        )
        return self._begun


@dataclass(eq=False, repr=False)
class SbatchStartTrigger(SbatchTrigger):
    """Starts a task without an Airflow worker. Airflow renders ``script`` and ``job`` before it runs.

    Only for the first try: the triggerer does not know the number of tries since the task was cleared, and so which
    earlier jobs it may go on with. Later tries are handed to a worker.
    """

    keys: list[str] = field(default_factory=list)
    script: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.made = NO_WORKER

    def render_template_fields(self, context: Any, jinja_env: Any = None) -> None:
        """Render them here, as no Airflow worker has done it, and as strictly: a name that is not there is an error."""
        from jinja2 import StrictUndefined

        jinja_env = jinja_env or self.get_template_env()
        jinja_env.undefined = StrictUndefined
        BaseTrigger.render_template_fields(self, context, jinja_env)

    async def run(self) -> AsyncIterator[TriggerEvent]:
        ti: Any = self.task_instance
        if ti.try_number > 1:
            self._is_over = True
            yield TriggerEvent({"start": True})  # type: ignore[no-untyped-call]
            return
        try:
            self._begin()
        except InvalidJob as error:
            async for event in self.conclude(refused(str(error))):
                yield event
            return
        async for event in super().run():
            yield event

    async def on_kill(self) -> None:
        # Whoever was told to end an earlier try leaves its job to this one.
        self._begin()
        await super().on_kill()

    def _begin(self) -> None:
        """Make the job and its key, as an operator does in an Airflow worker."""
        if not self.keys:
            ti: Any = self.task_instance
            begun = ti.get_template_context()["dag_run"].start_date
            check_result(self.result)
            self.job = fields_of(job_for(ti, self.script, self.job))
            since = submitted_since(begun)
            self.since = since.isoformat() if since else None
            self.keys = [key_of_try(ti, begun, number).text for number in range(1, ti.try_number + 1)]


@dataclass(eq=False, repr=False)
class LaterStartTrigger(SlurmTrigger):
    """Has an Airflow worker start the task anew, in so many seconds."""

    seconds: float

    async def run(self) -> AsyncIterator[TriggerEvent]:
        await asyncio.sleep(self.seconds)
        yield TriggerEvent({"start": True})  # type: ignore[no-untyped-call]
