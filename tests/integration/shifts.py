"""What tests of shifts do: run one as a triggerer does while the test does something else, and see what it has left."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractAsyncContextManager, contextmanager
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from nebius.api.nebius.mk8s.v1 import (
    GetNodeGroupRequest,
    NodeGroupAutoscalingSpec,
    NodeGroupServiceClient,
    UpdateNodeGroupRequest,
)

from airflow_provider_soperator.capacity.lease import IsAlive
from airflow_provider_soperator.capacity.lease_store import ShiftRecord
from airflow_provider_soperator.capacity.order import ShiftOrder, Timeouts
from airflow_provider_soperator.capacity.shift import Shift, ShiftFailed
from airflow_provider_soperator.capacity.shift_plan import ShiftOutcome, ShiftPlan
from airflow_provider_soperator.capacity.targets import NebiusNodeGroupTarget, SlurmNodesTarget
from airflow_provider_soperator.errors import CapacityMistake
from airflow_provider_soperator.hooks.cluster_clients import ShiftClients
from sandbox.cloud.landscape import BLOCK_ID, INFERENCE_GROUP, REMOTE_INFERENCE_GROUP
from sandbox.settings import EPHEMERAL_SET
from tests.integration.cluster import NOT_UP, Cluster
from tests.leftovers import Leftovers
from tests.patience import PATIENCE

#: Long enough for a slow machine: whoever wants to see them pass asks for shorter ones.
PATIENT = Timeouts(**dict.fromkeys(("release", "free", "ready", "out_of_reach"), timedelta(seconds=PATIENCE)))
WHOLE_NODE = "--gpus-per-node=8"
GROUPS = {"same cluster": INFERENCE_GROUP, "own cluster": REMOTE_INFERENCE_GROUP}


class Running:
    """A shift in an event loop of its own, in a thread of its own."""

    def __init__(self, order: ShiftOrder, is_alive: IsAlive | None = None) -> None:
        self.said = Said()
        self._begun: Future[tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]]] = Future()
        self._threads = ThreadPoolExecutor(1)
        self._work = self._threads.submit(asyncio.run, self._run(order, is_alive))

    async def _run(self, order: ShiftOrder, is_alive: IsAlive | None) -> ShiftOutcome:
        task = asyncio.current_task()
        assert task
        self._begun.set_result((asyncio.get_running_loop(), task))
        return await run(order, self.said.log, is_alive)

    @property
    def is_over(self) -> bool:
        return self._work.done()

    def end(self, timeout: float = PATIENCE) -> ShiftOutcome:
        if not wait([self._work], timeout).done:
            raise AssertionError(f"the shift has not ended; it said:\n{self.said}")
        return self._work.result()

    def failure(self, timeout: float = PATIENCE) -> str:
        """What it says when it fails."""
        with pytest.raises(ShiftFailed) as failed:
            self.end(timeout)
        return str(failed.value)

    def die(self) -> None:
        """End at once, and leave all as it is."""
        loop, task = self._begun.result(PATIENCE)
        if not self._work.done():
            loop.call_soon_threadsafe(task.cancel)
        self._threads.shutdown()


class Said(logging.Handler):
    """What a shift writes into its log."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.log = logging.Logger("shift")
        self.log.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())

    def __str__(self) -> str:
        return "\n".join(self.lines)


async def run(order: ShiftOrder, log: logging.Logger, is_alive: IsAlive | None = None) -> ShiftOutcome:
    async with opened(order, log) as shift:
        return await shift.run(is_alive)


def opened(order: ShiftOrder, log: logging.Logger) -> AbstractAsyncContextManager[Shift]:
    # As a trigger gets it: through JSON.
    order = ShiftOrder.read(order.write())
    return Shift.open(order, ShiftClients(), log)


