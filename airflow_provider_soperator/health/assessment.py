"""How nodes are, all in all, and whether that is what somebody waits for."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_soperator.health.findings import Kind, NodeHealth
from airflow_provider_soperator.health.machines import of_kubernetes
from airflow_provider_soperator.health.metrics import NODE_LABELS, Metric, Sample, nobodys, of_metrics
from airflow_provider_soperator.health.reasons import of_slurm, word_of
from airflow_provider_soperator.kubernetes.view import KubernetesView
from airflow_provider_soperator.slurm.cluster_records import Node
from airflow_provider_soperator.slurm.node_conditions import chosen

Samples = Mapping[Metric, Sequence[Sample]]


@dataclass(frozen=True)
class Seen:
    """What those say whom one can ask beside Slurm; None of whom nobody asked."""

    kubernetes: KubernetesView | None = None
    samples: Samples = field(default_factory=dict)
    #: See ``of_metrics``.
    node_labels: tuple[str, ...] = NODE_LABELS


def assess(nodes: Iterable[Node], seen: Seen, *, ignore_own_drains: bool = True) -> dict[str, NodeHealth]:
    """How each node is. A node that is off, or that this provider has drained, is not ill for that."""
    known = {node.name: node for node in nodes}
    by_figures = list(of_metrics(seen.samples, _names(known, seen), seen.node_labels))
    healths = {}
    for name, node in known.items():
        findings = [*of_slurm(node, ignore_own_drains=ignore_own_drains)]
        if seen.kubernetes is not None:
            findings += of_kubernetes(node, seen.kubernetes.pods.get(name))
        findings += [one for one in by_figures if one.node == name]
        healths[name] = NodeHealth(name, tuple(findings), word_of(node))
    return healths


def unclear(nodes: Iterable[Node], seen: Seen) -> str:
    """What cannot be told of any node; empty if all can."""
    return nobodys(seen.samples, _names({node.name: node for node in nodes}, seen), seen.node_labels)


def _names(known: Mapping[str, Node], seen: Seen) -> dict[str, str]:
    """The node behind each name that it, or its machine, has."""
    pods = seen.kubernetes.pods if seen.kubernetes else {}
    machines = {pod.host.name: name for name, pod in pods.items() if pod.host and name in known}
    return machines | {name: name for name in known}


@dataclass(frozen=True, kw_only=True)
class Watched:
    """Some nodes, and what is waited for; of plain values."""

    nodes: tuple[str, ...] = ()
    partition: str = ""
    #: ``healthy``, ``unhealthy``, or ``now``, which does not wait.
    wait_for: str = "healthy"
    #: Findings of other kinds do not count; without any, all do.
    kinds: tuple[str, ...] = ()
    ignore_own_drains: bool = True

    @classmethod
    def read(cls, written: Mapping[str, Any]) -> Watched:
        lists = {name: tuple(written.get(name, ())) for name in ("nodes", "kinds")}
        return cls(**{**written, **lists})

    def write(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    def unhealthy(self, nodes: Iterable[Node], seen: Seen) -> dict[str, NodeHealth]:
        """Those with findings that count, and no others."""
        # Figures may name any node.
        everyone = list(nodes)
        wanted = {node.name for node in chosen(everyone, self.nodes, self.partition)}
        kinds = set(map(Kind, self.kinds or Kind))
        found = {}
        for name, health in assess(everyone, seen, ignore_own_drains=self.ignore_own_drains).items():
            findings = tuple(one for one in health.findings if one.kind in kinds)
            if name in wanted and findings:
                found[name] = dataclasses.replace(health, findings=findings)
        return found

    def is_reached(self, unhealthy: Mapping[str, NodeHealth]) -> bool:
        return self.wait_for == "now" or bool(unhealthy) == (self.wait_for == "unhealthy")


def told(unhealthy: Mapping[str, NodeHealth]) -> dict[str, list[dict[str, Any]]]:
    """The findings of each node in plain values."""
    return {name: [one.to_dict() for one in health.findings] for name, health in unhealthy.items()}


def in_words(unhealthy: Mapping[str, NodeHealth]) -> dict[str, str]:
    """What is wrong with each node, as what follows its name in a sentence."""
    return {
        name: "; ".join(f"{one.kind.value}: {one.what}" for one in health.findings)
        for name, health in unhealthy.items()
    }
