"""What the double sells and to whom: names, places and shapes that the fleet itself knows nothing of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

#: The project of all that is Soperator's, and the one that has inference in a cluster of its own.
PROJECT = "project-e00sandbox"
INFERENCE_PROJECT = "project-e00inference"


@dataclass(frozen=True)
class ClusterEntry:
    """A Kubernetes cluster that node groups belong to; what ``endpoint`` serves is not checked."""

    id: str
    name: str
    project: str = PROJECT
    endpoint: str = ""
    ca_certificate: str = ""
    version: str = "1.33"


@dataclass(frozen=True)
class GroupTemplate:
    """The part of a node group's spec that never changes its size: what machine, and how it is connected."""

    platform: str = "gpu-h100-sxm"
    preset: str = "8gpu-128vcpu-1600gb"
    gpu_cluster: str = ""
    max_pods: int = 32


CLUSTERS = (
    ClusterEntry("mk8scluster-e00soperator", "soperator"),
    ClusterEntry("mk8scluster-e00inference", "inference", INFERENCE_PROJECT),
)


@dataclass(frozen=True)
class Catalogue:
    """Everything around the fleet. A group that ``templates`` does not name is of the default shape."""

    tenant: str = "tenant-e00sandbox"
    project: str = PROJECT
    region: str = "eu-north1"
    fabric: str = "fabric-2"
    platform: str = "gpu-h100-sxm"
    block_name: str = "sandbox"
    #: Blocks of the same kind that the tenant has besides, by their ids. Nothing in them moves.
    other_blocks: tuple[str, ...] = ()
    clusters: tuple[ClusterEntry, ...] = CLUSTERS
    templates: Mapping[str, GroupTemplate] = field(default_factory=dict)

    def template(self, group_id: str) -> GroupTemplate:
        return self.templates.get(group_id, GroupTemplate())

    @property
    def projects(self) -> list[str]:
        return list(dict.fromkeys([self.project, *(cluster.project for cluster in self.clusters)]))

    def cluster(self, cluster_id: str) -> ClusterEntry | None:
        return next((cluster for cluster in self.clusters if cluster.id == cluster_id), None)
