"""Which clusters are ready: every phase and condition that Soperator 3.x, 4.x and 5.0 know."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_soperator.soperator.clusters import PARTS, ClusterSeen, ClusterSnapshot, NodeSetSeen
from airflow_provider_soperator.soperator.readiness import SETTLES, Wanted, of_all, of_cluster, of_nodeset
from airflow_provider_soperator.soperator.workloads import Pod
from tests.unit.soperator.objects import (
    LONG_AGO,
    NOW,
    cluster,
    cluster_object,
    condition,
    nodeset,
    parts,
    slurm,
    without,
)

SET_UP = ("Unknown", "SetUpCondition", "The object is not ready yet.")
DISABLED = {
    "AccountingAvailable": condition("AccountingAvailable", "False", "NotAvailable", "Slurm accounting is disabled")
}


def down(part: str, why: str = "") -> dict[str, dict[str, str]]:
    return {part: condition(part, "False", "NotAvailable", why)}


def in_maintenance(*known: str) -> list[dict[str, str]]:
    return parts(**{part: condition(part, "False", "Maintenance") for part in known})


# The cluster


@pytest.mark.parametrize("mode", ["none", "skipPopulateJail"])
@pytest.mark.parametrize("version", ["3.0.8", "4.1.7", "5.0.0"])
def test_a_cluster_is_ready_in_each_version(version: str, mode: str) -> None:
    conditions = [*parts(), condition("PopulateJailMode", "True", mode, "Populate Jail")]
    if version.startswith("5"):
        conditions.append(condition("NodeSetRefsResolved", "True", "AllNodeSetRefsResolved"))
    seen = cluster(conditions=conditions, maintenance=mode, crVersion=version)
    assert (seen.is_available, seen.version) == (True, version)
    assert of_cluster(seen, NOW).is_ready


def test_that_accounting_is_off_is_no_fault() -> None:
    assert of_cluster(cluster(conditions=parts(**DISABLED), accounting=False), NOW).is_ready
    # If it is to be there, the same words mean that Soperator has not looked yet.
    assert "accounting" in str(of_cluster(cluster(conditions=parts(**DISABLED)), NOW))


@pytest.mark.parametrize(
    ("seen", "says"),
    [
        (cluster(None, []), "is not known to Soperator yet"),
        (cluster("Pending", []), "is Pending"),
        (cluster("Reconciling"), "is Reconciling"),
        (cluster("Not available"), "is Not available"),
        (
            cluster("Pending", [condition(part, *SET_UP) for part in PARTS]),
            "is being set up: the state of the common resources is not known yet",
        ),
        (
            cluster("Not available", parts(LoginAvailable=condition("LoginAvailable", *SET_UP))),
            "is being set up: the state of the login nodes is not known yet",
        ),
        (
            cluster("Not available", parts(**down("ControllersAvailable", "0 of 1 Pods"))),
            "is not available: the Slurm controller (0 of 1 Pods)",
        ),
        (cluster("Not available", parts(**down("LoginAvailable"))), "the login nodes (NotAvailable)"),
        (cluster("Not available", parts(**down("AccountingAvailable"))), "accounting (NotAvailable)"),
        (
            cluster("Not available", parts(**down("SConfigControllerAvailable"))),
            "the sconfigcontroller (NotAvailable)",
        ),
        # The phase is written after the conditions.
        (cluster("Available", parts(**down("LoginAvailable"))), "the login nodes"),
        (
            cluster(
                conditions=[
                    *parts(),
                    condition("NodeSetRefsResolved", "False", "IgnoredNodeSetRefs", "partition gpu: h100 not found"),
                ]
            ),
            "has partitions with NodeSets that it does not have (partition gpu: h100 not found)",
        ),
    ],
)
def test_what_may_come_is_waited_for(seen: ClusterSeen, says: str) -> None:
    found = of_cluster(seen, NOW)
    assert not found.broken
    [line] = found.waiting
    assert line.startswith("SlurmCluster soperator ")
    assert says in line


def test_of_parts_that_are_down_only_the_first_is_told() -> None:
    """Soperator has not looked at those behind it."""
    conditions = parts(**down("ControllersAvailable"), **down("LoginAvailable"))
    assert "login" not in str(of_cluster(cluster("Not available", conditions), NOW))


@pytest.mark.parametrize("mode", ["downscale", "downscaleAndDeletePopulateJail", "downscaleAndOverwritePopulateJail"])
def test_a_cluster_in_maintenance_is_not_ready_though_its_phase_is_available(mode: str) -> None:
    seen = cluster(conditions=in_maintenance(*list(PARTS)[:4]), maintenance=mode)
    assert (seen.phase, seen.is_available, seen.is_away) == ("Available", False, False)
    assert f"spec.maintenance is {mode}" in str(of_cluster(seen, NOW))
    # Its NodeSets add nothing to that.
    assert len(of_all(ClusterSnapshot(seen, (nodeset(phase="Terminating"),)), NOW).waiting) == 1


def test_one_that_is_about_to_go_into_maintenance_or_comes_out_of_it_is_not_ready() -> None:
    assert not of_cluster(cluster(maintenance="downscale"), NOW).is_ready
    back = of_cluster(cluster(conditions=in_maintenance("LoginAvailable")), NOW)
    assert back.waiting == ("SlurmCluster soperator is starting after maintenance",)


def test_one_that_is_being_deleted_will_never_be() -> None:
    said = cluster_object()
    said["metadata"]["deletionTimestamp"] = "2026-11-22T00:00:00Z"
    assert of_cluster(ClusterSeen.read(said), NOW).broken == ("SlurmCluster soperator is being deleted",)


@pytest.mark.parametrize(
    ("changed", "moved", "is_ready"),
    [
        (None, LONG_AGO, True),
        (NOW - SETTLES, LONG_AGO, True),
        (NOW - timedelta(seconds=5), LONG_AGO, False),
        (NOW - timedelta(seconds=5), NOW - timedelta(seconds=5), False),
        (NOW - timedelta(seconds=5), NOW - timedelta(seconds=4), True),
    ],
)
def test_after_a_change_something_must_move_or_time_pass(changed: Any, moved: Any, is_ready: bool) -> None:
    conditions = parts(LoginAvailable=condition("LoginAvailable", "True", "Available", since=moved))
    found = of_cluster(cluster(conditions=conditions, changed=changed), NOW)
    assert found.is_ready is is_ready
    assert is_ready or "was changed at 11:59:55 UTC, which Soperator may not have seen yet" in str(found)


@pytest.mark.parametrize(
    ("seen", "is_away"),
    [
        (cluster(), False),
        (cluster("Not available", parts(**down("LoginAvailable"))), True),
        (cluster("Not available"), True),
        (cluster("Pending", []), False),
        # It is being set up: the controller of a new cluster is not available, and nothing is known of the rest.
        (
            cluster(
                "Not available",
                parts(**down("ControllersAvailable"), LoginAvailable=condition("LoginAvailable", *SET_UP)),
            ),
            False,
        ),
    ],
)
def test_away_is_what_was_there_before(seen: ClusterSeen, is_away: bool) -> None:
    assert seen.is_away is is_away


# NodeSets


@pytest.mark.parametrize("phase", ["Pending", "Configuring", "Provisioning", "Ready", "Degraded", ""])
@pytest.mark.parametrize("active", [None, [0], [0, 1, 2], [], [2, 7]])
def test_a_nodeset_is_ready_by_its_pods_whatever_its_phase(phase: str, active: list[int] | None) -> None:
    ready = condition("PodsReady", "False", "NodeSetNotReady", "NodeSet is not ready")
    never = [condition(name, *SET_UP) for name in ("ConfigUpdated", "ConfigDynamicUpdated", "StatefulSetUpdated")]
    seen = nodeset(3, active=active, phase=phase, conditions=[ready, *never])
    assert of_nodeset(seen).is_ready
    # Of names beyond the bound the power manager takes no notice.
    assert of_nodeset(seen, slurm(worker_0="IDLE", worker_1="MIXED", worker_2="ALLOCATED+CLOUD")).is_ready


@pytest.mark.parametrize(
    ("seen", "says"),
    [
        (without("worker-0", "worker-1"), "each of worker-[0-1] has no Pod yet"),
        (without("worker-1", phase="Ready"), "worker-1 has no Pod yet"),
        (
            nodeset(pods={"worker-1": Pod(problems=("0/4 nodes are available",))}),
            "worker-1 has a Pod that is not ready (0/4 nodes are available)",
        ),
        (
            nodeset(pods={"worker-0": Pod(is_leaving=True)}),
            "worker-0 has a Pod that is being deleted",
        ),
        (nodeset(3, active=[0, 2], pods={"worker-2": Pod()}), "worker-2 has a Pod that is not ready"),
        (replace(nodeset(active=[0]), active=None), "NodeSet worker has no power state yet"),
        (nodeset(phase="Terminating"), "NodeSet worker has no Pods while its cluster is in maintenance"),
        (
            nodeset(conditions=[condition("StatefulSetTerminated", "True", "Maintenance", "Workers are disabled")]),
            "NodeSet worker has no Pods while its cluster is in maintenance",
        ),
    ],
)
def test_each_node_that_is_to_run_needs_a_pod_that_is_ready(seen: NodeSetSeen, says: str) -> None:
    found = of_nodeset(seen)
    assert (found.waiting, found.broken) == ((says,), ())


def test_a_nodeset_of_none_is_ready() -> None:
    assert of_nodeset(nodeset(0)).is_ready


def test_a_nodeset_that_is_being_deleted_will_never_be() -> None:
    assert of_nodeset(nodeset(deletionTimestamp="now")).broken == ("NodeSet worker is being deleted",)


@pytest.mark.parametrize(
    ("state", "waits", "lost"),
    [
        ("IDLE+CLOUD", "", ""),
        ("MIXED+CLOUD+PLANNED", "", ""),
        ("DOWN+CLOUD+POWERING_UP", "boots", ""),
        ("IDLE+CLOUD+POWERED_DOWN", "is off or powering down in Slurm, but its Pod runs", ""),
        ("ALLOCATED+CLOUD+POWER_DOWN", "is off or powering down in Slurm, but its Pod runs", ""),
        ("IDLE+CLOUD+NOT_RESPONDING", "is IDLE+CLOUD+NOT_RESPONDING", ""),
        ("DOWN+CLOUD", "is DOWN+CLOUD", ""),
        ("DOWN+CLOUD: Not responding", "is DOWN+CLOUD: Not responding (slurmd on the node", ""),
        ("IDLE+CLOUD+DRAIN: [hardware_problem] gpu: XID 79", "is drained: [hardware_problem] gpu: XID 79 (", ""),
        ("IDLE+CLOUD+DRAIN: my test", "", "is drained: my test"),
        ("IDLE+CLOUD+DRAIN: airflow:night: lent", "", "is drained: airflow:night: lent"),
        ("DOWN+CLOUD: broken", "", "is DOWN+CLOUD: broken"),
    ],
)
def test_where_slurm_can_be_asked_jobs_must_be_able_to_start(state: str, waits: str, lost: str) -> None:
    found = of_nodeset(nodeset(1), slurm(worker_0=state))
    assert found.is_ready is not bool(waits or lost)
    for lines, says in ((found.waiting, waits), (found.broken, lost)):
        assert len(lines) == bool(says)
        assert all(line.startswith(f"worker-0 {says}") for line in lines)


def test_a_node_that_slurm_does_not_have_yet_is_waited_for() -> None:
    assert of_nodeset(nodeset(2), slurm(worker_0="IDLE")).waiting == ("worker-1 is not known to Slurm yet",)


# All of it


def test_a_nodeset_that_is_named_and_not_there() -> None:
    whole = ClusterSnapshot(cluster(), (nodeset(),))
    assert of_all(whole, NOW, nodesets=["worker"]).is_ready
    assert of_all(whole, NOW, nodesets=["wrker"]).broken == ("there is no NodeSet wrker: did you mean 'worker'?",)
    late = of_all(whole, NOW, nodesets=["wrker"], may_come=True)
    assert (late.waiting, late.broken) == (("there is no NodeSet wrker yet",), ())
    # While a cluster is being set up they may come yet.
    early = of_all(ClusterSnapshot(cluster("Not available")), NOW, nodesets=["worker"])
    assert early.waiting[1:] == ("there is no NodeSet worker yet", "SlurmCluster soperator has no NodeSets yet")


def test_only_nodesets_that_are_named_are_looked_at() -> None:
    whole = ClusterSnapshot(cluster(), (nodeset(), replace(without("worker-0"), name="other", pods={})))
    assert of_all(whole, NOW, nodesets=["worker"]).is_ready
    assert str(of_all(whole, NOW)) == "each of other-[0-1] has no Pod yet"


def test_a_cluster_without_nodesets_is_not_ready_for_jobs() -> None:
    assert str(of_all(ClusterSnapshot(cluster()), NOW)) == "SlurmCluster soperator has no NodeSets yet"


# What a change has asked for


def test_a_change_that_has_not_arrived_is_waited_for() -> None:
    """Flux applies it minutes later: until then the cluster is ready, but it is the old one."""
    old = Pod(is_ready=True, release="4.0.5")
    whole = ClusterSnapshot(cluster(crVersion="4.0.5"), (nodeset(2, pods={"worker-0": old, "worker-1": old}),))
    assert of_all(whole, NOW, wanted=Wanted("4.0.5", {"worker": 2})).is_ready
    asked = Wanted("4.1.7", {"worker": 4}, {"worker": 8})
    assert of_all(whole, NOW, wanted=asked).waiting == (
        "SlurmCluster soperator is of release 4.0.5, not of 4.1.7 yet",
        "NodeSet worker has 2 nodes, not 4 yet",
        "each of worker-[0-1] has a Pod of release 4.0.5, not of 4.1.7 yet",
    )
    # The Pods are replaced one after another, once the objects have changed.
    new = Pod(is_ready=True, release="4.1.7")
    rolling = nodeset(4, pods={"worker-0": new, "worker-1": old, "worker-2": new, "worker-3": new})
    seen = ClusterSnapshot(cluster(crVersion="4.1.7"), (rolling,))
    assert str(of_all(seen, NOW, wanted=asked)) == "worker-1 has a Pod of release 4.0.5, not of 4.1.7 yet"
    rolled = replace(rolling, pods={**rolling.pods, "worker-1": new})
    assert of_all(replace(seen, nodesets=(rolled,)), NOW, wanted=asked).is_ready


def test_a_number_that_another_has_set_and_no_plan_changes_is_not_waited_for() -> None:
    entry = {"manager": "airflow-provider-soperator", "fieldsV1": {"f:spec": {"f:replicas": {}}}}
    said = {"metadata": {"name": "worker", "managedFields": [entry]}, "spec": {"replicas": 1}}
    pod = Pod(is_ready=True, release="4.1.7")
    seen = ClusterSnapshot(cluster(crVersion="4.1.7"), (NodeSetSeen.read(said, None, {"worker-0": pod}),))
    asked = Wanted("4.1.7", {"worker": 8}, is_changed=False)
    assert of_all(seen, NOW, wanted=asked).broken == (
        "NodeSet worker has 1 nodes, not 8, as airflow-provider-soperator has set it, and no change is planned: "
        "set size in the spec, or scale the NodeSet to 8 by what it was scaled by",
    )
    # A release comes by itself.
    assert not of_all(seen, NOW, wanted=Wanted("5.0.0", {"worker": 1}, is_changed=False)).broken


def test_nodes_have_the_gpus_that_were_asked_for() -> None:
    nodes = {
        "worker-0": replace(slurm(worker_0="IDLE")["worker-0"], gres="gpu:nvidia_h100_80gb_hbm3:8"),
        "worker-1": slurm(worker_1="IDLE")["worker-1"],
    }
    whole = ClusterSnapshot(cluster(), (nodeset(2),))
    found = of_all(whole, NOW, slurm=nodes, wanted=Wanted(gpus={"worker": 8}))
    assert found.waiting == ("worker-1 has 0 of 8 GPUs in Slurm",)


@pytest.mark.parametrize(
    ("image", "release"),
    [
        ("cr.eu-north1.nebius.cloud/soperator/worker_slurmd:4.1.7-slurm25.11.3", "4.1.7"),
        ("localhost:5000/worker_slurmd:5.0.0-5f1f0ab-slurm26.05.3-nebius-2@sha256:0", "5.0.0-5f1f0ab"),
        ("localhost:5000/worker_slurmd", ""),
        ("worker_slurmd:mine", ""),
    ],
)
def test_the_release_of_a_pod_is_in_the_tag_of_its_image(image: str, release: str) -> None:
    containers = [{"name": "munge", "image": "munge:1.0.0-slurm1"}, {"name": "slurmd", "image": image}]
    assert Pod.read({"metadata": {"name": "worker-0"}, "spec": {"containers": containers}}).release == release
