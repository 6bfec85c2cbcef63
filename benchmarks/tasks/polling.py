"""A deferrable operator and its trigger as people write them by hand: each job has a connection and a question."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Any

from airflow.providers.ssh.hooks.ssh import SSHHook, SSHHookAsync
from airflow.sdk import BaseOperator
from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_provider_soperator.client.poller import POLL_INTERVAL

if TYPE_CHECKING:
    from airflow.sdk.definitions.context import Context

_UNFINISHED = {"PENDING", "CONFIGURING", "RUNNING", "COMPLETING"}
_CONNECTION = "ssh_default"


class PolledJobOperator(BaseOperator):
    """Runs a command that submits a job, and waits for the job in the triggerer."""

    template_fields: Sequence[str] = ("command",)

    def __init__(self, *, command: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.command = command

    def execute(self, context: Context) -> None:
        with SSHHook(_CONNECTION).get_conn() as client:
            job = client.exec_command(self.command)[1].read().decode().strip()
        self.defer(trigger=PolledJobTrigger(job), method_name="execute_complete")

    def execute_complete(self, context: Context, event: dict[str, str]) -> None:
        if event["state"] != "COMPLETED":
            raise RuntimeError(f"the job is {event['state']}")


class PolledJobTrigger(BaseTrigger):
    """Asks for one job in each interval, over a connection that it keeps, and opens again when it is lost."""

    def __init__(self, job: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.job = job

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return f"{__name__}.PolledJobTrigger", {"job": self.job}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        import asyncssh

        while True:
            try:
                hook = SSHHookAsync(_CONNECTION)
                async with await hook.get_conn() as connection:  # type: ignore[no-untyped-call]
                    while (state := await self._state(connection)) in _UNFINISHED:
                        await asyncio.sleep(POLL_INTERVAL)
                yield TriggerEvent({"state": state})  # type: ignore[no-untyped-call]
                return
            except (OSError, asyncssh.Error) as error:
                # An sshd turns connections away that come all at once.
                self.log.info("%s: trying again", error)
                await asyncio.sleep(random.uniform(0, POLL_INTERVAL))

    async def _state(self, connection: Any) -> str:
        queue = f"squeue --noheader --states=all --jobs={self.job} --format=%T"
        accounting = f"sacct --noheader --allocations --parsable2 --jobs={self.job} --format=State"
        said = await connection.run(f"{queue} || {accounting}")
        return str(said.stdout).strip()
