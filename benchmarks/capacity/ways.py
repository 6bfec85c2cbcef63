"""Ways of handing nodes over: what a script would do with Slurm's own commands, and a shift of this provider."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from typing import Protocol
from unittest import mock

from airflow_provider_soperator.capacity.order import ShiftOrder
from airflow_provider_soperator.capacity.shift import Shift
from airflow_provider_soperator.capacity.targets import NebiusNodeGroupTarget, SlurmNodesTarget, slurm_session
from airflow_provider_soperator.hooks.cluster_clients import ShiftClients
from airflow_provider_soperator.nebius.capacity_blocks import CapacityBlock
from benchmarks.capacity.shape import GPUS, MOVED, NODES, POLL
from benchmarks.capacity.stage import ALL, Stage
from sandbox.settings import EPHEMERAL_SET

_log = logging.getLogger(__name__)
# What a shift does step by step is for the logs of tasks.
_log.setLevel(logging.WARNING)


class Way(Protocol):
    """Hands the nodes over so that they are where they are wanted at a moment, or as soon after as it can."""

    @property
    def name(self) -> str: ...

    #: Whether it is the one that the claims are made of.
    @property
    def is_promised(self) -> bool: ...

    def run(self, stage: Stage, wanted_at: float, transfer: float) -> None:
        """Return when it is done, or given up. ``transfer``: seconds that a node is known to need."""


@dataclass(frozen=True)
class Script:
    """What the manual says, by hand: power down at the moment, keep what is off from being powered up, resize once."""

    name: str
    #: ``asap`` or ``force``; empty: wait until nodes are idle.
    mode: str
    #: Seconds after the moment at which it gives up.
    patience: float = 300.0
    is_promised: bool = False

    def run(self, stage: Stage, wanted_at: float, transfer: float) -> None:
        time.sleep(max(0.0, wanted_at - time.time()))
        names = [f"{EPHEMERAL_SET}-{number}" for number in range(NODES - MOVED, NODES)]
        power_down(stage, names, self.mode)
        while stage.free() < MOVED * GPUS:
            if time.time() > wanted_at + self.patience:
                return
            keep_off(stage, names)
            time.sleep(POLL)
        stage.resize(MOVED)
        while stage.ready() < MOVED:
            time.sleep(0.1)


def power_down(stage: Stage, names: list[str], mode: str) -> None:
    stage.slurm("scontrol", "power", "down", *([mode] if mode else []), ",".join(names))


def keep_off(stage: Stage, names: list[str]) -> None:
    """Drain what is powering down, or queued jobs would power it up again; earlier the drain would not last."""
    for node in stage.nodes():
        if node.name in names and node.is_going and not node.is_drained:
            stage.slurm("scontrol", "update", f"nodename={node.name}", "state=drain", "reason=lent")


@dataclass(frozen=True)
class Shifted:
    """A shift that is told of the moment ahead."""

    name: str
    #: The receiver grows once and by all; else by each machine as it becomes free.
    at_once: bool = False
    #: As many nodes as go are reserved for the whole lead; else each as late as leaves enough of them idle in time.
    for_whole_lead: bool = False

    @property
    def is_promised(self) -> bool:
        return not (self.at_once or self.for_whole_lead)

    def run(self, stage: Stage, wanted_at: float, transfer: float) -> None:
        nebius = stage.access["nebius"]
        order = ShiftOrder(
            key=self.name,
            task="bench/capacity/shift/-1",
            block=nebius["capacity_block_group"],
            nebius_conn_id="nebius_default",
            targets=(
                SlurmNodesTarget(name="training", nodes=ALL, gpus_per_unit=GPUS),
                NebiusNodeGroupTarget(
                    name="inference", node_group=nebius["node_groups"]["inference"], gpus_per_unit=GPUS
                ),
            ),
            desired={"training": NODES - MOVED, "inference": MOVED},
            wanted_at=datetime.fromtimestamp(wanted_at, timezone.utc),
            transfer=timedelta(seconds=transfer),
            poll_interval=POLL,
            why="a benchmark",
        )
        connections = mock.patch.dict(os.environ, stage.access["airflow_connections"])
        with connections, _all_reserved() if self.for_whole_lead else nullcontext():
            asyncio.run(self._shift(order))

    async def _shift(self, order: ShiftOrder) -> None:
        async with Shift.open(order, _AllAtOnce() if self.at_once else ShiftClients(), _log) as shift:
            await shift.check()
            await shift.run()


def _all_reserved() -> AbstractContextManager[object]:
    """A shift that takes the queue for empty reserves all nodes that are to go."""
    return mock.patch.object(slurm_session, "waiting_jobs", return_value=[])


class _AllAtOnce(ShiftClients):
    """None of the block's GPUs are free before all of them are."""

    async def block(self, conn_id: str, block: str) -> CapacityBlock:
        seen = await super().block(conn_id, block)
        return replace(seen, usage=seen.limit) if (seen.free or 0) < MOVED * GPUS else seen


ASAP = Script("asap at T", "asap")
AHEAD = Shifted("a shift, told ahead")
WHOLE_LEAD = Shifted("the same, but nodes are reserved for the whole lead", for_whole_lead=True)
WAYS: tuple[Way, ...] = (
    # Under such a queue a node need never be idle.
    Script("wait for idle at T", "", patience=60.0),
    ASAP,
    Script("force at T", "force"),
    AHEAD,
    WHOLE_LEAD,
    Shifted("the same, but all machines at once", at_once=True),
)
QUICK_WAYS = (ASAP, WHOLE_LEAD, AHEAD)
