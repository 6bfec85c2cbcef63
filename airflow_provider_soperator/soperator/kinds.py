"""Kinds of Kubernetes objects: those of a Soperator cluster, and the lookup of others by any usual name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from airflow_provider_soperator.transports.transport_errors import API_TIMEOUT, is_missing, kubernetes_errors

#: Kubernetes' own kinds, which need no group.
APPS = ("Deployment", "ReplicaSet", "StatefulSet")
_RIGHTS = "the ClusterRole system:discovery, which every account has by default,"


class KindMistake(ValueError):
    """A kind that does not exist or cannot be scaled. The message ends with the remedy."""


@dataclass(frozen=True)
class Resource:
    """A kind of objects, with the parts of its API path."""

    group: str
    version: str
    plural: str
    kind: str

    def is_meant_by(self, reference: dict[str, Any]) -> bool:
        """True if a reference is to this kind; without a kind it refers to a Deployment."""
        group = str(reference.get("apiVersion") or "apps/v1").rpartition("/")[0]
        return (group, reference.get("kind") or "Deployment") == (self.group, self.kind)


_SOPERATOR = "slurm.nebius.ai"

SLURM_CLUSTER = Resource(_SOPERATOR, "v1", "slurmclusters", "SlurmCluster")
NODE_SET = Resource(_SOPERATOR, "v1alpha1", "nodesets", "NodeSet")
POWER_STATE = Resource(_SOPERATOR, "v1alpha1", "nodesetpowerstates", "NodeSetPowerState")
ACTIVE_CHECK = Resource(_SOPERATOR, "v1alpha1", "activechecks", "ActiveCheck")
CRON_JOB = Resource("batch", "v1", "cronjobs", "CronJob")
JOB = Resource("batch", "v1", "jobs", "Job")
LEASE = Resource("coordination.k8s.io", "v1", "leases", "Lease")
#: Of k8up, which backs the jail up.
BACKUP = Resource("k8up.io", "v1", "backups", "Backup")
BACKUP_SCHEDULE = Resource("k8up.io", "v1", "schedules", "Schedule")


def check_kind(kind: str) -> None:
    """Raise ``KindMistake`` for a name that cannot be a kind.

    >>> check_kind("Deployment")
    >>> check_kind("leaderworkersets.leaderworkerset.x-k8s.io")
    >>> check_kind("LeaderWorkerSet")
    Traceback (most recent call last):
    airflow_provider_soperator.soperator.kinds.KindMistake: 'LeaderWorkerSet' is none of Deployment, ReplicaSet, \
StatefulSet: give other kinds with their group, as "leaderworkersets.leaderworkerset.x-k8s.io" or "group/version/Kind"
    """
    if kind not in APPS and "." not in kind and len(kind.split("/")) != 3:
        raise KindMistake(
            f"{kind!r} is none of {', '.join(APPS)}: give other kinds with their group, as "
            '"leaderworkersets.leaderworkerset.x-k8s.io" or "group/version/Kind"'
        )


async def find_scalable(client: Any, kind: str) -> Resource:
    """The kind, which must have a scale subresource."""
    import kubernetes_asyncio.client

    name, group, versions = await _split(client, kind)
    custom = kubernetes_asyncio.client.CustomObjectsApi(client)
    for version in versions:
        entries = await _entries(custom, group, version)
        kinds = [one for one in entries if "/" not in one.name]
        found = next((one for one in kinds if name in (one.name, one.singular_name, one.kind, one.kind.lower())), None)
        if found is None:
            continue
        if all(one.name != f"{found.name}/scale" for one in entries):
            raise KindMistake(
                f"{found.kind} of {group}/{version} cannot be scaled: use a kind with a scale subresource"
            )
        return Resource(group, version, found.name, found.kind)
    raise KindMistake(
        f"the cluster has no kind {kind}: correct it, or install its CRD; `kubectl api-resources` lists all kinds"
    )


async def serves(client: Any, group: str, version: str) -> bool:
    """True if the API serves a group in this version."""
    import kubernetes_asyncio.client

    return bool(await _entries(kubernetes_asyncio.client.CustomObjectsApi(client), group, version))


async def _split(client: Any, kind: str) -> tuple[str, str, Sequence[str]]:
    """The name of the kind, its group, and the versions to search."""
    import kubernetes_asyncio.client

    if kind in APPS:
        return kind, "apps", ["v1"]
    if "/" in kind:
        group, version, name = kind.split("/")
        return name, group, [version]
    name, _, group = kind.partition(".")
    with kubernetes_errors("list the groups of kinds", _RIGHTS, "try again"):
        listed = await kubernetes_asyncio.client.ApisApi(client).get_api_versions(_request_timeout=API_TIMEOUT)
    found = [one for one in listed.groups if one.name == group]
    preferred = [one.preferred_version.version for one in found if one.preferred_version]
    return name, group, list(dict.fromkeys([*preferred, *(v.version for one in found for v in one.versions)]))


async def _entries(custom: Any, group: str, version: str) -> list[Any]:
    with kubernetes_errors(f"list the kinds of {group}/{version}", _RIGHTS, "try again"):
        try:
            listed = await custom.get_api_resources(group, version, _request_timeout=API_TIMEOUT)
        except Exception as error:
            if is_missing(error):
                return []
            raise
    return list(listed.resources)
