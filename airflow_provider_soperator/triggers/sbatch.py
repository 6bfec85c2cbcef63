"""Triggers of a job: one submits it and waits for its end, the other starts a task without an Airflow worker."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from airflow.sdk.bases.xcom import BaseXCom
from airflow.sdk.exceptions import AirflowRuntimeError
from airflow.sdk.execution_time.xcom import XCom
from airflow.triggers.base import BaseTrigger, TaskSuccessEvent, TriggerEvent
from async_timeout import timeout

from airflow_provider_soperator.client.client import AsyncSlurmClient
from airflow_provider_soperator.client.job_run import JobRun
from airflow_provider_soperator.client.poller import POLL_INTERVAL
from airflow_provider_soperator.errors import ConnectionMistake
from airflow_provider_soperator.hooks.slurm import SlurmHook
from airflow_provider_soperator.slurm.errors import SlurmError, SubmitRefused
from airflow_provider_soperator.slurm.job import fields_of, job_of
from airflow_provider_soperator.slurm.job_description import InvalidJob
from airflow_provider_soperator.slurm.job_ids import SubmissionKey, submitted_since
from airflow_provider_soperator.slurm.job_records import report_of, status_of
from airflow_provider_soperator.transports.transport_errors import NotSupported, TransportError
from airflow_provider_soperator.triggers.base import KillableTrigger, SlurmTrigger, call
from airflow_provider_soperator.work.protocols import failed, refused, succeeded, timed_out
from airflow_provider_soperator.work.sbatch import Chain, Published, follow, job_for, keys_of

#: Errors that last until the task or its connection is changed.
_FINAL = (ConnectionMistake, InvalidJob, SubmitRefused, NotSupported)


@dataclass(eq=False, repr=False)
class SbatchTrigger(KillableTrigger):
    """One job, from its submission to its end.

    ``job`` has the fields of a ``BatchJob``, ``keys`` those of all tries that can have submitted it, the own one last;
    jobs with keys in ``replaced`` are cancelled. ``deadline`` is the end of the task's time, in seconds since 1970.
    With ``end_from_trigger`` no Airflow worker is started for a job that has succeeded. ``chain`` has the fields of a
    ``Chain``.
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
    end_from_trigger: bool = False
    chain: dict[str, Any] | None = None
    made: float = 0.0

    def __post_init__(self) -> None:
        super().__init__(self.made)
        #: Values published so far.
        self.links: dict[str, str] = {}
        self._begun: JobRun | None = None

    async def run(self) -> AsyncIterator[TriggerEvent]:
        event = await self.event()
        await self.flush()
        yield TaskSuccessEvent() if await self._has_ended(event) else await self.resume(event)

    async def _has_ended(self, event: dict[str, Any]) -> bool:
        """True if nothing is left to do for an Airflow worker."""
        # dag.test() does not say which task it is.
        ends_here = self.end_from_trigger and self.task_instance is not None
        if not ends_here or event["status"] != "success" or not status_of(event["result"]).succeeded:
            return False
        try:
            await self.push(XCom.XCOM_RETURN_KEY, event["result"])
        except AirflowRuntimeError as error:
            self.log.warning("The result could not be stored from here, so a worker does it: %s", error)
            return False
        return True

    async def event(self) -> dict[str, Any]:
        """The report of the job's end, or the reason for its lack; with the ``links`` of the task's page."""
        try:
            hook = SlurmHook(self.slurm_conn_id)
            async with hook.async_client() as client:
                templates = dict((await hook.async_settings()).links)
                published = Published(self.push, client, templates, self.links, self.log)
                outcome = await self._in_time(self._run_with(client), published)
        except (SlurmError, TransportError, ConnectionMistake, InvalidJob) as error:
            outcome = (refused if isinstance(error, _FINAL) else failed)(str(error))
        return outcome | {"links": self.links}

    async def _in_time(self, run: JobRun, published: Published) -> dict[str, Any]:
        left = None if self.deadline is None else max(0.0, self.deadline - time.time())
        try:
            async with timeout(left):
                return succeeded(report_of(await follow(run, self.log, published, Chain.read(self.chain), self.states)))
        except asyncio.TimeoutError:
            if left is None:
                raise
        await run.cancel()
        return timed_out(f"job {run.submitted.id}" if run.submitted else "the submission")

    async def push(self, key: str, value: Any, backend: type[BaseXCom] = XCom) -> None:
        """Push an XCom. Airflow stores XComs that come with an event as text, and they are pulled as text."""
        ti: Any = self.task_instance
        # dag.test() runs triggers without their task instance.
        if ti is not None:
            await call(
                backend.set,
                key=key,
                value=value,
                dag_id=ti.dag_id,
                task_id=ti.task_id,
                run_id=ti.run_id,
                map_index=ti.map_index,
            )

    async def cancel(self) -> None:
        """Cancel the job, if there is one and the task asks for it, and those that can never run after that."""
        async with SlurmHook(self.slurm_conn_id).async_client() as client:
            if self.cancel_on_kill:
                await self._run_with(client).cancel()
            chain = Chain.read(self.chain)
            # Others follow a task that was marked as successful. In a run that takes too long all are skipped.
            if chain.doomed and await self.state() in ("failed", "skipped"):
                await chain.give_up(client)

    @property
    def fate(self) -> str:
        """The result of the cancellation, as the rest of a sentence."""
        submitted = self._begun.submitted if self._begun else None
        if submitted is None or submitted.id is None:
            return ""
        return f", and job {submitted.id} was {'cancelled' if self.cancel_on_kill else 'left alone'}"

    def _run_with(self, client: AsyncSlurmClient) -> JobRun:
        # A trigger that is killed has begun, and knows best which jobs to cancel.
        self._begun = self._begun or JobRun(
            client,
            job_of(self.job),
            [SubmissionKey(key) for key in self.keys],
            replaced=[SubmissionKey(key) for key in self.replaced],
            since=datetime.fromisoformat(self.since) if self.since else None,
            poll_interval=self.poll_interval,
            show_output=self.stream_logs,
            tell_of_nodes=SlurmHook(self.slurm_conn_id).tell_of_pods,
        )
        return self._begun


