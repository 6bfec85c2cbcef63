"""Soperator's controller of SlurmClusters: the daemons, Pods and Services that one asks for, and how they are.

In the order of the operator: a pass stops where something is not there yet, and what comes after keeps its old status.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from signal import SIGKILL
from typing import Any

from sandbox import daemons
from sandbox.cloud import landscape
from sandbox.cloud.conditions import condition, timestamp, with_conditions
from sandbox.cloud.jail import Jail
from sandbox.cloud.landscape import SYSTEM_PODS
from sandbox.cloud.slurm import Slurm
from sandbox.cloud.soperator import NOT_READY_YET, WORKER_LABEL, Pinned, is_stopped, the_cluster
from sandbox.control import Init
from sandbox.daemons import DAEMONS, Daemon
from sandbox.kube.store import ObjectStore
from sandbox.settings import NAMESPACE, Settings

Processes = dict[str, dict[str, Any]]

OVERWRITE = "downscaleAndOverwritePopulateJail"
SKIP = "skipPopulateJail"
DELETE = "downscaleAndDeletePopulateJail"
#: Modes for which the condition PopulateJailMode has a message of its own.
_MODES = {
    SKIP: "Populate Jail is skipped",
    DELETE: "Populate Jail is deleted",
    OVERWRITE: "Populate Jail is overwritten",
    "none": "Populate Jail maintenanceMode is none",
}
#: What is looked at after that, one after the other: the first that is not ready ends a pass.
_PARTS = {
    "ControllersAvailable": ("slurmctld", "Slurm controllers"),
    "LoginAvailable": ("sshd", "Slurm login"),
    "AccountingAvailable": ("slurmdbd", "Slurm accounting"),
}
_CONDITIONS = ("CommonAvailable", *_PARTS, "SConfigControllerAvailable")
#: Those that it reports; a fault may have added others.
_REPORTED = (*_CONDITIONS, "PopulateJailMode")
_SOCKETS = {"munged": daemons.MUNGE_SOCKET, "mariadbd": daemons.MARIADB_SOCKET}
#: Seconds after which a daemon that has ended by itself is started again.
_BACK_OFF = 2.0


class SlurmClusterController:
    """Makes the sandbox's daemons those of its SlurmCluster, and reports which parts of it are available."""

    def __init__(self, store: ObjectStore, slurm: Slurm, init: Init, settings: Settings, jwt_key: bytes) -> None:
        self._store, self._slurm, self._init, self._settings = store, slurm, init, settings
        self._jwt_key = jwt_key
        self._jail = Jail.of(settings)
        self.pinned: Pinned | None = None
        #: Daemons that answered, by the process that did.
        self._answered: dict[str, int] = {}
        self._tried: dict[str, float] = {}
        #: Pods that it has seen to.
        self._made: set[str] = set()
        self._registered = False
        self._differ_since: dict[str, float] = {}

    async def sync(self, processes: Processes) -> None:
        cluster = the_cluster(self._store)
        if cluster is None:
            await self._remove(processes)
            return
        if "phase" not in (cluster.get("status") or {}):
            unknown = (condition(type_, None, "SetUpCondition", NOT_READY_YET) for type_ in _CONDITIONS)
            status = {"phase": "Pending", "readyLogin": 0, "readySConfigController": 0}
            self._write(cluster, with_conditions(status, *unknown))
            if self._is_operated:
                return
        if self._populated(cluster):
            await self._run(cluster, processes)
            self._report(cluster, {name for name, one in processes.items() if one["pid"]})

    @property
    def _is_operated(self) -> bool:
        """Whether it is this that starts daemons, step by step, and not `up`, all at once."""
        return self._settings.paths.operated.exists()

    # The jail

    def _populated(self, cluster: dict[str, Any]) -> bool:
        """Whether the pass goes on: not while the Job that fills the jail is under way."""
        mode = _mode(cluster)
        if mode == SKIP:
            return True
        name = f"{cluster['metadata']['name']}-populate-jail"
        found = self._store.list("jobs", NAMESPACE, fields=f"metadata.name={name}")
        before = _condition(cluster, "PopulateJailMode").get("reason")
        if mode in (DELETE, OVERWRITE) and found and before != mode:
            self._store.delete("jobs", name, NAMESPACE)
            return True
        if not found:
            # Who fills the jail must be alone with it: the pass goes on, so that login and nodes end if they are to.
            if mode != DELETE and not self._has_users():
                job = _populate_job(cluster, overwrite=mode == OVERWRITE)
                found = [self._store.create("jobs", job, NAMESPACE)]
            if self._is_operated or not found:
                return not found
        if not (found[0].get("status") or {}).get("succeeded"):
            if mode == OVERWRITE:
                self._jail.overwrite()
            ended = {"succeeded": 1, "startTime": timestamp(), "completionTime": timestamp()}
            status = with_conditions(ended, condition("Complete", True, "CompletionsReached"))
            self._store.patch("jobs", name, {"status": status}, NAMESPACE, part="status")
        return True

    def _has_users(self) -> bool:
        """Whether there is a Pod of a node or of the login node."""
        login = "app.kubernetes.io/component=login"
        return any(self._store.list("pods", NAMESPACE, labels=labels) for labels in (WORKER_LABEL, login))

    # Daemons, their Pods and Services

    async def _run(self, cluster: dict[str, Any], processes: Processes) -> None:
        wanted = _wanted_pods(cluster)
        objects = {
            "services": landscape.services(self._settings, cluster, _declared_pods(cluster)),
            "secrets": [landscape.jwt_secret(cluster, self._jwt_key)],
            "pods": [landscape.system_pod(cluster, name, list(SYSTEM_PODS[name])) for name in wanted],
        }
        # Deleting a Pod leaves its processes alone here, so it is not made again before they have ended.
        left_alone = {daemon.pod for daemon in DAEMONS if (processes.get(daemon.name) or {}).get("pid")} & self._made
        for resource, bodies in objects.items():
            there = {one["metadata"]["name"] for one in self._store.list(resource, NAMESPACE)}
            for body in bodies:
                name = body["metadata"]["name"]
                if name not in there and not (resource == "pods" and name in left_alone):
                    self._store.create(resource, body, NAMESPACE)
        self._made |= {body["metadata"]["name"] for body in objects["pods"]}
        await self._end({*(SYSTEM_PODS.keys() - wanted), *self._outdated(objects["pods"])}, cluster, processes)
        if self._is_operated:
            await self._start(wanted, cluster, processes)

    def _outdated(self, wanted: list[dict[str, Any]]) -> set[str]:
        """Pods that have had other images than the SlurmCluster asks for, for long enough."""
        there = {pod["metadata"]["name"]: pod for pod in self._store.list("pods", NAMESPACE)}
        now = time.monotonic()
        named = {pod["metadata"]["name"]: pod for pod in wanted}
        differ = {name for name in named.keys() & there.keys() if _images(named[name]) != _images(there[name])}
        self._differ_since = {name: self._differ_since.get(name, now) for name in differ}
        return {name for name, since in self._differ_since.items() if now - since >= self._settings.rollout_lag}

    async def _start(self, wanted: Iterable[str], cluster: dict[str, Any], processes: Processes) -> None:
        """Start each daemon once its Pod has a Node and what it needs answers."""
        placed = {pod["metadata"]["name"] for pod in self._store.list("pods", NAMESPACE) if pod["spec"].get("nodeName")}
        chosen = [daemon for daemon in DAEMONS if daemon.pod in wanted and daemon.pod in placed]
        for daemon in chosen:
            needs = [one for one in chosen if one.name in daemon.needs]
            answers = [await self._answers(one, processes) for one in (daemon, *needs)]
            if not all(answers[1:]) or not self._may_start(daemon.name, processes):
                continue
            if daemon.name == "slurmctld" and not await self._register(cluster, needs):
                continue
            self._tried[daemon.name] = time.monotonic()
            await asyncio.to_thread(daemons.start, daemon, self._init, self._settings)

    def _may_start(self, name: str, processes: Processes) -> bool:
        """Not what runs, and not what somebody has killed: `up` starts that again."""
        process = processes.get(name)
        if process is None:
            return True
        ended = process["pid"] is None and process["status"] != -SIGKILL
        return bool(ended and time.monotonic() - self._tried.get(name, 0.0) > _BACK_OFF)

    async def _answers(self, daemon: Daemon, processes: Processes) -> bool:
        """Whether it is ready; once it was, that it still runs is enough."""
        pid = (processes.get(daemon.name) or {}).get("pid")
        if pid and self._answered.get(daemon.name) != pid and await self._is_ready(daemon.name):
            self._answered[daemon.name] = pid
        return bool(pid) and self._answered.get(daemon.name) == pid

    async def _is_ready(self, daemon: str) -> bool:
        """As ``daemons.Daemon.ready`` finds out from outside the sandbox."""
        root, ports = self._settings.paths.root, self._settings.ports.services()
        if daemon in _SOCKETS:
            return await asyncio.to_thread(daemons.listens, root / _SOCKETS[daemon])
        if not await asyncio.to_thread(daemons.answers, ports["ssh" if daemon == "sshd" else daemon]):
            return False
        # The port of a slurmctld opens before it can answer.
        return daemon != "slurmctld" or (await self._slurm.run("timeout", "3", "scontrol", "ping")).status == 0

    async def _register(self, cluster: dict[str, Any], needs: list[Daemon]) -> bool:
        """Tell accounting, if there is one, of the cluster and its people, once."""
        if not self._registered and any(one.name == "slurmdbd" for one in needs):
            for words in daemons.accounts(cluster["metadata"]["name"]):
                await self._slurm.run("sacctmgr", "-i", *words)
        self._registered = True
        return True

    async def _end(self, pods: Iterable[str], cluster: dict[str, Any] | None, processes: Processes) -> None:
        """End the daemons of these Pods, and the Pods with them."""
        there = {pod["metadata"]["name"] for pod in self._store.list("pods", NAMESPACE)} & set(pods)
        if not there:
            return
        # From now on it is this that starts daemons, and not `up`.
        self._settings.paths.operated.touch()
        for daemon in reversed(DAEMONS):
            if daemon.pod in there and daemon.name in processes:
                await asyncio.to_thread(self._init.stop, daemon.name, 5.0)
        services = landscape.services(self._settings, cluster, _declared_pods(cluster)) if cluster else []
        kept = {service["metadata"]["name"] for service in services}
        for pod in there:
            self._store.delete("pods", pod, NAMESPACE, grace=0)
        for service in self._store.list("services", NAMESPACE):
            name = service["metadata"]["name"]
            if landscape.is_ours(service) and name not in kept:
                self._store.delete("services", name, NAMESPACE)

    async def _remove(self, processes: Processes) -> None:
        """What a SlurmCluster owned goes with it; the spool of its controller and the jail stay, as volumes do."""
        await self._end(SYSTEM_PODS, None, processes)
        self._answered.clear()
        self._registered = False
        for resource in ("secrets", "jobs"):
            for one in self._store.list(resource, NAMESPACE):
                if landscape.is_ours(one):
                    self._store.delete(resource, one["metadata"]["name"], NAMESPACE)

    # The status

    def _report(self, cluster: dict[str, Any], running: set[str]) -> None:
        # Read again: the pass may have taken its time.
        cluster = the_cluster(self._store) or cluster
        old = cluster.get("status") or {}
        stopped, mode = is_stopped(cluster), _mode(cluster)
        said = [
            condition("CommonAvailable", False, "Maintenance", "Slurm common components are in maintenance")
            if stopped
            else condition("CommonAvailable", True, "Available", "Slurm common components are available"),
            condition("PopulateJailMode", True, mode, _MODES[mode])
            if mode in _MODES
            else condition("PopulateJailMode", None, "Unknown", "Unknown Populate Jail maintenanceMode"),
        ]
        available = True
        for type_, (daemon, title) in _PARTS.items():
            if stopped:
                said.append(condition(type_, False, "Maintenance", f"{title} is in maintenance"))
            elif daemon == "slurmdbd" and not _has_accounting(cluster):
                said.append(condition(type_, False, "NotAvailable", f"{title} is disabled"))
            elif daemon in running and self._has_answered(daemon):
                said.append(condition(type_, True, "Available", f"{title} is available"))
            else:
                said.append(condition(type_, False, "NotAvailable", f"{title} is not available yet"))
                available = False
                break
        if available:
            # It has no process of its own here.
            title = "Slurm SConfigController"
            said.append(condition("SConfigControllerAvailable", True, "Available", f"{title} is available"))
        kept = [entry for entry in old.get("conditions") or [] if entry["type"] in _REPORTED]
        # A cluster in maintenance calls itself available, too.
        phase = "Available" if available else "Not available"
        status = {**old, "conditions": kept, "phase": phase, "readyLogin": int("sshd" in running)}
        status["readySConfigController"] = int(not stopped)
        status = with_conditions(status, *said)
        self._write(cluster, self.pinned.over(status) if self.pinned else status)

    def _has_answered(self, daemon: str) -> bool:
        # Those that `up` has started were waited for by it.
        return daemon in self._answered or daemon == "sshd" or not self._is_operated

    def _write(self, cluster: dict[str, Any], status: dict[str, Any]) -> None:
        if status != cluster.get("status"):
            name = cluster["metadata"]["name"]
            self._store.patch("slurmclusters", name, {"status": status}, NAMESPACE, part="status")


