"""The assessment of nodes by all findings, and the query of a sensor or trigger."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_soperator.health.figures import Kept, slower
from airflow_provider_soperator.health.findings import Finding, FindingKind, of_kubernetes, of_slurm
from airflow_provider_soperator.health.metrics import NODE_LABELS, Metric, Sample
from airflow_provider_soperator.slurm.cluster_records import Node
from airflow_provider_soperator.slurm.node_conditions import chosen
from airflow_provider_soperator.soperator.workloads import Pod

#: Findings by the names of their nodes.
Findings = Mapping[str, Sequence[Finding]]


@dataclass(frozen=True)
class Observations:
    """Observations from Kubernetes and Prometheus; None or empty if not configured."""

    #: Pods by name: the Pod of a Slurm node has the node's name.
    kubernetes: Mapping[str, Pod] | None = None
    samples: Mapping[Metric, Sequence[Sample]] = field(default_factory=dict)
    #: Labels whose values name the node of a sample, in order of preference.
    node_labels: tuple[str, ...] = NODE_LABELS
    #: What is kept of the figures of checks, and the share by which they may be worse.
    figures: Mapping[str, Kept] = field(default_factory=dict)
    tolerance: float = 0.1

    def faults(self, nodes: Iterable[Node]) -> Iterator[tuple[str | None, Metric, Sample, str]]:
        """The faults that metrics report, each with its node, None if it is of none of these, and in words."""
        own = {node.name: node.name for node in nodes}
        pods = (self.kubernetes or {}).items()
        names = {pod.host.name: name for name, pod in pods if pod.host and name in own} | own
        for metric, samples in self.samples.items():
            for sample in samples:
                if what := metric.says(sample.value):
                    yield sample.node(names, self.node_labels), metric, sample, what


def assess(nodes: Sequence[Node], seen: Observations, *, ignore_own_drains: bool = True) -> dict[str, list[Finding]]:
    """The findings about each node. Being off, or drained by this provider, is none."""
    found = {node.name: [*of_slurm(node, ignore_own_drains=ignore_own_drains)] for node in nodes}
    if seen.kubernetes is not None:
        for node in nodes:
            found[node.name] += of_kubernetes(node, seen.kubernetes.get(node.name))
    for name, metric, sample, what in seen.faults(nodes):
        if name:
            gpu = f"GPU {sample.labels['gpu']}: " if sample.labels.get("gpu") else ""
            heals, takes = metric.heals, metric.takes_machine
            found[name].append(
                Finding(name, FindingKind.METRIC, gpu + what, "prometheus", heals=heals, takes_machine=takes)
            )
    on = {node.name for node in nodes if not node.is_off}
    for check, kept in seen.figures.items():
        for finding in slower(check, {name: runs for name, runs in kept.items() if name in on}, seen.tolerance):
            pod = (seen.kubernetes or {}).get(finding.node)
            came = pod.host.created if pod and pod.host else None
            # What was measured on another machine says nothing of this one.
            if not (came and finding.since and finding.since < came):
                found[finding.node].append(finding)
    return found


def unclear(nodes: Iterable[Node], seen: Observations) -> str:
    """A warning of checks without figures, and of faults that match no node; empty if there are none.

    The faults may be of other GPUs of the site.
    """
    unknown, doubts = [check for check, kept in seen.figures.items() if not kept], list[str]()
    if unknown:
        doubts.append(f"no figures are kept of the checks {', '.join(unknown)}, so they say nothing of any node")
    if strangers := [sample for name, _, sample, _ in seen.faults(nodes) if name is None]:
        labels = sorted(strangers[0].labels.items())
        shown = ", ".join(f"{name}={value}" for name, value in labels if name != "__name__")
        doubts.append(
            f"{len(strangers)} metrics report faults that match no Slurm node, such as {{{shown}}}: if they are of "
            f"this cluster, add the label with the node's name to node_labels ({', '.join(seen.node_labels)}), or a "
            "Kubernetes connection, which maps machines to nodes"
        )
    return "; ".join(doubts)


@dataclass(frozen=True, kw_only=True)
class HealthQuery:
    """Nodes, and the condition to wait for; of plain values."""

    nodes: tuple[str, ...] = ()
    partition: str = ""
    #: ``healthy``, ``unhealthy``, or ``any``, which does not wait.
    target_state: str = "healthy"
    kinds: tuple[str, ...] = ()
    ignore_own_drains: bool = True

    def chosen(self, nodes: Iterable[Node]) -> list[Node]:
        return chosen(nodes, self.nodes, self.partition)

    def unhealthy(self, nodes: Sequence[Node], seen: Observations) -> Findings:
        """The findings that count, of the nodes that have any."""
        wanted = {node.name for node in self.chosen(nodes)}
        kinds = set(map(FindingKind, self.kinds or FindingKind))
        # Of all nodes, as metrics may name any.
        found = assess(nodes, seen, ignore_own_drains=self.ignore_own_drains)
        counted = {name: [one for one in findings if one.kind in kinds] for name, findings in found.items()}
        return {name: findings for name, findings in counted.items() if name in wanted and findings}

    def is_reached(self, unhealthy: Findings) -> bool:
        return self.target_state == "any" or bool(unhealthy) == (self.target_state == "unhealthy")


def told(unhealthy: Findings) -> dict[str, list[dict[str, Any]]]:
    return {name: [one.to_dict() for one in findings] for name, findings in unhealthy.items()}


def in_words(unhealthy: Findings) -> dict[str, str]:
    """The findings of each node, worded to follow its name."""
    return {name: "; ".join(f"{one.kind.value}: {one.what}" for one in said) for name, said in unhealthy.items()}


class Episodes:
    """Periods in which nodes are unhealthy; each is reported once, however long it lasts."""

    def __init__(
        self, lasting: float = 0, told: Mapping[str, bool] | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        #: Reported nodes, and whether a machine replacement was reported as needed.
        self.told: dict[str, bool] = dict(told or {})
        self._lasting = lasting
        #: Since when each node is unhealthy (False), and since when its machine must go (True).
        self._since: dict[tuple[str, bool], float] = {}
        self._clock = clock

    def news(self, unhealthy: Findings) -> list[str]:
        """The nodes that have been unhealthy long enough, or are worse than reported."""
        now = self._clock()
        states = {name: any(one.takes_machine for one in findings) for name, findings in unhealthy.items()}
        pairs = dict.fromkeys(states, False).items() | states.items()
        self._since = {pair: self._since.get(pair, now) for pair in pairs}
        self.told = {name: was for name, was in self.told.items() if name in states}
        begun = {name: self._since[name, worse and name in self.told] for name, worse in states.items()}
        ripe = [name for name, since in begun.items() if now - since >= self._lasting]
        news = [name for name in ripe if name not in self.told or (states[name] and not self.told[name])]
        self.told |= {name: states[name] for name in news}
        return news
