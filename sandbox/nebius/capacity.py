"""The capacity block as a CapacityBlockGroup: what is reserved, how much of it is used, and by whom."""

from __future__ import annotations

from nebius.api.nebius.capacity.v1 import (
    CapacityBlockGroup,
    CapacityBlockGroupSpec,
    CapacityBlockGroupStatus,
    GetCapacityBlockGroupByResourceAffinityRequest,
    GetCapacityBlockGroupRequest,
    ListCapacityBlockGroupResourcesRequest,
    ListCapacityBlockGroupResourcesResponse,
    ListCapacityBlockGroupsRequest,
    ListCapacityBlockGroupsResponse,
    ResourceAffinity,
    ResourceAffinityComputeV1,
)
from nebius.api.nebius.common.v1 import ResourceMetadata

from sandbox.cloud.block import CapacityBlock
from sandbox.nebius.catalogue import Catalogue
from sandbox.nebius.clock import moment
from sandbox.nebius.errors import not_found
from sandbox.nebius.paging import page
from sandbox.nebius.rpc import Headers, Method

SERVICE = "capacity"
State = CapacityBlockGroupStatus.State
UsageState = CapacityBlockGroupStatus.UsageState


class CapacityBlockGroups:
    """CapacityBlockGroupService, which only reads on the real API too."""

    def __init__(self, block: CapacityBlock, catalogue: Catalogue) -> None:
        self._block = block
        self._catalogue = catalogue

    def methods(self) -> dict[str, Method]:
        return {
            "Get": self.get,
            "GetByResourceAffinity": self.get_by_resource_affinity,
            "List": self.list,
            "ListResources": self.list_resources,
        }

    def get(self, request: GetCapacityBlockGroupRequest, headers: Headers) -> CapacityBlockGroup:
        self._require(request.id)
        return self._message()

    def get_by_resource_affinity(
        self, request: GetCapacityBlockGroupByResourceAffinityRequest, headers: Headers
    ) -> CapacityBlockGroup:
        asked = request.resource_affinity.compute_v1 or ResourceAffinityComputeV1()
        own = self._catalogue
        wanted = (request.parent_id, request.region, asked.fabric, asked.platform)
        if wanted != (own.tenant, own.region, own.fabric, own.platform):
            raise not_found(SERVICE, "capacity block group", "/".join(wanted))
        return self._message()

    def list(self, request: ListCapacityBlockGroupsRequest, headers: Headers) -> ListCapacityBlockGroupsResponse:
        own = self._catalogue
        others = [CapacityBlockGroups(CapacityBlock(block_id, 8), own)._message() for block_id in own.other_blocks]
        found = [self._message(), *others] if request.parent_id == own.tenant else []
        some, token = page(SERVICE, found, request.page_size, request.page_token)
        return ListCapacityBlockGroupsResponse(items=some, next_page_token=token)

    def list_resources(
        self, request: ListCapacityBlockGroupResourcesRequest, headers: Headers
    ) -> ListCapacityBlockGroupResourcesResponse:
        self._require(request.id)
        return ListCapacityBlockGroupResourcesResponse(resource_ids=sorted(self._block.holders))

    def _require(self, block_id: str) -> None:
        if block_id != self._block.id:
            raise not_found(SERVICE, "capacity block group", block_id)

    def _message(self) -> CapacityBlockGroup:
        affinity = ResourceAffinityComputeV1(fabric=self._catalogue.fabric, platform=self._catalogue.platform)
        status = CapacityBlockGroupStatus(
            region=self._catalogue.region,
            resource_affinity=ResourceAffinity(compute_v1=affinity),
            service="compute",
            state=State.STATE_ACTIVE if self._block.limit else State.STATE_INACTIVE,
            current_limit=self._block.limit,
            reconciling=self._block.reconciling,
        )
        self._set_usage(status)
        if self._block.next_change is not None:
            status.next_change_at = moment(self._block.next_change.at)
            status.next_change_to = self._block.next_change.limit
        metadata = ResourceMetadata(
            id=self._block.id,
            parent_id=self._catalogue.tenant,
            name=self._catalogue.block_name,
            resource_version=1,
        )
        return CapacityBlockGroup(metadata=metadata, spec=CapacityBlockGroupSpec(), status=status)

    def _set_usage(self, status: CapacityBlockGroupStatus) -> None:
        if not self._block.usage_known:
            # The figures stay at 0: read without its state, an unknown usage looks like an empty block.
            status.usage_state = UsageState.USAGE_STATE_UNKNOWN
            return
        usage = self._block.usage
        status.usage = usage
        status.usage_percentage = f"{usage / self._block.limit if self._block.limit else 0:.2f}"
        status.usage_state = UsageState.USAGE_STATE_USED if usage else UsageState.USAGE_STATE_NOT_USED
