"""The client for threads: the one for event loops, in a loop that runs in a thread of its own."""

from __future__ import annotations

import asyncio
import atexit
import os
import secrets
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from functools import partial, wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from async_timeout import timeout as time_limit

from airflow_provider_soperator.client import file_copies
from airflow_provider_soperator.client.client import AsyncSlurmClient
from airflow_provider_soperator.client.file_copies import Copied
from airflow_provider_soperator.client.poller import POLL_INTERVAL, Watch
from airflow_provider_soperator.slurm.job_ids import JobId
from airflow_provider_soperator.slurm.job_records import JobStatus
from airflow_provider_soperator.slurm.requests.commands import run_steps

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
        return run_steps(file_copies.send(local, target, tag or secrets.token_hex(8)), self.ask)

    def fetch(self, path: str, local: Path) -> Copied:
        """Copy a file or folder of the cluster to this machine, whole or not at all."""
        return run_steps(file_copies.bring(path, local), self.ask)


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
        """Wait until the job is over, and no more; None if it is not within the time, or the watch is closed."""
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


#: Seconds that a process gives connections to be closed when it ends.
_AT_EXIT = 3.0


class LoopThread:
    """Runs coroutines for threads, which wait for them. A forked process has one of its own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        os.register_at_fork(after_in_child=self._forget)
        atexit.register(self._end)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine and return its result. It is cancelled if a signal ends the wait for it."""
        if threading.current_thread() is self._thread:
            work.close()
            raise RuntimeError("called in its own event loop, it would wait for itself: use the async client")
        loop, result = self._started(), Future[T]()
        begun: list[asyncio.Task[T]] = []

        def begin() -> None:
            begun.append(loop.create_task(work))
            begun[0].add_done_callback(partial(_settle, result))

        def end() -> None:
            if begun:
                begun[0].cancel()
            else:
                work.close()

        try:
            loop.call_soon_threadsafe(begin)
            return result.result()
        except BaseException:
            # The handler of a signal may have raised it at any point above, also before there was a task.
            loop.call_soon_threadsafe(end)
            raise

    def _started(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=self._work, args=(self._loop,), name="soperator-loop", daemon=True
                )
                self._thread.start()
            return self._loop

    @staticmethod
    def _work(loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        loop.run_forever()
        # Clients are closed by generators that the loop ends as the last that it does.
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()

    def _end(self) -> None:
        with self._lock:
            loop, thread, self._loop, self._thread = self._loop, self._thread, None, None
        if loop and thread:
            loop.call_soon_threadsafe(loop.stop)
            thread.join(_AT_EXIT)

    def _forget(self) -> None:
        # What the parent's thread has opened is the parent's to close.
        self._lock, self._loop, self._thread = threading.Lock(), None, None


def _settle(result: Future[T], task: asyncio.Task[T]) -> None:
    if task.cancelled():
        result.cancel()
    elif error := task.exception():
        result.set_exception(error)
    else:
        result.set_result(task.result())


LOOP = LoopThread()