class Shifts:
    """A sandbox whose nodes are all on, with nothing at inference, when a test begins and when it ends."""

    def __init__(self, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
        self.cluster = cluster
        self.connections: dict[str, str] = cluster.access["airflow_connections"]
        for variable, uri in self.connections.items():
            monkeypatch.setenv(variable, uri)
        self.workers = [f"{EPHEMERAL_SET}-{ordinal}" for ordinal in range(cluster.settings.workers)]
        self._running: list[Running] = []
        self._numbers = iter(range(1000))

    # Shifts

    def training(self, **fields: Any) -> SlurmNodesTarget:
        said = {"name": "training", "nodes": f"{EPHEMERAL_SET}-[0-{self.cluster.settings.workers - 1}]"}
        return SlurmNodesTarget(**{**said, **fields})

    def inference(self, group: str = INFERENCE_GROUP, **fields: Any) -> NebiusNodeGroupTarget:
        return NebiusNodeGroupTarget(**{"name": "inference", "node_group": group, **fields})

    def order(self, training: int, inference: int, **fields: Any) -> ShiftOrder:
        """One that is due at once, and that nobody else has the key of."""
        number = next(self._numbers)
        said: dict[str, Any] = {
            "key": f"shifts/{number}",
            "task": f"dag/run-{number}/shift/-1",
            "block": BLOCK_ID,
            "nebius_conn_id": "nebius_default",
            "targets": (self.training(), self.inference()),
            "desired": {"training": training, "inference": inference},
            "wanted_at": datetime.now(timezone.utc),
            "timeouts": PATIENT,
            # Each look is some commands in the cluster, and most of what these tests cost.
            "poll_interval": 0.6,
            "why": "a test",
        }
        return ShiftOrder(**{**said, **fields})

    def start(self, order: ShiftOrder, is_alive: IsAlive | None = None) -> Running:
        self._running.append(Running(order, is_alive))
        return self._running[-1]

    def run(self, order: ShiftOrder) -> ShiftOutcome:
        return self.start(order).end()

    def accepted(self, order: ShiftOrder) -> ShiftPlan:
        """See that a shift could be begun; its plan."""

        async def check() -> ShiftPlan:
            async with opened(order, Said().log) as shift:
                return await shift.plan(await shift.check())

        return asyncio.run(check())

    def refused(self, order: ShiftOrder) -> str:
        """Why a shift is not begun."""
        with pytest.raises(CapacityMistake) as mistake:
            self.accepted(order)
        return str(mistake.value)

    def wait_said(self, running: Running, words: str) -> None:
        """Wait until a shift has said so."""

        def said() -> bool:
            return running.is_over or any(words in line for line in running.said.lines)

        self.cluster.wait(f"the shift says {words!r}", said)
        assert any(words in line for line in running.said.lines), running.end(0)

    @contextmanager
    def autoscaled(self, group: str, most: int) -> Iterator[None]:
        """A node group with an autoscaler for a while; at the end it is empty, and of a fixed size."""
        client = NodeGroupServiceClient(self.cluster.nebius)
        found = client.get(GetNodeGroupRequest(id=group)).wait()
        found.spec.autoscaling = NodeGroupAutoscalingSpec(min_node_count=0, max_node_count=most)
        client.update(UpdateNodeGroupRequest(metadata=found.metadata, spec=found.spec)).wait().sync_wait(interval=0.1)
        try:
            yield
        finally:
            self.cluster.resize(group, 0).sync_wait(interval=0.1, timeout=PATIENCE)

    # What there is

    def drained(self) -> dict[str, str]:
        """The reason of each drained node."""
        nodes = self.cluster.nodes()
        return {name: nodes[name].reason for name in self.workers if "DRAIN" in nodes[name].state}

    def usable(self) -> list[str]:
        nodes = self.cluster.nodes()
        return [name for name in self.workers if not NOT_UP & nodes[name].state]

    def reservations(self) -> list[str]:
        """The reservations of all shifts: of those that move a block, and of nodes that are to be handed over."""
        said = self.cluster.run("scontrol", "--all", "--oneliner", "show", "reservation")
        return [line.split()[0].partition("=")[2] for line in said.splitlines() if line.startswith("ReservationName=")]

    def nodes_of(self, reservation: str) -> list[str]:
        said = self.cluster.run("scontrol", "--all", "--oneliner", "show", "reservation", reservation)
        found = next(word.partition("=")[2] for word in said.split() if word.startswith("Nodes="))
        return self.cluster.run("scontrol", "show", "hostnames", found).split()

    def machines(self, group: str = INFERENCE_GROUP) -> int:
        return self.cluster.group(group).ready_node_count

    def check(self, training: int, **machines: int) -> None:
        """All is where it shall be, what is off is drained in our name, and nothing is left of the shift itself."""
        reserved, drained, usable = self.reservations(), self.drained(), self.usable()
        assert reserved == []
        assert len(usable) == training, (usable, drained)
        assert sorted([*usable, *drained]) == self.workers
        assert all(reason.startswith(f"airflow:capacity/{BLOCK_ID}") for reason in drained.values()), drained
        for layout, count in machines.items():
            assert self.machines(GROUPS[layout.replace("_", " ")]) == count

    def check_at_rest(self) -> None:
        """As it was in the beginning."""
        self.check(len(self.workers), same_cluster=0, own_cluster=0)

    def fates(self, jobs: Iterable[str]) -> dict[str, tuple[str, int]]:
        """How each job stands, and how often it was requeued."""
        states = ["squeue", "--all", "--noheader", "--states=all", "--array", f"--jobs={','.join(jobs)}"]
        said = self.cluster.run(*states, "--Format=JobArrayID:20,State:20,RestartCnt:20")
        return {job: (state, int(restarts)) for job, state, restarts in map(str.split, said.splitlines())}

    # What a test begins and ends with

    def close(self) -> None:
        for one in self._running:
            one.die()

    def restore(self, left: Leftovers) -> None:
        """Undo what the test has left: one that has not failed leaves only what it says."""
        cluster = self.cluster
        cluster.remove(left)
        for group in GROUPS.values():
            if cluster.group(group).target_node_count:
                cluster.resize(group, 0).sync_wait(interval=0.1, timeout=PATIENCE)
        for name in self.workers:
            if "DOWN" in left.states[name]:
                cluster.power_down(name)
            if left.states[name] != {"IDLE", "CLOUD"}:
                cluster.power_up(name)
        cluster.wait("all GPUs are training's", lambda: cluster.usage() == cluster.settings.block)


class Queue:
    """A job on each node, which runs until ``let_go``, and more of them than there is room for behind those."""

    def __init__(self, shifts: Shifts, count: int = 900) -> None:
        self.shifts, self.cluster = shifts, shifts.cluster
        self.held = {name: self.cluster.held_job(WHOLE_NODE, f"--nodelist={name}") for name in shifts.workers}
        self.array = self.cluster.sbatch(WHOLE_NODE, f"--array=1-{count}", "--time=10", wrap="sleep 1")
        for job in self.held.values():
            self.cluster.wait_job(job, "RUNNING")

    def let_go(self) -> None:
        self.cluster.run("touch", *(f"/root/go-{job}" for job in self.held.values()))

    def end(self) -> None:
        """Let those end that run, and see that none has come to harm."""
        self.cluster.run("scancel", "--state=PENDING", self.array)
        self.cluster.wait("no job is left", lambda: not self.cluster.active_jobs())
        fates = self.shifts.fates([self.array, *self.held.values()])
        begun = {job: fate for job, fate in fates.items() if fate[0] != "CANCELLED"}
        assert len(fates) > len(begun) > len(self.held), "the queue was too short, or too slow"
        assert set(begun.values()) == {("COMPLETED", 0)}


def at(seconds: float) -> datetime:
    """A moment that many seconds from now."""
    return datetime.now(timezone.utc) + timedelta(seconds=seconds)


async def is_dead(record: ShiftRecord) -> bool:
    """That the task which has the block will do nothing more."""
    return False
