"""What is special about pyslurm; docs/native.md says how to run this.

Its answers are compared with those of the commands on the same cluster, as nobody but Slurm can say what is right.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

from airflow_provider_soperator.slurm.errors import ControllerUnreachable, InvalidRequest, NotPermitted, UnknownNode
from airflow_provider_soperator.slurm.requests import (
    Drain,
    ListNodes,
    ListPartitions,
    PowerDown,
    PowerDownMode,
    PowerUp,
    Request,
    Undrain,
)
from airflow_provider_soperator.slurm.states import NodeFlag, NodeState
from airflow_provider_soperator.transports.native import NativeTransport, call_for
from airflow_provider_soperator.transports.transport_errors import ConnectFailed, ConnectionLost
from tests.contract.native import NATIVE, python
from tests.contract.transports import AsyncWay, Way
from tests.integration.answers import the_node
from tests.integration.cluster import Cluster
from tests.patience import PATIENCE

TEXT = 'o\'clock, "é😀" = State=IDLE; $(id) \\'


@pytest.fixture(params=list(NATIVE))
def way(request: pytest.FixtureRequest, connect: Callable[[str], Way]) -> Way:
    return connect(request.param)


@pytest.fixture
def commands(connect: Callable[[str], Way]) -> Way:
    return connect("local")


@pytest.fixture
def odd_partitions(cluster: Cluster) -> Iterator[None]:
    """Partitions that differ from the sandbox's own in every field."""
    names = ("night", "None", "off")
    settings = (
        "Nodes=worker-[1-2] MaxTime=1-02:03:00 DefaultTime=90 PriorityTier=7 Hidden=YES State=DRAIN",
        "Nodes=worker-cpu-0 MaxTime=UNLIMITED DefaultTime=UNLIMITED PriorityTier=65533",
        "State=INACTIVE",
    )
    for name, words in zip(names, settings, strict=True):
        cluster.run("scontrol", "create", f"PartitionName={name}", *words.split())
    yield
    for name in names:
        cluster.run("scontrol", "delete", f"PartitionName={name}")


@pytest.mark.usefixtures("odd_partitions")
def test_partitions_are_what_the_commands_say(way: Way, commands: Way) -> None:
    found = way.ask(ListPartitions())
    assert len(found) == 5
    assert found == commands.ask(ListPartitions())


@pytest.mark.parametrize(
    "order",
    [
        Drain(("worker-0", "worker-cpu-0"), TEXT),
        PowerDown(("worker-0",), PowerDownMode.IDLE, TEXT),
        PowerDown(("worker-0",), PowerDownMode.ASAP),
        PowerDown(("worker-0",), PowerDownMode.FORCE, TEXT),
    ],
    ids=repr,
)
def test_an_order_does_to_nodes_what_the_command_does(
    order: Request[None], way: Way, commands: Way, cluster: Cluster
) -> None:
    """By what slurmctld writes into its log, as the states that an order leads to go on to change."""
    assert call_for(order) is not None

    def done_by(one: Way) -> object:
        cluster.reset()
        before = len(_orders_in_log(cluster))
        one.ask(order)
        texts = [(node.name, node.reason, node.reason_user) for node in commands.ask(ListNodes())]
        return _orders_in_log(cluster)[before:], texts

    assert done_by(way) == done_by(commands)


def test_a_node_powers_up(way: Way, cluster: Cluster) -> None:
    way.ask(PowerUp(("worker-1",)))
    cluster.wait("worker-1 is up", lambda: the_node(cluster).state == NodeState.parse("IDLE+CLOUD"))


def test_a_drain_is_taken_back(way: Way, cluster: Cluster) -> None:
    way.ask(Drain(("worker-0",), "for a moment"))
    assert the_node(cluster, "worker-0").state.has(NodeFlag.DRAIN)
    way.ask(Undrain(("worker-0",)))
    assert not the_node(cluster, "worker-0").state.has(NodeFlag.DRAIN)


