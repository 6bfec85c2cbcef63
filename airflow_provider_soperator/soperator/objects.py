"""Plain objects of a namespace, of any kind; each method is one API call."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Hashable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from airflow_provider_soperator.soperator.conditions import Object
from airflow_provider_soperator.soperator.kinds import Resource
from airflow_provider_soperator.soperator.workloads import MANAGER
from airflow_provider_soperator.transports.transport_errors import (
    API_TIMEOUT,
    ConnectFailed,
    TransportError,
    is_conflict,
    is_missing,
    kubernetes_errors,
    namespace_errors,
)

if TYPE_CHECKING:
    from airflow_provider_soperator.shared import SharedAnswers

T = TypeVar("T")

#: For a dict, the client would declare a JSON patch, which is a list.
_MERGE = "application/merge-patch+json"
#: Server-side apply. JSON is YAML, too.
_APPLY = "application/apply-patch+yaml"
_IN_TIME: dict[str, Any] = {"_request_timeout": API_TIMEOUT}
#: Raw answers: building the client's own objects for thousands of Pods would block the event loop.
_PLAIN: dict[str, Any] = {"_preload_content": False, **_IN_TIME}
_FOR_NOW = "check if the API is overloaded"


class ObjectMissing(ConnectFailed):
    """The object does not exist, or its kind does not."""


class KindMissing(ObjectMissing):
    """The kind of objects does not exist."""


class Objects:
    """The objects of one namespace, through a client of kubernetes_asyncio.

    With ``answers``, lists may come from that cache, if they are at most ``max_age`` seconds old.
    """

    def __init__(
        self, client: Any, namespace: str, rights: str, answers: SharedAnswers | None = None, max_age: float = 0
    ) -> None:
        import kubernetes_asyncio.client

        self.client, self.namespace, self._rights = client, namespace, rights
        self._answers, self._max_age = answers, max_age
        self._custom = kubernetes_asyncio.client.CustomObjectsApi(client)
        self._core = kubernetes_asyncio.client.CoreV1Api(client)

    async def read(self, resource: Resource, name: str) -> Object:
        call = self._custom.get_namespaced_custom_object(*self._path(resource), name, **_IN_TIME)
        return await self._answer(call, "get", resource, name)

    async def read_scale(self, resource: Resource, name: str) -> Object:
        call = self._custom.get_namespaced_custom_object_scale(*self._path(resource), name, **_IN_TIME)
        return await self._answer(call, "get the scale of", resource, name)

    async def list_all(self, resource: Resource) -> list[Object]:
        return await self.shared(resource, lambda: self._list_all(resource))

    async def _list_all(self, resource: Resource) -> list[Object]:
        try:
            with self._explained(f"list {resource.plural}"):
                listed = await self._custom.list_namespaced_custom_object(*self._path(resource), **_IN_TIME)
        except TransportError as error:
            # For a missing namespace the list is empty, so this means a missing kind.
            if is_missing(error):
                raise KindMissing(
                    f"the Kubernetes cluster has no kind {resource.kind} ({resource.group}/{resource.version})",
                    "install its CRD, or correct the Kubernetes connection",
                ) from error
            raise
        return list(listed["items"])

    async def create(self, resource: Resource, body: Object) -> Object:
        call = self._custom.create_namespaced_custom_object(
            *self._path(resource), body, field_manager=MANAGER, **_IN_TIME
        )
        return await self._answer(call, "create", resource, str(body["metadata"].get("name", "")))

    async def apply(self, resource: Resource, body: Object, *, force: bool = False, dry_run: bool = False) -> Object:
        """Server-side apply: create the object, or set the given fields; others are left alone.

        A conflict (see ``is_conflict``) if others manage a field that would change, unless ``force`` takes it over.
        """
        name = str(body["metadata"]["name"])
        whole = {"apiVersion": f"{resource.group}/{resource.version}", "kind": resource.kind, **body}
        call = self._custom.patch_namespaced_custom_object(
            *self._path(resource), name, whole, force=force, **_how(dry_run, _APPLY)
        )
        # Of an object that it has created, the client does not read the answer.
        return await self._answer(call, "apply", resource, name) or whole

    async def patch(self, resource: Resource, name: str, body: Object, *, dry_run: bool = False) -> Object:
        call = self._custom.patch_namespaced_custom_object(*self._path(resource), name, body, **_how(dry_run))
        return await self._answer(call, "patch", resource, name)

    async def patch_scale(self, resource: Resource, name: str, body: Object, *, dry_run: bool = False) -> None:
        call = self._custom.patch_namespaced_custom_object_scale(*self._path(resource), name, body, **_how(dry_run))
        await self._answer(call, "scale", resource, name)

    async def delete(self, resource: Resource, name: str) -> None:
        """Delete an object; the objects that it owns are deleted in the background."""
        call = self._custom.delete_namespaced_custom_object(
            *self._path(resource), name, propagation_policy="Background", **_IN_TIME
        )
        await self._answer(call, "delete", resource, name)

    async def shared(self, question: Hashable, ask: Callable[[], Awaitable[T]]) -> T:
        """An answer about the namespace, which concurrent callers may share."""
        if self._answers is None:
            return await ask()
        return await self._answers.get((self.namespace, question), ask, self._max_age)

    async def list_pods(self, selector: str = "") -> list[Object]:
        call = partial(self._core.list_namespaced_pod, self.namespace, label_selector=selector)
        return await self.shared(("pods", selector), partial(self._listed, f"pods in namespace {self.namespace}", call))

    async def list_services(self, selector: str) -> list[Object]:
        call = partial(self._core.list_namespaced_service, self.namespace, label_selector=selector)
        return await self._listed(f"services in namespace {self.namespace}", call)

    async def list_nodes(self, selector: str = "") -> list[Object]:
        """Kubernetes Nodes, which are in no namespace."""
        call = partial(self._core.list_node, label_selector=selector)
        return await self.shared(("nodes", selector), partial(self._listed, "nodes", call))

    async def operator_version(self) -> str | None:
        """The release of Soperator's operator, by the image of its Deployment; None if it cannot be read."""
        import kubernetes_asyncio.client

        apps, labels = kubernetes_asyncio.client.AppsV1Api(self.client), "app.kubernetes.io/part-of=slurm-operator"
        try:
            found = await self._listed(
                "deployments", partial(apps.list_deployment_for_all_namespaces, label_selector=labels)
            )
        except TransportError:
            return None
        images = [one["image"] for thing in found for one in thing["spec"]["template"]["spec"]["containers"]]
        return next((tag for name, _, tag in (one.rpartition(":") for one in images) if "slurm-operator" in name), None)

    async def has_config_map(self, name: str) -> bool:
        try:
            with self._explained(f"get the ConfigMap {name}"):
                await _plain(self._core.read_namespaced_config_map(name, self.namespace, **_PLAIN))
        except TransportError as error:
            if is_missing(error):
                return False
            raise
        return True

    async def _listed(self, what: str, call: Callable[..., Awaitable[Any]]) -> list[Object]:
        with kubernetes_errors(f"list {what}", self._rights, _FOR_NOW):
            return list((await _plain(call(**_PLAIN)))["items"])

    async def patch_node(self, name: str, body: Object, *, dry_run: bool = False) -> None:
        with kubernetes_errors(f"patch node {name}", self._rights, _FOR_NOW):
            await _plain(self._core.patch_node(name, body, _preload_content=False, **_how(dry_run)))

    async def list_pods_on(self, node: str) -> list[Object]:
        """The Pods on a Kubernetes Node, of all namespaces."""
        call = partial(self._core.list_pod_for_all_namespaces, field_selector=f"spec.nodeName={node}")
        return await self._listed("pods of all namespaces", call)

    async def evict(self, pod: Object, *, dry_run: bool = False) -> str:
        """Evict a Pod; returns why a PodDisruptionBudget does not allow it now, else an empty text."""
        metadata = pod["metadata"]
        name, namespace = metadata["name"], metadata["namespace"]
        # A StatefulSet may have started another Pod of the same name by now.
        options = {"preconditions": {"uid": metadata["uid"]}}
        kind = {"apiVersion": "policy/v1", "kind": "Eviction"}
        body: Any = {**kind, "metadata": {"name": name}, "deleteOptions": options}
        how = _PLAIN | ({"dry_run": "All"} if dry_run else {})
        with kubernetes_errors(f"evict pod {namespace}/{name}", self._rights, _FOR_NOW):
            try:
                said = await _plain(self._core.create_namespaced_pod_eviction(name, namespace, body, **how))
            except Exception as error:
                if is_missing(error) or is_conflict(error):
                    return ""
                said = json.loads(getattr(error, "body", None) or b"{}")
                causes = (said.get("details") or {}).get("causes") or ()
                if reasons := [one["message"] for one in causes if one.get("reason") == "DisruptionBudget"]:
                    return "; ".join(reasons)
                raise
        return str(said.get("message")) if said.get("status") == "Failure" else ""

    async def check_namespace(self) -> None:
        """Raise if the namespace does not exist: Kubernetes would just list no objects."""
        with namespace_errors(self.namespace):
            await _plain(self._core.read_namespace(self.namespace, **_PLAIN))

    async def _answer(self, call: Awaitable[Object], verb: str, resource: Resource, name: str) -> Object:
        try:
            with self._explained(f"{verb} {resource.kind} {name}"):
                return await call
        except TransportError as error:
            if is_missing(error):
                raise ObjectMissing(
                    f"there is no {resource.kind} {name} in namespace {self.namespace}",
                    "correct its name, the namespace, or the Kubernetes connection",
                ) from error
            raise

    def _path(self, resource: Resource) -> tuple[str, str, str, str]:
        return resource.group, resource.version, self.namespace, resource.plural

    def _explained(self, what: str) -> Any:
        return kubernetes_errors(f"{what} in namespace {self.namespace}", self._rights, _FOR_NOW)


def _how(dry_run: bool, content_type: str = _MERGE) -> dict[str, Any]:
    how = {"field_manager": MANAGER, "_content_type": content_type, **_IN_TIME}
    return how | {"dry_run": "All"} if dry_run else how


async def _plain(call: Awaitable[Any]) -> Object:
    """The raw answer. The client does not detect errors in a raw answer, so this does."""
    import kubernetes_asyncio.client

    response = await call
    body = await response.read()
    if response.status >= 300:
        refused = kubernetes_asyncio.client.ApiException(status=response.status, reason=response.reason)
        refused.body = body
        raise refused
    found: Object = json.loads(body)
    return found
