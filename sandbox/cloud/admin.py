"""The cloud's control socket: what the command line asks of it, and the faults that only it can bring about."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
from collections import Counter
from typing import Any

from sandbox.cloud.conditions import condition, with_conditions
from sandbox.cloud.faults import GPU_METRICS, ApiFault
from sandbox.cloud.soperator import Pinned, in_maintenance, the_cluster
from sandbox.cloud.world import World
from sandbox.nebius.catalogue import INFERENCE_PROJECT, PROJECT
from sandbox.settings import NAMESPACE

#: Holds the GPUs that an "exhausted" block lacks.
SOMEBODY_ELSE = "somebody-else"
PROJECTS = (PROJECT, INFERENCE_PROJECT)


class Admin:
    """One method for each request; its words are its arguments."""

    def __init__(self, world: World) -> None:
        self._world = world

    async def serve(self) -> asyncio.AbstractServer:
        path = self._world.settings.paths.cloud_control
        path.unlink(missing_ok=True)
        return await asyncio.start_unix_server(self._answer, path)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            request = json.loads(await reader.readline())
            answer = {"result": await self._perform(**request)}
        except Exception as error:
            answer = {"error": str(error)}
        writer.write(json.dumps(answer).encode() + b"\n")
        writer.close()

    async def _perform(self, do: str, **arguments: Any) -> Any:
        action = getattr(self, f"do_{do}", None)
        if action is None:
            raise ValueError(f"unknown request: {do}")
        try:
            return await action(**arguments)
        finally:
            self._world.wake()

    async def do_up(self) -> bool:
        return True

    async def do_ready(self) -> bool:
        return self._world.ready()

    async def do_describe(self) -> dict[str, Any]:
        """The block and who holds what of it, the node groups, and the faults in force."""
        world = self._world
        of_group = {machine.id: world.fleet.groups[machine.group].id for machine in world.fleet.machines.values()}
        held: Counter[str] = Counter()
        for holder, gpus in world.block.holders.items():
            held[of_group.get(holder, holder)] += gpus
        return {
            "block": {
                "id": world.block.id,
                "limit": world.block.limit,
                "usage": world.block.usage,
                "held": held,
                "allowances": dict(world.block.allowances),
            },
            "groups": [
                {
                    "id": group.id,
                    "target": group.target,
                    "machines": Counter(machine.state.value for machine in world.fleet.machines_of(group.id)),
                    "problem": group.problem,
                }
                for group in world.fleet.groups.values()
            ],
            "api_faults": world.faults.describe(),
            "not_booting": sorted(world.kubelet.not_booting),
            "failing_checks": sorted(world.checks.runs.failing),
            "failing_backups": world.backups.failing,
            "pinned": [*(["the SlurmCluster"] if world.slurm_cluster.pinned else []), *sorted(world.nodesets.pinned)],
        }

    async def do_api_fault(self, **fault: Any) -> None:
        self._world.faults.add(ApiFault(**fault))

    async def do_node_dies(self, node: str) -> str:
        """The machine under a node is lost, with all that ran on it."""
        machine = self._machine_of(node)
        self._world.kubelet.lost.add(node)
        # A machine can also be lost before its slurmd runs.
        with contextlib.suppress(RuntimeError):
            await asyncio.to_thread(self._world.init.signal, node, signal.SIGKILL)
        self._world.fleet.kill(machine)
        return machine

    async def do_no_boot(self, node: str) -> None:
        self._known(node)
        self._world.kubelet.not_booting.add(node)

    async def do_condition(self, node: str, type: str, status: bool, reason: str, message: str) -> str:
        """Set a condition on the Kubernetes Node under a Slurm node."""
        machine = self._machine_of(node)
        found = self._world.store.get("nodes", machine)
        wanted = with_conditions(found["status"], condition(type, status, reason, message))
        self._world.store.patch("nodes", machine, {"status": wanted}, part="status")
        return machine

    async def do_checks(self, on: bool) -> None:
        """Whether Soperator's check controllers act on nodes."""
        self._world.checks.on = on

    async def do_check_fails(self, check: str, node: str) -> None:
        """From its next run on a check fails: on one node, or on all."""
        if not self._world.store.list("activechecks", NAMESPACE, fields=f"metadata.name={check}"):
            raise ValueError(f"there is no ActiveCheck {check}")
        if node:
            self._known(node)
        self._world.checks.runs.failing[check] = node

    async def do_backup_fails(self) -> None:
        """Backups that end from now on have failed."""
        self._world.backups.failing = True

    async def do_cluster_phase(self, phase: str, conditions: list[dict[str, Any]]) -> None:
        made = tuple(condition(**words) for words in conditions)
        self._world.slurm_cluster.pinned = Pinned(phase, made)

    async def do_nodeset_phase(self, nodeset: str, phase: str) -> None:
        if nodeset not in self._world.nodesets.replicas():
            raise ValueError(f"there is no NodeSet {nodeset}")
        self._world.nodesets.pinned[nodeset] = Pinned(phase)

    async def do_maintenance(self, mode: str) -> None:
        patch = {"spec": {"maintenance": mode}}
        cluster = the_cluster(self._world.store)
        if cluster is None:
            raise ValueError("there is no SlurmCluster")
        self._world.store.patch("slurmclusters", cluster["metadata"]["name"], patch, NAMESPACE)

    async def do_gpu_metric(self, node: str, metric: str, value: float, gpu: int) -> str:
        """What the exporter on the machine under a node says of one GPU, for as long as the machine is there."""
        if metric not in GPU_METRICS:
            raise ValueError(f"there is no metric {metric} (one of {', '.join(GPU_METRICS)})")
        if not 0 <= gpu < self._world.settings.gpus:
            raise ValueError(f"{node} has no GPU {gpu}")
        machine = self._machine_of(node)
        self._world.metrics.set[machine, metric, gpu] = value
        return machine

    async def do_exhaust(self, leave: int) -> int:
        """Somebody else takes what is free of the block, but for ``leave`` GPUs."""
        block = self._world.block
        block.release(SOMEBODY_ELSE)
        if gpus := max(0, block.free - leave):
            block.claim(SOMEBODY_ELSE, gpus)
        return gpus

    async def do_limit(self, gpus: int, after: float = 0) -> None:
        """Give the block another limit, or announce one for so many seconds from now."""
        if gpus < 0:
            raise ValueError(f"a block cannot have {gpus} GPUs")
        if after:
            self._world.block.schedule_limit(self._world.fleet.now() + after, gpus)
        else:
            self._world.block.set_limit(gpus)

    async def do_allowance(self, project: str, gpus: int) -> None:
        """Limit what a project may have of the block."""
        if project not in PROJECTS:
            raise ValueError(f"there is no project {project} (one of {', '.join(PROJECTS)})")
        self._world.block.allow(project, gpus)

    async def do_usage_unknown(self) -> None:
        self._world.block.usage_known = False

    async def do_clear(self) -> None:
        """Undo every fault that this process has brought about."""
        world = self._world
        world.faults.clear()
        world.kubelet.not_booting.clear()
        world.kubelet.lost.clear()
        world.checks.on = world.settings.has_checks
        world.checks.runs.failing.clear()
        world.backups.failing = False
        world.metrics.set.clear()
        world.slurm_cluster.pinned = None
        world.nodesets.pinned.clear()
        if in_maintenance(world.store):
            await self.do_maintenance("none")
        world.block.release(SOMEBODY_ELSE)
        world.block.allowances.clear()
        world.block.usage_known = True
        world.block.next_change = None
        if world.block.limit != world.settings.block:
            world.block.set_limit(world.settings.block)

    def _known(self, node: str) -> None:
        nodeset, _, ordinal = node.rpartition("-")
        if not ordinal.isdigit() or int(ordinal) >= self._world.nodesets.replicas().get(nodeset, 0):
            raise ValueError(f"there is no node {node}")

    def _machine_of(self, node: str) -> str:
        self._known(node)
        found = self._world.store.list("pods", NAMESPACE, fields=f"metadata.name={node}")
        machine = found[0]["spec"].get("nodeName") if found else None
        if machine is None:
            raise ValueError(f"{node} is powered down, there is no machine under it")
        return str(machine)
