"""What is ordered for a node in each of its states, and what is not."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_soperator.slurm import node_conditions, node_orders
from airflow_provider_soperator.slurm.cluster_records import ClusterConfig, Node, Partition
from airflow_provider_soperator.slurm.errors import SlurmError, UnknownNode
from airflow_provider_soperator.slurm.node_conditions import DrainReason
from airflow_provider_soperator.slurm.node_orders import NodeMove, drained, undrained
from airflow_provider_soperator.slurm.requests import Drain, PowerDown, PowerDownMode, PowerUp, Undrain
from airflow_provider_soperator.slurm.states import NodeFlag, NodeState

IDLE, ASAP, FORCE = PowerDownMode
OURS = DrainReason("night", "lent")
NOON = datetime(2026, 11, 21, 12, tzinfo=timezone.utc)
ONE = ("n-1",)


def node(state: str, reason: str = "", since: datetime | None = None, name: str = "n-1") -> Node:
    return Node(name=name, state=NodeState.parse(state), reason=reason, reason_since=since)


@pytest.mark.parametrize(
    ("state", "reason", "orders", "waits"),
    [
        ("IDLE+CLOUD", "", (), None),
        ("MIXED+CLOUD+RESERVED", "", (), None),
        ("IDLE+CLOUD+POWERED_DOWN", "", (PowerUp(ONE),), "is being powered up"),
        ("IDLE+CLOUD+POWERED_DOWN+POWER_UP", "", (), "boots"),
        ("IDLE+CLOUD+POWERING_UP+NOT_RESPONDING", "", (), "boots"),
        ("IDLE+CLOUD+POWERING_DOWN", "", (), "is powering down and can be powered up only after that"),
        ("IDLE+CLOUD+POWERING_DOWN+DRAIN", str(OURS), (), "is powering down and can be powered up only after that"),
        ("MIXED+CLOUD+POWER_DOWN", "", (), "powers down after its jobs"),
        ("MIXED+CLOUD+POWER_DOWN+DRAIN", "POWER_DOWN_ASAP", (), "powers down after its jobs"),
        ("IDLE+CLOUD+POWERED_DOWN+DRAIN", str(OURS), (PowerUp(ONE), Undrain(ONE)), "is being powered up"),
        ("IDLE+CLOUD+POWERING_UP+DRAIN", str(OURS), (Undrain(ONE),), "boots"),
        ("MIXED+CLOUD+DRAIN", str(OURS), (Undrain(ONE),), "is being undrained"),
        ("DOWN+CLOUD+POWERED_DOWN", "ResumeTimeout reached", (PowerUp(ONE),), "is being powered up"),
        ("IDLE+CLOUD+NOT_RESPONDING", "", (), "does not answer yet"),
        ("MIXED+CLOUD+DRAIN+REBOOT_REQUESTED", "kernel", (), "reboots"),
        ("DOWN+CLOUD+DRAIN+REBOOT_ISSUED", "kernel : reboot issued", (), "reboots"),
        ("DOWN+CLOUD+REBOOT_ISSUED", "reboot requested : reboot issued", (), "reboots"),
        ("DOWN+CLOUD+DRAIN+REBOOT_ISSUED", f"{OURS} : reboot issued", (Undrain(ONE, ""),), "is being undrained"),
    ],
)
def test_up(state: str, reason: str, orders: tuple[object, ...], waits: str | None) -> None:
    move = node_orders.up([node(state, reason)], owner="night")
    assert (move.orders, move.waiting.get("n-1"), move.lost) == (orders, waits, {})


@pytest.mark.parametrize(
    ("state", "reason", "says"),
    [
        ("IDLE+CLOUD+DRAIN", "looked at", "is drained: looked at"),
        ("IDLE+CLOUD+POWERED_DOWN+DRAIN", "looked at", "is drained: looked at"),
        ("IDLE+CLOUD+POWERING_DOWN+DRAIN", "looked at", "is drained: looked at"),
        ("IDLE+CLOUD+DRAIN", "airflow:day: theirs", "is drained: airflow:day: theirs"),
        # What would heal it needs a machine.
        ("IDLE+CLOUD+POWERED_DOWN+DRAIN", "[user_problem] disk", "(a job has left something behind"),
        ("DOWN+CLOUD", "Prolog error", "it needs manual repair"),
        # Slurm refuses to undrain it.
        ("IDLE+CLOUD+DRAIN+INVALID_REG", str(OURS), f"is IDLE+CLOUD+DRAIN+INVALID_REG: {OURS}"),
    ],
)
def test_what_others_hold_is_lost_and_left_alone(state: str, reason: str, says: str) -> None:
    move = node_orders.up([node(state, reason)], owner="night")
    assert (move.orders, move.is_over, move.is_settled) == ((), False, True)
    assert says in move.lost["n-1"]


def test_what_heals_by_itself_is_waited_for() -> None:
    move = node_orders.up(
        [node("IDLE+CLOUD+DRAIN", "[user_problem] disk"), node("DOWN+CLOUD", "Not responding", name="n-2")]
    )
    assert (set(move.waiting), move.lost, move.orders) == ({"n-1", "n-2"}, {}, ())


@pytest.mark.parametrize(("later", "is_lost"), [(-60, False), (60, True)])
def test_a_node_that_failed_to_boot_since_then_is_lost(later: int, is_lost: bool) -> None:
    failed = node("DOWN+CLOUD+POWERED_DOWN", "ResumeTimeout reached", NOON + timedelta(seconds=later))
    move = node_orders.up([failed], since=NOON)
    assert (bool(move.lost), bool(move.orders)) == (is_lost, not is_lost)


@pytest.mark.parametrize(
    ("state", "by_idle", "by_asap", "by_force"),
    [
        ("IDLE+CLOUD", [IDLE], [ASAP], [ASAP, FORCE]),
        ("MIXED+CLOUD", [IDLE], [ASAP], [ASAP, FORCE]),
        ("MIXED+CLOUD+DRAIN", [IDLE], [ASAP], [ASAP, FORCE]),
        ("MIXED+CLOUD+POWER_DOWN", [], [ASAP], [ASAP, FORCE]),
        ("MIXED+CLOUD+POWER_DOWN+DRAIN", [], [], [FORCE]),
        ("ALLOCATED+CLOUD+POWER_DOWN+POWER_DRAIN+DRAIN", [], [], [FORCE]),
        ("MIXED+CLOUD+COMPLETING+POWER_DOWN+DRAIN", [], [], []),
        ("IDLE+CLOUD+POWER_DOWN", [], [ASAP], [ASAP]),
        ("IDLE+CLOUD+POWERING_UP+NOT_RESPONDING", [IDLE], [ASAP], [ASAP, FORCE]),
        ("IDLE+CLOUD+POWERED_DOWN+POWER_UP", [IDLE], [ASAP], [ASAP, FORCE]),
        ("IDLE+CLOUD+POWERING_DOWN", [], [], []),
        ("IDLE+CLOUD+POWERED_DOWN", [], [], []),
        ("IDLE+CLOUD+POWERED_DOWN+DRAIN", [], [], []),
    ],
)
def test_down(
    state: str, by_idle: list[PowerDownMode], by_asap: list[PowerDownMode], by_force: list[PowerDownMode]
) -> None:
    for mode, modes in ((IDLE, by_idle), (ASAP, by_asap), (FORCE, by_force)):
        orders = tuple(PowerDown(ONE, one, "lent") for one in modes)
        assert node_orders.down([node(state)], mode, reason="lent").orders == orders, mode


def test_a_node_that_did_not_boot_is_powered_down_so_that_its_pod_goes() -> None:
    assert node_orders.down([node("DOWN+CLOUD+POWERED_DOWN", "ResumeTimeout reached")], ASAP).orders


@pytest.mark.parametrize(
    ("state", "orders"),
    [
        ("IDLE+CLOUD+POWERED_DOWN+DRAIN", ()),
        ("IDLE+CLOUD+POWERED_DOWN", (Drain(ONE, str(OURS)),)),
        ("IDLE+CLOUD+POWERING_DOWN", (Drain(ONE, str(OURS)),)),
        ("IDLE+CLOUD+POWERING_DOWN+DRAIN", ()),
        ("MIXED+CLOUD", (PowerDown(ONE, ASAP, str(OURS)),)),
        ("IDLE+CLOUD+POWERING_UP", (PowerDown(ONE, ASAP, str(OURS)),)),
        # A drain would end the job that is to power it up.
        ("ALLOCATED+CLOUD+POWERED_DOWN", (PowerDown(ONE, ASAP, str(OURS)),)),
    ],
)
def test_kept_off(state: str, orders: tuple[object, ...]) -> None:
    move = node_orders.kept_off([node(state)], ASAP, reason=OURS)
    assert move.orders == orders
    assert move.is_over == (state == "IDLE+CLOUD+POWERED_DOWN+DRAIN")


def test_many_nodes_are_ordered_together_and_no_job_can_start_between_two_orders() -> None:
    nodes = [node("MIXED+POWER_DOWN+DRAIN", name="n-1"), node("MIXED", name="n-2"), node("IDLE", name="n-3")]
    assert node_orders.down(nodes, FORCE).orders == (
        PowerDown(("n-2", "n-3"), ASAP),
        PowerDown(("n-1", "n-2", "n-3"), FORCE),
    )


@pytest.mark.parametrize(
    ("state", "reason", "busy_counts", "orders", "is_over"),
    [
        ("IDLE+CLOUD", "", False, (Drain(ONE, str(OURS)),), False),
        # A drain would end the job for which it boots.
        ("ALLOCATED+CLOUD+POWERING_UP+NOT_RESPONDING", "", False, (), False),
        ("MIXED+CLOUD+POWERED_DOWN", "", False, (), False),
        ("IDLE+CLOUD+POWERING_UP+NOT_RESPONDING", "", False, (Drain(ONE, str(OURS)),), False),
        ("IDLE+CLOUD+POWERED_DOWN", "", False, (Drain(ONE, str(OURS)),), False),
        ("MIXED+CLOUD", "", False, (Drain(ONE, str(OURS)),), False),
        ("MIXED+CLOUD+DRAIN", str(OURS), False, (), True),
        ("MIXED+CLOUD+DRAIN", str(OURS), True, (), False),
        ("IDLE+CLOUD+DRAIN", "[hardware_problem] XID", True, (), True),
        ("IDLE+CLOUD+DRAIN", "looked at", True, (), True),
        ("MIXED+CLOUD+DRAIN+POWER_DOWN", "POWER_DOWN_ASAP", False, (), False),
        # Soperator undrains nodes by these reasons, and no node that has another one.
        ("IDLE+CLOUD+DRAIN", "[user_problem] disk", False, (Drain(ONE, str(OURS)),), False),
        ("MIXED+CLOUD+DRAIN", "[user_problem] disk", False, (Drain(ONE, str(OURS)),), False),
        ("IDLE+CLOUD+DRAIN", "soperator rolling update", True, (Drain(ONE, str(OURS)),), False),
        # The drain of a reboot goes with it, whatever its reason.
        ("IDLE+CLOUD+DRAIN+REBOOT_REQUESTED", "soperator rolling update", True, (), True),
        ("IDLE+CLOUD+REBOOT_REQUESTED", "reboot requested", False, (Drain(ONE, str(OURS)),), False),
        ("IDLE+CLOUD+DRAIN+REBOOT_REQUESTED", str(OURS), False, (), False),
        ("DOWN+CLOUD+DRAIN+REBOOT_ISSUED", f"{OURS} : reboot issued", False, (), False),
        ("IDLE+CLOUD+DRAIN", "airflow:day: before the soperator rolling update", True, (), True),
    ],
)
def test_drained(state: str, reason: str, busy_counts: bool, orders: tuple[object, ...], is_over: bool) -> None:
    move = drained([node(state, reason)], OURS, wait_for_jobs=busy_counts)
    assert (move.orders, move.is_over) == (orders, is_over)


def test_a_drain_that_is_to_end_jobs_ends_those_for_which_a_node_boots() -> None:
    booting = [node("ALLOCATED+CLOUD+POWERING_UP")]
    assert drained(booting, OURS).waiting["n-1"].startswith("boots for a job")
    assert drained(booting, OURS, ends_jobs=True).orders == (Drain(ONE, str(OURS)),)


def test_undrained_by_force_only_if_it_is_somebody_elses() -> None:
    theirs = [node("IDLE+CLOUD+DRAIN", "looked at")]
    assert undrained(theirs).lost == {"n-1": "is drained: looked at"}
    ours = [node("IDLE+DRAIN", str(OURS))]
    assert undrained(theirs, any_owner=True).orders == undrained(ours).orders == (Undrain(ONE),)
    assert undrained([node("IDLE+CLOUD")]).is_over
    replaced = [node("IDLE+CLOUD+DRAIN", "[hardware_problem] airflow:night: NVLink")]
    assert undrained(replaced, owner="night").orders == (Undrain(ONE),)
    assert undrained(replaced, owner="day").lost


@pytest.mark.parametrize("state", ["DOWN+CLOUD+DRAIN+NOT_RESPONDING", "IDLE+CLOUD+DRAIN+FAIL"])
def test_a_node_that_is_down_keeps_its_reason_when_it_is_undrained(state: str) -> None:
    """Slurm clears none of such a node, which may be the only word of why it is down."""
    silent = node(state, f"{OURS} : Not responding")
    kept = (Undrain(ONE, reason=""),)
    assert undrained([silent]).orders == node_orders.up([silent], owner="night").orders == kept


def test_what_slurm_does_not_undrain_is_lost() -> None:
    invalid = node("IDLE+CLOUD+DRAIN+INVALID_REG", "Low RealMemory")
    assert undrained([invalid], any_owner=True).lost == {
        "n-1": "is drained, and Slurm does not undrain it before it registers with all its configured resources: "
        "Low RealMemory"
    }
    # It may register whole after that.
    reboots = node("IDLE+CLOUD+DRAIN+INVALID_REG+REBOOT_REQUESTED", "Low RealMemory")
    assert undrained([reboots], any_owner=True).waiting == {"n-1": "reboots"}


def test_a_drain_of_a_reboot_is_waited_for() -> None:
    assert undrained([node("IDLE+CLOUD+DRAIN+REBOOT_REQUESTED", "kernel")]).waiting == {"n-1": "reboots"}
    assert undrained([node("IDLE+CLOUD+DRAIN", "kernel : reboot issued")]).lost


@pytest.mark.parametrize("state", ["IDLE+CLOUD+DRAIN+REBOOT_REQUESTED", "IDLE+CLOUD+DRAIN"])
def test_a_drain_that_an_update_of_soperator_has_taken_over_is_waited_for(state: str) -> None:
    move = undrained([node(state, "soperator rolling update")])
    assert (move.orders, set(move.waiting), move.lost) == ((), {"n-1"}, {})
    # While it is off no update ends it.
    assert undrained([node("IDLE+CLOUD+POWERED_DOWN+DRAIN", "soperator rolling update")]).lost


FLAGS = st.sets(st.sampled_from([flag for flag in NodeFlag if flag is not NodeFlag.CLOUD]), max_size=5)
NODES = st.builds(
    lambda base, flags, reason: node("+".join([base, "CLOUD", *(flag.value for flag in flags)]), reason, NOON),
    st.sampled_from(["IDLE", "ALLOCATED", "MIXED", "DOWN"]),
    FLAGS,
    st.sampled_from(["", str(OURS), "looked at", "ResumeTimeout reached", "Not responding"]),
)


@given(NODES, st.sampled_from(list(PowerDownMode)))
def test_whatever_the_state(one: Node, mode: PowerDownMode) -> None:
    moves: list[NodeMove] = [
        node_orders.up([one], owner="night", since=NOON),
        node_orders.down([one], mode),
        node_orders.kept_off([one], mode, reason=OURS),
    ]
    for move in moves:
        # Each node is in just one place, and nothing is ordered for one that is there or lost.
        assert len(move.there) + len(move.waiting) + len(move.lost) == 1
        assert not move.orders or move.waiting
    assert one.is_usable == bool(moves[0].there)
    if one.is_off and "ResumeTimeout" not in one.reason:
        assert not any(isinstance(order, PowerDown) for move in moves for order in move.orders)
    if one.state.has(NodeFlag.POWERING_DOWN):
        assert not any(isinstance(order, (PowerUp, PowerDown)) for move in moves for order in move.orders)


def test_nodes_that_cannot_be_powered_are_refused() -> None:
    config = ClusterConfig(
        version="25.11.2", suspend_time=timedelta(seconds=10**9), suspend_exc_nodes="cpu-[0-3],gpu-[0-7]:2"
    )
    assert node_orders.static_among(["gpu-1", "cpu-3", "cpu-4"], config) == ("cpu-3",)
    node_orders.refuse_power(["gpu-1"], config)
    with pytest.raises(SlurmError, match=r"cpu-\[0-1\] cannot be powered.*ephemeral"):
        node_orders.refuse_power(["gpu-1", "cpu-0", "cpu-1"], config)
    with pytest.raises(SlurmError, match=r"slurmConfig\.suspendTime"):
        node_orders.refuse_power(["gpu-1"], ClusterConfig(version="25.11.2"))
    with pytest.raises(SlurmError, match=r"slurmConfig\.suspendTime"):
        node_orders.refuse_power(["gpu-1"], ClusterConfig(version="25.11.2"), [Partition(name="main")])
    night = Partition(name="night", has_suspend_time=True)
    node_orders.refuse_power(["gpu-1"], ClusterConfig(version="25.11.2"), [Partition(name="main"), night])
    node_orders.refuse_power(["gpu-1"], ClusterConfig(version="26.05.1"))


def test_unknown_nodes_are_refused_with_what_may_have_been_meant() -> None:
    node_conditions.refuse_unknown(["worker-1"], ["worker-0", "worker-1"])
    with pytest.raises(UnknownNode, match=r"no node wroker-1: did you mean 'worker-1'"):
        node_conditions.refuse_unknown(["wroker-1"], ["worker-0", "worker-1", "cpu-0"])
    with pytest.raises(UnknownNode, match=r"there are cpu-\[0-1\]"):
        node_conditions.refuse_unknown(["gpu"], ["cpu-0", "cpu-1"])
