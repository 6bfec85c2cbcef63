"""What a node is ordered, and what it is called then."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any, Literal
from unittest.mock import AsyncMock

import pytest

from airflow_provider_soperator.board.leftovers import left_overs
from airflow_provider_soperator.board.picture import Picture
from airflow_provider_soperator.slurm.cluster_records import ClusterConfig, Node, Partition
from airflow_provider_soperator.slurm.errors import InvalidStateTransition, NotPermitted, SlurmError, UnknownNode
from airflow_provider_soperator.slurm.requests import (
    CreateReservation,
    Drain,
    ListPartitions,
    PowerDown,
    Request,
    ShowConfig,
    Undrain,
    WhoAmI,
)
from airflow_provider_soperator.slurm.states import NodeState
from airflow_provider_soperator.work.nodes import NodeChange
from airflow_provider_soperator.work.protocols import WorkFailed, WorkRefused
from tests.unit.capacity.nodes import MINUTE, START, Nodes
from tests.unit.capacity.world import Log, Reservations


@pytest.mark.parametrize("stays", [True, False])
def test_a_node_that_is_to_stay_down_is_drained_once_it_goes(stays: bool) -> None:
    change = NodeChange(
        action="down",
        nodes=("worker-0",),
        owner="nights",
        reason="lent",
        stay_down=stays,
        slurm_conn_id="soperator_default",
        since=datetime.now(timezone.utc),
        deadline=None,
    )
    node = Node(name="worker-0", state=NodeState.parse("IDLE"))
    [order] = change.decide([node]).orders
    assert isinstance(order, PowerDown)
    more = change.decide([replace(node, state=NodeState.parse("IDLE+POWERING_DOWN"))]).orders
    assert [(type(one), one.reason) for one in more] == [(Drain, "airflow:nights: lent")] * stays


class Slurm:
    """Nodes in states that a test says, and what they are told."""

    def __init__(self, **states: str) -> None:
        parted = {name: state.partition(": ") for name, state in states.items()}
        self.nodes = tuple(
            Node(name=name.replace("_", "-"), state=NodeState.parse(state), reason=reason)
            for name, (state, _, reason) in parted.items()
        )
        self.told: list[str] = []
        self.reservations = Reservations()

    async def ask_shared(self, request: Request[Any], max_age: float) -> tuple[Node, ...]:
        return self.nodes

    async def config(self) -> ClusterConfig:
        return ClusterConfig(version="24.11.5", suspend_time=timedelta(minutes=10))

    async def ask(self, request: Request[Any]) -> Any:
        if isinstance(request, WhoAmI):
            return "root"
        if not isinstance(request, (PowerDown, Undrain)):
            return self.reservations.answer(request)
        self.told += request.names
        if isinstance(request, Undrain):
            idle = NodeState.parse("IDLE")
            self.nodes = tuple(replace(one, state=idle) if one.name in request.names else one for one in self.nodes)


class ByPartition(Slurm):
    """Slurm that powers down by the SuspendTime of partitions, or never."""

    has_suspend_time = True

    async def config(self) -> ClusterConfig:
        return ClusterConfig(version="24.11.5")

    async def ask(self, request: Request[Any]) -> Any:
        if isinstance(request, ListPartitions):
            return (Partition(name="main"), Partition(name="night", has_suspend_time=self.has_suspend_time))
        return await super().ask(request)


def down(slurm: Slurm, count: int) -> list[str]:
    now = datetime.now(timezone.utc)
    change = NodeChange(
        action="down", count=count, owner="nights", stay_down=True, slurm_conn_id="c", since=now, deadline=now
    )
    asyncio.run(change.begin(Log()).step(slurm))  # type: ignore[arg-type]
    return slurm.told


def change_of(slurm: Slurm, action: Literal["drain", "undrain"]) -> NodeChange:
    """The change of all its nodes, by the owner ``nights``."""
    now, names = datetime.now(timezone.utc), tuple(node.name for node in slurm.nodes)
    change = NodeChange(action=action, nodes=names, owner="nights", slurm_conn_id="c", since=now, deadline=now)
    return change.begin(logging.getLogger())


@pytest.mark.parametrize(
    "state",
    [
        "IDLE+CLOUD+RESERVED",
        "IDLE+CLOUD+MAINTENANCE",
        "IDLE+CLOUD+DRAIN: airflow:days: new driver",
        "IDLE+CLOUD+POWERED_DOWN+DRAIN: airflow:days: lent",
        "IDLE+CLOUD+DRAIN+POWER_DOWN: airflow:days: lent",
    ],
)
def test_of_a_number_of_nodes_none_is_one_that_others_keep(state: str) -> None:
    assert down(Slurm(worker_0=state, worker_1="MIXED+CLOUD"), 1) == ["worker-1"]
    with pytest.raises(WorkRefused, match=r"those that others have drained or reserved"):
        down(Slurm(worker_0=state), 1)


def test_the_suspend_time_of_a_partition_is_enough_for_power_orders() -> None:
    slurm = ByPartition(worker_0="IDLE+CLOUD")
    assert down(slurm, 1) == ["worker-0"]
    slurm.has_suspend_time = False
    with pytest.raises(SlurmError, match="SuspendTime=INFINITE"):
        down(slurm, 1)


def test_a_time_out_names_the_nodes_whose_orders_slurm_refuses() -> None:
    slurm: Any = Slurm(worker_0="IDLE+CLOUD+DRAIN: airflow:nights: lent")
    change = change_of(slurm, "undrain")
    slurm.ask = AsyncMock(side_effect=InvalidStateTransition("Invalid node state specified"))
    with pytest.raises(InvalidStateTransition):
        asyncio.run(change.step(slurm))
    assert change.place == "worker-0 is being undrained"


def test_one_node_that_others_have_drained_keeps_no_other_from_being_undrained() -> None:
    slurm: Any = Slurm(
        worker_0="IDLE+CLOUD+DRAIN: airflow:nights: lent",
        worker_1="IDLE+CLOUD+DRAIN: airflow:nights: lent",
        worker_3="IDLE+CLOUD+DRAIN: airflow:days: lent",
    )
    change = change_of(slurm, "undrain")
    assert asyncio.run(change.step(slurm)) is None
    assert slurm.told == ["worker-0", "worker-1"]
    with pytest.raises(
        WorkFailed, match=r"^worker-3 is drained: airflow:days: lent\. To undo .* name their owner: days"
    ):
        asyncio.run(change.step(slurm))
    # With none that it may undrain, it fails at once.
    with pytest.raises(WorkFailed, match=r"^worker-3 is drained: airflow:days: lent"):
        asyncio.run(change_of(slurm, "undrain").step(slurm))
    assert slurm.told == ["worker-0", "worker-1"]


@pytest.mark.parametrize("reason", ["Kill task failed", "[hardware_problem] XID", "soperator rolling update", "kernel"])
def test_a_drain_that_ends_by_itself_is_warned_of(reason: str, caplog: pytest.LogCaptureFixture) -> None:
    slurm: Any = Slurm(
        worker_0="IDLE+CLOUD+DRAIN: airflow:nights: lent",
        worker_1="IDLE+CLOUD+DRAIN: looked at",
        worker_3=f"IDLE+CLOUD+DRAIN+REBOOT_REQUESTED: {reason}",
    )
    assert asyncio.run(change_of(slurm, "drain").step(slurm))
    warned = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert warned == [f"worker-3 is drained by others ({reason}) and comes back by itself"]


def test_nodes_that_go_off_by_no_one_s_order_count() -> None:
    # Slurm's own reason, and a reservation that is about nodes that are off.
    slurm = Slurm(
        worker_0="IDLE+CLOUD+DRAIN+POWER_DOWN: POWER_DOWN_ASAP",
        worker_1="IDLE+CLOUD+POWERED_DOWN+RESERVED+DRAIN: airflow:nights: x",
    )
    assert down(slurm, 2) == []


class Cluster(Nodes):
    """Nodes that power down while a test lets time pass; an order of the kind ``refuses`` fails."""

    refuses: type[Request[Any]] | None = None
    fails: type[Exception] = ConnectionError

    def __init__(self, count: int) -> None:
        self.time = START
        super().__init__(count, lambda: self.time)

    async def ask_shared(self, request: Request[Any], max_age: float) -> Any:
        return self.answer(request)

    async def config(self) -> Any:
        return self.answer(ShowConfig())

    def answer(self, request: Any) -> Any:
        if isinstance(request, WhoAmI):
            return "root"
        if self.refuses and isinstance(request, self.refuses):
            raise self.fails("it is refused", "scontrol")
        return super().answer(request)

    def record(self, node: Any) -> Node:
        seen, kept = super().record(node), self.reserved
        return replace(seen, state=NodeState.parse(f"{seen.state}+RESERVED")) if node.name in kept else seen

    @property
    def reserved(self) -> list[str]:
        return [name for one in self.reservations.known.values() for name in one.nodelist.split(",")]

    def pass_time(self) -> None:
        for _ in range(2):
            self.advance()
            self.time += 2 * self.power_down_time


def leaving(**how: Any) -> Any:
    """Work that another process begins, with what it finds."""
    span: dict[str, Any] = {"since": START, "deadline": START + 60 * MINUTE}
    how = {"nodes": ("worker-0", "worker-1"), **how}
    return NodeChange(action="down", owner="nights", stay_down=True, slurm_conn_id="c", **span, **how).begin(Log())


def test_no_job_powers_up_a_node_that_is_to_stay_down_before_it_is_drained() -> None:
    slurm = Cluster(2)
    job = slurm.run("worker-0")
    assert asyncio.run(leaving().step(slurm)) is None
    assert slurm.reserved == ["worker-0", "worker-1"]
    # Also if no process goes on with it.
    [left] = left_overs(Picture(connection="c", taken=START, reservations=tuple(slurm.reservations.known.values())))
    assert left.dag_id == "nights"
    slurm.pass_time()
    gone = slurm.nodes["worker-1"]
    assert (gone.power, gone.drain) == ("off", "")
    assert not slurm.may_wake("worker-1", None)
    another = leaving()
    asyncio.run(another.step(slurm))
    assert gone.drain == "airflow:nights"
    asyncio.run(another.step(slurm))
    assert slurm.reserved == ["worker-0"]
    slurm.finish(job)
    slurm.pass_time()
    assert asyncio.run(another.step(slurm)) is None
    assert asyncio.run(another.step(slurm))["nodes"] == ["worker-0", "worker-1"]
    assert (slurm.reserved, slurm.may_wake("worker-0", None)) == ([], False)


def test_before_an_idle_node_is_told_to_go_jobs_may_start() -> None:
    slurm = Cluster(2)
    asyncio.run(leaving(mode="idle").step(slurm))
    assert slurm.reserved == []


def test_a_task_that_is_ended_gives_its_reservation_up() -> None:
    slurm = Cluster(2)
    asyncio.run(leaving().step(slurm))
    assert slurm.reserved == ["worker-0", "worker-1"]
    asyncio.run(leaving().undo(slurm))
    assert slurm.reserved == []


def test_a_try_that_gives_up_at_once_gives_up_what_the_one_before_has_reserved() -> None:
    slurm = Cluster(2)
    asyncio.run(leaving().step(slurm))
    del slurm.nodes["worker-1"]
    another = leaving()
    with pytest.raises(UnknownNode):
        asyncio.run(another.step(slurm))
    assert another.has_begun, "it is undone"


def test_of_a_number_of_nodes_those_count_that_were_reserved_and_not_told_yet() -> None:
    slurm, way = Cluster(2), {"nodes": (), "count": 2}
    slurm.refuses = PowerDown
    with pytest.raises(ConnectionError):
        asyncio.run(leaving(**way).step(slurm))
    assert slurm.reserved == ["worker-0", "worker-1"]
    slurm.refuses = None
    asyncio.run(leaving(**way).step(slurm))
    assert all(node.is_told for node in slurm.nodes.values())


def test_nodes_that_cannot_be_reserved_power_down_nevertheless() -> None:
    slurm, work = Cluster(2), leaving()
    slurm.refuses, slurm.fails = CreateReservation, NotPermitted
    for _ in range(2):
        asyncio.run(work.step(slurm))
    assert all(node.is_told for node in slurm.nodes.values())
    assert len([line for line in work._log.said if "a job may power them up again" in line]) == 1


def test_a_user_who_may_reserve_nodes_but_not_power_them_down_leaves_no_reservation() -> None:
    slurm, work = Cluster(2), leaving()
    slurm.refuses, slurm.fails = PowerDown, NotPermitted
    with pytest.raises(NotPermitted):
        asyncio.run(work.step(slurm))
    assert work.has_begun, "it is undone"
    asyncio.run(work.undo(slurm))
    assert slurm.reserved == []


def test_nodes_are_reserved_for_as_long_as_the_task_may_take() -> None:
    slurm, work = Cluster(1), leaving(nodes=("worker-0",))
    work.deadline = datetime.now(timezone.utc) + timedelta(days=5)
    slurm.run("worker-0")
    asyncio.run(work.step(slurm))
    [made] = slurm.reservations.known.values()
    assert made.end == work.deadline


def test_a_reserved_node_that_has_left_slurm_is_not_reserved_for_ever() -> None:
    slurm, work = Cluster(2), leaving(nodes=(), count=1)
    asyncio.run(work.step(slurm))
    [gone] = slurm.reserved
    del slurm.nodes[gone]
    while not asyncio.run(work.step(slurm)):
        slurm.pass_time()
    assert slurm.reserved == []


def test_a_reservation_is_that_of_the_dag_that_has_made_it_whose_drains_another_may_undo() -> None:
    slurm = Cluster(2)
    asyncio.run(leaving(dag_id="evening").step(slurm))
    [left] = left_overs(Picture(connection="c", taken=START, reservations=tuple(slurm.reservations.known.values())))
    assert left.need({"nights": False, "evening": True}).at_work == "yes"


def test_a_reservation_says_of_which_airflow_its_dag_is() -> None:
    slurm = Cluster(2)
    asyncio.run(leaving(airflow="3f2a9c01d7e4", reason="quiet").step(slurm))
    [reservation] = slurm.reservations.known.values()
    assert reservation.comment == "quiet (nights) of Airflow 3f2a9c01d7e4"
