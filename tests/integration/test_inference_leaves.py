"""Inference leaves its nodes: which are chosen, how their Pods go, and what becomes of cordons; on a moved clock."""

from __future__ import annotations

import json
import logging
from collections.abc import Coroutine, Iterator
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, TypeVar

import pytest

from airflow_provider_soperator.capacity.holdings import Release
from airflow_provider_soperator.capacity.targets import NebiusNodeGroupTarget
from airflow_provider_soperator.capacity.targets.protocol import Session
from airflow_provider_soperator.errors import CapacityMistake
from airflow_provider_soperator.nebius.capacity_blocks import CapacityBlock
from airflow_provider_soperator.slurm.requests import PowerDownMode
from airflow_provider_soperator.soperator.evictions import CORDONED
from sandbox.cloud.cluster import KubernetesCluster
from sandbox.cloud.fleet import Autoscaling
from sandbox.cloud.landscape import INFERENCE_CLUSTER
from sandbox.cloud.pod_states import PlainKubelet
from sandbox.kube.kubeconfig import write_kubeconfig
from sandbox.kube.server import serve
from tests.integration.sessions import Sessions
from tests.sandbox.kube_world import LocalRunner, three_lines
from tests.sandbox.nebius_world import BLOCK, INFERENCE, TOKEN, World, world

T = TypeVar("T")

SEEN = CapacityBlock(id=BLOCK, limit=32, usage=0, fabric="fabric-2", platform="gpu-h100-sxm", region="eu-north1")
GROUP = NebiusNodeGroupTarget(
    name="inference", node_group=INFERENCE, nebius_conn_id="nebius_world", kubernetes_conn_id="kubernetes_world"
)
NOW = Release(leaves_at=datetime(2026, 11, 21, tzinfo=timezone.utc), mode=PowerDownMode.ASAP)


