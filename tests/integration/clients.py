"""Both clients under one face, so that each test runs in threads and in an event loop alike."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

from airflow_provider_soperator.client.client import AsyncSlurmClient
from airflow_provider_soperator.client.job_tracker import LossLimits
from airflow_provider_soperator.client.pace import RetryPolicy
from airflow_provider_soperator.client.poller import JobNews, Poller
from airflow_provider_soperator.client.sync import LOOP, BlockingWatch, SlurmClient
from airflow_provider_soperator.hooks import slurm
from airflow_provider_soperator.slurm.job_ids import JobId
from airflow_provider_soperator.slurm.job_records import JobStatus
from airflow_provider_soperator.slurm.requests import Request
from airflow_provider_soperator.transports import Transport
from airflow_provider_soperator.transports.ssh import SshTransport
from benchmarks.sdiag import CountRpcs
from tests.patience import PATIENCE

T = TypeVar("T")

#: What slurmctld counts when somebody asks for the queue.
QUEUE_RPCS = {"REQUEST_JOB_INFO", "REQUEST_JOB_USER_INFO", "REQUEST_JOB_INFO_SINGLE"}


class Followed:
    """A watch whose news are read as they come."""

    def __init__(self) -> None:
        self.news: list[JobStatus] = []
        self._changed = threading.Condition()
        self._is_read = False
        self._failure: BaseException | None = None
        self.close: Callable[[], None] = lambda: None

    def hear(self, status: JobStatus) -> None:
        with self._changed:
            self.news.append(status)
            self._changed.notify_all()

    def finish(self, failure: BaseException | None = None) -> None:
        with self._changed:
            self._is_read, self._failure = True, failure
            self._changed.notify_all()

    def until(self, what: str, condition: Callable[[JobStatus], bool], timeout: float = PATIENCE) -> JobStatus:
        """Wait for news of which something is true, those included that have come."""
        deadline = time.monotonic() + timeout
        with self._changed:
            seen = 0
            while True:
                for status in self.news[seen:]:
                    if condition(status):
                        return status
                seen = len(self.news)
                left = deadline - time.monotonic()
                if self._is_read or left <= 0:
                    raise AssertionError(f"never told that {what}: {self.told}") from self._failure
                self._changed.wait(left)

    def until_state(self, state: str, timeout: float = PATIENCE) -> JobStatus:
        return self.until(f"it is {state}", lambda status: str(status.state) == state, timeout)

    def end(self, timeout: float = PATIENCE) -> JobStatus:
        return self.until("it is over", lambda status: status.is_over, timeout)

    def until_silent(self, timeout: float = PATIENCE) -> None:
        """Wait until no news will come any more."""
        with self._changed:
            assert self._changed.wait_for(lambda: self._is_read, timeout), f"still listening after {self.told}"

    @property
    def told(self) -> list[str]:
        """The news in short."""
        return [str(one.lost or one.trouble or one.state) for one in self.news]

    @property
    def troubles(self) -> list[str]:
        return [status.trouble for status in self.news if status.trouble]


class ClientUnderTest(Protocol):
    """Either client, and what tests want of it besides."""

    def ask(self, request: Request[T]) -> T: ...

    def do(self, method: str, *args: Any, **options: Any) -> Any:
        """Call a method of the client by its name, and wait for what it returns."""

    def watch(self, job: str | JobId, *, patience: LossLimits | None = None, **options: Any) -> Followed:
        """Follow a job; with a patience of its own not among the client's watches, but by another poller."""

    def is_polling(self) -> bool:
        """Whether anything asks for jobs by itself."""

    def close(self) -> None: ...


class InThreads:
    """The client for threads."""

    def __init__(self, make: Callable[[], Transport], policy: RetryPolicy) -> None:
        self._loops = AsyncSlurmClient(make(), policy)
        self._client = SlurmClient(self._loops)

    def ask(self, request: Request[T]) -> T:
        return self._client.ask(request)

    def do(self, method: str, *args: Any, **options: Any) -> Any:
        return getattr(self._client, method)(*args, **options)

    def watch(self, job: str | JobId, *, patience: LossLimits | None = None, **options: Any) -> Followed:
        async def begin() -> JobNews:
            assert patience is not None
            return Poller(self._loops.ask, patience).watch(JobId.parse(str(job)), **options)

        mine = BlockingWatch(LOOP.run(begin())) if patience else self._client.watch(JobId.parse(str(job)), **options)
        followed = Followed()
        followed.close = mine.close
        threading.Thread(target=self._read, args=(mine, followed), daemon=True).start()
        return followed

    @staticmethod
    def _read(watch: BlockingWatch, followed: Followed) -> None:
        try:
            for status in watch:
                followed.hear(status)
        except BaseException as failure:
            followed.finish(failure)
        else:
            followed.finish()

    def is_polling(self) -> bool:
        return "slurm-watcher" in LOOP.run(_tasks())

    def close(self) -> None:
        self._client.close()


class InALoop:
    """The client for event loops, in a loop that runs in a thread of its own."""

    def __init__(self, make: Callable[[], Transport], policy: RetryPolicy) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._readers: set[asyncio.Task[None]] = set()

        async def made() -> AsyncSlurmClient:
            return AsyncSlurmClient(make(), policy)

        self._client = self._wait(made())

    def ask(self, request: Request[T]) -> T:
        return self._wait(self._client.ask(request))

    def do(self, method: str, *args: Any, **options: Any) -> Any:
        return self._wait(getattr(self._client, method)(*args, **options))

    def watch(self, job: str | JobId, *, patience: LossLimits | None = None, **options: Any) -> Followed:
        followed = Followed()

        async def start() -> None:
            watcher = Poller(self._client.ask, patience) if patience else self._client
            watch = watcher.watch(JobId.parse(str(job)), **options)
            followed.close = lambda: self._loop.call_soon_threadsafe(watch.close) and None
            reader = asyncio.create_task(self._read(watch, followed))
            self._readers.add(reader)
            reader.add_done_callback(self._readers.discard)

        self._wait(start())
        return followed

    @staticmethod
    async def _read(watch: JobNews, followed: Followed) -> None:
        try:
            async for status in watch:
                followed.hear(status)
        except BaseException as failure:
            followed.finish(failure)
        else:
            followed.finish()

    def is_polling(self) -> bool:
        return "slurm-watcher" in self._wait(_tasks())

    def close(self) -> None:
        self._wait(self._client.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE)


async def _tasks() -> list[str]:
    """What runs in this loop, by name."""
    return [task.get_name() for task in asyncio.all_tasks()]


def in_threads(connection: str, policy: RetryPolicy = RetryPolicy()) -> ClientUnderTest:  # noqa: B008
    return InThreads(lambda: SshTransport(lambda: slurm.connect_login(connection)), policy)


def in_a_loop(connection: str, policy: RetryPolicy = RetryPolicy()) -> ClientUnderTest:  # noqa: B008
    return InALoop(lambda: SshTransport(lambda: slurm.connect_login(connection)), policy)


KINDS: dict[str, Callable[[str], ClientUnderTest]] = {"threads": in_threads, "loop": in_a_loop}


def questions(slurm: ClientUnderTest, rpcs: set[str] = QUEUE_RPCS) -> int:
    """How often slurmctld has been asked for jobs since it started."""
    asked = slurm.ask(CountRpcs())
    return sum(asked[rpc] for rpc in rpcs)
