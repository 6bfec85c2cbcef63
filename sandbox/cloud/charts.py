"""Soperator's Helm charts: what each makes of its values, as far as a sandbox has any use for it.

Values of the SlurmCluster are taken where the object has a field of the same name; the images come with the version.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Iterator
from typing import Any

from sandbox.cloud import active_checks, landscape
from sandbox.cloud.backups import ANNOTATION as BACKED_UP
from sandbox.cloud.slurm_overrides import GPU_RESOURCE
from sandbox.kube.objects import Object, clone, dig
from sandbox.settings import CLUSTER, NAMESPACE, RELEASES, Settings

FLUX_NAMESPACE = "flux-system"
UMBRELLA = "soperator-fluxcd"
#: Named so after the Helm release that makes them.
CHILD = f"{FLUX_NAMESPACE}-{UMBRELLA}-"
HELM_RELEASE_VERSION = "helm.toolkit.fluxcd.io/v2"

_STORAGE_CLASS = "slurm-local-pv"
#: Fields of a SlurmCluster that the chart takes from the value of the same name.
_SAME = (
    *("customCgroupConfig", "customSlurmConfig", "healthCheckConfig", "k8sNodeFilters", "maintenance", "mpiConfig"),
    *("partitionConfiguration", "plugStackConfig", "populateJail", "sConfigController", "secrets", "slurmConfig"),
    *("slurmNodes", "topology", "useDefaultAppArmorProfile", "volumeSources"),
)
#: Of the umbrella's children: chart, path of their values, path of their version, those they wait for, Helm release,
#: and the ConfigMaps that are read before the values that stand in the HelmRelease.
_CHILDREN: tuple[tuple[str, str, str, tuple[str, ...], str], ...] = (
    ("soperator", "soperator", "soperator", (), "soperator-controller"),
    ("nodeconfigurator", "nodeConfigurator", "soperator", ("soperator",), "nodeconfigurator"),
    ("soperatorchecks", "soperator.soperatorChecks", "soperator", ("soperator",), "soperatorchecks"),
    (
        *("slurm-cluster-storage", "slurmCluster.slurmClusterStorage", "slurmCluster"),
        *(("soperator",), "slurm-cluster-storage"),
    ),
    ("slurm-cluster", "slurmCluster", "slurmCluster", ("soperator", "slurm-cluster-storage"), "soperator"),
    ("nodesets", "nodesets", "nodesets", ("soperator", "slurm-cluster"), "soperator-nodesets"),
    (
        *("soperator-activechecks", "soperatorActiveChecks", "soperatorActiveChecks"),
        *(("slurm-cluster", "soperatorchecks"), "soperator-activechecks"),
    ),
    ("backup-config", "backup.config", "backup.config", (), "soperator-backup-config"),
)
_CHARTS = {"backup-config": "soperator-backup-config"}


class RenderError(Exception):
    """A chart that cannot be rendered with its values, in Helm's words."""


def render(chart: str, version: str, values: Object, settings: Settings) -> list[Object]:
    """The objects of a chart, without a namespace where they are in that of the release."""
    make = _RENDERERS.get(chart)
    return list(make(version, values, settings)) if make else []


def installation(settings: Settings) -> Iterator[Object]:
    """What the recipe installs by itself: the umbrella, and the ConfigMaps that its values are read from."""
    config_map = {"apiVersion": "v1", "kind": "ConfigMap"}
    watched = {"labels": {"reconcile.fluxcd.io/watch": "Enabled"}}
    for name, more, values in (
        ("terraform-fluxcd-values", watched, _recipe_values(settings)),
        # For those who run the cluster: Terraform makes it, and never looks at it again.
        (f"{UMBRELLA}-values", {}, {}),
    ):
        yield {**config_map, "metadata": {"name": name, **more}, "data": {"values.yaml": values}}
    yield _release(
        UMBRELLA,
        {"chart": "helm-soperator-fluxcd", "version": RELEASES[settings.soperator]},
        {"targetNamespace": FLUX_NAMESPACE},
        ("terraform-fluxcd-values", f"{UMBRELLA}-values", "terraform-opentelemetry-collector"),
        required="terraform-fluxcd-values",
    )


