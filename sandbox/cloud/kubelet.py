"""Turns Pods into processes: a worker's Pod that has a Node runs a slurmd, and one that is gone runs none."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import Coroutine
from typing import Any

from sandbox import daemons
from sandbox.cloud.events import Recorder
from sandbox.cloud.landscape import SYSTEM_PODS
from sandbox.cloud.pod_states import end_if_due, report
from sandbox.cloud.slurm import Slurm
from sandbox.cloud.soperator import NODESET_LABEL, WORKER_LABEL
from sandbox.control import Init
from sandbox.kube.store import ObjectStore
from sandbox.settings import NAMESPACE, Settings
from sandbox.slurmd_ports import SlurmdPorts

_log = logging.getLogger(__name__)

#: Seconds after which a slurmd that has ended at once is started again.
_BACK_OFF = 2.0


class Kubelet:
    """Starts and stops the daemons of Pods; one change of one Pod at a time, all Pods at once."""

    def __init__(
        self, store: ObjectStore, slurm: Slurm, init: Init, events: Recorder, settings: Settings, ports: SlurmdPorts
    ) -> None:
        self._store, self._slurm, self._init, self._events = store, slurm, init, events
        self._settings, self._ports = settings, ports
        #: Nodes whose machine runs but whose slurmd never starts.
        self.not_booting: set[str] = set()
        #: Nodes whose machine died: replacing one takes longer than Slurm waits for it, so Slurm is let find out first.
        self.lost: set[str] = set()
        #: Nodes whose machine is on its way down and up again, without another in its place.
        self.rebooting: set[str] = set()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        #: By the name of each worker daemon, the uid of the Pod it was started for.
        self._started: dict[str, str] = {}
        #: The images that it was started from.
        self._images: dict[str, list[str]] = {}

    def adopt(self) -> None:
        """Take the daemons of Pods that were Running when this process last ended for theirs."""
        for pod in self._workers():
            if pod.get("status", {}).get("phase") == "Running":
                self._started[pod["metadata"]["name"]] = pod["metadata"]["uid"]

    def sync(self, processes: dict[str, dict[str, Any]]) -> None:
        alive = {name for name, process in processes.items() if process["pid"]}
        workers = {pod["metadata"]["name"]: pod for pod in self._workers()}
        for name in self._started.keys() | (alive & workers.keys()):
            pod = workers.get(name)
            if pod is None or self._started.get(name) != pod["metadata"]["uid"] or self._has_other_image(pod):
                self._begin(name, self._stop(name))
        for name, pod in workers.items():
            if not pod["spec"].get("nodeName"):
                continue
            if name not in self._started or name not in alive:
                self._begin(name, self._start(pod))
        for pod in self._store.list("pods"):
            if WORKER_LABEL not in pod["metadata"].get("labels", {}) and pod["spec"].get("nodeName"):
                self._sync_plain(pod, alive)

    def _has_other_image(self, pod: dict[str, Any]) -> bool:
        """Its slurmd runs from another image than the Pod asks for by now."""
        images = [one["image"] for one in pod["spec"]["containers"] if one["name"] == "slurmd"]
        return self._images.setdefault(pod["metadata"]["name"], images) != images

    def daemon_of(self, pod: dict[str, Any], container: str) -> str | None:
        """The process that runs in a Pod's container; None for a Pod that is only an object."""
        name = pod["metadata"]["name"]
        if name in SYSTEM_PODS:
            return SYSTEM_PODS[name].get(container)
        return str(name) if WORKER_LABEL in pod["metadata"].get("labels", {}) else None

    async def reboot(self, name: str) -> None:
        """End what runs on a node; it starts again once the node is no longer among those that reboot."""
        self.rebooting.add(name)
        # Its slurmd may have ended by itself.
        with contextlib.suppress(RuntimeError):
            await asyncio.to_thread(self._init.signal, name, signal.SIGKILL)

    async def close(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def _workers(self) -> list[dict[str, Any]]:
        return self._store.list("pods", NAMESPACE, labels=WORKER_LABEL)

    def _begin(self, name: str, change: Coroutine[Any, Any, None]) -> None:
        if name in self._tasks:
            change.close()
            return
        task = self._tasks[name] = asyncio.create_task(change)

        def ended(task: asyncio.Task[None]) -> None:
            del self._tasks[name]
            if not task.cancelled() and task.exception():
                _log.error("%s: %s", name, task.exception())

        task.add_done_callback(ended)

    async def _start(self, pod: dict[str, Any]) -> None:
        name, uid, node = pod["metadata"]["name"], pod["metadata"]["uid"], pod["spec"]["nodeName"]
        if name in self._started:
            report(self._store, pod, ready=False, message="slurmd has ended and is started again")
        await self._slurm.wait_controller()
        if name in self.rebooting:
            await asyncio.sleep(0.2)
            return
        if name in self.not_booting:
            message = "Back-off restarting failed container slurmd"
            self._events.tell(pod, "BackOff", message, warning=True, kubelet_of=node)
            await asyncio.sleep(0.2)
            return
        if name in self.lost:
            if not await self._missed(name):
                await asyncio.sleep(0.2)
                return
            self.lost.discard(name)
        if self._settings.auto_undrains:
            # As worker-init does up to 4.1: whoever drained the node, and why, is forgotten.
            await self._slurm.run("scontrol", "update", f"nodename={name}", "state=UNDRAIN", "reason=", "comment=")
        if not self._still_there(name, uid):
            return
        argv = ["slurmd", "-D", "-b", "--instance-id", node]
        await asyncio.to_thread(self._init.start, name, argv, hostname=name)
        self._started[name] = uid
        self._images.pop(name, None)
        self._has_other_image(pod)
        port = self._port(pod)
        while not await asyncio.to_thread(daemons.answers, port):
            if not self._still_there(name, uid):
                return
            if await asyncio.to_thread(self._has_ended, name):
                # One that Slurm's configuration does not know ends at once.
                message = "Back-off restarting failed container slurmd"
                self._events.tell(pod, "BackOff", message, warning=True, kubelet_of=node)
                report(self._store, pod, ready=False, message="slurmd has ended")
                await asyncio.sleep(_BACK_OFF)
                return
            await asyncio.sleep(0.05)
        report(self._store, pod, ready=True, message="slurmd runs")
        self._events.tell(pod, "Started", "Started container slurmd", kubelet_of=node)

    def _has_ended(self, name: str) -> bool:
        return not (self._init.processes().get(name) or {}).get("pid")

    async def _missed(self, name: str) -> bool:
        """Slurm knows that nothing runs on this node."""
        said = await self._slurm.run("scontrol", "show", "node", name, "--oneliner")
        state = said.out.partition(" State=")[2].split(" ", 1)[0]
        return state.startswith("DOWN") or "POWER" in state

    async def _stop(self, name: str) -> None:
        await asyncio.to_thread(self._init.stop, name, 2.0)
        self._started.pop(name, None)
        self._images.pop(name, None)
        for pod in self._workers():
            if pod["metadata"]["name"] == name and pod["spec"].get("nodeName"):
                report(self._store, pod, ready=False, message="slurmd is started again")

    def _still_there(self, name: str, uid: str) -> bool:
        return any(p["metadata"]["name"] == name and p["metadata"]["uid"] == uid for p in self._workers())

    def _port(self, pod: dict[str, Any]) -> int:
        nodeset = pod["metadata"]["labels"][NODESET_LABEL]
        ordinal = int(pod["metadata"]["name"].rpartition("-")[2])
        return self._ports.first(nodeset) + ordinal

    def _sync_plain(self, pod: dict[str, Any], alive: set[str]) -> None:
        """A Pod without a slurmd runs as soon as it has a Node, or as long as its daemons do."""
        if end_if_due(self._store, pod):
            return
        behind = SYSTEM_PODS.get(pod["metadata"]["name"], {}).values()
        ready = all(daemon in alive for daemon in behind)
        report(self._store, pod, ready=ready, message="runs" if ready else "a daemon of this Pod is down")
