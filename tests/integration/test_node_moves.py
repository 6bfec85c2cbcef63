"""Moves of nodes on a real Slurm: what is ordered step by step brings them where they shall be, and nowhere else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timezone

import pytest

from airflow_provider_soperator.slurm import node_orders
from airflow_provider_soperator.slurm.cluster_records import Node
from airflow_provider_soperator.slurm.node_conditions import DrainReason
from airflow_provider_soperator.slurm.node_orders import NodeMove
from airflow_provider_soperator.slurm.requests import Drain, ListNodes, PowerDown, PowerDownMode, PowerUp, Request
from tests.contract.transports import Way
from tests.integration.cluster import Cluster

LENT = DrainReason("shift/night", "lent until 08:00")
NODES = ("worker-1", "worker-2", "worker-3")


class Mover:
    """Does what moves say until they are over, and remembers all that was ordered."""

    def __init__(self, way: Way, cluster: Cluster) -> None:
        self.way, self.cluster = way, cluster
        self.ordered: list[Request[None]] = []

    def look(self, *names: str) -> tuple[Node, ...]:
        return self.way.ask(ListNodes(names))

    def step(self, decide: Callable[[tuple[Node, ...]], NodeMove], *names: str) -> NodeMove:
        move = decide(self.look(*names))
        for order in move.orders:
            self.way.ask(order)
            self.ordered.append(order)
        return move

    def until_over(self, decide: Callable[[tuple[Node, ...]], NodeMove], *names: str) -> NodeMove:
        def over() -> NodeMove | None:
            move = self.step(decide, *names)
            return move if move.is_settled else None

        return self.cluster.wait("the move is over", over)

    @contextmanager
    def kept_off(self, decide: Callable[[tuple[Node, ...]], NodeMove], name: str) -> Iterator[None]:
        """What lets a node go that a job waits for: it powers down until the move has drained it for good.

        Slurm ends the drain of a power down when that begins, and gives the node to the job when it ends: on a busy
        machine that may be before the next look.
        """

        def drained() -> bool:
            is_over = self.step(decide, name).is_settled
            return is_over or self.cluster.node(name).state >= {"POWERING_DOWN", "DRAIN"}

        with self.cluster.lasting_power_down(name):
            yield
            self.cluster.wait(f"{name} is drained as it powers down", drained)


@pytest.fixture(params=["ssh", "rest"])
def mover(request: pytest.FixtureRequest, cluster: Cluster, connect: Callable[[str], Way]) -> Mover:
    return Mover(connect(request.param), cluster)


@pytest.fixture
def over_ssh(cluster: Cluster, connect: Callable[[str], Way]) -> Mover:
    return Mover(connect("ssh"), cluster)


def asap(nodes: tuple[Node, ...]) -> NodeMove:
    return node_orders.down(nodes, PowerDownMode.ASAP)


def force(nodes: tuple[Node, ...]) -> NodeMove:
    return node_orders.down(nodes, PowerDownMode.FORCE)


def lend(nodes: tuple[Node, ...]) -> NodeMove:
    return node_orders.kept_off(nodes, PowerDownMode.ASAP, reason=LENT)


def lend_by_force(nodes: tuple[Node, ...]) -> NodeMove:
    return node_orders.kept_off(nodes, PowerDownMode.FORCE, reason=LENT)


def test_nodes_go_up_stay_down_and_come_back_with_no_order_given_twice(mover: Mover) -> None:
    move = mover.until_over(node_orders.up, *NODES)
    assert (move.is_over, move.there, mover.ordered) == (True, NODES, [PowerUp(NODES)])
    mover.ordered.clear()
    assert mover.until_over(lend, *NODES).is_over
    assert all(node.is_off and node.reason == str(LENT) for node in mover.look(*NODES))
    downs = [order for order in mover.ordered if isinstance(order, PowerDown)]
    drains = [order for order in mover.ordered if isinstance(order, Drain)]
    assert [name for order in downs for name in order.names] == list(NODES)
    assert sorted(name for order in drains for name in order.names) == list(NODES)
    assert mover.until_over(lambda nodes: node_orders.up(nodes, owner="shift/night"), *NODES).is_over
    assert all(node.is_usable for node in mover.look(*NODES))


def test_a_node_that_powers_down_is_powered_up_after_that(over_ssh: Mover, cluster: Cluster) -> None:
    over_ssh.until_over(node_orders.up, "worker-1")
    cluster.run("scontrol", "power", "down", "worker-1")
    over_ssh.ordered.clear()
    assert over_ssh.until_over(node_orders.up, "worker-1").is_over
    assert over_ssh.ordered == [PowerUp(("worker-1",))]


@pytest.mark.each_slurm
def test_a_drain_does_not_end_the_job_that_a_node_boots_for(over_ssh: Mover, cluster: Cluster) -> None:
    def drain(nodes: tuple[Node, ...]) -> NodeMove:
        return node_orders.drained(nodes, LENT, wait_for_jobs=True)

    cluster.fault("node-no-boot", node="worker-1")
    job = cluster.sbatch("--nodelist=worker-1")
    cluster.wait("a job has the node", lambda: over_ssh.look("worker-1")[0].has_job)
    assert over_ssh.step(drain, "worker-1").waiting["worker-1"].startswith("boots for a job")
    cluster.fault("clear")
    assert over_ssh.until_over(drain, "worker-1").is_over
    assert (cluster.job_state(job), cluster.job(job)["restart_cnt"]) == ("COMPLETED", 0)
    assert over_ssh.until_over(lambda nodes: node_orders.undrained(nodes, owner="shift/night"), "worker-1").is_over


@pytest.mark.oldest_slurm
def test_a_queued_job_gets_no_node_that_is_kept_off(over_ssh: Mover, cluster: Cluster) -> None:
    over_ssh.until_over(node_orders.up, "worker-1")
    with over_ssh.kept_off(lend, "worker-1"):
        first = cluster.held_job("--nodelist=worker-1", "--gpus-per-node=4")
        cluster.wait_job(first, "RUNNING")
        second = cluster.sbatch("--nodelist=worker-1", "--gpus-per-node=8")
        assert over_ssh.step(lend, "worker-1").waiting == {"worker-1": "powers down after its jobs"}
        cluster.let_go(first)
    assert over_ssh.until_over(lend, "worker-1").is_over
    assert cluster.job_state(second) == "PENDING"
    assert cluster.active_nodes() == [0]
    # Powered up by somebody else, it goes down again.
    with over_ssh.kept_off(lend, "worker-1"):
        over_ssh.way.ask(PowerUp(("worker-1",)))
    assert over_ssh.until_over(lend, "worker-1").is_over
    over_ssh.until_over(node_orders.up, "worker-1")
    cluster.wait_job(second, "COMPLETED")


@pytest.mark.leaves("drains")
def test_force_ends_jobs_and_lets_no_other_start(over_ssh: Mover, cluster: Cluster) -> None:
    over_ssh.until_over(node_orders.up, "worker-1")
    with over_ssh.kept_off(lend_by_force, "worker-1"):
        first = cluster.held_job("--nodelist=worker-1", "--gpus-per-node=8")
        cluster.wait_job(first, "RUNNING")
        second = cluster.held_job("--nodelist=worker-1", "--gpus-per-node=8")
        over_ssh.step(lambda nodes: node_orders.down(nodes, PowerDownMode.IDLE), "worker-1")
        over_ssh.step(asap, "worker-1")
        assert over_ssh.step(asap, "worker-1").orders == ()
        assert over_ssh.step(lambda nodes: node_orders.down(nodes, PowerDownMode.IDLE), "worker-1").orders == ()
    over_ssh.until_over(lend_by_force, "worker-1")
    modes = [order.mode for order in over_ssh.ordered if isinstance(order, PowerDown)]
    assert modes == [PowerDownMode.IDLE, PowerDownMode.ASAP, PowerDownMode.FORCE]
    assert cluster.job(first)["restart_cnt"] == 1
    assert cluster.job_state(second) == "PENDING"


@pytest.mark.oldest_slurm
def test_a_node_that_boots_is_powered_down(over_ssh: Mover, cluster: Cluster) -> None:
    for decide in (asap, force):
        over_ssh.way.ask(PowerUp(("worker-1",)))
        assert over_ssh.until_over(decide, "worker-1").is_over
    cluster.wait_gone("worker-1")


def test_what_does_not_boot_is_lost_once_and_tried_again_by_the_next(over_ssh: Mover, cluster: Cluster) -> None:
    cluster.settle()
    cluster.fault("block-exhausted", leave=0)
    began = datetime.now(timezone.utc)
    assert not over_ssh.step(lambda nodes: node_orders.up(nodes, since=began), "worker-1").is_settled
    cluster.give_up_boot("worker-1")
    move = over_ssh.until_over(lambda nodes: node_orders.up(nodes, since=began), "worker-1")
    assert "ResumeTimeout reached" in move.lost["worker-1"]
    assert over_ssh.ordered == [PowerUp(("worker-1",))]
    cluster.fault("clear")
    began = datetime.now(timezone.utc)
    assert over_ssh.until_over(lambda nodes: node_orders.up(nodes, since=began), "worker-1").is_over
