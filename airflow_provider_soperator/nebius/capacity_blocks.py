"""Capacity blocks: read from the API, and the state of one that a sensor waits for."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow_provider_soperator.errors import CapacityMistake
from airflow_provider_soperator.nebius.api import answer, listed

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

    def most_by(self, moment: datetime) -> int:
        """The highest limit up to a moment, as far as announced."""
        return max(self.limit, self.limit_at(moment))


async def read_block(sdk: SDK, block_id: str) -> CapacityBlock:
    """Read a block."""
    return _block_of(await _get(sdk, block_id))


@dataclass(frozen=True)
class Allowance:
    """The part of a block that a project may have."""

    limit: int
    #: GPUs of the block that the project has; None if that is unknown.
    usage: int | None


async def read_allowances(sdk: SDK, block_id: str) -> dict[str, Allowance]:
    """Read the parts of a block that projects may have, by project; those that may have all of it are left out."""
    from nebius.api.nebius.capacity.v1 import CapacityAllowanceServiceClient, CapacityAllowanceStatus
    from nebius.api.nebius.capacity.v1 import ListCapacityAllowancesByCapacityBlockGroupRequest as ListRequest

    request, usage = ListRequest(capacity_block_group_id=block_id), CapacityAllowanceStatus.UsageState
    client = CapacityAllowanceServiceClient(sdk)
    found = {}
    for one in await listed(client.list_by_capacity_block_group, request, f"allowances of capacity block {block_id}"):
        if one.spec.limit is not None:
            is_known = one.status.usage_state in (usage.USAGE_STATE_USED, usage.USAGE_STATE_NOT_USED)
            known = one.status.usage if is_known and not one.status.reconciling else None
            found[one.metadata.parent_id] = Allowance(one.spec.limit, known)
    return found


async def rivals(sdk: SDK, block_id: str) -> list[str]:
    """Other blocks of the same tenant with machines of the same kind."""
    from nebius.api.nebius.capacity.v1 import CapacityBlockGroupServiceClient, ListCapacityBlockGroupsRequest

    block = await _get(sdk, block_id)
    mine, tenant = _block_of(block), block.metadata.parent_id
    request = ListCapacityBlockGroupsRequest(parent_id=tenant)
    found = await listed(CapacityBlockGroupServiceClient(sdk).list, request, f"capacity blocks of {tenant}")
    alike = [one for one in map(_block_of, found) if (one.region, one.platform) == (mine.region, mine.platform)]
    return [one.id for one in alike if one.id != mine.id and one.state != "inactive"]


async def _get(sdk: SDK, block_id: str) -> CapacityBlockGroup:
    from nebius.api.nebius.capacity.v1 import CapacityBlockGroupServiceClient, GetCapacityBlockGroupRequest

    request = GetCapacityBlockGroupRequest(id=block_id)
    return await answer(CapacityBlockGroupServiceClient(sdk).get, request, "read", f"capacity block {block_id}")


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


STATES = ("allocating", "active", "shutting", "inactive")


@dataclass(frozen=True, kw_only=True)
class BlockAwaited:
    """Conditions that a block has to meet, all of them.

    >>> BlockAwaited(min_free_gpus=8).lacks(CapacityBlock(id="b", limit=16, usage=12), datetime.now())
    '4 of its 16 GPUs are free, expected 8'
    >>> BlockAwaited(min_free_gpus=4).lacks(CapacityBlock(id="b", limit=16, usage=12), datetime.now())
    ''
    """

    min_free_gpus: int | None = None
    #: None for any.
    target_state: str | None = "active"
    #: The period from now in which no fall of the limit may be announced.
    stable_for: timedelta | None = None

    def __post_init__(self) -> None:
        if self.target_state is not None and self.target_state not in STATES:
            raise CapacityMistake(
                f"unknown target_state {self.target_state!r}", f"use one of {', '.join(STATES)}, or None for any"
            )
        if self.min_free_gpus is not None and self.min_free_gpus < 1:
            raise CapacityMistake(
                f"min_free_gpus must be >= 1, got {self.min_free_gpus}", "omit it if no GPUs have to be free"
            )

    def lacks(self, block: CapacityBlock, now: datetime) -> str:
        """The condition that the block does not meet; empty if it meets all. An unknown value does not meet any."""
        if self.target_state is not None and block.state != self.target_state:
            return f"it is {block.state}, expected {self.target_state}"
        if self.min_free_gpus is not None and block.free is None:
            return "the number of free GPUs is unknown at present"
        if self.min_free_gpus is not None and block.free is not None and block.free < self.min_free_gpus:
            return f"{block.free} of its {block.limit} GPUs are free, expected {self.min_free_gpus}"
        if self.stable_for is not None and block.next_change_at is not None:
            # A change may be announced before its limit is known.
            falls_to = block.next_change_to or 0
            if falls_to < block.limit and block.next_change_at < now + self.stable_for:
                when = block.next_change_at.strftime("%Y-%m-%d %H:%M %Z")
                return f"its limit falls from {block.limit} to {falls_to} GPUs at {when}"
        return ""


def block_fields(block: CapacityBlock) -> dict[str, Any]:
    """A block as JSON, as tasks return it."""
    next_change_at = block.next_change_at.isoformat() if block.next_change_at else None
    return {**asdict(block), "free": block.free, "next_change_at": next_change_at}
