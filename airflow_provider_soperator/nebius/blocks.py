"""Capacity blocks as the API tells of them; they can only be read."""

from __future__ import annotations

from nebius.api.nebius.capacity.v1 import (
    CapacityBlockGroup,
    CapacityBlockGroupServiceClient,
    CapacityBlockGroupStatus,
    GetCapacityBlockGroupRequest,
    ListCapacityBlockGroupsRequest,
)
from nebius.api.nebius.capacity.v1 import ResourceAffinityComputeV1 as Affinity
from nebius.sdk import SDK

from airflow_provider_soperator.nebius.block import BlockSeen
from airflow_provider_soperator.nebius.calls import LIMITS, answer

_State = CapacityBlockGroupStatus.State
_Usage = CapacityBlockGroupStatus.UsageState


async def read_block(sdk: SDK, block_id: str) -> BlockSeen:
    """What there is of a block now."""
    return _seen(await _get(sdk, block_id))


async def rivals(sdk: SDK, block_id: str) -> list[str]:
    """Other blocks of the same tenant that could give the same machines."""
    block = await _get(sdk, block_id)
    mine, found, token = _seen(block), [], ""
    while True:
        request = ListCapacityBlockGroupsRequest(parent_id=block.metadata.parent_id, page_token=token)
        page = await answer(
            CapacityBlockGroupServiceClient(sdk).list(request, **LIMITS),
            "list",
            f"capacity blocks of {block.metadata.parent_id}",
        )
        found += [_seen(one) for one in page.items]
        token = page.next_page_token
        if not token:
            break
    alike = [one for one in found if (one.region, one.platform) == (mine.region, mine.platform)]
    return [one.id for one in alike if one.id != mine.id and one.state != "inactive"]


async def _get(sdk: SDK, block_id: str) -> CapacityBlockGroup:
    request = GetCapacityBlockGroupRequest(id=block_id)
    return await answer(
        CapacityBlockGroupServiceClient(sdk).get(request, **LIMITS), "read", f"capacity block {block_id}"
    )


def _seen(block: CapacityBlockGroup) -> BlockSeen:
    status = block.status
    affinity = status.resource_affinity.compute_v1 or Affinity()
    # A usage that is not known reads as 0, and while the limit is being changed neither figure can be relied on.
    is_known = status.usage_state in (_Usage.USAGE_STATE_USED, _Usage.USAGE_STATE_NOT_USED) and not status.reconciling
    return BlockSeen(
        id=block.metadata.id,
        limit=status.current_limit,
        usage=status.usage if is_known else None,
        state=_State(status.state).name.removeprefix("STATE_").lower(),
        region=status.region,
        fabric=affinity.fabric,
        platform=affinity.platform,
        next_change_at=status.next_change_at,
        next_change_to=status.next_change_to,
    )
