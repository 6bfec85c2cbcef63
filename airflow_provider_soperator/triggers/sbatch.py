"""Submits a job and waits for its end in the triggerer, over the connection that all tasks of the cluster share."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_provider_soperator.clients.run import JobRun
from airflow_provider_soperator.clients.watcher import POLL_INTERVAL
from airflow_provider_soperator.hooks.settings import ConnectionMistake
from airflow_provider_soperator.hooks.slurm import SlurmHook
from airflow_provider_soperator.slurm.checks import InvalidJob
from airflow_provider_soperator.slurm.errors import SlurmError
from airflow_provider_soperator.slurm.fields import job_of
from airflow_provider_soperator.slurm.keys import SubmissionKey
from airflow_provider_soperator.slurm.report import describe
from airflow_provider_soperator.transports.errors import TransportError
from airflow_provider_soperator.triggers.following import follow


class SbatchTrigger(BaseTrigger):
    """One job, from its submission to its end.

    ``job`` has the fields of a ``BatchJob``, ``keys`` those of all tries that can have submitted it, the own one last.
    ``deadline`` is when the task's time is over, in seconds since 1970.
    """

    def __init__(
        self,
        slurm_conn_id: str,
        job: dict[str, Any],
        keys: Sequence[str],
        since: str | None = None,
        poll_interval: float = POLL_INTERVAL,
        stream_logs: bool = True,
        deadline: float | None = None,
        cancel_on_kill: bool = True,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.slurm_conn_id = slurm_conn_id
        self.job = job
        self.keys = list(keys)
        self.since = since
        self.poll_interval = poll_interval
        self.stream_logs = stream_logs
        self.deadline = deadline
        self.cancel_on_kill = cancel_on_kill
        self._begun: JobRun | None = None

    def serialize(self) -> tuple[str, dict[str, Any]]:
        names = (
            "slurm_conn_id", "job", "keys", "since", "poll_interval", "stream_logs", "deadline", "cancel_on_kill",
        )  # fmt: skip
        return f"{type(self).__module__}.{type(self).__qualname__}", {name: getattr(self, name) for name in names}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        try:
            async with self.job_run() as run:
                try:
                    left = None if self.deadline is None else max(0.0, self.deadline - time.time())
                    status = await asyncio.wait_for(follow(run, self.log), left)
                except asyncio.TimeoutError:
                    await run.cancel()
                    yield _event({"timed_out": True})
                    return
            yield _event({"report": describe(status)})
        except (ConnectionMistake, InvalidJob, SlurmError, TransportError) as error:
            yield _event({"error": str(error), "kind": type(error).__name__})

    async def on_kill(self) -> None:
        if not self.cancel_on_kill:
            return
        async with self.job_run() as run:
            await run.cancel()
            self.log.info("Job %s cancelled", run.submitted.id if run.submitted else "")

    @asynccontextmanager
    async def job_run(self) -> AsyncIterator[JobRun]:
        async with SlurmHook(self.slurm_conn_id).async_client() as client:
            # When it is killed, it has begun, and knows best what there is to cancel.
            self._begun = self._begun or JobRun(
                client,
                job_of(self.job),
                [SubmissionKey(key) for key in self.keys],
                since=datetime.fromisoformat(self.since) if self.since else None,
                poll_interval=self.poll_interval,
                show_output=self.stream_logs,
            )
            yield self._begun


def _event(payload: dict[str, Any]) -> TriggerEvent:
    return TriggerEvent(payload)  # type: ignore[no-untyped-call]
