"""What a Prometheus would know of the sandbox: the GPUs of its machines and the nodes of its Slurm, as of now."""

from __future__ import annotations

import uuid

from sandbox.cloud.faults import GPU_METRICS
from sandbox.cloud.slurm import Slurm, SlurmNode
from sandbox.cloud.soperator import WORKER_LABEL, is_ready
from sandbox.kube.store import ObjectStore
from sandbox.prometheus.query import Labels, Sample
from sandbox.settings import NAMESPACE, Settings

_BASE_STATES = ("UNKNOWN", "DOWN", "IDLE", "ALLOCATED", "ERROR", "MIXED", "FUTURE")
#: The flags that the exporter has a label for, by its name.
_FLAGS = {
    "state_is_drain": "DRAIN",
    "state_is_maintenance": "MAINTENANCE",
    "state_is_reserved": "RESERVED",
    "state_is_completing": "COMPLETING",
    "state_is_fail": "FAIL",
    "state_is_planned": "PLANNED",
    "state_is_not_responding": "NOT_RESPONDING",
    "state_is_invalid": "INVALID",
    "state_is_cloud": "CLOUD",
    "state_is_power_down": "POWER_DOWN",
    "state_is_power_drain": "POWER_DRAIN",
    "state_is_powered_down": "POWERED_DOWN",
    "state_is_powering_down": "POWERING_DOWN",
    "state_is_powering_up": "POWERING_UP",
    "state_is_power_up": "POWER_UP",
}
_POWER = {"POWER_DOWN", "POWER_DRAIN", "POWERED_DOWN", "POWERING_DOWN", "POWERING_UP", "POWER_UP"}


class Metrics:
    """The samples of this moment."""

    def __init__(self, store: ObjectStore, slurm: Slurm, settings: Settings) -> None:
        self._store, self._slurm, self._settings = store, slurm, settings
        #: What a fault has set, by machine, metric and GPU; a machine that is replaced takes it with it.
        self.set: dict[tuple[str, str, int], float] = {}

    async def scrape(self) -> list[Sample]:
        pods = self._store.list("pods", NAMESPACE, labels=WORKER_LABEL)
        machines = {pod["metadata"]["name"]: pod["spec"].get("nodeName", "") for pod in pods}
        nodes = await self._slurm.nodes()
        ready = {pod["metadata"]["name"] for pod in pods if is_ready(pod)}
        gpus = [
            sample
            for node in nodes
            if node.name in ready
            for gpu in range(node.gpus)
            for sample in self._gpu(node.name, machines[node.name], gpu)
        ]
        return gpus + [_node_info(node, machines.get(node.name, "")) for node in nodes]

    def _gpu(self, node: str, machine: str, gpu: int) -> list[Sample]:
        labels = {
            "gpu": str(gpu),
            "UUID": f"GPU-{uuid.uuid5(uuid.NAMESPACE_DNS, f'{machine}/{gpu}')}",
            "device": f"nvidia{gpu}",
            "modelName": "sandbox",
            "Hostname": machine,
            "namespace": NAMESPACE,
            "pod": node,
            "container": "slurmd",
        }
        return [
            Sample({"__name__": metric, **labels}, self.set.get((machine, metric, gpu), well))
            for metric, well in GPU_METRICS.items()
        ]


def _node_info(node: SlurmNode, machine: str) -> Sample:
    base = next((state for state in _BASE_STATES if state in node.state), "")
    flags = {label: str(flag in node.state).lower() for label, flag in _FLAGS.items()}
    lost = bool(node.state & {"DOWN", "NOT_RESPONDING", "UNKNOWN", "ERROR", "FAIL", "INVALID"})
    unavailable = not node.state & _POWER and (lost or node.is_fully_drained)
    labels: Labels = {
        "node_name": node.name,
        "instance_id": machine,
        "state_base": base,
        **flags,
        "is_unavailable": str(unavailable).lower(),
        "reason": node.reason,
        "comment": node.comment,
    }
    return Sample({"__name__": "slurm_node_info", **labels}, 1)
