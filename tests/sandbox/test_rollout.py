"""How the Pods of a NodeSet follow a change of it, on a clock that is moved."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sandbox.cloud.conditions import condition, with_conditions
from sandbox.cloud.landscape import nodesets_of, slurm_cluster
from sandbox.cloud.soperator import NodeSetController
from sandbox.kube.store import ObjectStore
from sandbox.settings import NAMESPACE, Settings
from sandbox.slurmd_ports import SlurmdPorts


class Operator:
    """A cluster of five static nodes, whose Pods become ready when they are told to."""

    def __init__(self, soperator: str = "5.0") -> None:
        self.settings = Settings(soperator=soperator, port_base=30000, static=5, rollout_lag=10)
        self.store, self.now = ObjectStore(), 0.0
        self.store.create("namespaces", {"metadata": {"name": NAMESPACE}})
        cluster = self.store.create("slurmclusters", slurm_cluster(self.settings), NAMESPACE)
        status = with_conditions({"phase": "Available"}, condition("CommonAvailable", True, "Available"))
        self.store.patch("slurmclusters", cluster["metadata"]["name"], {"status": status}, NAMESPACE, part="status")
        self.store.create("nodesets", nodesets_of(self.settings)[1], NAMESPACE)
        ports = SlurmdPorts(self.settings.ports)
        self.controller = NodeSetController(self.store, self.settings, ports, lambda: self.now)

    def step(self, *, ready: bool = True) -> None:
        self.controller.sync()
        for pod in self.pods().values() if ready else ():
            status = with_conditions(pod.get("status") or {}, condition("Ready", True, "PodReady"))
            self.store.patch("pods", pod["metadata"]["name"], {"status": status}, NAMESPACE, part="status")

    def change(self, **spec: Any) -> None:
        self.store.patch("nodesets", "worker-cpu", {"spec": spec}, NAMESPACE)

    def pods(self) -> dict[str, Any]:
        return {pod["metadata"]["name"]: pod for pod in self.store.list("pods", NAMESPACE)}

    def images(self) -> list[str]:
        return [pod["spec"]["containers"][0]["image"].rpartition(":")[2] for _, pod in sorted(self.pods().items())]

    @property
    def status(self) -> dict[str, Any]:
        status: dict[str, Any] = self.store.get("nodesets", "worker-cpu", NAMESPACE)["status"]
        return status

    def phase(self) -> str:
        return str(self.status["phase"])


@pytest.fixture
def operator() -> Operator:
    made = Operator()
    made.step()
    made.step()
    assert (len(made.pods()), made.phase()) == (5, "Ready")
    return made


IMAGE = {"slurmd": {"image": {"tag": "next"}}}


def test_another_image_comes_late_and_in_the_same_pods(operator: Operator) -> None:
    before = {name: pod["metadata"]["uid"] for name, pod in operator.pods().items()}
    operator.change(**IMAGE)
    operator.step()
    operator.now = 9
    operator.step()
    # Nothing tells that there is something to come: no observedGeneration, and a set that is still ready.
    assert (operator.images().count("next"), operator.phase()) == (0, "Ready")
    assert "observedGeneration" not in operator.status
    operator.now = 11
    operator.step(ready=False)
    # One of five, as a fifth may be away; the highest first.
    assert operator.images() == [*operator.images()[:4], "next"]
    assert operator.images().count("next") == 1
    for _ in range(9):
        operator.step()
    assert operator.images() == ["next"] * 5
    assert {name: pod["metadata"]["uid"] for name, pod in operator.pods().items()} == before


def test_what_only_another_pod_can_have(operator: Operator) -> None:
    before = {name: pod["metadata"]["uid"] for name, pod in operator.pods().items()}
    operator.change(slurmd={"resources": {"memory": "50Gi"}}, maxUnavailable=2)
    operator.step()
    operator.now = 11
    operator.step(ready=False)
    after = {name: pod["metadata"]["uid"] for name, pod in operator.pods().items()}
    assert sorted(name for name in before if after.get(name) != before[name]) == ["worker-cpu-3", "worker-cpu-4"]
    # They are away, and so no others go.
    operator.step(ready=False)
    operator.step(ready=False)
    assert sorted(name for name, pod in operator.pods().items() if pod["metadata"]["uid"] != before[name]) == [
        "worker-cpu-3",
        "worker-cpu-4",
    ]


@pytest.mark.parametrize("change", [{"replicas": 5}, {"nodeConfig": {"features": ["more"]}}])
def test_what_is_only_slurms_rolls_nothing(operator: Operator, change: dict[str, Any]) -> None:
    before = operator.pods()
    operator.change(**change)
    operator.step()
    operator.now = 100
    operator.step()
    assert operator.pods() == before


def test_the_version_of_the_cluster_rolls_nothing(operator: Operator) -> None:
    before = operator.pods()
    operator.store.patch("slurmclusters", "soperator", {"spec": {"crVersion": "9.9.9"}}, NAMESPACE)
    operator.step()
    operator.now = 100
    operator.step()
    assert operator.pods() == before


def test_conditions_begin_unknown_and_three_of_them_stay_so() -> None:
    operator = Operator()
    operator.step()
    operator.step()
    said = {one["type"]: (one["status"], one["reason"]) for one in operator.status["conditions"]}
    stays = ("Unknown", "SetUpCondition")
    assert said == {
        "ConfigUpdated": stays,
        "ConfigDynamicUpdated": stays,
        "StatefulSetUpdated": stays,
        "PodsReady": ("True", "NodeSetReady"),
        "StatefulSetTerminated": ("False", "WorkersEnabled"),
    }


class Ephemeral(Operator):
    """The set ``worker``, of which two of eight are on from the start."""

    def __init__(self) -> None:
        super().__init__()
        self.store.delete("nodesets", "worker-cpu", NAMESPACE)
        self.store.create("nodesets", nodesets_of(replace(self.settings, initial=2))[0], NAMESPACE)

    def state(self) -> Any:
        return self.store.get("nodesetpowerstates", "worker", NAMESPACE)

    def activate(self, *ordinals: int) -> None:
        self.store.patch("nodesetpowerstates", "worker", {"spec": {"activeNodes": [*ordinals]}}, NAMESPACE)
        self.step()


def test_a_power_state_is_the_power_managers_once_it_is_there() -> None:
    operator = Ephemeral()
    operator.step()
    assert operator.state()["spec"] == {"nodeSetRef": "worker", "activeNodes": [0, 1]}
    assert operator.state()["metadata"]["labels"] == {"slurm.nebius.ai/nodeset": "worker"}
    operator.store.patch("nodesets", "worker", {"spec": {"initialNumberEphemeralNodes": 5}}, NAMESPACE)
    operator.activate(0, 4, 6)
    assert [*operator.pods()] == ["worker-0", "worker-4", "worker-6"]
    status = operator.state()["status"]
    # The message is of the first look.
    assert (status["activeCount"], status["conditions"][0]["message"]) == (3, "2 active nodes reconciled")
    operator.store.delete("nodesets", "worker", NAMESPACE)
    assert operator.store.list("nodesetpowerstates", NAMESPACE) == []


def test_fewer_names_take_no_ordinal_away() -> None:
    operator = Ephemeral()
    operator.step()
    operator.activate(0, 4, 6)
    operator.store.patch("nodesets", "worker", {"spec": {"replicas": 5}}, NAMESPACE)
    operator.step()
    assert operator.state()["spec"]["activeNodes"] == [0, 4, 6]
    assert [*operator.pods()] == ["worker-0", "worker-4", "worker-6"]
    operator.activate(0)
    assert [*operator.pods()] == ["worker-0"]