def test_refusals_are_those_of_the_commands(way: Way) -> None:
    with pytest.raises(UnknownNode, match="Invalid node name"):
        way.ask(Drain(("worker-0", "worker-999"), "gone"))
    with pytest.raises(InvalidRequest, match="needs a reason"):
        way.ask(Drain(("worker-0",), ""))


def test_a_user_without_rights_is_refused(cluster: Cluster) -> None:
    as_alice = (*python(cluster)[:-1], "runuser", "-u", "alice", "--", "python3")
    native = AsyncWay(lambda: NativeTransport(as_alice))
    try:
        with pytest.raises(NotPermitted):
            native.ask(Drain(("worker-0",), "mine"))
        assert len(native.ask(ListPartitions())) == 2
    finally:
        native.close()


# ----------------------------------------------------------------------------------------- libslurm and its process


@pytest.mark.parametrize(
    ("settings", "cause"),
    [
        (("SLURM_CONF=/nowhere/slurm.conf",), "/nowhere/slurm.conf, which does not exist"),
        (("SLURM_CONF=/root/wrong.conf",), "unrecognized key: Nonsense"),
    ],
)
def test_a_configuration_that_libslurm_cannot_use(settings: tuple[str, ...], cause: str, cluster: Cluster) -> None:
    cluster.run("sh", "-c", "{ cat /etc/slurm/slurm.conf; echo Nonsense=1; } >/root/wrong.conf")
    native = AsyncWay(lambda: NativeTransport(python(cluster, *settings)))
    try:
        with pytest.raises(ConnectFailed, match=cause):
            native.ask(ListPartitions())
    finally:
        native.close()


def test_a_process_that_is_killed_is_started_again(way: Way, cluster: Cluster) -> None:
    way.ask(ListPartitions())
    (process,) = _pyslurm_processes(cluster)
    process.kill()
    with pytest.raises(ConnectionLost, match="restarted"):
        way.ask(ListPartitions())
    assert len(way.ask(ListPartitions())) == 2


def test_a_controller_that_comes_back_is_found(way: Way, cluster: Cluster) -> None:
    way.ask(ListPartitions())
    cluster.fault("slurmctld-down")
    with pytest.raises(ControllerUnreachable):
        way.ask(ListPartitions())
    cluster.sandbox.up()
    assert len(way.ask(ListPartitions())) == 2


def test_a_hung_controller_stops_no_loop(way: AsyncWay, cluster: Cluster) -> None:
    """pyslurm would: it keeps Python's lock while it waits."""
    way.ask(ListPartitions())
    cluster.fault("slurmctld-hung")
    steps: list[float] = []
    with ThreadPoolExecutor() as pool:
        asked = pool.submit(way.ask, ListPartitions())
        while not asked.done():
            way.in_loop(lambda: steps.append(time.monotonic()))
            time.sleep(0.05)
    with pytest.raises(ControllerUnreachable):
        asked.result()
    assert steps[-1] - steps[0] > cluster.settings.message_timeout / 2
    assert max(map(float.__sub__, steps[1:], steps)) < 2


@pytest.mark.parametrize("name", NATIVE)
def test_closing_ends_the_process(name: str, cluster: Cluster) -> None:
    way = NATIVE[name](cluster)
    way.ask(ListPartitions())
    processes = _pyslurm_processes(cluster)
    assert processes
    way.close()
    _, alive = psutil.wait_procs(processes, timeout=PATIENCE)
    assert not alive


def _orders_in_log(cluster: Cluster) -> list[str]:
    """What slurmctld has been told to do to nodes; without times, and without the stars of nodes that answer slowly."""
    lines = cluster.run("cat", "/var/log/slurm/slurmctld.log").splitlines()
    orders = [line.partition("] ")[2] for line in lines if re.search(r"update_node:|power(ing)? (up|down)", line)]
    return [order.rstrip("*") for order in orders]


def _pyslurm_processes(cluster: Cluster) -> list[psutil.Process]:
    inside = cluster.sandbox.init.outside("sshd").parent()
    assert inside is not None
    mine = psutil.Process().children(recursive=True)
    return [one for one in mine if any("pyslurm" in word for word in one.cmdline()) and not one.children()]
