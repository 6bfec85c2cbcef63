"""Provisioning through objects for Soperator's operator, by server-side apply under our field manager."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from typing import TYPE_CHECKING, Any

from airflow_provider_soperator.provisioning import manifests
from airflow_provider_soperator.provisioning.fields import SpecMistake
from airflow_provider_soperator.provisioning.provisioner import Provisioner, ProvisioningPlan, Reached
from airflow_provider_soperator.soperator.cluster_objects import ClusterObjects
from airflow_provider_soperator.soperator.conditions import Object
from airflow_provider_soperator.soperator.kinds import NODE_SET, SLURM_CLUSTER, Resource
from airflow_provider_soperator.soperator.objects import ObjectMissing, Objects
from airflow_provider_soperator.transports.transport_errors import TransportError, is_conflict

if TYPE_CHECKING:
    from airflow_provider_soperator.logger import Logger
    from airflow_provider_soperator.provisioning.spec import ClusterSpec, KubernetesObjects

#: Annotation with the task that has applied the cluster last.
_BEGUN_BY = "airflow-provider-soperator/begun-by"


class ObjectsProvisioner(Provisioner):
    """Creates or changes the objects of a cluster by server-side apply; fields that it does not set stay."""

    def __init__(
        self,
        source: KubernetesObjects,
        spec: ClusterSpec,
        opened: Callable[[], AbstractAsyncContextManager[Objects]],
        log: Logger,
    ) -> None:
        """``opened`` opens the objects of the source's namespace, for the running event loop."""
        self._source, self._opened, self._log = source, opened, log
        cluster, nodesets = manifests.objects(spec, source.installation)
        self._wanted: list[tuple[Resource, Object]] = [
            (SLURM_CLUSTER, cluster),
            *((NODE_SET, nodeset) for nodeset in nodesets),
        ]
        self._is_destroy = False
        self._planned = ProvisioningPlan("nothing was planned")
        #: The change of size of static node sets that would lose nodes.
        self._shrunk: dict[str, str] = {}
        self._begun_by = ""

    def plan(self, *, destroy: bool = False) -> ProvisioningPlan:
        self._is_destroy, self._shrunk = destroy, {}
        self._planned = asyncio.run(self._plan())
        self._log.info("Plan: %s.", self._planned.summary)
        return self._planned

    def guard(self, allowed: Sequence[str]) -> None:
        refused = {name: how for name, how in self._shrunk.items() if name not in allowed}
        if refused:
            name, how = next(iter(refused.items()))
            raise SpecMistake(
                f"rejected, nothing was changed: {name} would shrink {how}, which kills jobs on the nodes that go; use "
                f"ScaleNodeSetOperator, which drains them first, or set allow_destroy=[{name!r}]"
            )

    def apply(self) -> str:
        asyncio.run(self._apply())
        return self._planned.summary

    def interrupt(self) -> str:
        return "what was applied so far stays"

    def reached(self) -> Reached:
        # A load balancer gets its address after some minutes; without one there will be none.
        login_comes = self._wanted[0][1]["spec"]["slurmNodes"]["login"]["sshdServiceType"] == "LoadBalancer"
        return Reached(login=asyncio.run(self._login()), login_comes=login_comes)

    def is_begun_by(self, owner: str) -> bool:
        return self._begun_by == owner

    def begin(self, owner: str) -> None:
        annotations = self._wanted[0][1]["metadata"].setdefault("annotations", {})
        annotations[_BEGUN_BY] = owner

    async def _plan(self) -> ProvisioningPlan:
        changes: dict[str, str] = {}
        exists = False
        async with self._opened() as objects:
            await objects.check_namespace()
            for resource, body in self._wanted:
                label = _label(resource, body)
                before: Object | None = None
                with suppress(ObjectMissing):
                    before = await objects.read(resource, body["metadata"]["name"])
                if resource is SLURM_CLUSTER and before:
                    exists = True
                    self._begun_by = before["metadata"].get("annotations", {}).get(_BEGUN_BY, "")
                if self._is_destroy:
                    if before is not None:
                        changes[label] = "delete"
                        self._log.info("  - %s", label)
                    continue
                after = await self._sent(objects, resource, body, dry_run=True)
                lines = list(differences(before["spec"], after["spec"])) if before else []
                if before is None or lines:
                    changes[label] = "update" if before else "create"
                    self._log.info("  %s %s", "~" if before else "+", label)
                for line in lines:
                    self._log.info("      %s", line)
                if resource is NODE_SET and before:
                    self._note_shrinking(label, before["spec"], after["spec"])
        return ProvisioningPlan(_summary(changes), changes, exists)

    def _note_shrinking(self, label: str, before: Object, after: Object) -> None:
        fewer = int(after.get("replicas", 1)) < int(before.get("replicas", 1))
        if fewer and not after.get("ephemeralNodes"):
            self._shrunk[label] = f"from {before.get('replicas', 1)} to {after['replicas']} nodes"

    async def _apply(self) -> None:
        async with self._opened() as objects:
            # The cluster is deleted last, because its node sets need it for their deletion.
            for resource, body in reversed(self._wanted) if self._is_destroy else self._wanted:
                label = _label(resource, body)
                if label not in self._planned.changes:
                    continue
                if self._is_destroy:
                    # An earlier try may have deleted it.
                    with suppress(ObjectMissing):
                        await objects.delete(resource, body["metadata"]["name"])
                else:
                    await self._sent(objects, resource, body)
                self._log.info("%s: %s", label, "deleted" if self._is_destroy else "applied")

    async def _sent(self, objects: Objects, resource: Resource, body: Object, *, dry_run: bool = False) -> Object:
        try:
            return await objects.apply(resource, body, force=self._source.force, dry_run=dry_run)
        except TransportError as error:
            if not is_conflict(error):
                raise
            raise SpecMistake(
                f"{_label(resource, body)} is managed by others ({error.what}): change it there, or set force=True in "
                "KubernetesObjects to take over these fields; managers that still apply them will revert the change"
            ) from error

    async def _login(self) -> str:
        async with self._opened() as objects:
            soperator = ClusterObjects(objects, self._wanted[0][1]["metadata"]["name"])
            for service in await soperator.services("login"):
                for one in service.get("status", {}).get("loadBalancer", {}).get("ingress") or ():
                    return str(one.get("ip") or one.get("hostname") or "")
        return ""


def differences(before: Any, after: Any, path: str = "") -> Iterator[str]:
    """Lines about the differences between two objects.

    >>> list(differences({"replicas": 1, "gpu": {"enabled": True}}, {"replicas": 2, "gpu": {"enabled": True}}))
    ['replicas: 1 -> 2']
    """
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for name in sorted({*before, *after}):
            yield from differences(before.get(name), after.get(name), f"{path}.{name}" if path else name)
    elif before != after:
        yield f"{path}: {'(not set)' if before is None else before} -> {'(not set)' if after is None else after}"


def _label(resource: Resource, body: Object) -> str:
    return f"{resource.kind}/{body['metadata']['name']}"


def _summary(changes: Mapping[str, str]) -> str:
    counted = [(action, list(changes.values()).count(action)) for action in ("delete", "create", "update")]
    return ", ".join(f"{count} to {action}" for action, count in counted if count) or "nothing to do"
