"""Plain objects of a namespace, of any kind; each method is one API call."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow_provider_soperator.soperator.conditions import Object
from airflow_provider_soperator.soperator.kinds import (
    APPS,
    CONFIG_MAP,
    DEPLOYMENT,
    NAMESPACE,
    NODE,
    POD,
    KindMistake,
    Resource,
)
from airflow_provider_soperator.soperator.workloads import MANAGER
from airflow_provider_soperator.transports.transport_errors import (
    API_TIMEOUT,
    ConnectFailed,
    TransportError,
    denial,
    is_conflict,
    is_missing,
    kubernetes_errors,
    namespace_errors,
)

if TYPE_CHECKING:
    from airflow_provider_soperator.shared import SharedAnswers

#: Of server-side apply. JSON is YAML, too.
_APPLY = "application/apply-patch+yaml"
_FOR_NOW = "check if the API is overloaded"
_DISCOVERY = "the ClusterRole system:discovery, which every account has by default,"


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
        self.client, self.namespace, self._rights = client, namespace, rights
        self._answers, self.max_age = answers, max_age

    async def read(self, resource: Resource, name: str) -> Object:
        return await self._one("GET", "get", resource, name)

    async def read_scale(self, resource: Resource, name: str) -> Object:
        return await self._one("GET", "get the scale of", resource, name, "scale")

    async def create(self, resource: Resource, body: Object) -> Object:
        return await self._one("POST", "create", resource, body["metadata"]["name"], body=body, **_change())

    async def create_once(self, resource: Resource, body: Object) -> Object:
        """Create an object, or read the one that has its name already: an earlier try may have created it."""
        try:
            return await self.create(resource, body)
        except TransportError as error:
            if not is_conflict(error):
                raise
            return await self.read(resource, body["metadata"]["name"])

    async def apply(self, resource: Resource, body: Object, *, force: bool = False, dry_run: bool = False) -> Object:
        """Server-side apply: create the object, or set the given fields; others are left alone.

        A conflict (see ``is_conflict``) if others manage a field that would change, unless ``force`` takes it over.
        """
        whole = {"apiVersion": resource.api_version, "kind": resource.kind, **body}
        how = {**_change(dry_run), "content_type": _APPLY, "force": str(force).lower()}
        return await self._one("PATCH", "apply", resource, body["metadata"]["name"], body=whole, **how)

    async def patch(self, resource: Resource, name: str, body: Object, *, dry_run: bool = False) -> Object:
        return await self._one("PATCH", "patch", resource, name, body=body, **_change(dry_run))

    async def patch_scale(self, resource: Resource, name: str, body: Object, *, dry_run: bool = False) -> None:
        await self._one("PATCH", "scale", resource, name, "scale", body=body, **_change(dry_run))

    async def delete(self, resource: Resource, name: str) -> None:
        """Delete an object; the objects that it owns are deleted in the background."""
        await self._one("DELETE", "delete", resource, name, propagationPolicy="Background")

    async def list_all(self, resource: Resource, selector: str = "") -> list[Object]:
        """The objects with some labels; Kubernetes Nodes are in no namespace."""
        try:
            return await self._listed(resource, self.namespace, labelSelector=selector)
        except TransportError as error:
            # For a missing namespace the list is empty, so this means a missing kind.
            if is_missing(error):
                raise KindMissing(
                    f"the Kubernetes cluster has no kind {resource.kind} ({resource.api_version})",
                    "install its CRD, or correct the Kubernetes connection",
                ) from error
            raise

    async def list_pods_on(self, node: str) -> list[Object]:
        """The Pods on a Kubernetes Node, of all namespaces."""
        return await self._listed(POD, "", fieldSelector=f"spec.nodeName={node}")

    async def operator_version(self) -> str | None:
        """The release of Soperator's operator, by the image of its Deployment; None if it cannot be read."""
        labels = "app.kubernetes.io/part-of=slurm-operator"
        try:
            found = await self._listed(DEPLOYMENT, "", labelSelector=labels)
        except TransportError:
            return None
        containers = [one for thing in found for one in thing["spec"]["template"]["spec"]["containers"]]
        # Without a digest, which has a colon as well.
        images = [one["image"].partition("@")[0] for one in containers]
        return next((tag for name, _, tag in (one.rpartition(":") for one in images) if "slurm-operator" in name), None)

    async def has_config_map(self, name: str) -> bool:
        with suppress(ObjectMissing):
            return bool(await self.read(CONFIG_MAP, name))
        return False

    async def patch_node(self, name: str, body: Object, *, dry_run: bool = False) -> None:
        await self.ask("PATCH", NODE.path("", name), f"patch node {name}", body=body, **_change(dry_run))

    async def evict(self, pod: Object, *, dry_run: bool = False) -> str:
        """Evict a Pod; returns why a PodDisruptionBudget or a webhook does not allow it now, else an empty text."""
        metadata = pod["metadata"]
        name, namespace = metadata["name"], metadata["namespace"]
        # A StatefulSet may have started another Pod of the same name by now.
        options = {"preconditions": {"uid": metadata["uid"]}}
        kind = {"apiVersion": "policy/v1", "kind": "Eviction"}
        body = {**kind, "metadata": {"name": name}, "deleteOptions": options}
        with kubernetes_errors(f"evict pod {namespace}/{name}", self._rights, _FOR_NOW):
            try:
                path, dry = POD.path(namespace, name, "eviction"), "All" if dry_run else ""
                said = await _request(self.client, "POST", path, body, dryRun=dry)
            except Exception as error:
                if is_missing(error) or is_conflict(error):
                    return ""
                if denied := denial(error):
                    return denied
                said = json.loads(getattr(error, "body", None) or b"{}")
                causes = (said.get("details") or {}).get("causes") or ()
                if reasons := [one["message"] for one in causes if one.get("reason") == "DisruptionBudget"]:
                    return "; ".join(reasons)
                raise
        return str(said.get("message")) if said.get("status") == "Failure" else ""

    async def check_namespace(self) -> None:
        """Raise if the namespace does not exist: Kubernetes would just list no objects."""
        with namespace_errors(self.namespace):
            await _request(self.client, "GET", NAMESPACE.path("", self.namespace))

    async def find_scalable(self, kind: str) -> Resource:
        """The kind of this name, which must have a scale subresource."""
        name, group, versions = await self._split(kind)
        for version in versions:
            there = {one["name"]: one for one in await self._entries(group, version)}
            for plural, one in there.items():
                if "/" in plural or name not in (plural, one.get("singularName"), one["kind"], one["kind"].lower()):
                    continue
                if f"{plural}/scale" not in there:
                    raise KindMistake(
                        f"{one['kind']} of {group}/{version} cannot be scaled: use a kind with a scale subresource"
                    )
                return Resource(group, version, plural, one["kind"])
        raise KindMistake(
            f"the cluster has no kind {kind}: correct it, or install its CRD; `kubectl api-resources` lists all kinds"
        )

    async def serves(self, resource: Resource) -> bool:
        """True if the API serves the group of a kind in its version."""
        return bool(await self._entries(resource.group, resource.version))

    async def _split(self, kind: str) -> tuple[str, str, Sequence[str]]:
        """The name of the kind, its group, and the versions to search."""
        if kind in APPS:
            return kind, "apps", ["v1"]
        if "/" in kind:
            group, version, name = kind.split("/")
            return name, group, [version]
        name, _, group = kind.partition(".")
        with kubernetes_errors("list the groups of kinds", _DISCOVERY, "try again"):
            groups = (await _request(self.client, "GET", "/apis"))["groups"]
        found = [one for one in groups if one["name"] == group]
        versions = [version for one in found for version in (one.get("preferredVersion"), *one["versions"]) if version]
        return name, group, list(dict.fromkeys(one["version"] for one in versions))

    async def _entries(self, group: str, version: str) -> list[Object]:
        with kubernetes_errors(f"list the kinds of {group}/{version}", _DISCOVERY, "try again"):
            try:
                return list((await _request(self.client, "GET", f"/apis/{group}/{version}"))["resources"])
            except Exception as error:
                if is_missing(error):
                    return []
                raise

    async def ask(self, method: str, path: str, what: str, **request: Any) -> Object:
        """The answer of the API to any request; ``what`` describes it in errors."""
        with kubernetes_errors(what, self._rights, _FOR_NOW):
            return await _request(self.client, method, path, **request)

    async def _listed(self, resource: Resource, namespace: str, **selectors: str) -> list[Object]:
        """List objects of all namespaces, or of one."""
        where = f" in namespace {namespace}" if namespace and resource.is_namespaced else ""
        what = f"list {resource.plural}{where}"
        ask = partial(self.ask, "GET", resource.path(namespace), what, **selectors)
        if self._answers is None:
            return list((await ask())["items"])
        # Concurrent callers share an answer.
        question = (resource, where, *selectors.items())
        return list((await self._answers.get(question, ask, self.max_age))["items"])

    async def _one(self, method: str, verb: str, resource: Resource, name: str, *below: str, **request: Any) -> Object:
        what = f"{verb} {resource.kind} {name} in namespace {self.namespace}"
        path = resource.path(self.namespace, *(() if method == "POST" else (name, *below)))
        try:
            return await self.ask(method, path, what, **request)
        except TransportError as error:
            if is_missing(error):
                raise ObjectMissing(
                    f"there is no {resource.kind} {name} in namespace {self.namespace}",
                    "correct its name, the namespace, or the Kubernetes connection",
                ) from error
            raise


def _change(dry_run: bool = False) -> dict[str, str]:
    return {"fieldManager": MANAGER, "dryRun": "All" if dry_run else ""}


async def _request(
    client: Any, method: str, path: str, body: Any = None, content_type: str = "", **query: str
) -> Object:
    """The plain answer: making the client's own objects of thousands of Pods would block the event loop."""
    from kubernetes_asyncio.client import ApiException

    usual = "application/merge-patch+json" if method == "PATCH" else "application/json"
    response = await client.call_api(
        path,
        method,
        query_params=[(name, value) for name, value in query.items() if value],
        header_params={"Accept": "application/json", "Content-Type": content_type or usual},
        body=body,
        auth_settings=["BearerToken"],
        _preload_content=False,
        _request_timeout=API_TIMEOUT,
    )
    answer = await response.read()
    # For a plain answer the client does not do this.
    if response.status >= 300:
        refused = ApiException(status=response.status, reason=response.reason)
        refused.body = answer
        raise refused
    found: Object = json.loads(answer)
    return found
