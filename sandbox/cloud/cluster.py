"""A Kubernetes cluster: its objects, the controllers that every cluster has, and the API before them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sandbox.access import VIEWER_TOKEN
from sandbox.cloud.events import Recorder
from sandbox.cloud.faults import ApiFaults
from sandbox.cloud.fleet import Fleet
from sandbox.cloud.keda import ScaledObjectController
from sandbox.cloud.pods import Logs, Runner
from sandbox.cloud.volumes import VolumeController
from sandbox.cloud.workloads import (
    DeploymentController,
    DisruptionController,
    NodeController,
    Scheduler,
    busy_machines,
)
from sandbox.kube import kubeconfig
from sandbox.kube.server import KubernetesDouble, serve
from sandbox.kube.store import ObjectStore
from sandbox.settings import LOOPBACK


@dataclass(frozen=True, kw_only=True)
class Access:
    """Where the API of a cluster is, and what leads clients to it."""

    port: int
    token: str
    certificates: Path
    kubeconfig: Path
    context: str
    namespace: str


class KubernetesCluster:
    """One of those whose Nodes are machines of the fleet."""

    def __init__(self, cluster_id: str, fleet: Fleet) -> None:
        self.store = ObjectStore()
        self.events = Recorder(self.store)
        self._scaled_objects = ScaledObjectController(self.store)
        self._deployments = DeploymentController(self.store)
        self._disruptions = DisruptionController(self.store)
        self._volumes = VolumeController(self.store)
        self._nodes = NodeController(self.store, fleet, self.events, cluster_id)
        self._scheduler = Scheduler(self.store, fleet, self.events, cluster_id)
        self._double: KubernetesDouble | None = None

    async def open(self, access: Access, runner: Runner, logs: Logs, faults: ApiFaults) -> KubernetesDouble:
        """Serve the API, and write the kubeconfig that leads to it."""
        self._double = await serve(
            self.store,
            host=LOOPBACK,
            port=access.port,
            token=access.token,
            viewer_token=VIEWER_TOKEN,
            certificates=access.certificates,
            runner=runner,
            logs=logs,
            faults=faults,
        )
        kubeconfig.write_kubeconfig(
            access.kubeconfig,
            server=self._double.url,
            ca_file=self._double.ca_file,
            token=access.token,
            context=access.context,
            namespace=access.namespace,
        )
        return self._double

    def sync(self) -> dict[str, int]:
        """One step of every controller; returns the Pods that have no room, counted by the group that could make it."""
        self._scaled_objects.sync()
        self._deployments.sync()
        self._nodes.sync()
        self._disruptions.sync()
        self._volumes.sync()
        return self._scheduler.sync()

    def busy_machines(self) -> set[str]:
        return busy_machines(self.store)

    async def close(self) -> None:
        if self._double:
            await self._double.close()

    def dump(self) -> dict[str, Any]:
        return self.store.dump()

    def load(self, state: dict[str, Any]) -> None:
        self.store.load(state)
