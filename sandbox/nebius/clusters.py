"""The Kubernetes clusters that node groups belong to; they never change."""

from __future__ import annotations

from nebius.api.nebius.common.v1 import GetByNameRequest, ResourceMetadata
from nebius.api.nebius.mk8s.v1 import (
    Cluster,
    ClusterSpec,
    ClusterStatus,
    ControlPlaneSpec,
    ControlPlaneStatus,
    ControlPlaneStatusAuth,
    ControlPlaneStatusEndpoints,
    GetClusterRequest,
    ListClustersRequest,
    ListClustersResponse,
)

from sandbox.nebius.catalogue import Catalogue, ClusterEntry
from sandbox.nebius.errors import not_found
from sandbox.nebius.operations import SERVICE
from sandbox.nebius.paging import page
from sandbox.nebius.rpc import Headers, Method


class Clusters:
    """ClusterService, the part that reads."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue

    def methods(self) -> dict[str, Method]:
        return {"Get": self.get, "GetByName": self.get_by_name, "List": self.list}

    def get(self, request: GetClusterRequest, headers: Headers) -> Cluster:
        cluster = self._catalogue.cluster(request.id)
        if cluster is None:
            raise not_found(SERVICE, "cluster", request.id)
        return self._message(cluster)

    def get_by_name(self, request: GetByNameRequest, headers: Headers) -> Cluster:
        for cluster in self._catalogue.clusters:
            if request.parent_id == cluster.project and cluster.name == request.name:
                return self._message(cluster)
        raise not_found(SERVICE, "cluster", request.name)

    def list(self, request: ListClustersRequest, headers: Headers) -> ListClustersResponse:
        clusters = [cluster for cluster in self._catalogue.clusters if cluster.project == request.parent_id]
        some, token = page(SERVICE, clusters, request.page_size, request.page_token)
        return ListClustersResponse(items=[self._message(entry) for entry in some], next_page_token=token)

    def _message(self, entry: ClusterEntry) -> Cluster:
        endpoints = ControlPlaneStatusEndpoints(public_endpoint=entry.endpoint, private_endpoint=entry.endpoint)
        return Cluster(
            metadata=ResourceMetadata(id=entry.id, parent_id=entry.project, name=entry.name, resource_version=1),
            spec=ClusterSpec(control_plane=ControlPlaneSpec(version=entry.version)),
            status=ClusterStatus(
                state=ClusterStatus.State.RUNNING,
                control_plane=ControlPlaneStatus(
                    version=entry.version,
                    endpoints=endpoints,
                    auth=ControlPlaneStatusAuth(cluster_ca_certificate=entry.ca_certificate),
                ),
            ),
        )
