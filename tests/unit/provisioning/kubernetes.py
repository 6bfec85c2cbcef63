"""The objects of a namespace in memory. Server-side apply is the sandbox's, with its field managers."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime, timezone
from typing import Any

from kubernetes_asyncio.client import ApiException

from airflow_provider_soperator.soperator.conditions import Object
from airflow_provider_soperator.soperator.kinds import Resource
from airflow_provider_soperator.soperator.objects import ObjectMissing
from airflow_provider_soperator.soperator.workloads import MANAGER
from airflow_provider_soperator.transports.transport_errors import kubernetes_error
from sandbox.kube.catalogue import NODE_SET, SLURM_CLUSTER
from sandbox.kube.errors import ApiError
from sandbox.kube.managers import Manager, apply, note_update

_KINDS = {kind.kind: kind for kind in (SLURM_CLUSTER, NODE_SET)}
_NOW = datetime(2026, 11, 22, tzinfo=timezone.utc)


class Namespace:
    """What ``Objects`` of a namespace has; its operator is of release ``operator``."""

    namespace = "soperator"

    def __init__(self, operator: str | None = None, config_maps: tuple[str, ...] = ("slurm-scripts",)) -> None:
        self.operator, self.config_maps = operator, config_maps
        self.things: dict[tuple[str, str], Object] = {}
        self.pods: list[Object] = []

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Any]:
        yield self

    def put(self, kind: str, name: str, spec: Object, manager: str = "helm") -> None:
        """Somebody else writes an object."""
        self._apply(kind, {"metadata": {"name": name}, "spec": spec}, manager, force=True)

    def scale(self, nodeset: str, replicas: int) -> None:
        """Our own ScaleNodeSetOperator changes the number."""
        old, kind = self.things["NodeSet", nodeset], _KINDS["NodeSet"]
        new = {**old, "metadata": {**old["metadata"]}, "spec": {**old["spec"], "replicas": replicas}}
        note_update(kind, old, new, Manager(MANAGER, "Update", kind.api_version, "scale"), _NOW)
        self.things["NodeSet", nodeset] = new

    def spec(self, kind: str, name: str) -> Object:
        return self.things[kind, name]["spec"]  # type: ignore[no-any-return]

    def run(self, nodeset: str, *ordinals: int) -> None:
        """Pods of nodes that are on."""
        for ordinal in ordinals:
            labels = {"slurm.nebius.ai/nodeset": nodeset}
            self.pods.append({"metadata": {"name": f"{nodeset}-{ordinal}", "labels": labels}, "status": {}})

    def _apply(self, kind: str, body: Object, manager: str, *, force: bool) -> Object:
        name = body["metadata"]["name"]
        old = self.things.get((kind, name), {"metadata": {"name": name}})
        who = Manager(manager, "Apply", _KINDS[kind].api_version)
        made: Object = apply(_KINDS[kind], old, body, who, _NOW, force=force)
        self.things[kind, name] = made
        return made

    async def check_namespace(self) -> None:
        pass

    async def operator_version(self) -> str | None:
        return self.operator

    async def has_config_map(self, name: str) -> bool:
        return name in self.config_maps

    async def read(self, resource: Resource, name: str) -> Object:
        if (resource.kind, name) not in self.things:
            raise ObjectMissing(f"there is no {resource.kind} {name}", "make it")
        return self.things[resource.kind, name]

    async def list_all(self, resource: Resource, selector: str = "") -> list[Object]:
        if resource.kind == "Pod":
            return self.pods
        return [thing for (kind, _), thing in self.things.items() if kind == resource.kind]

    async def apply(self, resource: Resource, body: Object, *, force: bool = False, dry_run: bool = False) -> Object:
        before = dict(self.things)
        try:
            made = self._apply(resource.kind, body, MANAGER, force=force)
        except ApiError as error:
            answer = ApiException(status=error.code)
            answer.body = json.dumps(error.status())
            raise kubernetes_error(answer, f"apply {resource.kind}") from answer
        if dry_run:
            self.things = before
        return made
