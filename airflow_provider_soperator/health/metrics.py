"""Metrics of faulty nodes: names, bounds, and the node of each sample."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

#: Labels that identify the node, in order of preference; their values are names of nodes or machines. If a label of the
#: exporter clashes with one of Prometheus, Prometheus renames it, and ``pod`` is the exporter's Pod.
NODE_LABELS = ("exported_pod", "pod", "exported_node", "node", "Hostname", "kubernetes_node", "node_name", "instance")

#: XIDs that mean a broken machine, with NVIDIA's description. Most others are caused by a program.
MACHINE_XIDS = {
    46: "GPU stopped processing",
    48: "double bit ECC error",
    62: "internal micro-controller halt",
    64: "row remapping failed",
    74: "NVLink error",
    79: "GPU has fallen off the bus",
    95: "uncontained ECC error",
    109: "context switch timeout",
    119: "GSP RPC timeout",
    120: "GSP error",
    136: "link training failed",
    140: "unrecovered ECC error",
    143: "GPU initialisation failed",
}


@dataclass(frozen=True)
class Sample:
    """A value of a metric, with its labels."""

    labels: Mapping[str, str]
    value: float

    def node(self, nodes: Mapping[str, str], labels: Sequence[str]) -> str | None:
        """Its node, of the nodes by all names that one of the labels may have; None if there is none."""
        for label in labels:
            said = self.labels.get(label, "")
            # An instance is a host with the exporter's port.
            for name in (said, said.rpartition(":")[0]):
                if name in nodes:
                    return nodes[name]
        return None


@dataclass(frozen=True)
class Metric:
    """A metric, and its values that mean a fault.

    >>> Metric("DCGM_FI_DEV_GPU_TEMP", "a GPU is too hot", above=90).query({"cluster": "train"})
    'DCGM_FI_DEV_GPU_TEMP{cluster="train"} > 90'
    >>> Metric("DCGM_FI_DEV_XID_ERRORS", "a GPU has failed", among={79: "fallen off the bus"}).says(13.0) is None
    True
    """

    name: str
    meaning: str
    above: float = 0
    #: The meaning of each value that counts; None: all do.
    among: Mapping[int, str] | None = field(default=None, hash=False)
    takes_machine: bool = True
    heals: bool = False

    def query(self, labels: Mapping[str, str]) -> str:
        """The query for series with these labels. Prometheus drops healthy ones: there may be thousands of GPUs."""
        # Of the escapes in such a text Prometheus knows all that JSON has.
        said = ",".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in labels.items())
        return f"{self.name}{f'{{{said}}}' if said else ''} > {self.above:g}"

    def says(self, value: float) -> str | None:
        """The fault that a value means; None if there is none."""
        if not value > self.above:
            return None
        if self.among is None:
            return f"{self.meaning} ({self.name} = {value:g})"
        word = self.among.get(int(value))
        return f"{self.meaning}: {word} ({self.name} = {value:g})" if word else None


#: Metrics of dcgm-exporter.
METRICS = (
    Metric("DCGM_FI_DEV_XID_ERRORS", "a GPU has reported an XID", among=MACHINE_XIDS),
    Metric("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", "memory of a GPU has errors that ECC cannot correct"),
    Metric("DCGM_FI_DEV_ROW_REMAP_FAILURE", "a GPU has no spare memory rows left"),
    Metric("DCGM_FI_DEV_GPU_TEMP", "a GPU is too hot", above=90, takes_machine=False, heals=True),
)