def _recipe_values(settings: Settings) -> Object:
    """As Terraform writes them: what its variables say, under ``overrideValues``."""
    cluster = landscape.slurm_cluster(settings)["spec"]
    nodes = cluster["slurmNodes"]
    slurm: Object = {
        "clusterName": CLUSTER,
        "maintenance": cluster["maintenance"],
        "partitionConfiguration": cluster["partitionConfiguration"],
        "slurmNodes": {
            "login": {"size": nodes["login"]["size"], "sshdServiceType": nodes["login"]["sshdServiceType"]},
            "accounting": {"enabled": True},
            "rest": {"enabled": True, "size": nodes["rest"]["size"]},
        },
    }
    if "customSlurmConfig" in cluster:
        slurm["customSlurmConfig"] = cluster["customSlurmConfig"]
    return {
        "slurmCluster": {"overrideValues": slurm},
        "nodesets": {
            "enabled": True,
            "overrideValues": {"nodesets": [*map(_item_of, landscape.nodesets_of(settings))]},
        },
        "backup": {"enabled": True},
    }


def _item_of(nodeset: Object) -> Object:
    """The item of the chart's ``nodesets`` that makes this NodeSet."""
    spec = clone(nodeset["spec"])
    for part in ("slurmd", "munge"):
        del spec[part]["image"]
    resources = spec["slurmd"]["resources"]
    if GPU_RESOURCE in resources:
        resources["gpu"] = resources.pop(GPU_RESOURCE)
    metadata = nodeset["metadata"]
    return {"name": metadata["name"], "annotations": metadata.get("annotations") or {}, **spec}


# What the charts make


def _umbrella(version: str, values: Object, settings: Settings) -> Iterator[Object]:
    for name, path, version_path, needs, release in _CHILDREN:
        said = dig(values, path) or {}
        off = {"nodesets": not said.get("enabled"), "backup-config": not dig(values, "backup.enabled")}
        if off.get(name, said.get("enabled") is False):
            continue
        own = said.get("overrideValues") or said.get("values") or {}
        if not own and name in ("slurm-cluster", "soperator-activechecks"):
            own = {"clusterName": CLUSTER}
        chart = {"chart": f"helm-{_CHARTS.get(name, name)}"}
        chart["version"] = str(dig(values, f"{version_path}.version") or version)
        rest: Object = {"dependsOn": [{"name": CHILD + need} for need in needs], "releaseName": release}
        rest |= {"targetNamespace": NAMESPACE, "driftDetection": {"mode": "warn"}, "values": own}
        yield _release(CHILD + name, chart, rest, () if name == "backup-config" else (f"terraform-{name}", name))


def _release(name: str, chart: Object, rest: Object, read: tuple[str, ...], required: str = "") -> Object:
    source = {"kind": "HelmRepository", "name": UMBRELLA, "namespace": FLUX_NAMESPACE}
    sources = [
        {"kind": "ConfigMap", "name": one, "valuesKey": "values.yaml", "optional": one != required} for one in read
    ]
    spec = {"interval": "5m", "timeout": "5m", "chart": {"spec": {**chart, "interval": "5m", "sourceRef": source}}}
    spec |= rest | {"valuesFrom": sources}
    return {
        "apiVersion": HELM_RELEASE_VERSION,
        "kind": "HelmRelease",
        "metadata": {"name": name, "namespace": FLUX_NAMESPACE},
        "spec": spec,
    }


def _slurm_cluster(version: str, values: Object, settings: Settings) -> Iterator[Object]:
    made = landscape.slurm_cluster(settings, version)
    made["metadata"]["name"] = values.get("clusterName") or CLUSTER
    made["spec"] = coalesced(made["spec"], {key: values[key] for key in _SAME if key in values})
    yield {"apiVersion": "slurm.nebius.ai/v1", "kind": "SlurmCluster", **made}


