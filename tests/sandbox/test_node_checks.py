"""What Soperator's check controllers do with nodes, reason by reason; Slurm is a list of nodes here."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import Any

import pytest

from sandbox.cloud.block import CapacityBlock
from sandbox.cloud.conditions import condition, with_conditions
from sandbox.cloud.fleet import Autoscaling, Fleet, NodeGroup, Timing
from sandbox.cloud.kubelet import Kubelet
from sandbox.cloud.node_checks import REBOOT, REPLACEMENT, NodeChecks
from sandbox.cloud.slurm import Said, Slurm, SlurmNode
from sandbox.cloud.soperator import WORKER_LABEL
from sandbox.kube.objects import dig
from sandbox.kube.store import ObjectStore
from sandbox.settings import NAMESPACE, Settings

NODE = "worker-0"


class ListedSlurm(Slurm):
    """One node, which is drained and undrained as scontrol is told."""

    def __init__(self) -> None:
        self.node = SlurmNode(NODE, frozenset({"IDLE", "CLOUD"}), "", 0, "", 8)
        self.reservations: dict[str, dict[str, str]] = {}

    def drain(self, reason: str, *flags: str) -> None:
        state = frozenset({"CLOUD", "DRAIN", *(flags or ("IDLE",))})
        self.node = replace(self.node, state=state, reason=reason, reason_since=int(time.time()))

    async def nodes(self) -> list[SlurmNode]:
        return [self.node]

    async def run(self, *argv: str, text: str = "", timeout: float = 30) -> Said:
        if argv[1] == "show":
            return Said(int(argv[-1] not in self.reservations), "", "")
        words = dict(word.split("=", 1) for word in argv[2:])
        if argv[1] == "create":
            self.reservations[words.pop("reservationname")] = words
        elif words["state"] == "drain":
            self.drain(words["reason"], *(self.node.state - {"CLOUD", "DRAIN"}))
        else:
            self.node = replace(self.node, state=self.node.state - {"DRAIN"}, reason="")
        return Said(0, "", "")


class NoKubelet(Kubelet):
    """Remembers which nodes it was to reboot."""

    def __init__(self) -> None:
        self.rebooting = set()
        self.rebooted: list[str] = []

    async def reboot(self, name: str) -> None:
        self.rebooted.append(name)


class World:
    """One machine with a worker on it."""

    def __init__(self, soperator: str, **options: Any) -> None:
        self.store, self.slurm, self.kubelet = ObjectStore(), ListedSlurm(), NoKubelet()
        self.fleet = Fleet(CapacityBlock("block", 16), Timing(0, 0, 0))
        self.fleet.add_group(NodeGroup("group", "group", "cluster", 8, Autoscaling(0, 2)))
        self.store.create("namespace", {"metadata": {"name": NAMESPACE}})
        settings = Settings(soperator=soperator, vm_boot=0, **{"extensive_check": "off", **options})
        self.checks = NodeChecks(self.store, self.slurm, self.fleet, self.kubelet, settings)
        self.machine = ""
        self.move()

    def move(self) -> None:
        """The worker is on a new machine, as it is after the last one has gone."""
        if self.machine:
            self.store.delete("pod", NODE, NAMESPACE)
            self.store.delete("node", self.machine)
        self.fleet.step({"group": 1}, set())
        self.machine = next(iter(self.fleet.machines))
        self.store.create("node", {"metadata": {"name": self.machine}, "status": {}})
        labels = {WORKER_LABEL: "true"}
        pod = {"metadata": {"name": NODE, "labels": labels}, "spec": {"nodeName": self.machine}}
        self.store.create("pod", pod, NAMESPACE)

    def look(self, times: int = 1) -> None:
        for _ in range(times):
            asyncio.run(self.checks.look())

    def say(self, type_: str, status: bool = True) -> None:
        old = self.store.get("node", self.machine)["status"]
        new = with_conditions(old, condition(type_, status, "Told"))
        self.store.patch("node", self.machine, {"status": new})

    def condition(self, type_: str) -> tuple[Any, Any] | None:
        found = dig(self.store.get("node", self.machine), f"status.conditions[{type_}]")
        return (found["status"], found["reason"]) if found else None

    @property
    def has_machine(self) -> bool:
        return self.machine in self.fleet.machines


@pytest.fixture(params=["4.1", "5.0"])
def world(request: pytest.FixtureRequest) -> World:
    return World(request.param)


@pytest.mark.parametrize(
    "reason", ["[hardware_problem]", "[hardware_problem] a: b", "[node_problem] gpu-checks: job 1"]
)
def test_a_broken_machine_is_replaced_step_by_step(world: World, reason: str) -> None:
    world.slurm.drain(reason)
    world.look()
    assert world.condition("HardwareIssuesSuspected") == ("True", "GPUHealthCheckFailedSoperator")
    assert world.condition("SlurmNodeDrain") == ("True", "NodeNeedDrain")
    world.look()
    # From here on the reason is Soperator's own.
    assert world.slurm.node.reason == REPLACEMENT
    world.look()
    assert world.condition("SlurmNodeDrain") == ("True", "NodeDrained")
    assert world.condition("SoperatorChecksNodeMaintenance") == ("True", "NodeDraining")
    assert world.has_machine
    world.look()
    assert not world.has_machine
    world.move()
    world.look()
    assert "DRAIN" not in world.slurm.node.state
    world.look(3)
    assert world.has_machine


@pytest.mark.parametrize("flags", [("ALLOCATED",), ("MIXED",), ("IDLE", "COMPLETING")])
def test_nothing_happens_before_a_node_is_fully_drained(world: World, flags: tuple[str, ...]) -> None:
    world.slurm.drain("[hardware_problem] a: b", *flags)
    world.look(5)
    assert world.condition("HardwareIssuesSuspected") is None


@pytest.mark.parametrize(
    "reason", ["[user_problem] boot_disk_full: 96 percent", "airflow: for a while", "Prolog error", "Not responding"]
)
def test_other_reasons_are_nobodys_business(world: World, reason: str) -> None:
    world.slurm.drain(reason)
    world.look(5)
    assert world.has_machine
    assert world.slurm.node.reason == reason
    assert "conditions" not in world.store.get("node", world.machine)["status"]


@pytest.mark.parametrize("reason", ["[node_problem] gpu_health_check", "[node_problem] 7: x"])
def test_a_node_problem_without_name_and_details(world: World, reason: str) -> None:
    world.slurm.drain(reason)
    world.look(5)
    assert world.has_machine == (world.checks._settings.soperator == "5.0")


@pytest.mark.parametrize(
    ("reason", "acted_on"),
    [
        # The first that is found counts, wherever it stands.
        ("airflow:ops: after Kill task failed", REBOOT),
        ("[hardware_problem] a: after Kill task failed", REBOOT),
        ("[hardware_problem] a: [user_problem] b", "[hardware_problem] a: [user_problem] b"),
        ("airflow:ops: see [hardware_problem]", REPLACEMENT),
    ],
)
def test_reasons_are_looked_for_in_the_whole_text(world: World, reason: str, acted_on: str) -> None:
    world.slurm.drain(reason)
    world.look(1 if acted_on == REBOOT else 2)
    assert world.slurm.node.reason == acted_on


@pytest.mark.parametrize("soperator", ["4.1", "5.0"])
@pytest.mark.parametrize("reason", ["[hardware_problem] a: b", "[node_problem] a: b"])
def test_without_replacement_a_node_stays_drained(soperator: str, reason: str) -> None:
    world = World(soperator, node_replacement="off")
    world.slurm.drain(reason)
    world.look(5)
    assert (world.has_machine, world.slurm.node.reason, world.slurm.reservations) == (True, reason, {})
    # Maintenance does not ask for leave.
    world.say("NebiusMaintenanceScheduled")
    world.look(6)
    assert not world.has_machine


def test_the_charts_of_an_installation_say_what_is_done(world: World) -> None:
    container = {"name": "manager", "args": ["--leader-elect", "--enable-node-replacement=false"]}
    template = {"metadata": {"labels": {"app": "checks"}}, "spec": {"containers": [container]}}
    spec = {"selector": {"matchLabels": {"app": "checks"}}, "template": template}
    world.store.create("deployment", {"metadata": {"name": "soperatorchecks-checks"}, "spec": spec}, NAMESPACE)
    world.slurm.drain("[hardware_problem] a: b")
    world.look(5)
    assert world.has_machine
    assert Settings(bare=True).replaces_nodes is Settings(bare=True).tests_suspects is False
    assert Settings().replaces_nodes is Settings().tests_suspects is True
    assert Settings(soperator="5.0").tests_suspects is False


def test_a_suspicious_node_is_reserved_and_undrained() -> None:
    world = World("4.1", extensive_check="on")
    world.slurm.drain("[node_problem] gpu_health_check: XID 79", "ALLOCATED")
    world.look(3)
    # Jobs that run go on, and no others come.
    assert world.slurm.reservations == {
        f"suspicious-node-{NODE}": {
            **{"nodes": NODE, "flags": "maint,ignore_jobs", "users": "root"},
            **{"starttime": "now", "duration": "infinite"},
        }
    }
    assert "DRAIN" not in world.slurm.node.state
    assert "conditions" not in world.store.get("node", world.machine)["status"]
    # What the test finds is replaced as on any other release.
    world.slurm.drain("[hardware_problem] extensive-check: job 7 [slurm_job]")
    world.look(4)
    assert not world.has_machine


@pytest.mark.parametrize("reason", ["[node_problem] gpu_health_check", "[node_problem] 7: x"])
def test_a_suspicion_without_name_and_details_leads_to_nothing(reason: str) -> None:
    world = World("4.1", extensive_check="on")
    world.slurm.drain(reason)
    world.look(5)
    assert (world.has_machine, world.slurm.node.reason, world.slurm.reservations) == (True, reason, {})


def test_of_two_conditions_the_last_one_counts(world: World) -> None:
    world.say("NebiusMaintenanceScheduled")
    world.say("HardwareIssuesSuspected", status=False)
    world.look(5)
    assert world.has_machine
    assert "DRAIN" not in world.slurm.node.state


def test_maintenance_drains_and_replaces(world: World) -> None:
    world.say("NebiusMaintenanceScheduled")
    world.slurm.node = replace(world.slurm.node, state=frozenset({"ALLOCATED", "CLOUD"}))
    world.look(5)
    assert world.slurm.node.is_drained_for(REPLACEMENT)
    assert world.condition("SoperatorChecksNodeMaintenance") is None
    world.slurm.drain(REPLACEMENT)
    world.look(4)
    assert not world.has_machine


def test_the_reason_of_a_maintenance_without_one_is_undone(world: World) -> None:
    world.slurm.drain(REPLACEMENT)
    world.look()
    assert "DRAIN" not in world.slurm.node.state
    assert world.has_machine


@pytest.mark.parametrize("reason", ["Kill task failed", REBOOT])
def test_a_reboot_leaves_the_machine(world: World, reason: str) -> None:
    world.slurm.drain(reason)
    # As if that were a while ago: moments are compared by their seconds.
    world.slurm.node = replace(world.slurm.node, reason_since=0)
    world.look()
    world.slurm.node = replace(world.slurm.node, reason_since=0)
    world.look(2)
    assert world.slurm.node.reason == REBOOT
    assert world.kubelet.rebooted == [NODE]
    world.look()
    for type_ in ("SlurmNodeReboot", "SoperatorChecksNodeDegraded"):
        assert world.condition(type_) == ("False", "NodeRebooted")
    assert world.condition("Ready") == ("True", "KubeletReady")
    world.look()
    assert "DRAIN" not in world.slurm.node.state
    assert world.has_machine


def test_a_drain_from_before_the_machine_is_undone(world: World) -> None:
    world.slurm.drain("[hardware_problem] a: b")
    world.slurm.node = replace(world.slurm.node, reason_since=0)
    world.look()
    assert "DRAIN" not in world.slurm.node.state
    assert world.condition("HardwareIssuesSuspected") is None
