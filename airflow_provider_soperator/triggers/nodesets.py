"""Brings a NodeSet to another size, in the triggerer or in the worker."""

from __future__ import annotations

import asyncio
import time
from datetime import datetime
from typing import Any

from async_timeout import timeout

from airflow_provider_soperator.hooks.sides import Sides, Where
from airflow_provider_soperator.soperator.resize import Resize, ResizeRefused
from airflow_provider_soperator.triggers.killed import EndedWithItsTask
from airflow_provider_soperator.triggers.resizing import ResizeLost, Resizing
from airflow_provider_soperator.triggers.rounds import FAILURES, is_final, stepped


class ResizeTrigger(EndedWithItsTask):
    """Fires with the ``result``; with ``late`` or ``lost``, which another try may mend, or with a ``mistake``.

    ``where`` has the fields of a ``Where`` and ``resize`` those of a ``Resize``; ``since`` is when the task began, and
    ``deadline`` when its time is over, in seconds since 1970.
    """

    def __init__(
        self,
        where: dict[str, Any],
        resize: dict[str, Any],
        since: str,
        deadline: float,
        poll_interval: float,
        made: float | None = None,
    ) -> None:
        super().__init__(made)
        self.where = where
        self.resize = resize
        self.since = since
        self.deadline = deadline
        self.poll_interval = poll_interval
        self._resizing: Resizing | None = None

    async def event(self) -> dict[str, Any]:
        """What the task goes on with."""
        resizing = self._begun()
        try:
            async with timeout(max(0.0, self.deadline - time.time())):
                return {"result": await self._go(resizing)}
        except asyncio.TimeoutError:
            failure = {"late": resizing.place}
        except (ResizeLost, ResizeRefused) as error:
            failure = {"mistake" if isinstance(error, ResizeRefused) else "lost": str(error)}
        except FAILURES as error:
            failure = {"mistake" if is_final(error) else "lost": str(error)}
            if not resizing.has_begun:
                return failure
        await self.cancel()
        return {kind: words + self.fate for kind, words in failure.items()}

    async def cancel(self) -> None:
        resizing = self._begun()
        try:
            async with self._where().open() as sides:
                await resizing.undo(sides)
        except FAILURES as error:
            resizing.fate = f". What was drained for it stays so, as that could not be undone: {error}"

    @property
    def fate(self) -> str:
        return self._resizing.fate if self._resizing else ""

    def _begun(self) -> Resizing:
        if self._resizing is None:
            self._resizing = Resizing(Resize.read(self.resize), datetime.fromisoformat(self.since), self.log)
        return self._resizing

    def _where(self) -> Where:
        return Where(**self.where)

    async def _go(self, resizing: Resizing) -> dict[str, Any]:
        async def step(sides: Sides) -> dict[str, Any] | None:
            return await resizing.step(sides, self.poll_interval / 2)

        return await stepped(self._where().open, step, self.poll_interval, self.log)
