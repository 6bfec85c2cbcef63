"""Nodes, partitions and reservations, over every way: each says the same of them, and does the same to them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone

import pytest

from airflow_provider_soperator.slurm.cluster_records import Node
from airflow_provider_soperator.slurm.errors import (
    InvalidRequest,
    NotPermitted,
    ReservationConflict,
    UnknownNode,
    UnknownReservation,
)
from airflow_provider_soperator.slurm.requests import (
    CreateReservation,
    DeleteReservation,
    Drain,
    ListNodes,
    ListPartitions,
    ListReservations,
    PowerDown,
    PowerDownMode,
    PowerUp,
    Undrain,
    UpdateReservation,
)
from airflow_provider_soperator.slurm.states import NodeFlag
from airflow_provider_soperator.transports.rest import RestTransport
from airflow_provider_soperator.transports.transport_errors import NotSupported
from tests.contract.comparison import all_differences
from tests.contract.transports import REST, AsyncWay, Way, minted, newest, url_of
from tests.integration.cluster import Cluster

# What Slurm answers differs from one version to the next.
pytestmark = [pytest.mark.each_slurm, pytest.mark.leaves("drains")]

ODD = 'it\'s "odd" & $(id) | 50% \\ ünï 日本'
NODES = ("worker-0", "worker-cpu-1")


@pytest.fixture
def commands(connect: Callable[[str], Way]) -> Way:
    return connect("local")


@pytest.fixture
def version(request: pytest.FixtureRequest, cluster: Cluster) -> int:
    """Of slurmrestd's interface; the other ways can do all that any of its versions can."""
    return newest(cluster) if request.node.callspec.params["way"] in REST else 99


def the_node(way: Way, name: str) -> Node:
    [node] = way.ask(ListNodes((name,)))
    return node


def test_nodes_are_the_same_over_every_way(way: Way, commands: Way, cluster: Cluster) -> None:
    cluster.sbatch("--gpus-per-node=3", "--nodelist=worker-0", wrap="sleep 300")
    cluster.wait("it runs", lambda: the_node(commands, "worker-0").gpus_used == 3)
    commands.ask(Drain(("worker-0", "worker-2"), ODD))
    cluster.run("scontrol", "update", "NodeName=worker-cpu-0", f"Comment={ODD}")
    # Two looks: between them backfill may have planned something for a node.
    cluster.wait("both say it", lambda: not all_differences(way.ask(ListNodes()), commands.ask(ListNodes()), "name"))
    assert [node.name for node in way.ask(ListNodes(NODES))] == list(NODES)


def test_a_node_says_which_machine_it_is_on(way: Way, cluster: Cluster) -> None:
    cluster.run("scontrol", "update", "NodeName=worker-0", "Comment=by InstanceId=none BootTime=5")
    # A slurmctld that has begun anew learns it when the node registers.
    cluster.wait("worker-0 has booted", lambda: the_node(way, "worker-0").booted_at)
    # From 26.05 on Slurm does not learn the machine of a node that it has powered up, as others may have had it do.
    if cluster.settings.slurm == "24.11":
        assert the_node(way, "worker-0").instance.startswith("computeinstance-")
    assert the_node(way, "worker-1").instance == ""


def test_partitions_are_the_same_over_every_way(way: Way, commands: Way, version: int) -> None:
    unknown = {"is_default", "is_hidden"} if version < 45 else set()
    assert all_differences(way.ask(ListPartitions()), commands.ask(ListPartitions()), "name", unknown) == {}


def test_nodes_are_drained_and_brought_back(way: Way) -> None:
    way.ask(Drain(NODES, ODD))
    drained = the_node(way, "worker-cpu-1")
    assert drained.state.has(NodeFlag.DRAIN)
    assert (drained.reason, drained.reason_user) == (ODD, "root")
    way.ask(Undrain(NODES))
    for node in way.ask(ListNodes(NODES)):
        assert (node.state.has(NodeFlag.DRAIN), node.reason) == (False, "")


