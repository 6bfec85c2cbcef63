"""What is to be done to bring a NodeSet to another size, and what cannot be done."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_soperator.slurm.cluster_records import Node
from airflow_provider_soperator.slurm.node_conditions import in_lines
from airflow_provider_soperator.slurm.node_orders import NodeMove
from airflow_provider_soperator.slurm.requests import Drain, Undrain
from airflow_provider_soperator.soperator.clusters import NodeSetSeen, keeper_of
from airflow_provider_soperator.soperator.resize import Resize
from airflow_provider_soperator.soperator.workloads import Pod
from tests.unit.soperator.objects import NOW, condition, nodeset, slurm

IDLE = "IDLE+CLOUD"
OFF = "IDLE+CLOUD+POWERED_DOWN"
OURS = "DRAIN: airflow:night: less"


def told(move: NodeMove) -> str:
    return "; ".join(in_lines({**move.lost, **move.waiting}))


def to(replicas: int, **fields: Any) -> Resize:
    return Resize(nodeset="worker", replicas=replicas, owner="night", why="less", **fields)


def test_the_highest_nodes_are_drained_before_they_go() -> None:
    stage = to(1).prepare(nodeset(3), slurm(worker_0=IDLE, worker_1=IDLE, worker_2=IDLE))
    assert stage.orders == (Drain(("worker-1", "worker-2"), "airflow:night: less"),)
    assert not stage.is_over


@pytest.mark.parametrize(
    ("state", "waits"),
    [
        (f"IDLE+CLOUD+{OURS}", ""),
        # Somebody else's drain does as well.
        ("IDLE+CLOUD+DRAIN: [hardware_problem] gpu: XID", ""),
        ("DOWN+CLOUD+DRAIN: broken", ""),
        (f"MIXED+CLOUD+{OURS}", "worker-1 has jobs"),
        (f"IDLE+CLOUD+COMPLETING+{OURS}", "worker-1 has jobs"),
    ],
)
def test_a_static_node_goes_once_no_job_is_on_it(state: str, waits: str) -> None:
    stage = to(1).prepare(nodeset(2), slurm(worker_0=IDLE, worker_1=state))
    assert (stage.orders, stage.is_over, told(stage)) == ((), not waits, waits)


def test_thousands_of_names_are_made_once_and_not_for_each_node(monkeypatch: pytest.MonkeyPatch) -> None:
    seen, made, names = nodeset(50), list[int](), NodeSetSeen.names
    monkeypatch.setattr(NodeSetSeen, "names", lambda *given: made.append(1) or names(*given))
    to(50).finish(seen, slurm(worker_0=IDLE), NOW)
    assert len(made) <= 2


def test_nodes_that_slurm_does_not_know_hold_nothing_up() -> None:
    assert to(1).prepare(nodeset(3), slurm(worker_0=IDLE)).is_over
    assert to(1).prepare(nodeset(3), None).is_over


@pytest.mark.parametrize(
    ("state", "waits"),
    [
        (f"{OFF}+{OURS}", ""),
        (f"IDLE+CLOUD+POWERING_DOWN+{OURS}", "worker-1 is not off yet"),
        (f"IDLE+CLOUD+POWERING_UP+{OURS}", "worker-1 is not off yet"),
        (OFF, "worker-1 is being drained"),
    ],
)
def test_an_ephemeral_node_goes_once_it_is_off_and_no_job_can_power_it_up(state: str, waits: str) -> None:
    stage = to(1).prepare(nodeset(2, active=[0]), slurm(worker_0=IDLE, worker_1=state))
    assert (stage.is_over, told(stage)) == (not waits, waits)


def test_a_node_that_boots_for_a_job_is_drained_at_once_by_force_only() -> None:
    seen, booting = nodeset(2, active=[0]), slurm(worker_0=IDLE, worker_1="MIXED+CLOUD+POWERING_UP")
    assert not to(1).prepare(seen, booting).orders
    assert to(1, mode="force").prepare(seen, booting).orders


@pytest.mark.parametrize(
    ("seen", "wanted", "says"),
    [
        (nodeset(8, active=[0, 3, 5]), to(4), "worker-5 of the ephemeral NodeSet worker are on"),
        (nodeset(8, active=[0, 3, 5]), to(4), "or ask for 6 or more"),
        (nodeset(2, phase="Terminating"), to(1), "is in maintenance: wait until it ends"),
        (
            nodeset(2, conditions=[condition("StatefulSetTerminated", "True", "Maintenance")]),
            to(4),
            "is in maintenance",
        ),
        (nodeset(2, deletionTimestamp="now"), to(4), "is being deleted"),
    ],
)
def test_what_cannot_be_is_refused(seen: NodeSetSeen, wanted: Resize, says: str) -> None:
    assert says in wanted.obstacle(seen, asks_slurm=True)


def test_without_slurm_a_static_nodeset_shrinks_by_force_only() -> None:
    assert "jobs on worker-[1-2] cannot be seen: set slurm_conn_id" in to(1).obstacle(nodeset(3), asks_slurm=False)
    for wanted, seen in ((to(1, mode="force"), nodeset(3)), (to(4), nodeset(3)), (to(1), nodeset(3, active=[0]))):
        assert wanted.obstacle(seen, asks_slurm=False) == ""


def test_it_is_done_once_what_goes_is_gone_on_both_sides() -> None:
    pods = {name: Pod(is_ready=True) for name in ("worker-0", "worker-1")}
    seen, nodes = replace(nodeset(1), pods=pods), slurm(worker_0=IDLE, worker_1=IDLE, worker_cpu_1=IDLE)
    assert told(to(1).finish(seen, nodes, NOW)) == "worker-1 is still in Slurm"
    assert told(to(1).finish(seen, None, NOW)) == "worker-1 still has a Pod"
    assert to(1).finish(nodeset(1), slurm(worker_0=IDLE, worker_cpu_1=IDLE), NOW).is_over


def test_what_comes_must_be_usable_and_our_drains_are_undone() -> None:
    assert told(to(2).finish(nodeset(2), slurm(worker_0=IDLE), NOW)) == "worker-1 is not known to Slurm yet"
    stage = to(2).finish(nodeset(2), slurm(worker_0=IDLE, worker_1=f"{IDLE}+{OURS}"), NOW)
    assert stage.orders == (Undrain(("worker-1",)),)
    assert to(2).finish(nodeset(2), slurm(worker_0=IDLE, worker_1="MIXED"), NOW).is_over


@pytest.mark.parametrize(
    ("reason", "is_undone"),
    [("lent to inference", False), ("less", True), ("resizing NodeSet worker to 1 nodes", True)],
)
def test_a_node_that_its_owner_keeps_off_is_not_opened_to_jobs(reason: str, is_undone: bool) -> None:
    nodes = slurm(worker_0=IDLE, worker_1=f"{OFF}+DRAIN: airflow:night: {reason}")
    assert to(2).finish(nodeset(2, active=[0]), nodes, NOW).orders == ((Undrain(("worker-1",)),) if is_undone else ())
    assert to(1).drained_for_it([nodes["worker-1"]]) == (("worker-1",) if is_undone else ())


def test_names_of_an_ephemeral_nodeset_must_be_known_though_their_nodes_are_off() -> None:
    seen = nodeset(2, active=[0])
    assert told(to(2).finish(seen, slurm(worker_0=IDLE), NOW)) == "worker-1 is not known to Slurm yet"
    assert to(2).finish(seen, slurm(worker_0=IDLE, worker_1=OFF), NOW).is_over


@pytest.mark.parametrize(("hours", "is_over"), [(-1, True), (1, False)])
def test_what_was_out_of_service_before_is_passed_over(hours: int, is_over: bool) -> None:
    broken = slurm(worker_1=f"{IDLE}+DRAIN: my test")["worker-1"]
    nodes: dict[str, Node] = slurm(worker_0=IDLE) | {
        "worker-1": replace(broken, reason_since=NOW + timedelta(hours=hours))
    }
    stage = to(2).finish(nodeset(2), nodes, NOW)
    assert stage.is_over is is_over
    assert to(2).passed_over(nodeset(2), nodes, NOW) == (("worker-1",) if is_over else ())
    assert stage.lost == ({} if is_over else {"worker-1": "is drained: my test"})


# Who puts it back


def made_by(manager: str, part: str = "f:spec", **metadata: Any) -> dict[str, Any]:
    return {"metadata": {"managedFields": [{"manager": manager, "fieldsV1": {part: {}}}], **metadata}}


@pytest.mark.parametrize(
    ("thing", "name"),
    [
        (made_by("helm", labels={"helm.toolkit.fluxcd.io/name": "nodesets"}), "the HelmRelease flux-system/nodesets"),
        (made_by("helm-controller"), "a HelmRelease of Flux"),
        (made_by("helm", annotations={"meta.helm.sh/release-name": "mine"}), "the Helm release mine"),
        (made_by("helm"), "a Helm release"),
        (made_by("Terraform"), "Terraform"),
        (made_by("helm-controller", "f:status"), None),
        (made_by("kubectl"), None),
        ({"metadata": {}}, None),
    ],
)
def test_whoever_has_made_a_nodeset_sets_it_back(thing: dict[str, Any], name: str | None) -> None:
    found = keeper_of(thing)
    assert (found.name if found else None) == name
    if found:
        assert f"{name} resets the number of replicas" in found.warning(3)


def test_the_chart_takes_none_for_one() -> None:
    flux, terraform = keeper_of(made_by("helm-controller")), keeper_of(made_by("terraform"))
    assert flux
    assert terraform
    assert flux.warning(0).endswith("Soperator's chart makes 1 of replicas: 0")
    assert "chart" not in flux.warning(1) + terraform.warning(0)
    assert "slurm_nodeset_workers (size)" in flux.warning(1)
    # The ConfigMap nodesets has no effect: what the recipe writes into the HelmRelease itself is read after it.
    assert "nodesets.overrideValues.nodesets, with all NodeSets in full, of the ConfigMap soperator-fluxcd-values" in (
        flux.warning(1)
    )
