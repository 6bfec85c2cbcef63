"""Runs of active checks in the triggerer: one on demand, one that is waited for, and those that fail as events."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import Any

from airflow.triggers.base import BaseEventTrigger, TriggerEvent
from async_timeout import timeout

from airflow_provider_soperator.hooks.cluster import SoperatorClusterHook
from airflow_provider_soperator.hooks.settings import NAMESPACE
from airflow_provider_soperator.soperator.active_checks import CheckAwaited, CheckHasFailed
from airflow_provider_soperator.triggers.base import SlurmTrigger
from airflow_provider_soperator.triggers.check_failures import FailedRuns
from airflow_provider_soperator.triggers.check_runs import CheckRun, RunLost, RunOrder, Ways, ways
from airflow_provider_soperator.triggers.events import POLL_INTERVAL, Memory
from airflow_provider_soperator.triggers.killed import EndedWithItsTask
from airflow_provider_soperator.triggers.rounds import FAILURES, is_final, rounds_with, stepped


class RunActiveCheckTrigger(EndedWithItsTask):
    """Fires with the ``result``; with ``late`` or ``lost``, which another try may mend, or with a ``mistake``.

    ``order`` has the fields of a ``RunOrder``, and ``deadline`` is when the task's time is over, in seconds since 1970.
    """

    def __init__(
        self,
        kubernetes_conn_id: str,
        namespace: str,
        slurm_conn_id: str,
        order: dict[str, Any],
        deadline: float,
        poll_interval: float,
        made: float | None = None,
    ) -> None:
        super().__init__(made)
        self.kubernetes_conn_id = kubernetes_conn_id
        self.namespace = namespace
        self.slurm_conn_id = slurm_conn_id
        self.order = order
        self.deadline = deadline
        self.poll_interval = poll_interval
        self._run: CheckRun | None = None

    async def event(self) -> dict[str, Any]:
        """What the task goes on with."""
        run = self._run = CheckRun(RunOrder.read(self.order), self.log)
        try:
            async with timeout(max(0.0, self.deadline - time.time())):
                result = await stepped(self._open, run.step, self.poll_interval, self.log)
        except asyncio.TimeoutError:
            # What waits for busy nodes would disturb them hours later.
            await self.cancel()
            return {"late": run.place + self.fate}
        except RunLost as error:
            return {"lost": str(error)}
        except FAILURES as error:
            return {"mistake" if is_final(error) else "lost": str(error)}
        return {"result": {**result, "seconds": round(time.time() - self.made, 1)}}

    async def cancel(self) -> None:
        run = self._run = self._run or CheckRun(RunOrder.read(self.order), self.log)
        try:
            async with self._open() as opened:
                await run.cancel(opened)
        except FAILURES as error:
            run.fate = f"; what has been started goes on, as it could not be ended: {error}"

    @property
    def fate(self) -> str:
        return self._run.fate if self._run else ""

    def _open(self) -> AbstractAsyncContextManager[Ways]:
        return ways(self.kubernetes_conn_id, self.namespace, self.slurm_conn_id)


class ActiveCheckTrigger(SlurmTrigger):
    """Fires when the newest run of a check is as it is awaited, or has failed; ``awaited`` is a ``CheckAwaited``."""

    def __init__(self, kubernetes_conn_id: str, namespace: str, awaited: dict[str, Any], poll_interval: float) -> None:
        super().__init__()
        self.kubernetes_conn_id = kubernetes_conn_id
        self.namespace = namespace
        self.awaited = awaited
        self.poll_interval = poll_interval

    async def run(self) -> AsyncIterator[TriggerEvent]:
        awaited = CheckAwaited.read(self.awaited)
        opened = partial(ways, self.kubernetes_conn_id, self.namespace, "")

        async def look(found: Ways) -> dict[str, Any]:
            check = await found.checks.find(awaited.check)
            return awaited.look(check, await found.checks.runs(), datetime.now(timezone.utc))

        said = ""
        try:
            async for found in rounds_with(opened, look, self.poll_interval, self.log, must_work=True):
                if found["words"] != said:
                    said = found["words"]
                    self.log.info("%s", said)
                if found.pop("is_reached"):
                    yield await self.resume({"result": found})
                    return
        except CheckHasFailed as error:
            yield await self.resume({"failed": str(error)})
        except FAILURES as error:
            yield await self.resume({"mistake" if is_final(error) else "lost": str(error)})


class ActiveCheckFailedTrigger(SlurmTrigger, BaseEventTrigger):
    """Fires once for each run of an active check that fails, whoever has begun it.

        AssetWatcher(name="sick", trigger=ActiveCheckFailedTrigger(check="gpu-checks", slurm_conn_id="soperator"))

    Without ``check`` it watches all. The event has the ``check``, its ``job``, ``state`` and ``failed_jobs``, as
    ``RunActiveCheckOperator`` returns them; with ``slurm_conn_id`` also ``nodes`` and those that are ``failing``.

    What failed while nobody watched is told as long as Kubernetes keeps its Job, and without Slurm only if no other run
    has been noted since. Airflow keeps a memory for watchers from 3.3 on; before that each start is a first one, which
    looks ``look_back_minutes`` back.
    """

    def __init__(
        self,
        check: str = "",
        look_back_minutes: float = 0,
        kubernetes_conn_id: str = SoperatorClusterHook.default_conn_name,
        namespace: str = NAMESPACE,
        slurm_conn_id: str = "",
        poll_interval: float = POLL_INTERVAL,
    ) -> None:
        super().__init__()
        self.check = check
        self.look_back_minutes = look_back_minutes
        self.kubernetes_conn_id = kubernetes_conn_id
        self.namespace = namespace
        self.slurm_conn_id = slurm_conn_id
        self.poll_interval = poll_interval

    async def run(self) -> AsyncIterator[TriggerEvent]:
        opened = partial(ways, self.kubernetes_conn_id, self.namespace, self.slurm_conn_id)
        failed = FailedRuns(self.check, datetime.now(timezone.utc) - timedelta(minutes=self.look_back_minutes))
        memory = Memory(self)
        if (known := await memory.read()) is not None:
            failed.remember(known)
        before: list[str] | None = None
        # Airflow starts a watcher that raises once more, a second later and for ever.
        async for news in rounds_with(opened, failed.round, self.poll_interval, self.log, must_work=False):
            # By now Airflow has stored the events of the round before. Sooner they could be lost, later told again.
            if before is not None:
                await memory.write(before)
            for report in news:
                yield TriggerEvent(report)  # type: ignore[no-untyped-call]
            before = failed.memory()
            if not news:
                await memory.write(before)