@pytest.mark.parametrize("name", ["local", "rest"])
def test_nodes_are_powered_up_and_down(name: str, connect: Callable[[str], Way], cluster: Cluster) -> None:
    way = connect(name)
    way.ask(PowerUp(("worker-1", "worker-2")))
    for node in ("worker-1", "worker-2"):
        cluster.wait_node(node, lacks=("POWERED_DOWN", "POWERING_UP", "POWER_UP"))
    job = cluster.held_job("--nodelist=worker-1")
    cluster.wait_job(job, "RUNNING")
    way.ask(PowerDown(("worker-1",), PowerDownMode.ASAP, ODD))
    leaving = the_node(way, "worker-1")
    assert ODD in leaving.reason
    # What runs there goes on, and nothing else begins.
    assert leaving.state.has(NodeFlag.DRAIN)
    cluster.let_go(job)
    way.ask(PowerDown(("worker-2",), PowerDownMode.FORCE))
    for node in ("worker-1", "worker-2"):
        cluster.wait_node(node, has=("IDLE", "POWERED_DOWN"))


def test_nodes_that_are_not_there_are_named(way: Way) -> None:
    both = ("worker-0", "nowhere")
    for request in (ListNodes(both), Undrain(both)):
        with pytest.raises(UnknownNode):
            way.ask(request)
    for request in (Undrain(()), Drain(("worker-0",), ""), Drain(("worker-0",), "two\nlines")):
        with pytest.raises(InvalidRequest):
            way.ask(request)


def test_who_is_no_administrator_cannot_drain(cluster: Cluster) -> None:
    alice = AsyncWay(lambda: RestTransport(url_of(cluster), minted(cluster, "alice")))
    with pytest.raises(NotPermitted, match="AdminLevel"):
        alice.ask(Drain(("worker-0",), "mine"))
    alice.close()


@pytest.fixture
def night(commands: Way) -> Iterator[CreateReservation]:
    start = datetime.now(timezone.utc).replace(microsecond=0) + timedelta(hours=1)
    end = start + timedelta(hours=8)
    nodes = ("worker-1", "worker-2")
    flags = ("MAINT", "OVERLAP", "IGNORE_JOBS")
    yield CreateReservation(
        name="night", nodes=nodes, start=start, end=end, users=("root", "alice"), flags=flags, comment=ODD
    )
    commands.ask(DeleteReservation("night"))


def test_reservations_are_the_same_over_every_way(
    way: Way, version: int, commands: Way, night: CreateReservation
) -> None:
    commands.ask(night)
    unknown = {"comment"} if version < 99 else set()
    assert all_differences(way.ask(ListReservations()), commands.ask(ListReservations()), "name", unknown) == {}


def test_reservations_are_made_changed_and_deleted(
    way: Way, version: int, commands: Way, night: CreateReservation
) -> None:
    later = UpdateReservation(
        name="night", end=night.start + timedelta(hours=2), nodes=("worker-3",), flags=("-MAINT",)
    )
    if version < 43:
        for request in (night, later, DeleteReservation("night")):
            with pytest.raises(NotSupported, match=r"v0\.0\.43 and later can"):
                way.ask(request)
        return
    with pytest.raises(UnknownReservation):
        way.ask(later)
    assert way.ask(night) == "night"
    [made] = commands.ask(ListReservations())
    assert (made.start, made.end, made.nodelist, made.comment) == (night.start, night.end, "worker-[1-2]", ODD)
    assert made.flags >= {"MAINT", "OVERLAP", "IGNORE_JOBS"}
    assert set(made.users) == {"root", "alice"}
    with pytest.raises(ReservationConflict):
        way.ask(night)
    way.ask(later)
    [changed] = commands.ask(ListReservations())
    assert (changed.end, changed.nodelist) == (later.end, "worker-3")
    assert "MAINT" not in changed.flags
    assert way.ask(DeleteReservation("night"))
    assert not way.ask(DeleteReservation("night"))
    endless = CreateReservation(name="night", nodes=("worker-3",), start=night.start, end=None, users=("root",))
    way.ask(endless)
    [made] = commands.ask(ListReservations())
    assert made.end is not None
    assert made.end - night.start > timedelta(days=300)
