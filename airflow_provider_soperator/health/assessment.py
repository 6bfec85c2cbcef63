"""The assessment of nodes by all findings, and the query of a sensor or trigger."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_soperator.health.findings import FindingKind, NodeHealth, of_kubernetes, of_slurm, word_of
from airflow_provider_soperator.health.metrics import NODE_LABELS, Metric, Sample, faults_of_no_node, of_metrics
from airflow_provider_soperator.slurm.cluster_records import Node
from airflow_provider_soperator.slurm.node_conditions import chosen
from airflow_provider_soperator.soperator.workloads import Pod

Samples = Mapping[Metric, Sequence[Sample]]


@dataclass(frozen=True)
class Observations:
    """Observations from Kubernetes and Prometheus; None or empty if not configured."""

    #: Pods by name: the Pod of a Slurm node has the node's name.
    kubernetes: Mapping[str, Pod] | None = None
    samples: Samples = field(default_factory=dict)
    #: See ``of_metrics``.
    node_labels: tuple[str, ...] = NODE_LABELS


def assess(nodes: Iterable[Node], seen: Observations, *, ignore_own_drains: bool = True) -> dict[str, NodeHealth]:
    """The health of each node. Being off, or drained by this provider, is not a finding."""
    known = {node.name: node for node in nodes}
    by_figures = list(of_metrics(seen.samples, _names(known, seen), seen.node_labels))
    healths = {}
    for name, node in known.items():
        findings = [*of_slurm(node, ignore_own_drains=ignore_own_drains)]
        if seen.kubernetes is not None:
            findings += of_kubernetes(node, seen.kubernetes.get(name))
        findings += [one for one in by_figures if one.node == name]
        healths[name] = NodeHealth(name, tuple(findings), word_of(node))
    return healths


def unclear(nodes: Iterable[Node], seen: Observations) -> str:
    """A warning of faults that match no node; empty if there are none."""
    return faults_of_no_node(seen.samples, _names({node.name: node for node in nodes}, seen), seen.node_labels)


def _names(known: Mapping[str, Node], seen: Observations) -> dict[str, str]:
    """The node for each name of a node or machine."""
    pods = (seen.kubernetes or {}).items()
    machines = {pod.host.name: name for name, pod in pods if pod.host and name in known}
    return machines | {name: name for name in known}


@dataclass(frozen=True, kw_only=True)
class HealthQuery:
    """Nodes, and the condition to wait for; of plain values."""

    nodes: tuple[str, ...] = ()
    partition: str = ""
    #: ``healthy``, ``unhealthy``, or ``any``, which does not wait.
    target_state: str = "healthy"
    #: The kinds of findings that count; empty for all.
    kinds: tuple[str, ...] = ()
    ignore_own_drains: bool = True

    def chosen(self, nodes: Iterable[Node]) -> list[Node]:
        """The nodes that are meant."""
        return chosen(nodes, self.nodes, self.partition)

    def unhealthy(self, nodes: Iterable[Node], seen: Observations) -> dict[str, NodeHealth]:
        """The nodes with findings that count."""
        # Metrics may name any node.
        everyone = list(nodes)
        wanted = {node.name for node in self.chosen(everyone)}
        kinds = set(map(FindingKind, self.kinds or FindingKind))
        found = {}
        for name, health in assess(everyone, seen, ignore_own_drains=self.ignore_own_drains).items():
            findings = tuple(one for one in health.findings if one.kind in kinds)
            if name in wanted and findings:
                found[name] = dataclasses.replace(health, findings=findings)
        return found

    def is_reached(self, unhealthy: Mapping[str, NodeHealth]) -> bool:
        return self.target_state == "any" or bool(unhealthy) == (self.target_state == "unhealthy")


def told(unhealthy: Mapping[str, NodeHealth]) -> dict[str, list[dict[str, Any]]]:
    """The findings of each node as plain values."""
    return {name: [one.to_dict() for one in health.findings] for name, health in unhealthy.items()}


def in_words(unhealthy: Mapping[str, NodeHealth]) -> dict[str, str]:
    """The findings of each node, worded to follow its name."""
    return {
        name: "; ".join(f"{one.kind.value}: {one.what}" for one in health.findings)
        for name, health in unhealthy.items()
    }


class Episodes:
    """Periods in which nodes are unhealthy; each is reported once, however long it lasts.

    >>> from airflow_provider_soperator.health.findings import Finding
    >>> sick = NodeHealth("n", (Finding("n", FindingKind.POD, "there is no Pod", "kubernetes"),))
    >>> episodes = Episodes()
    >>> [len(episodes.news(unhealthy)) for unhealthy in ({"n": sick}, {"n": sick}, {}, {"n": sick})]
    [1, 0, 0, 1]
    """

    def __init__(
        self,
        lasting: float = 0,
        told: Mapping[str, bool] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        #: Reported nodes, and whether a machine replacement was reported as needed.
        self.told: dict[str, bool] = dict(told or {})
        self._lasting = lasting
        self._since: dict[tuple[str, bool], float] = {}
        self._clock = clock

    def news(self, unhealthy: Mapping[str, NodeHealth]) -> list[NodeHealth]:
        """Nodes that have been unhealthy long enough, or are worse than reported."""
        now = self._clock()
        states = {name: any(one.takes_machine for one in health.findings) for name, health in unhealthy.items()}
        self._since = {pair: self._since.get(pair, now) for pair in states.items()}
        self.told = {name: was for name, was in self.told.items() if name in states}
        ripe = [name for name, worse in states.items() if now - self._since[name, worse] >= self._lasting]
        news = [name for name in ripe if name not in self.told or (states[name] and not self.told[name])]
        self.told |= {name: states[name] for name in news}
        return [unhealthy[name] for name in news]
