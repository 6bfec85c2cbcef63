"""Brings one target to a number of units, in the triggerer or in the worker."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

from airflow_provider_soperator.capacity.errors import CapacityError, CapacityMistake
from airflow_provider_soperator.capacity.scaling import Scaling
from airflow_provider_soperator.capacity.targets import stored
from airflow_provider_soperator.capacity.targets.base import Purpose
from airflow_provider_soperator.errors import ConnectionMistake
from airflow_provider_soperator.hooks.clients import AirflowClients
from airflow_provider_soperator.slurm.errors import SlurmError
from airflow_provider_soperator.slurm.node_orders import MODES
from airflow_provider_soperator.transports.transport_errors import TransportError
from airflow_provider_soperator.triggers.base import WorkTrigger


class ScaleTargetTrigger(WorkTrigger):
    """Fires with the ``outcome``, with a ``mistake`` that no other try can mend, or with a ``failure``.

    ``target`` is one that was written, ``deadline`` when its time is over, in seconds since 1970, and ``key`` the same
    for all tries of the task.
    """

    def __init__(
        self,
        target: dict[str, Any],
        units: int,
        hurry: str,
        block: str | None,
        nebius_conn_id: str,
        key: str,
        deadline: float,
        poll_interval: float,
        made: float | None = None,
    ) -> None:
        super().__init__(made)
        self.target = target
        self.units = units
        self.hurry = hurry
        self.block = block
        self.nebius_conn_id = nebius_conn_id
        self.key = key
        self.deadline = deadline
        self.poll_interval = poll_interval

    async def event(self) -> dict[str, Any]:
        """What the task goes on with."""
        try:
            return {"outcome": await self._outcome()}
        except CapacityMistake as error:
            return {"mistake": str(error)}
        except (CapacityError, TransportError, SlurmError, ConnectionMistake) as error:
            return {"failure": str(error)}

    async def on_kill(self) -> None:
        self.log.info("The task was told to end%s", self.fate)

    async def cancel(self) -> None:
        """Nothing is undone: half way back is no better a place than half way there."""

    @property
    def fate(self) -> str:
        """What becomes of the target of a task that was killed."""
        name = self.target.get("name", "the target")
        return f"; {name} is left as it is, on its way to what it was told last"

    async def _outcome(self) -> dict[str, Any]:
        target, clients = stored.read(self.target), AirflowClients()
        scaling = Scaling(
            target,
            self.units,
            MODES[self.hurry],
            self.deadline,
            self.poll_interval,
            self.log,
            partial(clients.block, self.nebius_conn_id, self.block) if self.block else None,
        )
        purpose = Purpose(block=self.block or "", key=self.key, why=f"Airflow: {self.key}")
        async with target.open(purpose, clients, self.log) as session:
            seen = await scaling.run(session)
        return {
            "target": target.name,
            "units": seen.ready,
            "gpus": seen.ready * target.gpus_per_unit,
            "seconds": round(time.time() - self.made, 1),
        }
