"""Scaling of one target to a number of units, until it has exactly these and they can work."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, Literal

from airflow_provider_soperator.capacity.holdings import Holding, Release, World, may_have
from airflow_provider_soperator.capacity.targets import Target
from airflow_provider_soperator.capacity.targets.protocol import Session, SessionContext
from airflow_provider_soperator.errors import CapacityError, CapacityMistake
from airflow_provider_soperator.hooks.cluster_clients import ShiftClients
from airflow_provider_soperator.nebius.capacity_blocks import CapacityBlock
from airflow_provider_soperator.slurm.node_orders import MODES
from airflow_provider_soperator.work.protocols import Work, WorkFailed, WorkRefused

#: The limit without a block.
_NO_BLOCK = CapacityBlock(id="", limit=2**31, usage=None)


@dataclass(kw_only=True)
class TargetScaling(Work[Session]):
    """Work that scales a target to a number of units.

    With a block the target grows only as far as the block has free GPUs.
    """

    target: Target
    units: int
    mode: Literal["idle", "asap", "force"]
    block: str | None
    nebius_conn_id: str
    #: The same for all tries of the task.
    key: str
    #: The id of its Airflow.
    airflow: str = ""

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Session]:
        dag_id, _, task = self.key.partition("/")
        # What is left says at its end whose it is, as that of a shift does.
        why = f"Airflow: {task} ({dag_id})"
        purpose = SessionContext(block=self.block or "", key=self.key, why=why, airflow=self.airflow)
        async with self.target.open(purpose, ShiftClients(), self._log) as session:
            yield session

    async def read_block(self, session: Session) -> CapacityBlock | None:
        if not self.block:
            return None
        place = self.nebius_conn_id, self.block
        return await ShiftClients().block_beside_shifts(*place, session.lease(), self._warn_once)

    async def step(self, session: Session) -> dict[str, Any] | None:
        try:
            if not self.has_begun:
                await session.check(self.units, await self.read_block(session) or _NO_BLOCK)
                self.has_begun = True
            seen = await self._bring(session)
        except CapacityMistake as error:
            raise WorkRefused(str(error)) from error
        except CapacityError as error:
            raise WorkFailed(str(error)) from error
        self._tell(seen)
        is_there = seen.is_settled and seen.ready >= self.units >= max(seen.held, seen.allowed)
        if not is_there or await session.finish() is False:
            return None
        name, gpus = self.target.name, seen.there * self.target.gpus_per_unit
        return {"target": name, "units": seen.there, "gpus": gpus, "seconds": self.seconds}

    async def undo(self, session: Session) -> str:
        """Undo only temporary changes: a target half way back is as bad as half way there."""
        if await session.finish() is False:
            await session.forget(self.key)
        return f"Target {self.target.name} is left as it is, on its way to what it was told last"

    async def _bring(self, session: Session) -> Holding:
        seen = await session.look()
        units = self.units
        if seen.pinned not in (None, units):
            raise CapacityError(f"{self.target.name}: {seen.problems[0]}")
        if max(seen.held, seen.allowed) > units:
            now, mode = datetime.now(timezone.utc), self.mode
            await session.shrink(units, Release(leaves_at=now, mode=MODES[mode], ends_jobs=mode == "force"))
        elif min(seen.ready, seen.allowed) < units:
            if block := await self.read_block(session):
                name = self.target.name
                world = World(block, {name: seen}, {name: self.target.gpus_per_unit})
                units = may_have(world, {name: units})[name]
            await session.grow(units)
        return seen

    def _tell(self, seen: Holding) -> None:
        target = self.target
        leaving = f", {seen.finishing} are on their way out" if seen.finishing else ""
        why = f" ({'; '.join(seen.problems)})" if seen.problems else ""
        ready = f"{target.name}: {seen.there} of {self.units} {target.units} are ready"
        self._reach(f"{ready}, {seen.held} hold GPUs{leaving}{why}")
