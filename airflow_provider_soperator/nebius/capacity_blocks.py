"""Capacity blocks: reserved and used GPUs, and announced changes. They are read-only."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from airflow_provider_soperator.nebius.api import LIMITS, answer

if TYPE_CHECKING:
    from nebius.api.nebius.capacity.v1 import CapacityBlockGroup
    from nebius.sdk import SDK


@dataclass(frozen=True, kw_only=True)
class CapacityBlock:
    """A capacity block at one moment.

    >>> CapacityBlock(id="capacityblockgroup-1", limit=64, usage=40).free
    24
    >>> CapacityBlock(id="capacityblockgroup-1", limit=64, usage=None).free is None
    True
    """

    id: str
    #: Reserved GPUs.
    limit: int
    #: GPUs that machines hold; None if the cloud does not know, or is changing the block.
    usage: int | None
    #: In lower case: ``active``, ``allocating``, ``shutting``, ``inactive``.
    state: str = "active"
    region: str = ""
    fabric: str = ""
    platform: str = ""
    #: The next change of the limit: its time, and the new limit.
    next_change_at: datetime | None = None
    next_change_to: int | None = None

    @property
    def free(self) -> int | None:
        """Free GPUs; None, which is not 0, if that is unknown."""
        return None if self.usage is None else max(0, self.limit - self.usage)

    def limit_at(self, moment: datetime) -> int:
        """The limit at a moment, as far as announced."""
        if self.next_change_at is not None and self.next_change_to is not None and moment >= self.next_change_at:
            return self.next_change_to
        return self.limit


async def read_block(sdk: SDK, block_id: str) -> CapacityBlock:
    """Read a block."""
    return _block_of(await _get(sdk, block_id))


async def rivals(sdk: SDK, block_id: str) -> list[str]:
    """Other blocks of the same tenant with machines of the same kind."""
    from nebius.api.nebius.capacity.v1 import CapacityBlockGroupServiceClient, ListCapacityBlockGroupsRequest

    block = await _get(sdk, block_id)
    mine, found, token = _block_of(block), [], ""
    while True:
        request = ListCapacityBlockGroupsRequest(parent_id=block.metadata.parent_id, page_token=token)
        page = await answer(
            CapacityBlockGroupServiceClient(sdk).list(request, **LIMITS),
            "list",
            f"capacity blocks of {block.metadata.parent_id}",
        )
        found += [_block_of(one) for one in page.items]
        token = page.next_page_token
        if not token:
            break
    alike = [one for one in found if (one.region, one.platform) == (mine.region, mine.platform)]
    return [one.id for one in alike if one.id != mine.id and one.state != "inactive"]


async def _get(sdk: SDK, block_id: str) -> CapacityBlockGroup:
    from nebius.api.nebius.capacity.v1 import CapacityBlockGroupServiceClient, GetCapacityBlockGroupRequest

    request = GetCapacityBlockGroupRequest(id=block_id)
    return await answer(
        CapacityBlockGroupServiceClient(sdk).get(request, **LIMITS), "read", f"capacity block {block_id}"
    )


def _block_of(block: CapacityBlockGroup) -> CapacityBlock:
    from nebius.api.nebius.capacity.v1 import CapacityBlockGroupStatus, ResourceAffinityComputeV1

    status, usage = block.status, CapacityBlockGroupStatus.UsageState
    affinity = status.resource_affinity.compute_v1 or ResourceAffinityComputeV1()
    # An unknown usage reads as 0, and while the limit is being changed neither figure is reliable.
    is_known = status.usage_state in (usage.USAGE_STATE_USED, usage.USAGE_STATE_NOT_USED) and not status.reconciling
    return CapacityBlock(
        id=block.metadata.id,
        limit=status.current_limit,
        usage=status.usage if is_known else None,
        state=CapacityBlockGroupStatus.State(status.state).name.removeprefix("STATE_").lower(),
        region=status.region,
        fabric=affinity.fabric,
        platform=affinity.platform,
        next_change_at=status.next_change_at,
        next_change_to=status.next_change_to,
    )
