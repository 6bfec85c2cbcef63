"""Kinds of Kubernetes objects: those of a Soperator cluster, and the usual names of others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

#: Kubernetes' own kinds, which need no group.
APPS = ("Deployment", "ReplicaSet", "StatefulSet")


class KindMistake(ValueError):
    """A kind that does not exist or cannot be scaled. The message ends with the remedy."""


@dataclass(frozen=True)
class Resource:
    """A kind of objects, with the parts of its API path."""

    #: Empty for the core of Kubernetes.
    group: str
    version: str
    plural: str
    kind: str
    is_namespaced: bool = True

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str, *below: str) -> str:
        """The path of its objects, of all namespaces or of one; or of one of them by its name, or of a subresource.

        >>> NODE_SET.path("soperator", "worker", "scale")
        '/apis/slurm.nebius.ai/v1alpha1/namespaces/soperator/nodesets/worker/scale'
        >>> NODE.path("soperator")
        '/api/v1/nodes'
        """
        place = ("namespaces", namespace) if namespace and self.is_namespaced else ()
        parts = (
            "apis" if self.group else "api",
            self.api_version,
            *place,
            self.plural,
            *(quote(one, "") for one in below),
        )
        return "/" + "/".join(parts)

    def is_meant_by(self, reference: dict[str, Any]) -> bool:
        """True if a reference is to this kind; without a kind it refers to a Deployment."""
        group = str(reference.get("apiVersion") or "apps/v1").rpartition("/")[0]
        return (group, reference.get("kind") or "Deployment") == (self.group, self.kind)


_SOPERATOR = "slurm.nebius.ai"

POD = Resource("", "v1", "pods", "Pod")
NODE = Resource("", "v1", "nodes", "Node", is_namespaced=False)
EVENT = Resource("", "v1", "events", "Event")
SERVICE = Resource("", "v1", "services", "Service")
CONFIG_MAP = Resource("", "v1", "configmaps", "ConfigMap")
NAMESPACE = Resource("", "v1", "namespaces", "Namespace", is_namespaced=False)
DEPLOYMENT = Resource("apps", "v1", "deployments", "Deployment")
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
