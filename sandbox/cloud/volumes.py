"""Storage: claims that find their volumes. There is nothing behind either."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sandbox.kube.objects import dig
from sandbox.kube.store import ObjectStore

_NO_PROVISIONER = "kubernetes.io/no-provisioner"


class VolumeController:
    """Binds each claim: to the volume that names it, to one that fits, or to one that its class can make."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def sync(self) -> None:
        for claim in self._store.list("pvc"):
            if dig(claim, "status.phase") != "Bound" and (volume := self._volume_for(claim)):
                self._bind(claim, volume)

    def _volume_for(self, claim: dict[str, Any]) -> dict[str, Any] | None:
        volumes = self._store.list("pv")
        for volume in volumes:
            reference = volume["spec"].get("claimRef") or {}
            metadata = claim["metadata"]
            if (reference.get("name"), reference.get("namespace")) == (metadata["name"], metadata["namespace"]):
                return volume
        name = claim["spec"].get("storageClassName")
        found = self._store.list("storageclasses", fields=f"metadata.name={name}") if name else []
        if found and found[0].get("volumeBindingMode") == "WaitForFirstConsumer":
            # Without volumes of their own such claims wait for a Pod, and for the Node that it gets.
            return None
        fitting = next(_fitting(claim, volumes), None)
        if fitting or not found or found[0].get("provisioner") == _NO_PROVISIONER:
            return fitting
        return self._store.create("pv", _made_for(claim))

    def _bind(self, claim: dict[str, Any], volume: dict[str, Any]) -> None:
        name, metadata = volume["metadata"]["name"], claim["metadata"]
        reference = {"kind": "PersistentVolumeClaim", "apiVersion": "v1", "uid": metadata["uid"]}
        reference |= {"name": metadata["name"], "namespace": metadata["namespace"]}
        self._store.patch("pv", name, {"spec": {"claimRef": reference}, "status": {"phase": "Bound"}})
        status = {"phase": "Bound", "capacity": volume["spec"]["capacity"]}
        status["accessModes"] = volume["spec"]["accessModes"]
        bound = {"spec": {"volumeName": name}, "status": status}
        self._store.patch("pvc", metadata["name"], bound, metadata["namespace"])


def _fitting(claim: dict[str, Any], volumes: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    wanted = claim["spec"]
    for volume in volumes:
        spec = volume["spec"]
        is_free = "claimRef" not in spec and spec.get("storageClassName") == wanted.get("storageClassName")
        if is_free and set(wanted.get("accessModes") or []) <= set(spec.get("accessModes") or []):
            yield volume


def _made_for(claim: dict[str, Any]) -> dict[str, Any]:
    spec = claim["spec"]
    return {
        "metadata": {"name": f"pvc-{claim['metadata']['uid']}"},
        "spec": {
            "storageClassName": spec["storageClassName"],
            "accessModes": spec.get("accessModes") or [],
            "capacity": {"storage": dig(spec, "resources.requests.storage") or "1Gi"},
            "persistentVolumeReclaimPolicy": "Delete",
        },
    }