def trigger_of(
    ti: Any,
    script: str | None,
    job: Mapping[str, Any],
    *,
    keys: Sequence[SubmissionKey],
    replaced: Sequence[SubmissionKey],
    begun: datetime | None,
    timeout: timedelta | None = None,
    cancel_on_kill: bool = True,
    **others: Any,
) -> SbatchTrigger:
    """The trigger of a try; ``InvalidJob`` if Slurm would refuse its job. ``begun`` is the start of the DAG run."""
    since = submitted_since(begun)
    return SbatchTrigger(
        job=fields_of(job_for(ti, script, job)),
        keys=[key.text for key in keys],
        replaced=[key.text for key in replaced] if cancel_on_kill else [],
        since=since.isoformat() if since else None,
        deadline=time.time() + timeout.total_seconds() if timeout else None,
        cancel_on_kill=cancel_on_kill,
        **others,
    )


@dataclass(eq=False, repr=False)
class SbatchStartTrigger(SlurmTrigger):
    """Starts a task without an Airflow worker. Airflow renders ``script`` and ``job`` before it runs.

    Only for the first try: the triggerer does not know the number of tries since the task was cleared, and so which
    earlier jobs it may go on with. Later tries are handed to a worker.
    """

    slurm_conn_id: str
    script: str | None
    job: dict[str, Any]
    poll_interval: float
    stream_logs: bool
    cancel_on_kill: bool
    end_from_trigger: bool

    def __post_init__(self) -> None:
        super().__init__()
        self._started: SbatchTrigger | None = None

    # Rendered here, as no Airflow worker has done it; arguments from a worker must not be rendered again.
    render_template_fields = BaseTrigger.render_template_fields

    async def run(self) -> AsyncIterator[TriggerEvent]:
        if self._try_number > 1:
            yield TriggerEvent({"start": True})  # type: ignore[no-untyped-call]
            return
        try:
            started = self._start()
        except InvalidJob as error:
            yield TriggerEvent(refused(str(error)))  # type: ignore[no-untyped-call]
            return
        async for event in started.run():
            yield event

    async def on_kill(self) -> None:
        if self._try_number == 1:
            await self._start().on_kill()

    @property
    def _try_number(self) -> int:
        ti: Any = self.task_instance
        return int(ti.try_number)

    def _start(self) -> SbatchTrigger:
        if self._started is None:
            ti: Any = self.task_instance
            replaced, keys = keys_of(ti, retries=ti.max_tries)
            self._started = trigger_of(
                ti,
                keys=keys,
                replaced=replaced,
                begun=ti.get_template_context()["dag_run"].start_date,
                **self.serialize()[1],
            )
            self._started.task_instance = ti
        return self._started
