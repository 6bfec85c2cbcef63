"""A process that waits for jobs, as the triggerer does: to be measured from outside.

``python -m benchmarks.watchers shared|naive`` reads from stdin where the login node is, and then lists of job ids to
wait for; it writes a line of JSON when all of a list are known, and one for each job that has ended.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from paramiko import SSHClient

from airflow_provider_soperator.client.client import AsyncSlurmClient
from airflow_provider_soperator.slurm.job_ids import JobId
from airflow_provider_soperator.slurm.requests import Command, CommandOutput, Request
from airflow_provider_soperator.transports.ssh import SshTransport
from benchmarks.transports import connected

#: Seconds between two questions for the same job.
INTERVAL = 10.0


def say(**words: Any) -> None:
    print(json.dumps(words), flush=True)


class Poller(Protocol):
    """One way to wait for jobs."""

    async def wait_for(self, job: str, is_known: asyncio.Event) -> None: ...


class Shared:
    """The client's watches: one poller for all."""

    def __init__(self, transport: SshTransport) -> None:
        self._client = AsyncSlurmClient(transport)

    async def wait_for(self, job: str, is_known: asyncio.Event) -> None:
        watch = self._client.watch(JobId.parse(job), mine=True, poll_interval=INTERVAL)
        # As if it had waited for an hour: what is measured is how it goes on, not how it begins.
        watch.since -= 3600
        async for status in watch:
            is_known.set()
            if status.is_over:
                say(ended=job, at=time.time())


class StateOf(Request[str]):
    """The state of one job."""

    def __init__(self, job: str) -> None:
        self._job = job

    def command(self) -> Command:
        return Command(("squeue", "--noheader", "--states=all", f"--jobs={self._job}", "--format=%T"))

    def read(self, answer: CommandOutput) -> str:
        return self.check(answer).text.strip()


class Naive:
    """A question for each job in each interval, over the same connection."""

    def __init__(self, transport: SshTransport) -> None:
        self._transport = transport

    async def wait_for(self, job: str, is_known: asyncio.Event) -> None:
        while await self._transport.ask(StateOf(job)) == "PENDING":
            is_known.set()
            await asyncio.sleep(INTERVAL)
        say(ended=job, at=time.time())


POLLERS: dict[str, Callable[[SshTransport], Poller]] = {"shared": Shared, "naive": Naive}


async def main(kind: str) -> None:
    loop = asyncio.get_running_loop()
    login = json.loads(await loop.run_in_executor(None, sys.stdin.readline))

    async def connect() -> Callable[[], SSHClient]:
        return partial(connected, login)

    waiting: set[asyncio.Task[None]] = set()
    poller = POLLERS[kind](SshTransport(connect))
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        known = []
        for job in json.loads(line):
            known.append(asyncio.Event())
            waiting.add(asyncio.create_task(poller.wait_for(job, known[-1])))
        for event in known:
            await event.wait()
        say(known=len(known))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