def _nodesets(version: str, values: Object, settings: Settings) -> Iterator[Object]:
    for item in values.get("nodesets") or []:
        spec = clone(item)
        metadata = {"name": spec.pop("name"), "labels": landscape.labels("nodeset") | spec.pop("labels", {})}
        if annotations := spec.pop("annotations", {}):
            metadata["annotations"] = annotations
        # ``default 1`` takes 0 for what is not said.
        spec["replicas"] = spec.get("replicas") or 1
        spec.setdefault("maxUnavailable", "20%")
        for part, image in (("slurmd", "worker_slurmd"), ("munge", "munge")):
            for needed in (part, f"{part}.resources", *([f"{part}.volumes"] if part == "slurmd" else [])):
                if not dig(spec, needed):
                    raise RenderError(f".Values.nodesets[*].{needed} is required")
            own = {"repository": f"{landscape.REGISTRY}/{image}", "tag": landscape.tag_of(settings, version)}
            spec[part].setdefault("image", own)
            resources = spec[part]["resources"]
            gpu = GPU_RESOURCE if "nvidia" in (spec.get("gpu") or {}) else "gpu"
            for said, named in (("ephemeralStorage", "ephemeral-storage"), ("gpu", gpu)):
                if said in resources:
                    resources[named] = resources.pop(said)
        yield {"apiVersion": "slurm.nebius.ai/v1alpha1", "kind": "NodeSet", "metadata": metadata, "spec": spec}


def _active_checks(version: str, values: Object, settings: Settings) -> Iterator[Object]:
    for check in active_checks.shipped(settings.soperator):
        yield {"apiVersion": "slurm.nebius.ai/v1alpha1", "kind": "ActiveCheck", **check}


def _storage(version: str, values: Object, settings: Settings) -> Iterator[Object]:
    """One claim is backed up, the other is not."""
    class_ = {"provisioner": "kubernetes.io/no-provisioner", "volumeBindingMode": "WaitForFirstConsumer"}
    storage_class = {"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": _STORAGE_CLASS}}
    yield {**storage_class, **class_, "allowVolumeExpansion": True}
    for name, size in (("jail", "2Ti"), ("controller-spool", "30Gi")):
        shared = {"storageClassName": _STORAGE_CLASS, "accessModes": ["ReadWriteMany"]}
        reference = {"name": f"{name}-pvc", "namespace": NAMESPACE}
        volume = {"capacity": {"storage": size}, "local": {"path": f"/mnt/{name}"}, "claimRef": reference}
        made = {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": f"{name}-pv"}}
        yield {**made, "spec": {**shared, **volume}}
        marked = {"annotations": {BACKED_UP: "true"}} if name == "jail" else {}
        made = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": f"{name}-pvc", **marked}}
        yield {**made, "spec": {**shared, "resources": {"requests": {"storage": size}}}}


def _backup_plan(version: str, values: Object, settings: Settings) -> Iterator[Object]:
    """The Schedule, and the Secret that the recipe makes for it."""
    keys = ("aws-access-key-id", "aws-access-secret-key", "backup-password")
    data = {key: b64encode(b"sandbox").decode() for key in keys}
    yield {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "jail-backup"}, "data": data}
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
    yield {"apiVersion": "k8up.io/v1", "kind": "Schedule", "metadata": {"name": "soperator-jail"}, "spec": spec}


_RENDERERS: dict[str, Callable[[str, Object, Settings], Iterator[Object]]] = {
    "helm-soperator-fluxcd": _umbrella,
    "helm-slurm-cluster": _slurm_cluster,
    "helm-nodesets": _nodesets,
    "helm-soperator-activechecks": _active_checks,
    "helm-slurm-cluster-storage": _storage,
    "helm-soperator-backup-config": _backup_plan,
}


def merged(first: Any, second: Any) -> Any:
    """As Flux joins values: maps are joined, all else is replaced whole, lists included."""
    if not isinstance(first, dict) or not isinstance(second, dict):
        return second
    return {**first, **{key: merged(first.get(key), value) for key, value in second.items()}}


def coalesced(defaults: Any, values: Any) -> Any:
    """As Helm joins a chart's own values with those it is given: null takes a default away."""
    if not isinstance(defaults, dict) or not isinstance(values, dict):
        return values
    joined = {**defaults, **{key: coalesced(defaults.get(key), value) for key, value in values.items()}}
    return {key: value for key, value in joined.items() if value is not None}
