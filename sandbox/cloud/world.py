"""The cloud as a whole: block, fleet, objects and controllers, moved on together a few times a second."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from typing import Any

from aiohttp.web import AppRunner

from sandbox.access import INFERENCE_CONTEXT, INFERENCE_TOKEN, KUBERNETES_CONTEXT, KUBERNETES_TOKEN, NEBIUS_TOKEN
from sandbox.cloud import landscape, slurm_files
from sandbox.cloud.backups import BackupController
from sandbox.cloud.block import CapacityBlock
from sandbox.cloud.check_runs import CheckRuns
from sandbox.cloud.checks import Checks
from sandbox.cloud.cluster import Access, KubernetesCluster
from sandbox.cloud.faults import ApiFaults
from sandbox.cloud.fleet import Fleet, Timing
from sandbox.cloud.flux import FluxController
from sandbox.cloud.kubelet import Kubelet
from sandbox.cloud.metrics import Metrics
from sandbox.cloud.node_checks import NodeChecks
from sandbox.cloud.pod_states import PlainKubelet
from sandbox.cloud.pods import Daemons, Logs, Runner
from sandbox.cloud.slurm import Slurm
from sandbox.cloud.slurm_clusters import SlurmClusterController
from sandbox.cloud.soperator import NodeSetController, has_common, is_ready, the_cluster
from sandbox.control import Init
from sandbox.files import replace_text
from sandbox.kube.server import KubernetesDouble
from sandbox.nebius.catalogue import Catalogue, GroupTemplate
from sandbox.nebius.server import Server as NebiusDouble
from sandbox.nebius.server import serve as serve_nebius
from sandbox.prometheus.server import serve as serve_prometheus
from sandbox.settings import LOOPBACK, NAMESPACE, Settings
from sandbox.slurmd_ports import SlurmdPorts

#: Seconds between two steps of all controllers: while something changes, and while machines are on their way.
TICK, MOVING_TICK = 0.1, 0.3
#: The longest time between two steps, where nothing has changed for a while: then it is only daemons that end which a
#: step would be late to see. Many sandboxes beside each other would keep a machine busy with nothing.
IDLE_TICK = 1.0

_log = logging.getLogger(__name__)


class World:
    """Everything around the Slurm, in one process, so that there is one truth about who has which GPUs."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.init = Init(settings.paths)
        self.faults = ApiFaults()
        self.block = CapacityBlock(landscape.BLOCK_ID, settings.block, ledger=settings.paths.ledger)
        # The autoscaler waits until Slurm, too, takes the node for powered down, and then some.
        timing = Timing(settings.vm_boot, settings.suspend_timeout + settings.vm_lag, settings.vm_removal)
        self.fleet = Fleet(self.block, timing)
        for group in landscape.node_groups(settings):
            self.fleet.add_group(group)
        self.soperator = KubernetesCluster(landscape.SOPERATOR_CLUSTER, self.fleet)
        self.inference = KubernetesCluster(landscape.INFERENCE_CLUSTER, self.fleet)
        self.store = self.soperator.store
        self.slurm = Slurm(settings)
        self.ports = SlurmdPorts(settings.ports)
        self.flux = FluxController(self.store, self.soperator.events, settings)
        self.nodesets = NodeSetController(self.store, settings, self.ports)
        jwt_key = (settings.paths.secrets / "jwt_hs256.key").read_bytes()
        self.slurm_cluster = SlurmClusterController(self.store, self.slurm, self.init, settings, jwt_key)
        self.kubelet = Kubelet(self.store, self.slurm, self.init, self.soperator.events, settings, self.ports)
        self._inference_kubelet = PlainKubelet(self.inference.store)
        nodes = NodeChecks(self.store, self.slurm, self.fleet, self.kubelet, settings)
        runs = CheckRuns(self.store, self.slurm)
        self.checks = Checks(self.store, nodes, runs, settings.checks_interval, on=settings.has_checks)
        self.backups = BackupController(self.store, settings.backup_time)
        self.metrics = Metrics(self.store, self.slurm, settings)
        self._prometheus: AppRunner | None = None
        self._checking: asyncio.Task[None] | None = None
        self._nebius: NebiusDouble | None = None
        #: What was written down last, with versions in the place of objects.
        self._kept = ""
        #: The version of the objects that Slurm's files were made of last, and these.
        self._rendered: tuple[int, dict[str, str]] = -1, {}
        #: Whether something has changed from outside since the last step.
        self._is_woken = False
        for cluster in (self.soperator, self.inference):
            cluster.store.subscribe(lambda _: self.wake())
        self.fleet.on_resize.append(self.wake)

    async def open(self) -> None:
        """Start both doubles, and go on from where an earlier process stopped if there was one."""
        paths, ports = self.settings.paths, self.settings.ports
        self._nebius = await serve_nebius(
            self.fleet,
            self.faults,
            token=NEBIUS_TOKEN,
            host=LOOPBACK,
            port=ports.nebius,
            catalogue=_catalogue(),
        )
        if paths.cloud_state.exists():
            self._load(json.loads(paths.cloud_state.read_text()))
        else:
            landscape.create_objects(self.store, self.settings)
            if not self.settings.bare:
                self.flux.install()
            landscape.create_inference_objects(self.inference.store, self.settings)
        for_slurm = Access(
            port=ports.kubernetes,
            token=KUBERNETES_TOKEN,
            certificates=paths.secrets / "kubernetes",
            kubeconfig=paths.kubeconfig,
            context=KUBERNETES_CONTEXT,
            namespace=NAMESPACE,
        )
        for_inference = Access(
            port=ports.inference_kubernetes,
            token=INFERENCE_TOKEN,
            certificates=paths.secrets / "kubernetes-inference",
            kubeconfig=paths.inference_kubeconfig,
            context=INFERENCE_CONTEXT,
            namespace=landscape.INFERENCE_NAMESPACE,
        )
        double = await self._open(self.soperator, for_slurm, self.kubelet)
        await self._open(self.inference, for_inference, self._inference_kubelet)
        self._hand_out_access(double)
        self._prometheus = await serve_prometheus(self.metrics.scrape, LOOPBACK, ports.prometheus)
        self._checking = asyncio.create_task(self.checks.run())

    async def _open(self, cluster: KubernetesCluster, access: Access, kubelet: Daemons) -> KubernetesDouble:
        runner, logs = Runner(kubelet, self.init), Logs(kubelet, self.settings)
        return await cluster.open(access, runner, logs, self.faults)

    async def run(self) -> None:
        last, pause = "", TICK
        while True:
            try:
                pause = self._next_pause(pause, has_changed=await self.tick())
                last = ""
            except Exception as error:
                # Users may do anything to the objects; the world goes on, and says once what stands in its way.
                if str(error) != last:
                    _log.exception("this step could not be finished")
                last = str(error)
            await self._rest(pause)

    def wake(self) -> None:
        """Have the next step soon."""
        self._is_woken = True

    def _next_pause(self, pause: float, *, has_changed: bool) -> float:
        if has_changed:
            return TICK
        return min(1.5 * pause, MOVING_TICK if self.fleet.is_moving else IDLE_TICK)

    async def _rest(self, pause: float) -> None:
        self._is_woken = False
        ends = time.monotonic() + pause
        while not self._is_woken and (left := ends - time.monotonic()) > 0:
            await asyncio.sleep(min(left, TICK))

    async def tick(self) -> bool:
        """One step of every controller, in the order in which a change travels through them; whether it changed any."""
        processes = await asyncio.to_thread(self.init.processes)
        self.flux.sync()
        await self.slurm_cluster.sync(processes)
        await self._configure(processes)
        self.nodesets.sync()
        pending = self.soperator.sync() | self.inference.sync()
        self.kubelet.sync(processes)
        self._inference_kubelet.sync()
        self.backups.sync()
        self.fleet.step(pending, self.soperator.busy_machines() | self.inference.busy_machines())
        return self._keep()

    async def _configure(self, processes: dict[str, dict[str, Any]]) -> None:
        version = self.store.resource_version
        if version != self._rendered[0]:
            self._rendered = version, self._render()
        if self._rendered[1]:
            running = {name for name, process in processes.items() if process["pid"]}
            await self.slurm.configure(self._rendered[1], running)

    def _render(self) -> dict[str, str]:
        """Slurm's files, as the objects describe them; none while there is no cluster."""
        cluster = the_cluster(self.store)
        if not cluster or not has_common(cluster):
            return {}
        nodesets = self.nodesets.of_cluster(cluster)
        return slurm_files.files(cluster, nodesets, self.settings, self.ports.first)

    def ready(self) -> bool:
        """Every node that should be on from the start is on."""
        nodesets = self.store.list("nodesets", NAMESPACE)
        pods = self.store.list("pods", NAMESPACE)
        begun = all("PodsReady" in str(nodeset.get("status")) for nodeset in nodesets)
        return begun and bool(pods) and all(map(is_ready, pods))

    async def close(self) -> None:
        if self._checking:
            self._checking.cancel()
        await self.kubelet.close()
        await self.soperator.close()
        await self.inference.close()
        if self._prometheus:
            await self._prometheus.cleanup()
        if self._nebius:
            await self._nebius.stop()

    def _hand_out_access(self, kubernetes: KubernetesDouble) -> None:
        """What leads the power manager, which lives inside the root, to the API."""
        inside = self.settings.paths.root / "opt/soperator/etc"
        (inside / "ca.crt").write_bytes(kubernetes.ca_file.read_bytes())
        manager = {"server": kubernetes.url, "token": KUBERNETES_TOKEN, "namespace": NAMESPACE}
        manager["ca_file"] = "/opt/soperator/etc/ca.crt"
        (inside / "kubernetes.json").write_text(json.dumps(manager))

    def _keep(self) -> bool:
        """Write down the state of all, if it has changed, so that this process may end at any time; whether it has."""
        assert self._nebius is not None
        state = {"block": self.block.dump(), "fleet": self.fleet.dump(), "nebius": self._nebius.dump()}
        state["slurmd_ports"] = self.ports.ranges
        clusters = {"store": self.soperator, "inference_store": self.inference}
        # The objects are many, and their stores know whether there was a change.
        seen = json.dumps([state, {name: cluster.store.resource_version for name, cluster in clusters.items()}])
        if seen == self._kept:
            return False
        everything = state | {name: cluster.dump() for name, cluster in clusters.items()}
        replace_text(self.settings.paths.cloud_state, json.dumps(everything))
        self._kept = seen
        return True

    def _load(self, state: dict[str, Any]) -> None:
        assert self._nebius is not None
        self.block.load(state["block"])
        self.fleet.load(state["fleet"])
        self.soperator.load(state["store"])
        self.inference.load(state["inference_store"])
        self._nebius.load(state["nebius"])
        self.ports.load(state["slurmd_ports"])
        self.kubelet.adopt()


def _catalogue() -> Catalogue:
    small = GroupTemplate(platform="cpu-d3", preset="16vcpu-64gb")
    return Catalogue(templates={landscape.CPU_GROUP: small, landscape.SYSTEM_GROUP: small})
