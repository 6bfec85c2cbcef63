"""Jobs of mapped tasks that begin one after another, and go together as an array."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from dataclasses import dataclass, field

from async_timeout import timeout

from airflow_provider_soperator.slurm.job_ids import ELEMENTS

#: Seconds for which no further job has come once all are there: a triggerer takes up new tasks once a second.
QUIET = 1.5
#: Seconds that the first waits at most.
LONGEST = 15.0


@dataclass
class _Group:
    """Jobs of one kind that wait for others."""

    first: float = field(default_factory=lambda: time.monotonic())
    last: float = 0.0
    count: int = 0
    is_full: asyncio.Event = field(default_factory=asyncio.Event)
    goes: asyncio.Event = field(default_factory=asyncio.Event)

    def join(self) -> None:
        self.last, self.count = time.monotonic(), self.count + 1
        if self.count >= ELEMENTS:
            self.is_full.set()

    @property
    def left(self) -> float:
        """Seconds to wait for others, if no further one comes."""
        return min(self.last + QUIET, self.first + LONGEST) - time.monotonic()


class Siblings:
    """Makes each job wait until no other of its kind has come for a while, or no other can."""

    def __init__(self) -> None:
        self._groups: dict[str, _Group] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def wait(self, kind: str) -> None:
        group = self._groups.get(kind)
        if group is None:
            group = self._groups[kind] = _Group()
            task = asyncio.create_task(self._gather(kind, group), name="slurm-siblings")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        group.join()
        await group.goes.wait()

    async def _gather(self, kind: str, group: _Group) -> None:
        while not group.is_full.is_set() and group.left > 0:
            with suppress(asyncio.TimeoutError):
                async with timeout(group.left):
                    await group.is_full.wait()
        del self._groups[kind]
        group.goes.set()
