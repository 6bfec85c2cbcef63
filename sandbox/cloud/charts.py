"""What the charts of an installation make beside Soperator's own objects: storage, and the plan of backups."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator
from typing import Any

from sandbox.cloud.backups import ANNOTATION as BACKED_UP
from sandbox.kube.catalogue import SECRET
from sandbox.kube.chart_kinds import PERSISTENT_VOLUME, PERSISTENT_VOLUME_CLAIM, SCHEDULE, STORAGE_CLASS
from sandbox.kube.kinds import Kind
from sandbox.settings import NAMESPACE

_STORAGE_CLASS = "slurm-local-pv"


def beside_it() -> Iterator[tuple[Kind, dict[str, Any]]]:
    """The objects, each with its kind."""
    yield from _storage()
    yield from _backup_plan()


def _storage() -> Iterator[tuple[Kind, dict[str, Any]]]:
    """What the chart slurm-cluster-storage makes: one claim is backed up, the other is not."""
    class_ = {"provisioner": "kubernetes.io/no-provisioner", "volumeBindingMode": "WaitForFirstConsumer"}
    yield STORAGE_CLASS, {"metadata": {"name": _STORAGE_CLASS}, **class_, "allowVolumeExpansion": True}
    for name, size in (("jail", "2Ti"), ("controller-spool", "30Gi")):
        shared = {"storageClassName": _STORAGE_CLASS, "accessModes": ["ReadWriteMany"]}
        marked = {"annotations": {BACKED_UP: "true"}} if name == "jail" else {}
        reference = {"name": f"{name}-pvc", "namespace": NAMESPACE}
        volume = {"capacity": {"storage": size}, "local": {"path": f"/mnt/{name}"}, "claimRef": reference}
        yield PERSISTENT_VOLUME, {"metadata": {"name": f"{name}-pv"}, "spec": {**shared, **volume}}
        wanted = {**shared, "resources": {"requests": {"storage": size}}}
        yield PERSISTENT_VOLUME_CLAIM, {"metadata": {"name": f"{name}-pvc", **marked}, "spec": wanted}


def _backup_plan() -> Iterator[tuple[Kind, dict[str, Any]]]:
    """What the chart soperator-backup-config makes, and the Secret that the recipe makes for it."""
    keys = ("aws-access-key-id", "aws-access-secret-key", "backup-password")
    yield SECRET, {"metadata": {"name": "jail-backup"}, "data": {key: b64encode(b"sandbox").decode() for key in keys}}
    key_id, key, password = ({"name": "jail-backup", "key": key} for key in keys)
    bucket = {"bucket": "soperator-jail", "endpoint": "https://storage.sandbox", "accessKeyIDSecretRef": key_id}
    tags = ["soperator-jail-schedule"]
    limits = {"failedJobsHistoryLimit": 2, "successfulJobsHistoryLimit": 2, "concurrentRunsAllowed": False}
    spec = {
        "backend": {"s3": {**bucket, "secretAccessKeySecretRef": key}, "repoPasswordSecretRef": password},
        "backup": {"schedule": "@daily-random", **limits, "tags": tags},
        "prune": {"schedule": "@daily-random", "retention": {"keepDaily": 7, "tags": tags}},
        "podSecurityContext": {"runAsUser": 0},
    }
    yield SCHEDULE, {"metadata": {"name": "soperator-jail"}, "spec": spec}