def _images(pod: dict[str, Any]) -> list[str]:
    return [container["image"] for container in pod["spec"]["containers"]]


def _mode(cluster: dict[str, Any]) -> str:
    return str(cluster["spec"].get("maintenance") or "none")


def _condition(cluster: dict[str, Any], type_: str) -> dict[str, Any]:
    conditions = (cluster.get("status") or {}).get("conditions") or []
    return next((one for one in conditions if one["type"] == type_), {})


def _has_accounting(cluster: dict[str, Any]) -> bool:
    return bool(cluster["spec"]["slurmNodes"]["accounting"].get("enabled"))


def _wanted_pods(cluster: dict[str, Any]) -> list[str]:
    """None at all while it is downscaled."""
    return [] if is_stopped(cluster) else _declared_pods(cluster)


def _declared_pods(cluster: dict[str, Any]) -> list[str]:
    nodes = cluster["spec"]["slurmNodes"]
    pods = ["controller-0", "login-0"] if nodes["login"].get("size", 1) else ["controller-0"]
    if _has_accounting(cluster):
        pods.append("accounting-0")
        # Without accounting the operator leaves REST out.
        if (nodes.get("rest") or {}).get("enabled"):
            pods.append("rest-0")
    return pods


def _populate_job(cluster: dict[str, Any], *, overwrite: bool) -> dict[str, Any]:
    name, jail = f"{cluster['metadata']['name']}-populate-jail", cluster["spec"]["populateJail"]
    container = {"name": "populate-jail", "image": jail["image"]}
    container["env"] = [{"name": "OVERWRITE", "value": str(int(overwrite))}]
    return {
        "metadata": {"name": name, "labels": landscape.labels("populate-jail")},
        "spec": {"template": {"spec": {"restartPolicy": "Never", "containers": [container]}}},
        "status": {"active": 1, "startTime": timestamp()},
    }
