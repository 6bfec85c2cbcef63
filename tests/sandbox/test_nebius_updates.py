"""Resizing through the Nebius double: locks, masks, and operations that run, hang, and are aborted."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from nebius.aio.operation import OperationError
from nebius.api.nebius.common.v1 import GetOperationRequest, ListOperationsRequest
from nebius.api.nebius.compute.v1 import GetInstanceRequest, InstanceServiceClient
from nebius.api.nebius.mk8s.v1 import (
    GetNodeGroupRequest,
    NodeGroupAutoscalingSpec,
    NodeGroupServiceClient,
    NodeGroupSpec,
    ProgressData,
    ReservationPolicy,
    UpdateNodeGroupRequest,
)
from nebius.base.protos.dynamic import REGISTRY

from sandbox.cloud.fleet import Fixed, Reservation
from sandbox.nebius.state import NebiusState, OperationRecord
from tests.patience import PATIENCE
from tests.sandbox.nebius_world import (
    BLOCK,
    INFERENCE,
    ONE_TRY,
    TRAINING,
    World,
    message,
    refusal,
    sdk_of,
    wire,
    world,
)

POLICY = ReservationPolicy.Policy


@pytest.fixture
def here(tmp_path: Path) -> Iterator[World]:
    with world(tmp_path / "ledger.jsonl") as made:
        yield made


def fetch(here: World, operation_id: str) -> Any:
    return here.groups.operation_service().get(GetOperationRequest(id=operation_id), **ONE_TRY).wait()


def problems(operation: Any) -> list[tuple[str, str]]:
    data = REGISTRY.unpack_any(message(operation).progress_data)
    assert isinstance(data, ProgressData)
    return [(problem.stage, problem.message) for problem in data.problems]


def hang(here: World) -> Any:
    """An operation that asks for more than the block has."""
    operation = here.resize(5)
    here.advance(0)
    here.advance(1)
    operation.sync_update()
    assert not operation.done()
    return operation


def test_growth_is_done_when_the_machines_run(here: World) -> None:
    operation = here.resize(4)
    assert operation.resource_id == INFERENCE
    here.advance(0)
    group = here.group()
    assert (group.status.target_node_count, group.status.node_count, group.status.ready_node_count) == (
        4,
        4,
        2,
    )
    assert group.status.reconciling
    operation.sync_update()
    assert not operation.done()
    here.advance(1)
    operation.sync_update()
    assert operation.successful()
    assert message(operation).finished_at is not None
    assert here.group().status.ready_node_count == 4


def test_shrinking_to_nothing_is_done_when_the_block_has_its_gpus_back(here: World) -> None:
    operation = here.resize(0)
    here.advance(0)
    assert here.group().spec.fixed_node_count == 0
    assert here.capacity().status.usage == 16
    assert here.group().status.node_count == 2
    operation.sync_update()
    assert not operation.done()
    here.advance(1)
    operation.sync_update()
    assert operation.successful()
    assert here.capacity().status.usage == 0


def test_a_client_can_wait_for_an_operation(here: World) -> None:
    async def scenario() -> bool:
        async with sdk_of(here.server) as sdk:
            client = NodeGroupServiceClient(sdk)
            group = await client.get(GetNodeGroupRequest(id=INFERENCE), **ONE_TRY)
            group.spec.fixed_node_count = 3
            request = UpdateNodeGroupRequest(metadata=group.metadata, spec=group.spec)
            operation = await client.update(request, **ONE_TRY)
            waiting = asyncio.ensure_future(operation.wait(interval=0.01, timeout=PATIENCE))
            await asyncio.to_thread(here.advance, 0)
            await asyncio.to_thread(here.advance, 1)
            await waiting
            return bool(operation.successful())

    assert asyncio.run(scenario())


def test_an_update_of_the_whole_spec_keeps_all_of_it(here: World) -> None:
    group = here.group()
    group.spec.fixed_node_count = 3
    here.update(group.spec, version=group.metadata.resource_version)
    after = here.group()
    assert wire(after.spec) == wire(group.spec)
    assert after.metadata.resource_version == group.metadata.resource_version + 1
    assert after.metadata.name == "serving"
    assert here.server.state.groups[INFERENCE].template_changes == 0


def test_an_outdated_resource_version_is_refused(here: World) -> None:
    group = here.group()
    here.resize(3)
    error = refusal(lambda: here.update(group.spec, version=group.metadata.resource_version))
    assert error.status.code == grpc.StatusCode.ABORTED
    assert error.status.service_errors[0].resource_conflict.resource_id == INFERENCE
    assert error.status.retry_hint() is False
    assert here.group().spec.fixed_node_count == 3


def test_the_explicit_mask_changes_the_count_alone(here: World) -> None:
    before = here.group()
    here.resize(0)
    after = here.group()
    assert after.spec.fixed_node_count == 0
    assert wire(after.spec.template) == wire(before.spec.template)
    assert after.spec.version == before.spec.version
    assert after.metadata.labels == before.metadata.labels


def test_a_partial_update_with_the_sdks_own_mask_wipes_the_template(here: World) -> None:
    here.update(NodeGroupSpec(fixed_node_count=3))
    spec = here.group().spec
    assert spec.fixed_node_count == 3
    assert (spec.template.resources.platform, spec.version) == ("", "")
    assert spec.template.reservation_policy.policy == POLICY.AUTO
    assert here.server.state.groups[INFERENCE].template_changes == 1


def test_the_wiped_policy_then_buys_what_the_block_lacks(here: World) -> None:
    here.update(NodeGroupSpec(fixed_node_count=5))
    here.advance(0)
    here.advance(1)
    assert here.group().status.ready_node_count == 5
    assert here.fleet.payg == 1
    bought = [machine for machine in here.fleet.machines.values() if not machine.reserved]
    client = InstanceServiceClient(here.sdk)
    got = client.get(GetInstanceRequest(id=bought[0].id), **ONE_TRY).wait()
    assert got.status.reservation_id == ""
    assert here.capacity().status.usage == 32


def test_a_mask_of_the_count_without_a_spec_resets_the_whole_spec_and_is_refused(here: World) -> None:
    before = here.group()
    mask = [("X-ResetMask", "spec.fixed_node_count")]
    error = refusal(lambda: here.update(None, metadata=mask))
    assert error.status.code == grpc.StatusCode.INVALID_ARGUMENT
    assert error.status.service_errors[0].bad_request.violations[0].field == "spec.size"
    assert wire(here.group()) == wire(before)


def test_fixed_and_autoscaling_replace_each_other(here: World) -> None:
    bounds = NodeGroupAutoscalingSpec(min_node_count=1, max_node_count=3)
    mask = [("X-ResetMask", "spec.autoscaling")]
    operation = here.update(NodeGroupSpec(autoscaling=bounds), metadata=mask)
    assert operation.done()
    spec = here.group().spec
    assert spec.fixed_node_count is None
    assert spec.autoscaling is not None
    assert wire(spec.autoscaling) == wire(bounds)
    here.resize(2)
    spec = here.group().spec
    assert spec.fixed_node_count == 2
    assert spec.autoscaling is None


def test_new_bounds_are_done_when_they_hold(here: World) -> None:
    mask = [("X-ResetMask", "spec.autoscaling")]
    bounds = NodeGroupAutoscalingSpec(min_node_count=1, max_node_count=4)
    operation = here.update(NodeGroupSpec(autoscaling=bounds), group=TRAINING, metadata=mask)
    here.advance(0)
    operation.sync_update()
    assert not operation.done()
    here.advance(1)
    operation.sync_update()
    assert operation.successful()
    # The autoscaler goes on between its bounds: that is no matter of the operation's.
    here.pending = {TRAINING: 2}
    here.advance(0)
    assert here.group(TRAINING).status.reconciling
    assert fetch(here, operation.id).successful()


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        (NodeGroupSpec(fixed_node_count=-1), "spec.fixed_node_count"),
        (NodeGroupSpec(fixed_node_count=101), "spec.fixed_node_count"),
        (
            NodeGroupSpec(autoscaling=NodeGroupAutoscalingSpec(min_node_count=3, max_node_count=2)),
            "spec.autoscaling.max_node_count",
        ),
        (
            NodeGroupSpec(autoscaling=NodeGroupAutoscalingSpec(min_node_count=-1, max_node_count=2)),
            "spec.autoscaling.min_node_count",
        ),
        (NodeGroupSpec(), "spec.size"),
    ],
)
def test_a_size_that_cannot_be_is_refused(here: World, spec: NodeGroupSpec, field: str) -> None:
    before = here.group()
    error = refusal(lambda: here.update(spec))
    assert error.status.code == grpc.StatusCode.INVALID_ARGUMENT
    assert error.status.service_errors[0].bad_request.violations[0].field == field
    assert wire(here.group()) == wire(before)


def test_a_reservation_of_another_block_is_refused(here: World) -> None:
    spec = here.group().spec
    spec.template.reservation_policy.reservation_ids = ["capacityblockgroup-e00other"]
    assert refusal(lambda: here.update(spec)).status.code == grpc.StatusCode.INVALID_ARGUMENT
    spec.template.reservation_policy = ReservationPolicy(policy=POLICY.FORBID, reservation_ids=[BLOCK])
    assert refusal(lambda: here.update(spec)).status.code == grpc.StatusCode.INVALID_ARGUMENT
    spec.template.reservation_policy = ReservationPolicy(policy=POLICY.FORBID)
    here.update(spec)
    assert here.fleet.groups[INFERENCE].reservation is Reservation.FORBID


def test_the_same_idempotency_key_starts_one_operation(here: World) -> None:
    key = [("X-Idempotency-Key", "7f95c54a-ee0e-4f8c-a64c-c9e0aac605a0")]
    first = here.resize(3, metadata=key)
    assert here.resize(3, metadata=key).id == first.id
    here.advance(0)
    here.advance(1)
    replayed = here.resize(3, metadata=key)
    assert (replayed.id, replayed.successful()) == (first.id, True)
    assert here.group().metadata.resource_version == 2
    assert here.resize(3).id != first.id


def test_a_malformed_idempotency_key_or_mask_is_refused(here: World) -> None:
    for metadata in ([("X-Idempotency-Key", "a/b")], [("X-ResetMask", "spec.(")]):
        error = refusal(lambda bad=metadata: here.update(here.group().spec, metadata=bad))  # type: ignore[misc]
        assert error.status.code == grpc.StatusCode.INVALID_ARGUMENT


def test_growth_beyond_the_block_hangs_and_says_why(here: World) -> None:
    operation = hang(here)
    ((stage, reason),) = problems(operation)
    assert stage == "create-node"
    assert reason.startswith("NotEnoughResources: ")
    group = here.group()
    assert (group.status.target_node_count, group.status.ready_node_count) == (5, 4)
    (event,) = group.status.events
    assert event.last_occurrence.code == "NotEnoughResources"
    assert event.last_occurrence.message == reason
    assert here.fleet.payg == 0
    here.block.set_limit(40)
    here.advance(0)
    here.advance(1)
    operation.sync_update()
    assert operation.successful()
    assert message(operation).progress_data.type_url == ""
    assert list(here.group().status.events) == []


def test_taking_back_what_hangs_aborts_it(here: World) -> None:
    hung = hang(here)
    back = here.resize(4)
    hung.sync_update()
    assert hung.status().code == grpc.StatusCode.ABORTED
    details = hung.status().service_errors[0].operation_aborted
    assert (details.operation_id, details.aborted_by_operation_id) == (hung.id, back.id)
    assert back.successful()
    with pytest.raises(OperationError):
        fetch(here, hung.id).sync_wait(interval=0.01, timeout=PATIENCE)


def test_a_second_operation_on_a_busy_group_is_refused(here: World) -> None:
    first = here.resize(4)
    here.advance(0)
    error = refusal(lambda: here.resize(2))
    conflict = error.status.service_errors[0].operation_conflict
    assert (conflict.conflicting_operation_id, conflict.resource_id) == (first.id, INFERENCE)
    assert error.status.retry_hint() is False
    assert here.group().spec.fixed_node_count == 4
    here.advance(1)
    assert here.resize(2).id != first.id


def test_on_request_the_second_operation_aborts_the_first(here: World) -> None:
    server = here.serve(abort_running=True)
    sdk = sdk_of(server)
    try:
        groups = NodeGroupServiceClient(sdk)
        first = here.resize(4, groups=groups)
        here.resize(3, groups=groups)
        first.sync_update()
        assert first.status().code == grpc.StatusCode.ABORTED
        assert here.fleet.groups[INFERENCE].size == Fixed(3)
    finally:
        sdk.sync_close()
        here.run(server.stop())


def test_operations_are_listed_newest_first_until_they_are_forgotten(here: World) -> None:
    first = here.resize(3)
    here.advance(0)
    here.advance(1)
    second = here.resize(4)
    service = here.groups.operation_service()
    listed = service.list(ListOperationsRequest(resource_id=INFERENCE), **ONE_TRY).wait()
    assert [operation.id for operation in listed.operations] == [second.id, first.id]
    here.server.state.forget_finished()
    assert refusal(lambda: fetch(here, first.id)).status.code == grpc.StatusCode.NOT_FOUND
    assert not fetch(here, second.id).done()


def test_the_operations_that_ended_last_are_kept() -> None:
    def operation(number: int, finished_at: float | None) -> OperationRecord:
        status = None if finished_at is None else ""
        return OperationRecord(str(number), INFERENCE, 0.0, "", {}, "", finished_at=finished_at, status=status)

    state = NebiusState(keys={"first": "0", "second": "1"})
    # The first has hung for long.
    for number, finished_at in enumerate((30.0, 10.0, None, 20.0)):
        state.operations[str(number)] = operation(number, finished_at)
    state.forget_finished(keep=2)
    assert [*state.operations] == ["0", "2", "3"]
    assert state.keys == {"first": "0"}


def test_a_group_that_was_done_for_one_step_only_has_its_operation_done(here: World) -> None:
    operation = here.resize(3)
    here.advance(0)
    here.advance(1)
    here.fleet.kill(next(iter(here.fleet.machines)))
    here.advance(0)
    operation.sync_update()
    assert operation.successful()
    assert here.group().status.reconciling


def test_all_is_remembered_over_a_restart(here: World) -> None:
    spec = here.group().spec
    spec.template.reservation_policy.policy = POLICY.AUTO
    spec.fixed_node_count = 4
    key = [("X-Idempotency-Key", "restart")]
    operation = here.update(spec, metadata=key)
    kept = json.loads(json.dumps([here.server.dump(), here.fleet.dump(), here.block.dump()]))
    port = here.server.port
    here.run(here.server.stop())
    here.fleet.groups[INFERENCE].reservation = Reservation.STRICT
    here.server = here.serve(port=port)
    here.server.load(kept[0])
    here.fleet.load(kept[1])
    here.block.load(kept[2])
    assert here.fleet.groups[INFERENCE].reservation is Reservation.AUTO
    assert here.group().metadata.resource_version == 2
    assert here.update(spec, metadata=key).id == operation.id
    assert not fetch(here, operation.id).done()
    here.advance(0)
    here.advance(1)
    assert fetch(here, operation.id).successful()
    assert here.resize(1).id > operation.id
