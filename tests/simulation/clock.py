"""Virtual time: an event loop that does not wait, and processes of which each has tasks of its own."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine, Iterator
from contextvars import Context, ContextVar
from typing import Any
from unittest import mock

#: Seconds since 1970 at which all stories begin: 2026-03-02, a Monday.
START = 1_772_442_000.0
#: Virtual seconds after which a story has gone wrong.
LONGEST = 48 * 3600.0


class NeverEnds(Exception):
    """Something still waits, and nothing will ever come."""


class _Loop(asyncio.BaseEventLoop):
    """Nothing comes from outside, so what would be waited for is there at once."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0
        self._selector = self

    def time(self) -> float:
        return self.now

    def select(self, timeout: float | None) -> list[Any]:
        if timeout is None or self.now > 1000.0 + LONGEST:
            raise NeverEnds
        self.now += max(0.0, timeout)
        return []

    def _process_events(self, events: list[Any]) -> None: ...

    # Threads would wake it by this.
    def _write_to_self(self) -> None: ...


class Process:
    """One of Airflow's processes. When it dies, its tasks end where they are, and nothing that they still do counts."""

    def __init__(self, name: str, airflow: Any) -> None:
        self.name, self.airflow = name, airflow
        self.is_alive = True
        self._tasks: dict[asyncio.Task[Any], None] = {}

    def start(self, work: Coroutine[Any, Any, Any], **variables: ContextVar[Any]) -> asyncio.Task[Any]:
        context = Context()
        context.run(PROCESS.set, self)
        return context.run(asyncio.get_running_loop().create_task, work)

    def add(self, task: asyncio.Task[Any]) -> None:
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)
        if not self.is_alive:
            task.cancel()

    def die(self) -> None:
        self.is_alive = False
        for task in list(self._tasks):
            task.cancel()


#: The process that the running code is in; none: that of the cluster, or of the world.
PROCESS: ContextVar[Process | None] = ContextVar("PROCESS", default=None)


def _task(loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> asyncio.Task[Any]:
    task: asyncio.Task[Any] = asyncio.Task(work, loop=loop, **options)
    if process := PROCESS.get():
        process.add(task)
    return task


def outside(work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    """A task that no process of Airflow's takes with it when it dies."""
    return Context().run(asyncio.get_running_loop().create_task, work)


@contextlib.contextmanager
def virtual_time() -> Iterator[Callable[[Coroutine[Any, Any, Any]], Any]]:
    """Run coroutines in a loop whose clock, which is the one of all modules, jumps to the next timer."""
    loop = _Loop()
    loop.set_task_factory(_task)
    # What is left in dead processes is of no interest.
    loop.set_exception_handler(lambda loop, context: None)
    clocks: dict[str, Any] = {"monotonic": loop.time, "time": lambda: START + loop.now}
    with contextlib.closing(loop), mock.patch.multiple(time, **clocks):
        yield loop.run_until_complete
