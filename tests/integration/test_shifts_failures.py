"""Shifts that go wrong: each says what is wrong once and clearly, and takes nothing from who serves."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from airflow.models import Connection
from nebius.api.nebius.mk8s.v1 import (
    GetNodeGroupRequest,
    NodeGroupServiceClient,
    ReservationPolicy,
    UpdateNodeGroupRequest,
)

from airflow_provider_soperator.capacity.order import ShiftOrder
from airflow_provider_soperator.capacity.targets import BoughtNodes
from airflow_provider_soperator.errors import CapacityBusy
from airflow_provider_soperator.nebius import api
from sandbox.cloud.landscape import BLOCK_ID, CPU_GROUP, INFERENCE_GROUP, REMOTE_INFERENCE_GROUP, TRAINING_GROUP
from sandbox.nebius.catalogue import INFERENCE_PROJECT
from tests.integration.cluster import check_ledger
from tests.integration.shifts import PATIENT, WHOLE_NODE, Running, Shifts, at, is_dead

pytestmark = pytest.mark.lane("shifts")

Trouble = Callable[[Shifts, Running], None]

# What could never work is found before anything is moved


def unknown_nodes(shifts: Shifts) -> ShiftOrder:
    return with_training(shifts, nodes="gpu-[0-3]")


def static_nodes(shifts: Shifts) -> ShiftOrder:
    return with_training(shifts, nodes="worker-[0-3],worker-cpu-0")


def nodes_of_another_shape(shifts: Shifts) -> ShiftOrder:
    return with_training(shifts, gpus_per_unit=4)


def without_the_right(shifts: Shifts) -> ShiftOrder:
    return with_training(shifts, slurm_conn_id="soperator_alice")


def another_platform(shifts: Shifts) -> ShiftOrder:
    policy(CPU_GROUP, ReservationPolicy.Policy.STRICT, shifts)
    return with_group(shifts, CPU_GROUP)


def no_such_group(shifts: Shifts) -> ShiftOrder:
    return with_group(shifts, "mk8snodegroup-e00nobody")


def a_group_that_buys(shifts: Shifts) -> ShiftOrder:
    policy(INFERENCE_GROUP, ReservationPolicy.Policy.AUTO, shifts)
    return shifts.order(2, 2)


def a_group_that_buys_and_that_nobody_names(shifts: Shifts) -> ShiftOrder:
    """It is found from the machines of the nodes, as Slurm knows them, or from their NodeSet."""
    policy(TRAINING_GROUP, ReservationPolicy.Policy.AUTO, shifts)
    return shifts.order(2, 2)


def too_much(shifts: Shifts) -> ShiftOrder:
    return shifts.order(3, 2)


def too_many_nodes(shifts: Shifts) -> ShiftOrder:
    shifts.cluster.fault("block-limit", gpus=48, after=0)
    return shifts.order(5, 0)


def a_block_about_to_shrink(shifts: Shifts) -> ShiftOrder:
    shifts.cluster.fault("block-limit", gpus=16, after=3600)
    return shifts.order(2, 2, until=at(7200))


def with_training(shifts: Shifts, **fields: Any) -> ShiftOrder:
    return shifts.order(2, 2, targets=(shifts.training(**fields), shifts.inference()))


def with_group(shifts: Shifts, group: str) -> ShiftOrder:
    return shifts.order(2, 2, targets=(shifts.training(), shifts.inference(group)))


def policy(group: str, policy: ReservationPolicy.Policy, shifts: Shifts) -> None:
    client = NodeGroupServiceClient(shifts.cluster.nebius)
    found = client.get(GetNodeGroupRequest(id=group)).wait()
    found.spec.template.reservation_policy = ReservationPolicy(policy=policy)
    client.update(UpdateNodeGroupRequest(metadata=found.metadata, spec=found.spec)).wait().sync_wait(interval=0.1)


@pytest.fixture
def policies(shifts: Shifts) -> Iterator[None]:
    yield
    for group in (INFERENCE_GROUP, TRAINING_GROUP, REMOTE_INFERENCE_GROUP):
        policy(group, ReservationPolicy.Policy.STRICT, shifts)


MISTAKES: dict[Callable[[Shifts], ShiftOrder], str] = {
    too_much: f"40 GPUs are desired, but block {BLOCK_ID} has 32",
    too_many_nodes: "training: expected 0 to 4 nodes (worker-[0-3]), got 5",
    unknown_nodes: "there is no node gpu-[0-3]",
    static_nodes: "training: worker-cpu-0 cannot be powered up or down",
    nodes_of_another_shape: "training: some of worker-[0-3] have 8 GPUs, but gpus_per_unit is 4",
    without_the_right: "training: alice may not power nodes up and down",
    no_such_group: "there is no node group mk8snodegroup-e00nobody",
    another_platform: f"node group {CPU_GROUP} has machines of cpu-d3, but block {BLOCK_ID} is of gpu-h100-sxm",
    a_group_that_buys: f"node group {INFERENCE_GROUP} has the reservation policy AUTO: it buys machines",
    a_group_that_buys_and_that_nobody_names: f"node group {TRAINING_GROUP} has the reservation policy AUTO: it buys",
    a_block_about_to_shrink: f"32 GPUs are desired, but block {BLOCK_ID} has only 16 from",
}


@pytest.mark.parametrize("mistake", MISTAKES)
@pytest.mark.usefixtures("policies")
def test_a_mistake_is_found_before_anything_is_moved(
    mistake: Callable[[Shifts], ShiftOrder], shifts: Shifts, monkeypatch: pytest.MonkeyPatch
) -> None:
    alice = shifts.connections["AIRFLOW_CONN_SOPERATOR_DEFAULT"].replace("root@", "alice@")
    monkeypatch.setenv("AIRFLOW_CONN_SOPERATOR_ALICE", alice)
    before = len(shifts.cluster.ledger())
    assert MISTAKES[mistake] in shifts.refused(mistake(shifts))
    assert not [entry for entry in shifts.cluster.ledger()[before:] if entry["entry"] != "limit"]
    shifts.check_at_rest()


@pytest.mark.soak
def test_nodes_that_are_gone_are_a_line_of_the_plan(shifts: Shifts) -> None:
    order = with_training(shifts, nodes="other-0,worker-[0-3,6-7]")
    plan = shifts.accepted(replace(order, desired={"training": 4, "inference": 0}))
    assert "worker-[6-7] is left as it is, as it does not exist" in str(plan)
    assert not [note for note in plan.notes if "bought" in note]
    assert shifts.run(order).allocation == {"training": 2, "inference": 2}
    shifts.run(shifts.order(4, 0))
    shifts.check_at_rest()


# Others have the capacity


@pytest.mark.soak
def test_capacity_that_others_take_meanwhile_never_comes(shifts: Shifts) -> None:
    cluster = shifts.cluster
    cluster.fault("block-limit", gpus=40, after=0)
    order = shifts.order(3, 2, timeouts=replace(PATIENT, free=timedelta(seconds=3)), rollback="all")
    shifts.accepted(order)
    cluster.fault("block-exhausted", leave=0)
    said = shifts.start(order).failure()
    assert "only 0 GPUs of the block are free, too few for inference" in said
    assert "it was rolled back. Now training may have 4 nodes, 4 ready" in said
    shifts.check_at_rest()
    check_ledger(cluster.ledger())


@pytest.mark.usefixtures("policies")
def test_what_others_have_is_bought_where_the_user_says_so_until_the_block_has_it(shifts: Shifts) -> None:
    cluster, before = shifts.cluster, len(shifts.cluster.ledger())
    policy(REMOTE_INFERENCE_GROUP, ReservationPolicy.Policy.FORBID, shifts)
    fallback = BoughtNodes(node_group=REMOTE_INFERENCE_GROUP, max_nodes=1, gpu_hours=8, after=timedelta(0))
    targets = shifts.training(), shifts.inference(fallback=fallback)
    cluster.fault("block-limit", gpus=40, after=0)
    cluster.fault("block-exhausted", leave=0)
    said: dict[str, Any] = {"targets": targets, "timeouts": replace(PATIENT, free=timedelta(seconds=3))}
    order = shifts.order(3, 2, until=at(3000), **said)
    assert f"up to 1 nodes of {REMOTE_INFERENCE_GROUP}, for up to 8 GPU-hours" in str(shifts.accepted(order))
    outcome = shifts.run(order)
    assert (outcome.state, outcome.allocation) == ("partial", {"training": 3, "inference": 1})
    # A shift does not wait for what it has bought.
    why = {"1 node bought beside the block", "1 node requested beside the block, of which 1 has not come"}
    assert outcome.missing[0] in {f"inference has 1 of 2 nodes ready: {one}" for one in why}
    cluster.wait("the bought node is there", lambda: shifts.machines(REMOTE_INFERENCE_GROUP) == 1)
    cluster.fault("clear")
    cluster.fault("block-limit", gpus=40, after=0)
    outcome = shifts.run(shifts.order(3, 2, until=at(3000), **said))
    assert (outcome.state, outcome.allocation) == ("done", {"training": 3, "inference": 2})
    cluster.wait("it has gone", lambda: shifts.machines(REMOTE_INFERENCE_GROUP) == 0)
    assert [entry["gpus"] for entry in cluster.ledger()[before:] if entry["entry"] == "declared"] == [8]
    shifts.run(shifts.order(4, 0, targets=targets))
    shifts.check_at_rest()


@pytest.mark.soak
def test_a_project_that_may_have_less_gets_what_it_may_have(shifts: Shifts) -> None:
    cluster, before = shifts.cluster, len(shifts.cluster.ledger())
    targets = shifts.training(), shifts.inference(REMOTE_INFERENCE_GROUP)
    cluster.fault("allowance", project=INFERENCE_PROJECT, gpus=8)
    order = shifts.order(2, 2, targets=targets)
    plan = str(shifts.accepted(order))
    assert "inference goes from 0 to 1 node (2 desired)" in plan
    assert f"{INFERENCE_PROJECT} may have 8 GPUs of the block, and has 0" in plan
    outcome = shifts.run(order)
    assert (outcome.state, outcome.allocation) == ("partial", {"training": 2, "inference": 1})
    full = f"{INFERENCE_PROJECT} may have 8 GPUs of the block, and has 8"
    assert outcome.missing == (f"inference has 1 of 2 nodes ready: {full}",)
    asked_in_vain = {"refused", "barred"} & {entry["entry"] for entry in cluster.ledger()[before:]}
    assert not asked_in_vain
    cluster.fault("clear")
    assert shifts.run(order).state == "done"
    shifts.run(shifts.order(4, 0, targets=targets))
    shifts.check_at_rest()


@pytest.mark.soak
def test_a_block_that_shrinks_meanwhile_leaves_nothing_to_go_back_to(shifts: Shifts) -> None:
    cluster = shifts.cluster
    hasty = replace(PATIENT, free=timedelta(seconds=3))
    running = shifts.start(shifts.order(3, 1, timeouts=hasty, rollback="all"))
    shifts.wait_said(running, "is powering down")
    cluster.fault("block-limit", gpus=24, after=0)
    said = running.failure()
    assert "only 0 GPUs of the block are free, too few for inference" in said
    assert "the rollback failed: only 0 GPUs of the block are free, too few for training" in said
    assert "3 ready" in said
    shifts.check(3, same_cluster=0)
    cluster.fault("clear")
    shifts.run(shifts.order(4, 0))
    shifts.check_at_rest()


# What passes by itself is waited out

OUT_OF_REACH = "No step is possible at present"


def usage_unknown(shifts: Shifts, running: Running) -> None:
    """What nobody knows is not free, whoever gave it up."""
    cluster, before = shifts.cluster, len(shifts.cluster.ledger())
    cluster.fault("block-unknown")
    cluster.wait("both machines are gone", lambda: cluster.usage() == 16)
    assert {entry["entry"] for entry in cluster.ledger()[before:]} == {"release"}
    assert cluster.group(INFERENCE_GROUP).target_node_count == 0


def nebius_fails(shifts: Shifts, running: Running) -> None:
    shifts.cluster.fault("api", api="nebius", effect="error", matching="*", count=0)
    shifts.wait_said(running, OUT_OF_REACH)


def nebius_hangs(shifts: Shifts, running: Running) -> None:
    shifts.cluster.fault("api", api="nebius", effect="hang", matching="CapacityBlockGroupService/*", count=0)
    shifts.wait_said(running, OUT_OF_REACH)


def nebius_loses_answers(shifts: Shifts, running: Running) -> None:
    """The order is given once, as often as it is said."""
    tries = api.LIMITS["retries"] + 1
    shifts.cluster.fault("api", api="nebius", effect="lost", matching="NodeGroupService/Update", count=tries)
    shifts.wait_said(running, OUT_OF_REACH)


def slurmctld_restarts(shifts: Shifts, running: Running) -> None:
    # Killed, it would forget the last seconds, which is not what a restart does.
    cluster = shifts.cluster
    cluster.sandbox.init.signal("slurmctld", signal.SIGTERM)
    cluster.wait("slurmctld has ended", lambda: not cluster.sandbox.init.processes()["slurmctld"]["pid"])


def slurmctld_hangs(shifts: Shifts, running: Running) -> None:
    shifts.cluster.fault("slurmctld-hung")
    assert shifts.cluster.try_run("timeout", "3", "squeue").returncode == 124


@pytest.mark.parametrize(
    ("out", "back"),
    [
        pytest.param(usage_unknown, slurmctld_restarts, marks=pytest.mark.soak),
        (nebius_hangs, slurmctld_hangs),
        (nebius_loses_answers, nebius_fails),
    ],
)
def test_what_passes_by_itself_is_waited_out(
    out: Trouble, back: Trouble, shifts: Shifts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(api.LIMITS, "per_retry_timeout", 0.5)
    for order, trouble in ((shifts.order(2, 2), out), (shifts.order(4, 0), back)):
        running = shifts.start(order)
        shifts.wait_said(running, "worker-")
        trouble(shifts, running)
        # Of answers only so many are lost.
        assert not running.is_over or trouble is nebius_loses_answers
        shifts.cluster.sandbox.up()
        shifts.cluster.fault("clear")
        assert running.end().allocation == dict(order.desired)
    shifts.check_at_rest()
    check_ledger(shifts.cluster.ledger())


# Nodes


@pytest.mark.oldest_slurm
def test_nodes_that_die_on_their_way_are_replaced_or_gone(shifts: Shifts) -> None:
    cluster = shifts.cluster
    # Slurm does not know yet, and takes it for idle.
    cluster.fault("node-dies", node="worker-0")
    assert shifts.run(shifts.order(2, 2)).allocation == {"training": 2, "inference": 2}
    assert "worker-0" in shifts.drained()
    shifts.check(2, same_cluster=2)
    running = shifts.start(shifts.order(4, 0))
    cluster.wait("it has a machine again", lambda: cluster.machine_of("worker-0"))
    cluster.fault("node-dies", node="worker-0")
    assert running.end().allocation == {"training": 4, "inference": 0}
    shifts.check_at_rest()
    check_ledger(cluster.ledger())


# With the habits of Soperator 4.1, where it keeps its Pod, and so its machine.
@pytest.mark.soak
@pytest.mark.oldest_slurm
def test_another_comes_for_a_node_that_does_not_boot_and_without_one_it_is_missing(shifts: Shifts) -> None:
    cluster = shifts.cluster
    shifts.run(shifts.order(2, 2))
    broken, spare = sorted(shifts.drained())
    cluster.fault("node-no-boot", node=broken)
    running = shifts.start(shifts.order(3, 1))
    cluster.give_up_boot(broken)
    assert running.end().allocation == {"training": 3, "inference": 1}
    assert spare in shifts.usable()
    assert set(shifts.drained()) == {broken}
    shifts.check(3, same_cluster=1)
    running = shifts.start(shifts.order(4, 0, timeouts=replace(PATIENT, ready=timedelta(seconds=30))))
    cluster.give_up_boot(broken)
    outcome = running.end()
    said = "; ".join(outcome.missing)
    assert outcome.state == "partial"
    assert "training has 3 of 4 nodes ready" in said
    assert f"{broken}: " in said
    assert "ResumeTimeout reached" in said
    # What has arrived stays, and what was given up is not taken back.
    shifts.check(3, same_cluster=0)
    cluster.fault("clear")
    shifts.run(shifts.order(4, 0))
    shifts.check_at_rest()


# One at a time


def keep_busy(shifts: Shifts) -> str:
    """A job on all nodes, so that a shift is not through before another one looks."""
    job = shifts.cluster.held_job(WHOLE_NODE, f"--nodes={len(shifts.workers)}")
    shifts.cluster.wait_job(job, "RUNNING")
    return job


@pytest.mark.soak
def test_two_shifts_of_one_block_go_one_after_the_other(shifts: Shifts) -> None:
    order = shifts.order(2, 2)
    job = keep_busy(shifts)
    first = shifts.start(order)
    shifts.wait_said(first, "worker-")
    second = shifts.start(shifts.order(4, 0))
    shifts.wait_said(second, f"Waiting for task {order.task} (reservation airflow-shift-")
    with pytest.raises(CapacityBusy, match=rf"task {order.task} \(reservation .*\) is moving block {BLOCK_ID}"):
        shifts.run(shifts.order(3, 1, wait_for_lease=False))
    shifts.cluster.let_go(job)
    assert first.end().allocation == {"training": 2, "inference": 2}
    assert second.end().allocation == {"training": 4, "inference": 0}
    shifts.check_at_rest()


@pytest.mark.soak
def test_a_lease_in_kubernetes_keeps_apart_who_has_no_slurm_in_common(
    shifts: Shifts, monkeypatch: pytest.MonkeyPatch
) -> None:
    nebius = "AIRFLOW_CONN_NEBIUS_DEFAULT"
    connection = Connection(uri=shifts.connections[nebius])
    place = {"lease_conn_id": "kubernetes_default", "lease_namespace": "soperator"}
    connection.set_extra(json.dumps(connection.extra_dejson | place))
    monkeypatch.setenv(nebius, connection.get_uri())
    lease = f"airflow-shift-{BLOCK_ID}"
    job = keep_busy(shifts)
    try:
        first = shifts.start(shifts.order(2, 2, airflow="0a1b2c"))
        shifts.wait_said(first, "worker-")
        # It sees neither the nodes nor the Slurm of the other one.
        other = replace(shifts.order(4, 0), targets=(shifts.inference(),), desired={"inference": 1}, airflow="ffffff")
        second = shifts.start(other)
        shifts.wait_said(second, f"(Lease soperator/{lease}), which is moving the same block")
        assert "airflow-shift-" not in shifts.cluster.run("scontrol", "show", "reservation")
        shifts.cluster.let_go(job)
        assert first.end().allocation == {"training": 2, "inference": 2}
        assert second.end().allocation == {"inference": 1}
        shifts.run(shifts.order(4, 0, airflow="0a1b2c"))
        held = shifts.cluster.kubectl(
            "get", "leases", "-n", "soperator", lease, "-o", "jsonpath={.spec.holderIdentity}"
        )
        assert held == ""
    finally:
        shifts.cluster.kubectl("delete", "leases", "-n", "soperator", lease, "--ignore-not-found")
    shifts.check_at_rest()


def test_what_a_dead_shift_holds_is_taken_over_from_it_alone(shifts: Shifts) -> None:
    first = shifts.start(shifts.order(2, 2, wanted_at=at(3600)))
    shifts.wait_said(first, "only jobs that end by then start there")
    first.die()
    # As long as nobody says that it is dead, it may come back.
    second = shifts.start(shifts.order(4, 0))
    shifts.wait_said(second, "Waiting for task")
    second.die()
    third = shifts.start(shifts.order(4, 0), is_dead)
    assert third.end().allocation == {"training": 4, "inference": 0}
    shifts.wait_said(third, "has ended without releasing it")
    shifts.check_at_rest()
