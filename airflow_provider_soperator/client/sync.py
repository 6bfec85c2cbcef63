"""The client for threads: the async client in an event loop of its own thread."""

from __future__ import annotations

import asyncio
import atexit
import os
import secrets
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial, wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from airflow_provider_soperator.client import file_copies
from airflow_provider_soperator.client.client import AsyncSlurmClient
from airflow_provider_soperator.client.file_copies import Copied
from airflow_provider_soperator.client.poller import JobNews
from airflow_provider_soperator.logger import Logger
from airflow_provider_soperator.slurm.job_records import JobStatus
from airflow_provider_soperator.slurm.requests.commands import run_steps

P = ParamSpec("P")
T = TypeVar("T")


def _waited(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[SlurmClient | BlockingWatch, P], T]:
    """A blocking version of a method of the async object that this one is made of."""

    @wraps(method)
    def waited(self: SlurmClient | BlockingWatch, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return LOOP.run(method(self._asynchronous, *args, **kwargs))

    return waited


def _watched(
    method: Callable[Concatenate[AsyncSlurmClient, P], JobNews],
) -> Callable[Concatenate[SlurmClient, P], BlockingWatch]:
    """A blocking version of a method of the async client that begins a watch in its event loop."""

    @wraps(method)
    def watched(self: SlurmClient, /, *args: P.args, **kwargs: P.kwargs) -> BlockingWatch:
        async def begin() -> JobNews:
            return method(self._asynchronous, *args, **kwargs)

        return BlockingWatch(LOOP.run(begin()))

    return watched


class SlurmClient:
    """A Slurm cluster, for threads; any number of them may use it at once.

    It has the methods of ``AsyncSlurmClient``, which block.

        with SlurmHook("soperator_default").client() as client:
            job = client.submit(BatchJob(command="hostname", name="hello"), key)
            print(client.watch(job.id, mine=True).end().state)
    """

    def __init__(self, client: AsyncSlurmClient) -> None:
        self._asynchronous = client

    def patient(self, log: Logger) -> SlurmClient:
        """This client for a caller that waits while the cluster is away, which its log is told of."""
        return SlurmClient(self._asynchronous.patient(log))

    ask = _waited(AsyncSlurmClient.ask)
    config = _waited(AsyncSlurmClient.config)
    with_lines = _waited(AsyncSlurmClient.with_lines)
    submit = _waited(AsyncSlurmClient.submit)
    find = _waited(AsyncSlurmClient.find)
    cancel_keys = _waited(AsyncSlurmClient.cancel_keys)
    submit_together = _waited(AsyncSlurmClient.submit_together)
    complete_submission = _waited(AsyncSlurmClient.complete_submission)
    take_back = _waited(AsyncSlurmClient.take_back)
    unfinished = _waited(AsyncSlurmClient.unfinished)
    with_keys = _waited(AsyncSlurmClient.with_keys)
    cancel_many = _waited(AsyncSlurmClient.cancel_many)
    relink = _waited(AsyncSlurmClient.relink)
    let_go = _waited(AsyncSlurmClient.let_go)
    statuses = _waited(AsyncSlurmClient.statuses)
    stats = _waited(AsyncSlurmClient.stats)
    read_file = _waited(AsyncSlurmClient.read_file)
    close = _waited(AsyncSlurmClient.close)
    watch = _watched(AsyncSlurmClient.watch)

    def upload(self, local: Path, target: str, *, tag: str = "") -> Copied:
        """Copy a local file or folder to an absolute path of the cluster, all or nothing.

        ``tag`` identifies the task, so that the unfinished copy of an earlier try is removed.
        """
        return run_steps(file_copies.send(local, target, tag or secrets.token_hex(8)), self.ask)

    def download(self, path: str, local: Path, *, tag: str = "") -> Copied:
        """Copy a file or folder of the cluster to this machine, all or nothing; ``tag`` as in ``upload``."""
        return run_steps(file_copies.bring(path, local, tag or secrets.token_hex(8)), self.ask)


class BlockingWatch:
    """``JobNews`` for a thread: iterate, or wait for the job's end."""

    def __init__(self, watch: JobNews) -> None:
        self._asynchronous = watch

    next = _waited(JobNews.next)
    end = _waited(JobNews.end)

    def __iter__(self) -> Iterator[JobStatus]:
        try:
            while status := self.next():
                yield status
        finally:
            self.close()

    def close(self) -> None:
        """Stop watching."""

        async def close() -> None:
            self._asynchronous.close()

        LOOP.run(close())


#: Seconds that a process waits at its exit for connections to close.
_AT_EXIT = 3.0


class LoopThread:
    """Runs coroutines for threads, which wait for them. A forked process has its own."""

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
            # A signal handler may raise at any point above, even before there is a task.
            loop.call_soon_threadsafe(end)
            raise

    def begin(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Begin a coroutine, for a thread that does not wait for it."""
        return asyncio.run_coroutine_threadsafe(work, self._started())

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
        # Clients are closed by async generators, which the loop ends last.
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()

    def _end(self) -> None:
        with self._lock:
            loop, thread, self._loop, self._thread = self._loop, self._thread, None, None
        if loop and thread:
            loop.call_soon_threadsafe(loop.stop)
            thread.join(_AT_EXIT)

    def _forget(self) -> None:
        # The parent closes what its thread has opened.
        self._lock, self._loop, self._thread = threading.Lock(), None, None
        # The thread in which blocking calls are made for event loops has stayed there, too: a call would wait for good.
        if asgiref := sys.modules.get("asgiref.sync"):
            asgiref.SyncToAsync.single_thread_executor = ThreadPoolExecutor(max_workers=1)


def _settle(result: Future[T], task: asyncio.Task[T]) -> None:
    if task.cancelled():
        result.cancel()
    elif error := task.exception():
        result.set_exception(error)
    else:
        result.set_result(task.result())


LOOP = LoopThread()