class Inference:
    """Three machines of a fixed group with their Kubernetes cluster, and sessions in one event loop."""

    def __init__(self, here: World, directory: Path, certificates: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.here = here
        here.fleet.groups[INFERENCE].labels["nebius.com/node-group-id"] = INFERENCE
        self.cluster = KubernetesCluster(INFERENCE_CLUSTER, here.fleet)
        self.store = self.cluster.store
        self.store.now = lambda: datetime.fromtimestamp(here.clock, timezone.utc)
        self._kubelet = PlainKubelet(self.store)
        runner = {"runner": LocalRunner(), "logs": three_lines, "faults": here.faults}
        self.server = here.run(serve(self.store, token=TOKEN, certificates=certificates, **runner))
        kubeconfig = directory / "kubeconfig"
        write_kubeconfig(kubeconfig, server=self.server.url, ca_file=self.server.ca_file, token=TOKEN)
        nebius = {"host": here.server.host, "port": here.server.port, "password": TOKEN}
        extra = {"kube_config_path": str(kubeconfig)}
        for name, said in (
            ("NEBIUS", {"conn_type": "nebius", **nebius, "extra": {"insecure": True}}),
            ("KUBERNETES", {"conn_type": "kubernetes", "extra": extra}),
        ):
            monkeypatch.setenv(f"AIRFLOW_CONN_{name}_WORLD", json.dumps(said))
        self.sessions = Sessions()
        here.resize(3)
        self.advance(0)
        self.advance(1)

    def call(self, function: Any, *args: Any, **options: Any) -> Any:
        """Call something in the thread that answers the requests."""

        async def calling() -> Any:
            return function(*args, **options)

        return self.here.run(calling())

    def advance(self, seconds: float) -> None:
        """Let time pass, and every controller act twice."""
        for passed in (seconds, 0):
            self.call(self._act)
            self.here.advance(passed)
        self.call(self._act)

    def _act(self) -> None:
        self.cluster.sync()
        self._kubelet.sync()
        self.cluster.sync()
        self.here.busy = self.cluster.busy_machines()

    def serve(self, name: str, replicas: int, grace: int = 0, gpus: int = 8, **spec: Any) -> None:
        container = {"name": name, "image": name, "resources": {"limits": {"nvidia.com/gpu": str(gpus)}}}
        labels = {"app": name}
        pod = {"containers": [container], "terminationGracePeriodSeconds": grace, **spec}
        template = {"metadata": {"labels": labels}, "spec": pod}
        deployment = {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template}
        self.call(self.store.create, "deployment", {"metadata": {"name": name}, "spec": deployment}, "default")
        self.advance(0)

    def scale(self, name: str, replicas: int) -> None:
        self.call(self.store.patch, "deployment", name, {"spec": {"replicas": replicas}})
        self.advance(0)

    def budget(self, name: str, **spec: Any) -> None:
        said = {"selector": {"matchLabels": {"app": name}}, **spec}
        self.call(self.store.create, "pdb", {"metadata": {"name": name}, "spec": said}, "default")
        self.advance(0)

    def run_alone(self, name: str, node: str, **metadata: Any) -> None:
        spec = {"containers": [{"name": name, "image": name}], "nodeName": node}
        self.call(self.store.create, "pod", {"metadata": {"name": name, **metadata}, "spec": spec}, "default")
        self.advance(0)

    @property
    def pods(self) -> dict[str, str]:
        """The Node of each Pod that is not being ended."""
        found = self.call(self.store.list, "pods")
        stays = [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]
        return {pod["metadata"]["name"]: pod["spec"].get("nodeName", "") for pod in stays}

    @property
    def nodes(self) -> list[str]:
        return [node["metadata"]["name"] for node in self.call(self.store.list, "nodes")]

    @property
    def cordoned(self) -> dict[str, str | None]:
        """The cordoned Nodes, with whose cordon it is."""
        return {
            node["metadata"]["name"]: (node["metadata"].get("annotations") or {}).get(CORDONED)
            for node in self.call(self.store.list, "nodes")
            if node["spec"].get("unschedulable")
        }

    @property
    def size(self) -> int:
        return int(self.here.group().spec.fixed_node_count or 0)

    def open(self, target: NebiusNodeGroupTarget = GROUP, **context: Any) -> Session:
        return self.sessions.open(target, why="to training until 08:00", **context)

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        return self.sessions.do(work)

    def close(self) -> None:
        self.sessions.close()
        self.here.run(self.server.close())


@pytest.fixture
def inference(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Inference]:
    certificates = tmp_path_factory.getbasetemp() / "kube-certificates"
    with world(tmp_path / "ledger.jsonl") as here:
        made = Inference(here, tmp_path, certificates, monkeypatch)
        yield made
        made.close()


def test_a_node_goes_once_its_pods_have_ended(inference: Inference, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    inference.serve("llm", 3, grace=30)
    session = inference.open()
    shrink = lambda: inference.do(session.shrink(2, NOW))  # noqa: E731
    shrink()
    assert list(inference.cordoned.values()) == [f"airflow:capacity/{BLOCK}: to training until 08:00"]
    [going] = inference.cordoned
    seen = inference.do(session.look())
    assert (seen.allowed, seen.held, seen.ready, seen.finishing) == (3, 3, 2, 1)
    inference.advance(29)
    shrink()
    assert inference.size == 3
    assert "has until" in inference.do(session.look()).problems[0]
    inference.advance(1)
    shrink()
    assert inference.size == 2
    inference.advance(1)
    assert going not in inference.nodes
    shrink()
    inference.do(session.finish())
    assert inference.cordoned == {}
    assert inference.do(session.look()).problems == ()
    assert caplog.text.count(f"Waiting for Node {going}") == 2
    # The third replica found no Node, as the one that went was cordoned.
    assert sorted(inference.pods.values()) == ["", *sorted(inference.nodes)]


def test_a_node_without_pods_that_serve_goes_first(inference: Inference) -> None:
    inference.serve("llm", 2)
    [empty] = set(inference.nodes) - set(inference.pods.values())
    session = inference.open()
    assert inference.do(session.explain(2, NOW)) == {empty: "no Pod serves there"}
    inference.do(session.shrink(2, NOW))
    assert list(inference.cordoned) == [empty]
    inference.do(session.shrink(2, NOW))
    assert inference.size == 2


def test_a_budget_is_waited_for_and_named(inference: Inference, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    inference.serve("llm", 3)
    inference.budget("llm", minAvailable=3)
    session = inference.open()
    [said] = inference.do(session.explain(2, NOW)).values()
    assert "The disruption budget llm needs 3 healthy pods and has 3 currently" in said
    for _ in range(3):
        inference.do(session.shrink(2, NOW))
        inference.advance(10)
    [going] = inference.cordoned
    [problem] = inference.do(session.look()).problems
    assert problem.startswith(f"Node {going}: Pod default/llm-")
    assert caplog.text.count(f"Waiting for {problem}") == 1
    assert (inference.size, len(inference.pods)) == (3, 3)
    inference.call(inference.store.patch, "pdb", "llm", {"spec": {"minAvailable": 2}})
    inference.advance(0)
    for _ in range(2):
        inference.do(session.shrink(2, NOW))
        inference.advance(1)
    assert inference.size == 2


def test_a_node_with_a_budget_in_the_way_goes_last(inference: Inference) -> None:
    inference.serve("llm", 1)
    inference.budget("llm", minAvailable=1)
    inference.serve("other", 2)
    kept = next(node for pod, node in inference.pods.items() if pod.startswith("llm"))
    session = inference.open()
    assert kept not in inference.do(session.explain(1, NOW))


def test_force_does_not_wait(inference: Inference) -> None:
    inference.serve("llm", 3)
    inference.budget("llm", minAvailable=3)
    session = inference.open()
    inference.do(session.shrink(2, replace(NOW, mode=PowerDownMode.FORCE)))
    assert inference.size == 2


def test_with_force_a_grace_begins_with_the_eviction(inference: Inference) -> None:
    inference.serve("llm", 3)
    inference.budget("llm", minAvailable=3)
    session, now = inference.open(), datetime.now(timezone.utc)
    force = replace(NOW, mode=PowerDownMode.FORCE, signals_at=now, grace=timedelta(minutes=2))
    inference.do(session.shrink(2, force))
    assert (inference.size, len(inference.cordoned)) == (3, 1)
    inference.do(session.shrink(2, replace(force, signals_at=now - timedelta(minutes=2))))
    assert inference.size == 2


def test_force_takes_no_more_than_the_approved_nodes(inference: Inference) -> None:
    inference.serve("llm", 3)
    session = inference.open(may_take=frozenset(inference.nodes[:1]))
    inference.do(session.shrink(1, replace(NOW, mode=PowerDownMode.FORCE)))
    assert inference.size == 2


def test_pods_of_daemon_sets_and_static_ones_stay_and_one_without_a_controller_is_waited_for(
    inference: Inference,
) -> None:
    inference.serve("llm", 2)
    [empty] = set(inference.nodes) - set(inference.pods.values())
    daemon = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "exporter", "uid": "1", "controller": True}
    inference.run_alone("exporter", empty, ownerReferences=[daemon])
    inference.run_alone("static", empty, annotations={"kubernetes.io/config.mirror": "1"})
    for node in set(inference.nodes) - {empty}:
        inference.run_alone(f"alone-{node}", node)
    session = inference.open()
    for _ in range(2):
        inference.do(session.shrink(1, NOW))
        assert {"exporter", "static"} <= set(inference.pods)
    inference.advance(1)
    assert inference.size == 2
    [problem] = inference.do(session.look()).problems
    assert "has no controller that would start it again elsewhere" in problem


def test_what_nebius_leaves_is_uncordoned(inference: Inference) -> None:
    """It chooses the machines of a fixed group itself: here one on which a Pod runs."""
    inference.serve("llm", 1)
    youngest = max(inference.nodes)
    inference.scale("llm", 3)
    session = inference.open()
    inference.run_alone("alone", youngest)
    inference.do(session.shrink(2, NOW))
    [going] = inference.cordoned
    assert going != youngest
    inference.advance(1)
    inference.do(session.shrink(2, NOW))
    inference.advance(1)
    assert youngest not in inference.nodes
    # It is not ready while it is cordoned, so that the shift grows the target, which uncordons it.
    assert inference.do(session.look()).ready == 1
    inference.do(session.grow(2))
    assert (inference.cordoned, inference.do(session.look()).ready) == ({}, 2)
    inference.advance(0)
    assert set(inference.pods.values()) - {""} == set(inference.nodes)


def test_an_autoscaler_takes_what_was_emptied(inference: Inference) -> None:
    inference.serve("llm", 3)
    inference.call(inference.here.fleet.resize, INFERENCE, Autoscaling(1, 4))
    inference.advance(0)
    session = inference.open()
    inference.do(session.shrink(2, NOW))
    # It may not grow again for the Pods that lose their node.
    assert inference.do(session.look()).allowed == 3
    [going] = inference.cordoned
    for _ in range(3):
        inference.advance(1)
        inference.do(session.shrink(2, NOW))
    inference.advance(8)
    inference.advance(1)
    assert going not in inference.nodes
    assert len(inference.nodes) == 2


def test_whoever_comes_next_uncordons_what_stays(inference: Inference) -> None:
    inference.serve("llm", 3)
    inference.budget("llm", minAvailable=3)
    inference.do(inference.open().shrink(1, NOW))
    assert len(inference.cordoned) == 2
    # Its process has ended here. The next shift takes over, for the same number or another.
    following = inference.open()
    inference.do(following.shrink(2, NOW))
    assert len(inference.cordoned) == 1
    # If it had lost the block itself, the cordon would be another's.
    inference.do(following.forget("shift-1"))
    assert len(inference.cordoned) == 1
    inference.do(following.forget("shift-0"))
    assert inference.cordoned == {}


def test_a_shift_that_is_stopped_leaves_no_cordon_and_touches_no_one_elses(inference: Inference) -> None:
    inference.serve("llm", 3)
    inference.budget("llm", minAvailable=3)
    others = min(inference.nodes)
    inference.call(inference.store.patch, "node", others, {"spec": {"unschedulable": True}})
    session = inference.open()
    inference.do(session.shrink(1, NOW))
    assert len(inference.cordoned) == 2
    inference.do(session.finish())
    assert inference.cordoned == {others: None}


def test_machines_that_are_about_to_go_get_no_new_pods(inference: Inference) -> None:
    session = inference.open()
    for _ in range(2):
        inference.do(session.shrink(2, NOW))
    assert inference.size == 2
    inference.do(session.finish())
    assert len(inference.cordoned) == 1
    inference.advance(1)
    inference.do(inference.open().finish())
    assert inference.cordoned == {}


def test_only_nodes_of_the_approved_plan_are_emptied(inference: Inference) -> None:
    one = min(inference.nodes)
    session = inference.open(may_take=frozenset({one}))
    inference.do(session.shrink(1, NOW))
    assert list(inference.cordoned) == [one]
    assert inference.do(session.look()).problems == ("1 more may not go by the plan that was approved",)


def test_without_a_connection_nebius_ends_the_pods_and_the_plan_says_so(inference: Inference) -> None:
    inference.serve("llm", 3)
    session = inference.open(replace(GROUP, kubernetes_conn_id=None))
    [said] = inference.do(session.notes(2))
    assert "set kubernetes_conn_id" in said
    assert inference.do(session.notes(3)) == ()
    inference.do(session.shrink(2, NOW))
    assert (inference.size, inference.cordoned) == (2, {})
    assert inference.do(inference.open().notes(1)) == (
        "of a group of fixed size Nebius chooses the machines, and may take others than those that are emptied",
    )


def test_a_connection_to_another_cluster_is_refused(inference: Inference) -> None:
    inference.do(inference.open().check(2, SEEN))
    for node in inference.nodes:
        change = {"metadata": {"labels": {"nebius.com/node-group-id": "another"}}}
        inference.call(inference.store.patch, "node", node, change)
    with pytest.raises(CapacityMistake, match=f"has no Node of node group {INFERENCE}"):
        inference.do(inference.open().check(2, SEEN))
