"""The client for threads: the one for event loops, in a loop that runs in a thread of its own."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Coroutine, Iterator
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from async_timeout import timeout as time_limit

from airflow_provider_soperator.clients import transfers
from airflow_provider_soperator.clients.client import AsyncSlurmClient
from airflow_provider_soperator.clients.loops import LOOP
from airflow_provider_soperator.clients.steps import run
from airflow_provider_soperator.clients.transfers import Copied
from airflow_provider_soperator.clients.watcher import POLL_INTERVAL, Watch
from airflow_provider_soperator.slurm.ids import JobId
from airflow_provider_soperator.slurm.status import JobStatus

P = ParamSpec("P")
T = TypeVar("T")


def _waited(
    method: Callable[Concatenate[AsyncSlurmClient, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[SlurmClient, P], T]:
    """A method of the client for event loops, which is waited for."""

    @wraps(method)
    def waited(self: SlurmClient, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return LOOP.run(method(self._client, *args, **kwargs))

    return waited


class SlurmClient:
    """A Slurm cluster, for threads; any number of them may use it at once.

    It does what ``AsyncSlurmClient`` does, and waits for it.

        with SlurmHook("soperator_default").client() as client:
            job = client.submit(BatchJob(command="hostname", name="hello"), key)
            print(client.watch(job.id, mine=True).end().state)
    """

    def __init__(self, client: AsyncSlurmClient) -> None:
        self._client = client

    ask = _waited(AsyncSlurmClient.ask)
    config = _waited(AsyncSlurmClient.config)
    submit = _waited(AsyncSlurmClient.submit)
    find = _waited(AsyncSlurmClient.find)
    submit_many = _waited(AsyncSlurmClient.submit_many)
    submit_together = _waited(AsyncSlurmClient.submit_together)
    cancel = _waited(AsyncSlurmClient.cancel)
    cancel_many = _waited(AsyncSlurmClient.cancel_many)
    relink = _waited(AsyncSlurmClient.relink)
    let_go = _waited(AsyncSlurmClient.let_go)
    cancel_waiting = _waited(AsyncSlurmClient.cancel_waiting)
    status = _waited(AsyncSlurmClient.status)
    statuses = _waited(AsyncSlurmClient.statuses)
    stats = _waited(AsyncSlurmClient.stats)
    read_file = _waited(AsyncSlurmClient.read_file)
    close = _waited(AsyncSlurmClient.close)

    def watch(
        self, job: JobId, *, name: str = "", mine: bool = False, poll_interval: float = POLL_INTERVAL
    ) -> BlockingWatch:
        """The news of a job until its end. All who watch share one poller.

        ``name``: what the job must be called. ``mine``: the connection's user has submitted it; that is cheaper.
        """

        async def begin() -> Watch:
            return self._client.watch(job, name=name, mine=mine, poll_interval=poll_interval)

        return BlockingWatch(LOOP.run(begin()))

    def upload(self, local: Path, target: str, *, tag: str = "") -> Copied:
        """Copy a file or folder of this machine to an absolute path of the cluster, whole or not at all.

        ``tag``: of the one who copies, so that what an earlier try has left half done is removed.
        """
        return run(transfers.send(local, target, tag or secrets.token_hex(8)), self.ask)

    def fetch(self, path: str, local: Path) -> Copied:
        """Copy a file or folder of the cluster to this machine, whole or not at all."""
        return run(transfers.bring(path, local), self.ask)


class BlockingWatch:
    """The news of a job, for a thread: iterate, or wait for its end.

    The first status comes as soon as anything is known, others when something changes; the last is the job's end.
    """

    def __init__(self, watch: Watch) -> None:
        self._watch = watch

    @property
    def told(self) -> JobStatus | None:
        """The newest status."""
        return self._watch.told

    def next(self, timeout: float | None = None) -> JobStatus | None:
        """The next news; None if there is none within the time, or none any more."""
        return LOOP.run(_within(self._watch.next(), timeout))

    def __iter__(self) -> Iterator[JobStatus]:
        try:
            while status := self.next():
                yield status
        finally:
            self.close()

    def end(self, timeout: float | None = None) -> JobStatus | None:
        """Wait until the job is over, and no more; None if it is not within the time, or somebody closes the watch."""
        return LOOP.run(_within(self._watch.end(), timeout))

    def close(self) -> None:
        """Wait no more."""

        async def close() -> None:
            self._watch.close()

        LOOP.run(close())


async def _within(work: Coroutine[Any, Any, T], timeout: float | None) -> T | None:
    try:
        async with time_limit(timeout):
            return await work
    except asyncio.TimeoutError:
        return None
