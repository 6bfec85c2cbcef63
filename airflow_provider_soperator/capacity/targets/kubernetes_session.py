"""Replicas of a Kubernetes workload at work as a target."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from airflow_provider_soperator.capacity.holdings import Holding, Release
from airflow_provider_soperator.capacity.targets import KubernetesScaleTarget, autoscalers
from airflow_provider_soperator.capacity.targets.protocol import (
    Clients,
    MachineClues,
    Session,
    SessionContext,
    refuse_forbidden,
)
from airflow_provider_soperator.errors import CapacityBusy, CapacityMistake
from airflow_provider_soperator.logger import Logger
from airflow_provider_soperator.nebius.capacity_blocks import CapacityBlock
from airflow_provider_soperator.soperator import workloads
from airflow_provider_soperator.soperator.conditions import Object
from airflow_provider_soperator.soperator.kinds import POD, KindMistake, Resource
from airflow_provider_soperator.soperator.objects import ObjectMissing, Objects
from airflow_provider_soperator.transports.transport_errors import TransportError, is_conflict, kubernetes_errors

T = TypeVar("T")

_RIGHTS = (
    "get and patch on the workload and its scale, list on pods and horizontalpodautoscalers, and, where there is KEDA, "
    "list and patch on scaledobjects.keda.sh,"
)
#: Tries of a change while others, mostly controllers, change the same object.
_TRIES = 5
#: Times that an autoscaler may act after it was pinned: it may have been scaling at that moment.
_AFTERSHOCKS = 3


@asynccontextmanager
async def open_session(
    target: KubernetesScaleTarget, context: SessionContext, clients: Clients, log: Logger
) -> AsyncIterator[KubernetesScaleSession]:
    async with AsyncExitStack() as opened:
        with kubernetes_errors("connect", _RIGHTS):
            client = await opened.enter_async_context(clients.kubernetes(target.kubernetes_conn_id))
        objects = Objects(client, target.namespace, _RIGHTS)
        try:
            workload = Workload(target, await objects.find_scalable(target.kind), objects)
        except KindMistake as error:
            raise CapacityMistake(str(error)) from None
        yield KubernetesScaleSession(target, workload, log, context.memory.setdefault(target.name, ScaleNotes()))


class Workload:
    """A workload, and its autoscaler if it has one."""

    def __init__(self, target: KubernetesScaleTarget, resource: Resource, objects: Objects) -> None:
        self._name, self._may_pin_hpa = target.resource, target.pin_hpa
        self._resource, self._objects = resource, objects

    def __str__(self) -> str:
        return f"{self._resource.kind} {self._name}"

    async def read(self) -> Object:
        return await self._named(self._objects.read(self._resource, self._name))

    async def scale(self) -> Object:
        return await self._named(self._objects.read_scale(self._resource, self._name))

    async def pods(self, scale: Object) -> list[Object]:
        selector = (scale.get("status") or {}).get("selector")
        return await self._objects.list_all(POD, selector) if selector else []

    async def autoscaler(self) -> autoscalers.Autoscaler | None:
        return await autoscalers.find(self._objects, self._resource, self._name, may_pin_hpa=self._may_pin_hpa)

    async def set_replicas(self, scale: Object, wanted: int, *, dry_run: bool = False) -> None:
        """Set the number of replicas; a conflict (see ``is_conflict``) if the object has changed since it was read."""
        version = {"metadata": {"resourceVersion": scale["metadata"]["resourceVersion"]}}
        body = {"spec": {"replicas": wanted}} | ({} if dry_run else version)
        await self._named(self._objects.patch_scale(self._resource, self._name, body, dry_run=dry_run))

    async def change(
        self, patch: Object, autoscaler: autoscalers.Autoscaler | None = None, *, dry_run: bool = False
    ) -> None:
        """Patch it, or its autoscaler."""
        resource, name = (autoscaler.resource, autoscaler.name) if autoscaler else (self._resource, self._name)
        await self._named(self._objects.patch(resource, name, patch, dry_run=dry_run))

    async def _named(self, call: Awaitable[T]) -> T:
        """Turn a missing object into a ``CapacityMistake``: the target names it."""
        try:
            return await call
        except ObjectMissing as error:
            remedy = "correct the target's resource and namespace, or its Kubernetes connection"
            raise CapacityMistake(error.what, remedy) from error


@dataclass
class ScaleNotes:
    """What a session remembers while its connection is opened again."""

    #: The numbers of replicas that are possible if nobody else scales; empty before the first change.
    known: set[int] = field(default_factory=set)
    desired: int = 0
    aftershocks: int = 0
    #: Why the workload is left to others.
    kept: str = ""


class KubernetesScaleSession(Session):
    """Replicas of a workload during a shift."""

    def __init__(
        self, target: KubernetesScaleTarget, workload: Workload, log: Logger, notes: ScaleNotes | None = None
    ) -> None:
        self._target, self._workload, self._log, self._notes = target, workload, log, notes or ScaleNotes()

    async def check(self, units: int, block: CapacityBlock) -> None:
        target = self._target
        thing, scale, autoscaler = await self._see()
        declared = workloads.gpus_of(thing)
        if declared not in (None, target.gpus_per_unit):
            raise CapacityMistake(
                f"{target.name}: a replica of {self._workload} requests {declared} GPUs, but gpus_per_unit is "
                f"{target.gpus_per_unit}",
                f"set gpus_per_unit={declared}, or correct the limits of its Pods",
            )
        if units * target.gpus_per_unit > block.limit:
            what = f"{units} replicas of {target.gpus_per_unit} GPUs"
            said = f"{target.name}: {what} do not fit into {block.id}, which has {block.limit}"
            raise CapacityMistake(said, "ask for fewer replicas")
        with refuse_forbidden(target.name):
            # A dry run needs the same rights.
            await self._workload.set_replicas(scale, _replicas(scale), dry_run=True)
            if workloads.source_of(thing):
                # To note that it was put back.
                await self._workload.change(autoscalers.annotated({}), dry_run=True)
            if autoscaler:
                autoscaler.check()
                await self._workload.change(autoscalers.annotated({}), autoscaler, dry_run=True)

    async def notes(self, to: int) -> tuple[str, ...]:
        thing, scale, autoscaler = await self._see()
        now, notes = _replicas(scale), tuple[str, ...]()
        if kept := self._notes.kept or workloads.was_put_back(thing, now):
            return (kept,)
        if to != now and (source := workloads.source_of(thing)):
            back = f"it {'will' if source.sets_replicas else 'may'} put its replicas back to {now}"
            notes = (f"{self._workload} is kept by {source}: {back}, unless {source.remedy}",)
        if autoscaler and to > autoscaler.most:
            said = f"{autoscaler.resource.kind} {autoscaler.name} may make {autoscaler.most} replicas"
            notes += (f"{said}, and is pinned at {to}, until a shift ends with what it may make",)
        grace = "Pods have their terminationGracePeriodSeconds to end, and hold their GPUs until then"
        return (*notes, f"PodDisruptionBudgets do not bind scaling; {grace}") if to < now else notes

    async def look(self) -> Holding:
        thing, scale, autoscaler = await self._see()
        found = await self._workload.pods(scale)
        wanted, made = _replicas(scale), int((scale.get("status") or {}).get("replicas") or 0)
        status = thing.get("status") or {}
        kept = self._notes.kept or workloads.was_put_back(thing, wanted)
        # Without a selector only its own status tells about its Pods.
        placed, leaving, ready = made, 0, made
        if (scale.get("status") or {}).get("selector"):
            staying = [pod for pod in found if not workloads.is_leaving(pod)]
            placed, ready = sum(map(workloads.is_on_a_node, staying)), sum(map(workloads.is_ready, staying))
            leaving = sum(map(workloads.is_on_a_node, found)) - placed
        # A replica may have several Pods; the selector finds the first one.
        ready = min(ready, int(status.get("readyReplicas", 0 if workloads.is_of_groups(thing) else ready)))
        allowed = max(wanted, autoscaler.ceiling(wanted)) if autoscaler else wanted
        return Holding(
            allowed=allowed,
            held=placed + leaving,
            # A replica that an autoscaler may add counts as ready: it only waits for work.
            ready=ready + (autoscaler.may_add(wanted) if autoscaler else 0),
            finishing=leaving,
            is_settled=workloads.is_seen(thing) and wanted == made == placed and not leaving,
            problems=(*filter(None, [kept]), *workloads.problems(thing, found)),
            pinned=allowed if kept else None,
        )

    async def shrink(self, to: int, release: Release) -> None:
        if release.mode is None:
            return
        scale, autoscaler = await self._see_scale()
        now = _replicas(scale)
        if not self._notes.kept and max(now, autoscaler.ceiling(now) if autoscaler else now) > to:
            await self._set(scale, min(now, to), autoscaler)

    async def grow(self, to: int) -> None:
        scale, autoscaler = await self._see_scale()
        if not self._notes.kept and _replicas(scale) < to:
            await self._set(scale, to, autoscaler)

    async def finish(self) -> None:
        scale, autoscaler = await asyncio.gather(self._workload.scale(), self._workload.autoscaler())
        if autoscaler and autoscaler.unmarked:
            await self._workload.change(autoscaler.unmarked, autoscaler)
        elif autoscaler and (patch := autoscaler.release(_replicas(scale))):
            await self._workload.change(patch, autoscaler)
            self._log.info("%s: resumed %s %s", self._target.name, autoscaler.resource.kind, autoscaler.name)

    async def machines(self) -> MachineClues:
        # Kubernetes Nodes have the names of their machines.
        on = {workloads.machine_of(pod) for pod in await self._workload.pods(await self._workload.scale())} - {""}
        return MachineClues(machines=frozenset(on), count=len(on))

    async def _see(self) -> tuple[Object, Object, autoscalers.Autoscaler | None]:
        workload = self._workload
        return await asyncio.gather(workload.read(), workload.scale(), workload.autoscaler())

    async def _see_scale(self) -> tuple[Object, autoscalers.Autoscaler | None]:
        """Read the scale before a change, and whether others have changed it since."""
        scale, autoscaler = await asyncio.gather(self._workload.scale(), self._workload.autoscaler())
        await self._give_way(_replicas(scale), autoscaler)
        return scale, autoscaler

    async def _set(self, scale: Object, wanted: int, autoscaler: autoscalers.Autoscaler | None) -> None:
        # If the answer gets lost, either number is possible.
        self._notes.known, self._notes.desired = {_replicas(scale), wanted}, wanted
        if autoscaler:
            # First, or it would revert the change.
            autoscaler.check()
            if patch := autoscaler.pin(wanted):
                await self._workload.change(patch, autoscaler)
                words = (self._target.name, autoscaler.resource.kind, autoscaler.name, wanted)
                self._log.info("%s: pinned %s %s at %s replicas", *words)
        for _ in range(_TRIES):
            now = _replicas(scale)
            await self._give_way(now, autoscaler)
            if self._notes.kept:
                return
            if now == wanted:
                break
            try:
                await self._workload.set_replicas(scale, wanted)
            except TransportError as error:
                if not is_conflict(error):
                    raise
                scale = await self._workload.scale()
                continue
            self._log.info("%s: scaled %s from %s to %s replicas", self._target.name, self._workload, now, wanted)
            break
        else:
            raise CapacityBusy(
                f"{self._target.name}: others changed {self._workload} at each of {_TRIES} tries to scale it",
                "find out who changes it, and retry",
            )
        self._notes.known = {wanted}

    async def _give_way(self, now: int, autoscaler: autoscalers.Autoscaler | None) -> None:
        """Leave the workload to others if they scale it at the same time."""
        if self._notes.kept or not self._notes.known or now in self._notes.known:
            return
        if autoscaler and self._notes.aftershocks < _AFTERSHOCKS:
            self._notes.aftershocks += 1
            return
        thing = await self._workload.read()
        who, source = workloads.last_scaled_by(thing) or "another client", workloads.source_of(thing)
        said = (
            f"{who} has scaled {self._workload} to {now} replicas, while this shift scales it to {self._notes.desired}"
        )
        remedy = f"{source}: {source.remedy}" if source else "let only one of them scale it"
        self._notes.kept = f"{said} ({remedy})"
        self._log.warning("%s: %s. It is left at that.", self._target.name, self._notes.kept)
        if source:
            # Or each next shift would end the same Pods, for as long as the controller needs to start them again.
            await self._workload.change(autoscalers.annotated({workloads.PUT_BACK: f"{now} by {who}"}))


def _replicas(scale: Object) -> int:
    return int((scale.get("spec") or {}).get("replicas") or 0)
