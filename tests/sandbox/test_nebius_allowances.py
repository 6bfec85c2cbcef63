"""The part of a block that a project may have: who is kept by it, and what the API says of it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from nebius.api.nebius.capacity.v1 import (
    CapacityAllowance,
    CapacityAllowanceServiceClient,
    CapacityAllowanceSpec,
    CreateCapacityAllowanceRequest,
    DeleteCapacityAllowanceRequest,
    GetCapacityAllowanceByParentAndCapacityBlockGroupRequest,
    GetCapacityAllowanceRequest,
    ListCapacityAllowancesRequest,
    UpdateCapacityAllowanceRequest,
)
from nebius.api.nebius.common.v1 import ResourceMetadata

from airflow_provider_soperator.nebius.capacity_blocks import Allowance, read_allowances
from sandbox.nebius.catalogue import INFERENCE_PROJECT, PROJECT
from tests.sandbox.nebius_world import BLOCK, ONE_TRY, World, refusal, sdk_of, world


@pytest.fixture
def here(tmp_path: Path) -> Iterator[World]:
    with world(tmp_path / "ledger") as made:
        yield made


@pytest.fixture
def client(here: World) -> CapacityAllowanceServiceClient:
    return CapacityAllowanceServiceClient(here.sdk)


def spec(limit: int | None) -> CapacityAllowanceSpec:
    made = CapacityAllowanceSpec(capacity_block_group_id=BLOCK)
    if limit is not None:
        made.limit = limit
    return made


def allow(client: CapacityAllowanceServiceClient, limit: int | None, project: str = INFERENCE_PROJECT) -> str:
    request = CreateCapacityAllowanceRequest(metadata=ResourceMetadata(parent_id=project), spec=spec(limit))
    operation = client.create(request, **ONE_TRY).wait()
    assert operation.done()
    return str(operation.resource_id)


def of(client: CapacityAllowanceServiceClient, project: str) -> CapacityAllowance:
    request = GetCapacityAllowanceByParentAndCapacityBlockGroupRequest(parent_id=project, capacity_block_group_id=BLOCK)
    return client.get_by_parent_and_capacity_block_group(request, **ONE_TRY).wait()


def test_a_project_gets_no_more_than_it_may_have(here: World, client: CapacityAllowanceServiceClient) -> None:
    """Two machines run in the project, and the block has room for two more."""
    allow(client, 24)
    here.resize(4)
    here.advance(1)
    here.advance(1)
    group = here.group()
    assert (group.status.node_count, here.block.usage) == (3, 24)
    (problem,) = here.server.dump()["operations"]
    assert problem["status"] is None, "it waits, as for a block that is full"
    assert "project-e00inference may have 24 GPUs" in (here.fleet.groups[group.metadata.id].problem or "")
    allow(client, None)
    here.advance(1)
    assert here.group().status.node_count == 4


def test_it_is_made_changed_and_taken_back(here: World, client: CapacityAllowanceServiceClient) -> None:
    assert of(client, INFERENCE_PROJECT).spec.limit is None
    made = allow(client, 16)
    found = client.get(GetCapacityAllowanceRequest(id=made), **ONE_TRY).wait()
    assert (found.spec.limit, found.status.usage, found.metadata.parent_id) == (16, 16, INFERENCE_PROJECT)
    change = UpdateCapacityAllowanceRequest(metadata=ResourceMetadata(id=made), spec=spec(8))
    client.update(change, **ONE_TRY).wait()
    assert of(client, INFERENCE_PROJECT).spec.limit == 8
    assert here.block.usage == 16, "what is there stays"
    client.delete(DeleteCapacityAllowanceRequest(id=made), **ONE_TRY).wait()
    (shown,) = client.list(ListCapacityAllowancesRequest(parent_id=INFERENCE_PROJECT), **ONE_TRY).wait().items
    assert shown.spec.limit is None


def test_what_cannot_be_is_refused(client: CapacityAllowanceServiceClient) -> None:
    assert refusal(lambda: allow(client, 40)).status.code == grpc.StatusCode.INVALID_ARGUMENT
    assert refusal(lambda: allow(client, 8, "project-e00nope")).status.code == grpc.StatusCode.NOT_FOUND
    lost = GetCapacityAllowanceRequest(id="capacityallowance-e00nope")
    assert refusal(lambda: client.get(lost, **ONE_TRY).wait()).status.code == grpc.StatusCode.NOT_FOUND


def test_shifts_read_them(here: World, client: CapacityAllowanceServiceClient) -> None:
    async def read() -> Any:
        async with sdk_of(here.server) as sdk:
            return await read_allowances(sdk, BLOCK)

    assert asyncio.run(read()) == {}
    allow(client, 24)
    allow(client, 0, PROJECT)
    assert asyncio.run(read()) == {INFERENCE_PROJECT: Allowance(24, 16), PROJECT: Allowance(0, 0)}
    here.block.usage_known = False
    assert asyncio.run(read())[INFERENCE_PROJECT] == Allowance(24, None)
