"""Replicas of a Kubernetes workload as a target, in either layout, among autoscalers and others who scale it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime, timezone
from typing import Any

import kubernetes.client
import pytest
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from airflow_provider_soperator.capacity.holdings import Holding, Release
from airflow_provider_soperator.capacity.targets import NebiusNodeGroupTarget, Target
from airflow_provider_soperator.capacity.targets.kubernetes_session import Workload
from airflow_provider_soperator.capacity.targets.protocol import Session
from airflow_provider_soperator.errors import CapacityBusy, CapacityMistake
from airflow_provider_soperator.nebius.capacity_blocks import CapacityBlock
from airflow_provider_soperator.slurm.requests import PowerDownMode
from airflow_provider_soperator.transports.transport_errors import ConnectFailed
from sandbox.cloud.landscape import BLOCK_ID, INFERENCE_NAMESPACE, NODESET_NAME_LABEL
from tests.integration.cluster import Cluster
from tests.integration.connections import Connections
from tests.integration.late import too_late
from tests.integration.scaling import KEDA, Service, at_work, bring, look, service

BLOCK = CapacityBlock(id="block", limit=32, usage=0)
PAUSED = f"{KEDA}/paused-replicas"


@pytest.fixture
def vllm(cluster: Cluster, connections: Connections) -> Iterator[Service]:
    """The service in a cluster of its own."""
    with service(cluster, "own cluster") as one:
        yield one


def release(mode: PowerDownMode | None) -> Release:
    return Release(leaves_at=datetime.now(timezone.utc), mode=mode)


# Replicas


@pytest.mark.parametrize("layout", ["own cluster", "same cluster"])
def test_replicas_come_and_go_in_either_layout(cluster: Cluster, connections: Connections, layout: str) -> None:
    with service(cluster, layout) as vllm:
        vllm.machines(2)
        assert bring(vllm.target(), 2) == Holding(allowed=2, held=2, ready=2)
        machines = {pod.spec.node_name for pod in vllm.pods if pod.metadata.labels.get("app") == "vllm"}
        assert len(machines) == 2
        assert {cluster.ledger_of(machine)[0]["entry"] for machine in machines} == {"claim"}
        assert bring(vllm.target(), 0) == Holding(allowed=0, held=0, ready=0)


def test_a_replica_that_has_no_machine_holds_nothing_and_says_why(vllm: Service) -> None:
    vllm.machines(1)
    waits = r"1 of 2 replicas are ready, 1 hold GPUs \(0 nodes are available"
    late = too_late(lambda within: bring(vllm.target(), 2, within=within), waits)
    assert "Target inference is left as it is" in late
    seen = look(vllm.target())
    assert (seen.allowed, seen.held, seen.ready, seen.promised, seen.is_settled) == (2, 1, 1, 1, False)
    vllm.machines(2)
    assert bring(vllm.target(), 2).ready == 2


def test_a_replica_that_is_being_deleted_holds_its_gpus_until_it_is_gone(vllm: Service) -> None:
    vllm.machines(1)
    bring(vllm.target(), 1)
    [pod] = vllm.pods
    slow = ("patch", "pod", pod.metadata.name, "--type=merge", "--patch")
    vllm.kubectl(*slow, '{"metadata": {"finalizers": ["example.com/slow"]}}')
    too_late(lambda within: bring(vllm.target(), 0, within=within), "1 hold GPUs, 1 are on their way out")
    assert look(vllm.target()) == Holding(allowed=0, held=1, ready=0, finishing=1, is_settled=False)
    vllm.kubectl(*slow, '{"metadata": {"finalizers": null}}')
    assert bring(vllm.target(), 0).held == 0


def test_a_node_group_asks_for_no_more_than_the_block_has_free(vllm: Service) -> None:
    cluster = vllm.cluster
    cluster.settle()
    machines = NebiusNodeGroupTarget(name="machines", node_group=vllm.group, gpus_per_unit=cluster.settings.gpus)
    before = len(cluster.ledger())
    cluster.fault("block-exhausted", leave=cluster.settings.gpus)
    too_late(lambda within: bring(machines, 2, within=within, block=BLOCK_ID), "1 of 2 nodes are ready", within=20)
    cluster.fault("clear")
    assert bring(machines, 2, block=BLOCK_ID).ready == 2
    assert "refused" not in {entry["entry"] for entry in cluster.ledger()[before:]}


def test_nothing_goes_while_it_is_only_prepared(vllm: Service) -> None:
    vllm.scale(1)
    at_work(vllm.target(), lambda session: session.shrink(0, release(None)))
    assert vllm.replicas == 1


def test_a_kind_that_has_only_a_scale_is_counted_by_its_pods(vllm: Service) -> None:
    vllm.machines(1)
    name = "leaderworkersets.leaderworkerset.x-k8s.io"
    template = {"spec": {"containers": [{"name": "vllm", "resources": {"limits": {"nvidia.com/gpu": "4"}}}]}}
    spec = {"replicas": 2, "leaderWorkerTemplate": {"size": 2, "workerTemplate": template}}
    group, version, kind = "leaderworkerset.x-k8s.io", "v1", "LeaderWorkerSet"
    vllm.create({"apiVersion": f"{group}/{version}", "kind": kind, "metadata": {"name": "llm"}, "spec": spec})
    custom = kubernetes.client.CustomObjectsApi(vllm.api)
    status = {"replicas": 2, "readyReplicas": 1, "hpaPodSelector": "role=leader"}
    where = (group, version, INFERENCE_NAMESPACE, "leaderworkersets", "llm")
    custom.patch_namespaced_custom_object_status(*where, {"status": status})
    for number in range(2):
        vllm.create(leader(f"llm-{number}"))
    try:
        for said in (name, f"{group}/{version}/{kind}"):
            target = vllm.target(kind=said, resource="llm", gpus_per_unit=8)
            at_work(target, lambda session: session.check(2, BLOCK))
            seen = vllm.cluster.wait(
                "one of them runs", lambda target=target: one if (one := look(target)).ready else None
            )
            assert (seen.allowed, seen.held, seen.ready, seen.is_settled) == (2, 1, 1, False)
        at_work(target, lambda session: session.shrink(1, release(PowerDownMode.ASAP)))
        assert vllm.get("leaderworkersets", "llm")["spec"]["replicas"] == 1
    finally:
        vllm.kubectl("delete", "pod", "llm-0", "llm-1")


def wait_held(vllm: Service, target: Target) -> Holding:
    def held() -> Holding | None:
        seen = look(target)
        return seen if seen.held else None

    return vllm.cluster.wait("a replica is on a machine", held)


def leader(name: str) -> dict[str, Any]:
    limits = {"limits": {"nvidia.com/gpu": "8"}}
    container = {"name": "vllm", "image": "vllm", "resources": limits}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"role": "leader"}},
        "spec": {"containers": [container], "nodeSelector": {NODESET_NAME_LABEL: "inference"}},
    }


# Autoscalers


def keda(vllm: Service, desired: int, most: int, **annotations: str) -> None:
    trigger = {"type": "cron", "metadata": {"desiredReplicas": str(desired)}}
    vllm.create(
        {
            "apiVersion": "keda.sh/v1alpha1",
            "kind": "ScaledObject",
            "metadata": {"name": "vllm", "annotations": annotations},
            "spec": {
                "scaleTargetRef": {"name": "vllm"},
                "minReplicaCount": 0,
                "maxReplicaCount": most,
                "triggers": [trigger],
            },
        }
    )
    if PAUSED not in annotations:
        vllm.cluster.wait("KEDA has scaled the service", lambda: vllm.replicas == desired)


def test_keda_is_paused_and_rules_again_once_all_is_given_that_it_could_take(vllm: Service) -> None:
    vllm.machines(2)
    keda(vllm, desired=2, most=2)
    bring(vllm.target(), 2)
    assert PAUSED not in vllm.get("scaledobject")["metadata"].get("annotations", {})
    # Whoever does not pause it, fights it.
    vllm.scale(1)
    vllm.cluster.wait("KEDA has undone that", lambda: vllm.replicas == 2)

    assert bring(vllm.target(), 1) == Holding(allowed=1, held=1, ready=1)
    assert vllm.get("scaledobject")["metadata"]["annotations"][PAUSED] == "1"
    generation = vllm.get("deployment")["metadata"]["generation"]
    vllm.cluster.wait("KEDA knows", lambda: "Paused True" in conditions(vllm))
    assert vllm.get("deployment")["metadata"]["generation"] == generation
    assert bring(vllm.target(), 0).allowed == 0

    assert bring(vllm.target(), 2).ready == 2
    assert not vllm.get("scaledobject")["metadata"].get("annotations")
    vllm.cluster.wait("KEDA rules", lambda: "Paused False" in conditions(vllm))


def conditions(vllm: Service) -> list[str]:
    return [f"{one['type']} {one['status']}" for one in vllm.get("scaledobject")["status"]["conditions"]]


def test_what_keda_may_take_by_itself_counts_as_promised(vllm: Service) -> None:
    vllm.machines(1)
    keda(vllm, desired=1, most=3)
    seen = wait_held(vllm, vllm.target())
    assert (seen.allowed, seen.held, seen.promised) == (3, 1, 2)


def test_what_keda_takes_away_for_lack_of_work_is_no_need(vllm: Service) -> None:
    vllm.machines(2)
    keda(vllm, desired=0, most=2)
    bring(vllm.target(), 1)
    bring(vllm.target(), 2)
    change = {"spec": {"triggers": [{"type": "cron", "metadata": {"desiredReplicas": "1"}}]}}
    vllm.kubectl("patch", "scaledobject", "vllm", "--type=merge", "--patch", json.dumps(change))
    vllm.cluster.wait("KEDA has taken one away", lambda: vllm.replicas == 1 and look(vllm.target()).is_settled)
    assert look(vllm.target()) == Holding(allowed=2, held=1, ready=2)
    assert bring(vllm.target(), 2).held == 1


def test_a_pause_of_somebody_elses_is_not_touched(vllm: Service) -> None:
    keda(vllm, desired=1, most=3, **{PAUSED: "0"})
    with pytest.raises(
        AirflowFailException, match="ScaledObject vllm is paused at 0 replicas, and not by this provider: remove"
    ):
        bring(vllm.target(), 1)
    assert vllm.get("scaledobject")["metadata"]["annotations"] == {PAUSED: "0"}


def hpa(vllm: Service, least: int, most: int) -> None:
    vllm.create(
        {
            "apiVersion": "autoscaling/v2",
            "kind": "HorizontalPodAutoscaler",
            "metadata": {"name": "by-load"},
            "spec": {
                "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "vllm"},
                "minReplicas": least,
                "maxReplicas": most,
            },
        }
    )


def test_a_horizontal_autoscaler_is_a_mistake_unless_its_bounds_may_be_moved(vllm: Service) -> None:
    vllm.machines(2)
    hpa(vllm, 1, 2)
    with pytest.raises(AirflowFailException, match=r"by-load scales the same workload: delete it, or .*pin_hpa=True"):
        bring(vllm.target(), 1)
    target = vllm.target(pin_hpa=True)
    bring(target, 1)
    assert bounds(vllm) == (1, 1)
    bring(target, 0)
    assert bounds(vllm) == (1, 1)
    bring(target, 2)
    assert bounds(vllm) == (1, 2)
    assert not vllm.get("hpa", "by-load")["metadata"].get("annotations")


def bounds(vllm: Service) -> tuple[int, int]:
    spec = vllm.get("hpa", "by-load")["spec"]
    return spec["minReplicas"], spec["maxReplicas"]


# Others


def test_two_who_scale_the_same_are_told_and_not_fought(vllm: Service, caplog: pytest.LogCaptureFixture) -> None:
    async def work(session: Session) -> Holding:
        await session.grow(2)
        vllm.scale(1)
        await session.grow(2)
        await session.grow(2)
        return await session.look()

    seen = at_work(vllm.target(), work)
    assert (vllm.replicas, seen.allowed, seen.possible(2)) == (1, 1, 1)
    assert "has scaled Deployment vllm to 1 replicas, while this shift scales it to 2" in seen.problems[0]
    assert caplog.text.count("It is left at that") == 1


def test_who_comes_in_between_is_not_overruled(vllm: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    change = Workload.set_replicas

    async def late(workload: Workload, scale: dict[str, Any], wanted: int) -> None:
        vllm.scale(3)
        await change(workload, scale, wanted)

    monkeypatch.setattr(Workload, "set_replicas", late)

    async def work(session: Session) -> Holding:
        await session.grow(2)
        return await session.look()

    seen = at_work(vllm.target(), work)
    assert vllm.replicas == 3
    assert "kubectl has scaled Deployment vllm to 3 replicas" in seen.problems[0]


def flux(vllm: Service, replicas: int | None) -> None:
    """As kustomize-controller applies a Deployment of Git: server-side, and by force."""
    labels = {"kustomize.toolkit.fluxcd.io/name": "apps", "kustomize.toolkit.fluxcd.io/namespace": "flux-system"}
    spec = {} if replicas is None else {"replicas": replicas}
    name = {"name": "vllm", "namespace": INFERENCE_NAMESPACE, "labels": labels}
    body = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": name, "spec": spec}
    how = ("--server-side", "--force-conflicts", "--field-manager=kustomize-controller", "--validate=false")
    vllm.kubectl("apply", *how, "--filename=-", stdin=json.dumps(body))


def test_replicas_that_flux_puts_back_are_foreseen_and_left_at_that(vllm: Service) -> None:
    flux(vllm, 2)
    target = vllm.target()
    [said, _] = at_work(target, lambda session: session.notes(0))
    assert said == (
        "Deployment vllm is kept by Flux (Kustomization apps): it will put its replicas back to 2, unless "
        "spec.replicas is left out there"
    )

    async def work(session: Session) -> Holding:
        await session.shrink(0, release(PowerDownMode.ASAP))
        assert vllm.replicas == 0
        flux(vllm, 2)
        await session.shrink(0, release(PowerDownMode.ASAP))
        return await session.look()

    try:
        seen = at_work(target, work)
        assert (vllm.replicas, seen.possible(0)) == (2, 2)
        assert "kustomize-controller has scaled Deployment vllm to 2 replicas" in seen.problems[0]
        # The next shift does not end the same Pods again.
        seen = look(target)
        assert (seen.allowed, seen.possible(0)) == (2, 2)
        assert "Flux (Kustomization apps) put it back to 2 replicas during an earlier shift" in seen.problems[0]
        assert at_work(target, lambda session: session.notes(0)) == seen.problems[:1]
        with pytest.raises(AirflowException, match="during an earlier shift"):
            bring(target, 0)
        # Once they are left out in Git, nobody puts them back.
        flux(vllm, None)
        vllm.scale(2)
        assert look(target).possible(0) == 0
    finally:
        vllm.kubectl("label", "deployment", "vllm", "kustomize.toolkit.fluxcd.io/name-")
        vllm.kubectl("annotate", "deployment", "vllm", "airflow-provider-soperator/put-back-")


def test_pods_hold_their_gpus_for_their_grace_period(vllm: Service) -> None:
    vllm.machines(1)
    change, target = ("patch", "deployment", "vllm", "--type=merge", "--patch"), vllm.target()

    def ended(grace: int) -> Holding:
        """What is seen of a Pod that is ended, or has been by then."""
        spec = {"terminationGracePeriodSeconds": grace}
        vllm.kubectl(*change, json.dumps({"spec": {"template": {"spec": spec}}}))
        bring(target, 1)
        at_work(target, lambda session: session.shrink(0, release(PowerDownMode.ASAP)))
        return vllm.cluster.wait(
            "it is being ended", lambda: one if (one := look(target)).finishing or not one.held else None
        )

    try:
        # On a busy machine a short one is over before it is looked at.
        seen = next(seen for grace in (3, 15, 75, 375) if (seen := ended(grace)).finishing)
        assert (seen.allowed, seen.held, seen.ready, seen.is_settled) == (0, 1, 0, False)
        assert bring(vllm.target(), 0) == Holding(allowed=0, held=0, ready=0)
    finally:
        vllm.kubectl(*change, '{"spec": {"template": {"spec": {"terminationGracePeriodSeconds": null}}}}')


def test_a_change_that_meets_another_is_made_again(vllm: Service) -> None:
    scaling = {"api": "kubernetes", "effect": "conflict", "matching": "PATCH deployments/vllm/scale"}
    vllm.cluster.fault("api", **scaling, count=2)
    at_work(vllm.target(), lambda session: session.grow(1))
    assert vllm.replicas == 1
    vllm.cluster.fault("api", **scaling, count=100)
    with pytest.raises(CapacityBusy, match="others changed Deployment vllm at each of 5 tries"):
        at_work(vllm.target(), lambda session: session.grow(2))
    vllm.cluster.fault("clear")


def test_a_lost_answer_is_no_harm(vllm: Service) -> None:
    async def work(session: Session) -> None:
        await session.grow(1)
        vllm.cluster.fault("api", api="kubernetes", effect="error", matching="PATCH deployments/vllm/scale", count=1)
        with pytest.raises(ConnectFailed, match="could not scale Deployment vllm in namespace inference"):
            await session.grow(2)
        await session.grow(2)

    at_work(vllm.target(), work)
    assert vllm.replicas == 2


# Mistakes, before anything is moved


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"resource": "vlm"}, "there is no Deployment vlm in namespace inference: correct the target's resource"),
        ({"namespace": "inferenz"}, "there is no Deployment vllm in namespace inferenz"),
        ({"kind": "rollouts.argoproj.io"}, "the cluster has no kind rollouts.argoproj.io"),
        ({"kind": "example.com/v1/Model"}, "the cluster has no kind example.com/v1/Model"),
        ({"kind": "batch/v1/CronJob"}, "CronJob of batch/v1 cannot be scaled"),
        ({"gpus_per_unit": 4}, "a replica of Deployment vllm requests 8 GPUs, but gpus_per_unit is 4"),
    ],
)
def test_what_could_never_be_scaled_is_named(vllm: Service, fields: dict[str, Any], words: str) -> None:
    with pytest.raises(CapacityMistake, match=words):
        at_work(vllm.target(**fields), lambda session: session.check(1, BLOCK))


def test_more_than_the_block_has_is_refused(vllm: Service) -> None:
    with pytest.raises(CapacityMistake, match="5 replicas of 8 GPUs do not fit into block, which has 32"):
        at_work(vllm.target(), lambda session: session.check(5, BLOCK))


def test_a_missing_right_is_named_before_anything_is_moved(vllm: Service, connections: Connections) -> None:
    access = vllm.cluster.access["inference_kubernetes"]
    config = json.loads(vllm.kubectl("config", "view", "--raw", "--output=json"))
    config["users"][0]["user"]["token"] = access["viewer_token"]
    viewer = connections.define("kubernetes", kube_config=json.dumps(config))
    target = vllm.target(kubernetes_conn_id=viewer)
    assert look(target).allowed == 0
    with pytest.raises(CapacityMistake, match=r"no right to scale Deployment vllm .*: bind a Role with get and patch"):
        at_work(target, lambda session: session.check(1, BLOCK))
    config["users"][0]["user"]["token"] = "wrong"
    nobody = connections.define("kubernetes", kube_config=json.dumps(config))
    with pytest.raises(ConnectFailed, match="refused the token"):
        look(vllm.target(kubernetes_conn_id=nobody))
    config["clusters"][0]["cluster"]["server"] = "https://127.0.0.1:1"
    nowhere = connections.define("kubernetes", kube_config=json.dumps(config))
    with pytest.raises(ConnectFailed, match="the Kubernetes API does not answer"):
        look(vllm.target(kubernetes_conn_id=nowhere))
    with pytest.raises(ConnectFailed, match="there is no connection no_such_id: add it"):
        look(vllm.target(kubernetes_conn_id="no_such_id"))
