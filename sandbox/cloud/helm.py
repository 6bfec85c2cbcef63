"""Helm, as Flux uses it: puts the objects of a chart into the cluster, and remembers them revision by revision."""

from __future__ import annotations

import gzip
import json
from base64 import b64decode, b64encode

import yaml

from sandbox.cloud.charts import FLUX_NAMESPACE
from sandbox.kube.catalogue import HELM_RELEASE
from sandbox.kube.kinds import Kind
from sandbox.kube.managers import Manager, apply
from sandbox.kube.objects import Object, clone
from sandbox.kube.schemas import shape_of
from sandbox.kube.store import ObjectStore
from sandbox.kube.structure import check, pruned

MANAGER = "helm-controller"
#: Revisions that are remembered, in Secrets as of Helm itself.
KEPT = 5


class Helm:
    """The releases of HelmReleases."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def release(self, release: Object, values: Object, things: list[Object]) -> int:
        """Apply the objects, delete those that are not among them any more, and give back the number of the revision.

        Fields of others are taken over: Flux forces what it applies.
        """
        before, namespace = self.stored(release), target_of(release)
        marked = [_of_release(thing, release) for thing in things]
        for thing in marked:
            self.apply(thing, namespace)
        kept = {_identity(thing, namespace) for thing in marked}
        for thing in before.get("manifest", []):
            if _identity(thing, namespace) not in kept:
                self._delete(thing, namespace)
        number = int(before.get("version", 0)) + 1
        self._remember(release, number, values, marked)
        return number

    def uninstall(self, release: Object) -> None:
        for thing in self.stored(release).get("manifest", []):
            self._delete(thing, target_of(release))
        for secret in self._secrets(release):
            self._store.delete("secrets", secret["metadata"]["name"], FLUX_NAMESPACE)

    def drifted(self, release: Object) -> list[str]:
        """The objects that are not as they were applied."""
        namespace = target_of(release)
        things = self.stored(release).get("manifest", [])
        return [
            f"{one['kind']}/{namespace}/{one['metadata']['name']}" for one in things if self._differs(one, namespace)
        ]

    def apply(self, thing: Object, namespace: str, manager: Manager | None = None) -> None:
        kind, there = self._kind_of(thing), self._there(thing, namespace)
        by = manager or Manager(MANAGER, "Apply", kind.api_version)
        if (shape := shape_of(kind)) is not None:
            check(kind, thing, shape)
            thing = pruned(thing, shape)
        if by.operation == "Update":
            self._store.create(kind, thing, namespace, manager=by)
            return
        old = there or {"metadata": {"name": thing["metadata"]["name"]}}
        new = apply(kind, old, thing, by, self._store.now(), force=True)
        if there is None:
            self._store.create(kind, new, namespace)
        else:
            self._store.update(kind, new, namespace, part="spec")

    def _differs(self, thing: Object, namespace: str) -> bool:
        kind, there = self._kind_of(thing), self._there(thing, namespace)
        if there is None:
            return True
        by = Manager(MANAGER, "Apply", kind.api_version)
        new = apply(kind, there, thing, by, self._store.now(), force=True)
        return _without_managers(new) != _without_managers(there)

    def _delete(self, thing: Object, namespace: str) -> None:
        if self._there(thing, namespace) is not None:
            where = thing["metadata"].get("namespace") or namespace
            self._store.delete(self._kind_of(thing), thing["metadata"]["name"], where)

    def _there(self, thing: Object, namespace: str) -> Object | None:
        metadata = thing["metadata"]
        where = metadata.get("namespace") or namespace
        found = self._store.list(self._kind_of(thing), where, fields=f"metadata.name={metadata['name']}")
        return found[0] if found else None

    def _kind_of(self, thing: Object) -> Kind:
        named = (thing["apiVersion"], thing["kind"])
        return next(kind for kind in self._store.kinds if (kind.api_version, kind.kind) == named)

    # What Helm remembers: a Secret for each revision

    def _secrets(self, release: Object) -> list[Object]:
        labels = f"owner=helm,name={name_of(release)}"
        found = self._store.list("secrets", FLUX_NAMESPACE, labels=labels)
        return sorted(found, key=lambda one: int(one["metadata"]["labels"]["version"]))

    def stored(self, release: Object) -> Object:
        """The last revision, or nothing; its manifest is a list of objects."""
        secrets = self._secrets(release)
        if not secrets:
            return {}
        packed = b64decode(b64decode(secrets[-1]["data"]["release"]))
        stored: Object = json.loads(gzip.decompress(packed))
        return {**stored, "manifest": [*yaml.safe_load_all(stored["manifest"])]}

    def _remember(self, release: Object, number: int, values: Object, manifest: list[Object]) -> None:
        chart, name = release["spec"]["chart"]["spec"], name_of(release)
        stored = {
            **{"name": name, "namespace": target_of(release), "version": number},
            **{"info": {"status": "deployed"}, "config": values},
            "chart": {"metadata": {"name": chart["chart"], "version": chart["version"]}},
            "manifest": yaml.safe_dump_all(manifest, sort_keys=False),
        }
        packed = b64encode(b64encode(gzip.compress(json.dumps(stored).encode(), mtime=0))).decode()
        labels = {"owner": "helm", "name": name, "status": "deployed", "version": str(number)}
        metadata = {"name": f"sh.helm.release.v1.{name}.v{number}", "labels": labels}
        secret = {"metadata": metadata, "type": "helm.sh/release.v1", "data": {"release": packed}}
        self._store.create("secrets", secret, FLUX_NAMESPACE)
        for old in self._secrets(release)[:-1]:
            superseded = {"metadata": {"labels": {"status": "superseded"}}}
            self._store.patch("secrets", old["metadata"]["name"], superseded, FLUX_NAMESPACE)
        for old in self._secrets(release)[:-KEPT]:
            self._store.delete("secrets", old["metadata"]["name"], FLUX_NAMESPACE)


def target_of(release: Object) -> str:
    """The namespace that it installs into."""
    return str(release["spec"].get("targetNamespace", FLUX_NAMESPACE))


def name_of(release: Object) -> str:
    target, name = release["spec"].get("targetNamespace"), release["metadata"]["name"]
    return str(release["spec"].get("releaseName") or (f"{target}-{name}" if target else name))


def _of_release(thing: Object, release: Object) -> Object:
    """An object with the marks of what has installed it."""
    made: Object = clone(thing)
    metadata, group = made["metadata"], HELM_RELEASE.group
    namespace = target_of(release)
    origin = {f"{group}/name": release["metadata"]["name"], f"{group}/namespace": FLUX_NAMESPACE}
    metadata["labels"] = {**(metadata.get("labels") or {}), "app.kubernetes.io/managed-by": "Helm", **origin}
    helm = {"meta.helm.sh/release-name": name_of(release), "meta.helm.sh/release-namespace": namespace}
    metadata["annotations"] = {**(metadata.get("annotations") or {}), **helm}
    return made


def _identity(thing: Object, namespace: str) -> tuple[str, ...]:
    metadata = thing["metadata"]
    return thing["apiVersion"], thing["kind"], metadata.get("namespace") or namespace, metadata["name"]


def _without_managers(thing: Object) -> Object:
    return {**thing, "metadata": {key: value for key, value in thing["metadata"].items() if key != "managedFields"}}
