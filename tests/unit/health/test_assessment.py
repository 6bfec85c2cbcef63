"""What counts as wrong with a node, and what does not, by each of those who are asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone

import pytest

from airflow_provider_soperator.health.assessment import (
    Episodes,
    HealthQuery,
    Observations,
    assess,
    in_words,
    told,
    unclear,
)
from airflow_provider_soperator.health.findings import (
    CONDITIONS,
    Finding,
    FindingKind,
    acted_upon,
    kinds_of,
)
from airflow_provider_soperator.health.metrics import METRICS, Metric, Sample
from airflow_provider_soperator.slurm.cluster_records import Node
from airflow_provider_soperator.slurm.errors import UnknownNode, UnknownPartition
from airflow_provider_soperator.slurm.node_conditions import KNOWN_REASONS
from airflow_provider_soperator.slurm.states import NodeState
from airflow_provider_soperator.soperator.conditions import Condition
from airflow_provider_soperator.soperator.workloads import Host, Pod

NOON = datetime(2026, 11, 22, 12, tzinfo=timezone.utc)
HOST = Host("computeinstance-1", NOON, (Condition("Ready", "True"),))
RUNNING = Pod("Running", True, HOST)


def node(state: str, reason: str = "", name: str = "worker-0", user: str = "root") -> Node:
    return Node(
        name=name,
        state=NodeState.parse(state),
        reason=reason,
        reason_user=user if reason else "",
        reason_since=NOON if reason else None,
        partitions=("main",),
    )


def findings(one: Node, pod: Pod | None = RUNNING, **options: bool) -> list[Finding]:
    pods = {one.name: pod} if pod else {}
    return assess([one], Observations(pods), **options)[one.name]


def kinds(found: Sequence[Finding]) -> list[str]:
    return [finding.kind.value for finding in found]


def test_the_kinds_of_known_reasons_are_those_of_findings() -> None:
    assert {known.kind for known in KNOWN_REASONS} - {""} <= {kind.value for kind in FindingKind}


@pytest.mark.parametrize(
    ("state", "pod"),
    [
        ("IDLE+CLOUD", RUNNING),
        ("MIXED+CLOUD", RUNNING),
        ("IDLE+CLOUD+POWERED_DOWN", None),
        ("IDLE+CLOUD+POWERED_DOWN+DRAIN", None),
        ("IDLE+CLOUD+POWERING_DOWN", None),
        ("MIXED+CLOUD+POWER_DOWN", None),
        ("IDLE+CLOUD+POWERING_UP", None),
        ("DOWN+CLOUD+POWERING_UP+NOT_RESPONDING", None),
    ],
)
def test_what_a_node_is_told_to_do_is_no_illness(state: str, pod: Pod | None) -> None:
    assert findings(node(state), pod) == []


@pytest.mark.parametrize(
    ("reason", "kind", "heals", "takes_machine"),
    [
        ("[user_problem] boot_disk_full: 99% [hc_program]", "user_problem", True, False),
        ("[user_problem] pod_ephemeral_storage 87% of ephemeral storage is used", "user_problem", True, False),
        ("[node_problem] gpu_health_check: XID 94 [prolog]", "node_problem", True, True),
        ("[hardware_problem] gpu_health_check: XID 79", "hardware_problem", True, True),
        ("[software_problem] the driver is old", "software_problem", False, False),
        ("[compute_maintenance] node replacement process", "maintenance", True, True),
        ("[compute_maintenance] node reboot process", "reboot", True, True),
        ("Kill task failed", "reboot", True, True),
        ("soperator rolling update", "pod", True, False),
        ("nvme_raid_health: md0 is degraded", "hardware_problem", False, True),
        ("Prolog error", "software_problem", False, False),
        ("new cables", "drained", False, False),
        ("", "drained", False, False),
    ],
)
def test_a_drain_is_judged_by_its_reason(reason: str, kind: str, heals: bool, takes_machine: bool) -> None:
    [found] = findings(node("IDLE+CLOUD+DRAIN", reason))
    assert (found.kind.value, found.heals, found.takes_machine) == (kind, heals, takes_machine)
    assert found.source == "slurm"
    assert found.since == (NOON if reason else None)


def test_own_drains_are_no_illness_unless_asked_for() -> None:
    ours = node("MIXED+CLOUD+DRAIN", "airflow:night: lent")
    assert findings(ours) == []
    assert kinds(findings(ours, ignore_own_drains=False)) == ["drained"]
    # What is wrong besides is told all the same.
    assert kinds(findings(node("IDLE+CLOUD+DRAIN+NOT_RESPONDING", "airflow:night: lent"))) == ["not_responding"]
    assert kinds(findings(node("DOWN+CLOUD+DRAIN", "airflow:night: lent"))) == ["out_of_service"]
    assert kinds(findings(node("DOWN+CLOUD+DRAIN+NOT_RESPONDING", "airflow:night: lent"))) == ["not_responding"]
    replaced = node("MIXED+CLOUD+DRAIN", "[hardware_problem] airflow:night: NVLink")
    assert findings(replaced) == []
    assert kinds(findings(replaced, ignore_own_drains=False)) == ["hardware_problem"]


@pytest.mark.parametrize(
    ("state", "reason", "kind"),
    [
        ("DOWN+CLOUD", "Not responding", ["not_responding"]),
        ("DOWN+CLOUD+NOT_RESPONDING", "Not responding", ["not_responding"]),
        ("IDLE+CLOUD+NOT_RESPONDING", "", ["not_responding"]),
        ("DOWN+CLOUD+POWERED_DOWN", "ResumeTimeout reached", ["boot_failed"]),
        ("DOWN+CLOUD", "ResumeTimeout reached", ["boot_failed"]),
        ("DOWN+CLOUD+NOT_RESPONDING+POWERING_UP", "ResumeTimeout reached", []),
        ("DOWN+CLOUD+NOT_RESPONDING", "ResumeTimeout reached : Not responding", ["not_responding"]),
        ("DOWN+CLOUD", "gres/gpu count reported lower", ["out_of_service"]),
        ("IDLE+CLOUD+INVALID_REG", "", ["hardware_problem"]),
        ("IDLE+CLOUD+REBOOT_ISSUED", "", ["reboot"]),
        ("DOWN+CLOUD+REBOOT_ISSUED", "reboot requested : reboot issued", ["reboot"]),
        ("DOWN+CLOUD+DRAIN+REBOOT_ISSUED", "kernel : reboot issued", ["reboot"]),
        ("DOWN+CLOUD+DRAIN+REBOOT_ISSUED", "airflow:night: lent : reboot issued", ["reboot"]),
        ("DOWN+CLOUD+DRAIN+REBOOT_ISSUED", "Prolog error : reboot issued", ["software_problem", "reboot"]),
        ("IDLE+CLOUD+FAIL", "", ["out_of_service"]),
    ],
)
def test_a_state_is_judged(state: str, reason: str, kind: list[str]) -> None:
    assert kinds(findings(node(state, reason))) == kind


@pytest.mark.parametrize("type_", CONDITIONS)
def test_each_condition_is_heeded_as_long_as_it_is_there(type_: str) -> None:
    bad = "False" if type_ == "Ready" else "True"
    good = "True" if type_ == "Ready" else "False"

    def on(status: str) -> list[Finding]:
        condition = Condition(type_, status, "Because", "of this", NOON)
        return findings(node("IDLE+CLOUD"), replace(RUNNING, host=replace(HOST, conditions=(condition,))))

    [found] = on(bad)
    assert found.kind is CONDITIONS[type_].kind
    assert f"{type_} is {bad} on computeinstance-1 (Because: of this)" in found.what
    assert (found.since, found.source) == (NOON, "kubernetes")
    assert not on(good)


def test_a_kubelet_that_is_not_heard_of_is_not_ready() -> None:
    silent = replace(HOST, conditions=(Condition("Ready", "Unknown"),))
    [found] = findings(node("IDLE+CLOUD"), replace(RUNNING, host=silent))
    # Soperator deletes its Kubernetes Node in 15 minutes, unless it answers before.
    assert (found.kind.value, found.heals, found.takes_machine) == ("machine", True, False)


@pytest.mark.parametrize(
    ("pod", "kind", "acted"),
    [
        (None, ["pod"], "has no Pod"),
        (replace(RUNNING, is_leaving=True), ["pod"], "has a Pod that is being deleted"),
        (replace(RUNNING, is_ready=False), ["pod"], ""),
        (
            replace(RUNNING, is_ready=False, problems=("container slurmd waits (CrashLoopBackOff)",)),
            ["pod"],
            "",
        ),
        (Pod("Pending", False, problems=("Unschedulable",)), ["pod"], "has a Pod that is on no machine"),
        (
            replace(RUNNING, host=Host("computeinstance-1", is_gone=True)),
            ["machine"],
            "has a machine that goes (computeinstance-1)",
        ),
        (
            replace(RUNNING, host=replace(HOST, conditions=(Condition("HardwareIssuesSuspected", "True"),))),
            ["hardware_problem"],
            "has a machine with HardwareIssuesSuspected",
        ),
    ],
)
def test_a_pod_is_judged(pod: Pod | None, kind: list[str], acted: str) -> None:
    assert kinds(findings(node("IDLE+CLOUD"), pod)) == kind
    assert acted_upon(pod) == acted


def test_a_node_that_boots_may_wait_for_its_machine() -> None:
    assert not findings(node("IDLE+CLOUD+POWERING_UP"), Pod("Pending", False, problems=("Unschedulable",)))


def by_metrics(samples: Mapping[Metric, Sequence[Sample]], pod: Pod | None = None) -> Observations:
    return Observations({"worker-0": pod} if pod else None, samples)


XID, ECC, REMAP, TEMPERATURE = METRICS


@pytest.mark.parametrize(
    ("metric", "value", "what"),
    [
        (XID, 79, "GPU 3: a GPU has reported an XID: GPU has fallen off the bus (DCGM_FI_DEV_XID_ERRORS = 79)"),
        # Programs have those.
        (XID, 13, None),
        (XID, 31, None),
        (XID, 0, None),
        (ECC, 1, "GPU 3: memory of a GPU has errors that ECC cannot correct (DCGM_FI_DEV_ECC_DBE_VOL_TOTAL = 1)"),
        (REMAP, 1, "GPU 3: a GPU has no spare memory rows left (DCGM_FI_DEV_ROW_REMAP_FAILURE = 1)"),
        (TEMPERATURE, 91, "GPU 3: a GPU is too hot (DCGM_FI_DEV_GPU_TEMP = 91)"),
        (TEMPERATURE, 90, None),
    ],
)
def test_a_figure_is_judged(metric: Metric, value: float, what: str | None) -> None:
    seen = by_metrics({metric: [Sample({"gpu": "3", "pod": "worker-0"}, value)]})
    found = assess([node("IDLE+CLOUD")], seen)["worker-0"]
    assert [one.what for one in found] == ([what] if what else [])
    assert all(one.kind is FindingKind.METRIC for one in found)
    assert all(one.takes_machine == (metric is not TEMPERATURE) for one in found)


@pytest.mark.parametrize(
    "labels",
    [
        {"pod": "worker-0"},
        # Prometheus has a pod of its own: the exporter.
        {"pod": "dcgm-exporter-x", "exported_pod": "worker-0"},
        {"Hostname": "worker-0"},
        {"instance": "worker-0:9400"},
        # The machine's name.
        {"Hostname": "computeinstance-1"},
        {"node": "computeinstance-1"},
        {"instance": "computeinstance-1:9400"},
    ],
)
def test_a_figure_is_a_nodes_by_any_of_its_names(labels: dict[str, str]) -> None:
    seen = by_metrics({ECC: [Sample(labels, 1)]}, RUNNING)
    assert kinds(assess([node("IDLE+CLOUD")], seen)["worker-0"]) == ["metric"]
    assert unclear([node("IDLE+CLOUD")], seen) == ""


def test_figures_that_are_nobodys_are_told() -> None:
    strange = {ECC: [Sample({"host": "worker-0", "gpu": "1"}, 1)], XID: [Sample({"host": "worker-0"}, 13)]}
    seen = by_metrics(strange)
    assert not assess([node("IDLE+CLOUD")], seen)["worker-0"]
    assert "1 metrics report faults that match no Slurm node, such as {gpu=1, host=worker-0}" in unclear(
        [node("IDLE+CLOUD")], seen
    )
    named = replace(seen, node_labels=("host",))
    assert assess([node("IDLE+CLOUD")], named)["worker-0"]


NODES = [
    node("IDLE+CLOUD+DRAIN", "[user_problem] boot_disk_full: 99%"),
    node("IDLE+CLOUD+DRAIN", "[hardware_problem] gpu_health_check: XID 79", "worker-1"),
    node("IDLE+CLOUD", name="worker-2"),
]


def test_what_is_watched_counts() -> None:
    everything = HealthQuery().unhealthy(NODES, Observations())
    assert list(everything) == ["worker-0", "worker-1"]
    assert HealthQuery(kinds=("hardware_problem",)).unhealthy(NODES, Observations()).keys() == {"worker-1"}
    assert HealthQuery(nodes=("worker-0", "worker-2")).unhealthy(NODES, Observations()).keys() == {"worker-0"}
    assert HealthQuery(partition="main").unhealthy(NODES, Observations()) == everything
    with pytest.raises(UnknownNode, match="there is no node worker-9"):
        HealthQuery(nodes=("worker-9",)).unhealthy(NODES, Observations())
    with pytest.raises(UnknownPartition):
        HealthQuery(partition="mian").unhealthy(NODES, Observations())


def test_what_is_waited_for() -> None:
    sick = HealthQuery().unhealthy(NODES, Observations())
    ways = ("healthy", "unhealthy", "any")
    assert [HealthQuery(target_state=said).is_reached(sick) for said in ways] == [False, True, True]
    assert [HealthQuery(target_state=said).is_reached({}) for said in ways] == [True, False, True]


def test_what_is_wrong_is_told_in_plain_values_and_in_words() -> None:
    sick = HealthQuery(nodes=("worker-1",)).unhealthy(NODES, Observations())
    [finding] = told(sick)["worker-1"]
    assert finding["kind"] == "hardware_problem"
    assert finding["since"] == NOON.isoformat()
    assert finding["takes_machine"] is True
    assert in_words(sick)["worker-1"].startswith("hardware_problem: [hardware_problem] gpu_health_check: XID 79 (")


def test_a_kind_that_there_is_not() -> None:
    with pytest.raises(ValueError, match="unknown kind hardware of findings: did you mean 'hardware_problem'"):
        kinds_of(["hardware"])


def sick(name: str, *, takes_machine: bool = False) -> dict[str, list[Finding]]:
    finding = Finding(node=name, kind=FindingKind.NODE_PROBLEM, what="x", source="slurm", takes_machine=takes_machine)
    return {name: [finding]}


def test_an_episode_is_told_once_and_again_when_it_gets_worse() -> None:
    episodes = Episodes()
    rounds = [sick("a"), sick("a"), sick("a") | sick("b"), sick("a", takes_machine=True), sick("a"), {}, sick("a")]
    assert [episodes.news(one) for one in rounds] == [["a"], [], ["b"], ["a"], [], [], ["a"]]


def test_an_episode_is_told_when_it_has_lasted() -> None:
    now = 0.0
    episodes = Episodes(60, clock=lambda: now)
    assert episodes.news(sick("a")) == []
    now = 59
    assert episodes.news({}) == []
    assert episodes.news(sick("a")) == []
    now = 119
    assert len(episodes.news(sick("a"))) == 1


def test_an_episode_lasts_while_the_node_gets_worse_and_better() -> None:
    rounds = {0.0: False, 30.0: True, 60.0: False, 70.0: True, 129.0: True, 130.0: True}
    episodes = Episodes(60, clock=iter(rounds).__next__)
    news = [episodes.news(sick("a", takes_machine=worse)) for worse in rounds.values()]
    # Told once it has lasted, and again when it has been worse for as long.
    assert news == [[], [], ["a"], [], [], ["a"]]


def test_an_episode_is_not_told_twice_over_a_restart() -> None:
    episodes = Episodes()
    episodes.news(sick("a"))
    assert Episodes(told=episodes.told).news(sick("a")) == []
