"""The Nebius double as the real SDK reads it: groups, clusters, capacity, instances, and who is let in."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from nebius.api.nebius.capacity.v1 import (
    CapacityBlockGroupServiceClient,
    CapacityBlockGroupStatus,
    CapacityIntervalServiceClient,
    GetCapacityBlockGroupByResourceAffinityRequest,
    GetCapacityBlockGroupRequest,
    GetCapacityIntervalRequest,
    ListCapacityBlockGroupResourcesRequest,
    ListCapacityBlockGroupsRequest,
    ResourceAffinity,
    ResourceAffinityComputeV1,
)
from nebius.api.nebius.common.v1 import GetByNameRequest
from nebius.api.nebius.compute.v1 import (
    GetInstanceRequest,
    InstanceServiceClient,
    InstanceStatus,
    ListInstancesRequest,
)
from nebius.api.nebius.mk8s.v1 import (
    ClusterServiceClient,
    DeleteNodeGroupRequest,
    GetClusterRequest,
    GetNodeGroupRequest,
    ListClustersRequest,
    ListNodeGroupsRequest,
    NodeGroupServiceClient,
    ReservationPolicy,
)
from nebius.base.service_account.service_account import ServiceAccount
from nebius.base.service_account.static import Reader

from sandbox.cloud.faults import ApiFault
from sandbox.cloud.fleet import Autoscaling
from sandbox.nebius.catalogue import INFERENCE_PROJECT, PROJECT, Catalogue
from tests.patience import PATIENCE
from tests.sandbox.nebius_world import BLOCK, INFERENCE, ONE_TRY, TRAINING, World, refusal, sdk_of, wire, world

UsageState = CapacityBlockGroupStatus.UsageState
STATE = InstanceStatus.InstanceState


@pytest.fixture
def here(tmp_path: Path) -> Iterator[World]:
    with world(tmp_path / "ledger.jsonl") as made:
        yield made


def test_a_node_group_shows_its_spec_and_how_far_it_is(here: World) -> None:
    group = here.group()
    assert group.metadata.parent_id == "mk8scluster-e00inference"
    assert group.spec.fixed_node_count == 2
    assert group.spec.template.metadata.labels == {"pool": "serving"}
    assert group.spec.template.reservation_policy.policy == ReservationPolicy.Policy.STRICT
    assert group.spec.template.reservation_policy.reservation_ids == [BLOCK]
    status = group.status
    assert (status.target_node_count, status.node_count, status.ready_node_count) == (2, 2, 2)
    assert not status.reconciling


def test_an_autoscaled_group_shows_its_bounds_and_the_target_of_the_moment(here: World) -> None:
    here.pending = {TRAINING: 2}
    here.advance(0)
    group = here.group(TRAINING)
    assert group.spec.fixed_node_count is None
    assert group.spec.autoscaling is not None
    assert (group.spec.autoscaling.min_node_count, group.spec.autoscaling.max_node_count) == (0, 4)
    assert (group.status.target_node_count, group.status.ready_node_count) == (2, 0)
    assert group.status.reconciling


def test_groups_and_clusters_are_found_by_parent_and_name(here: World) -> None:
    clusters = ClusterServiceClient(here.sdk)
    projects = Catalogue().projects
    found = [one for id in projects for one in clusters.list(ListClustersRequest(parent_id=id), **ONE_TRY).wait().items]
    assert [cluster.metadata.parent_id for cluster in found] == projects == [PROJECT, INFERENCE_PROJECT]
    assert [cluster.metadata.name for cluster in found] == ["soperator", "inference"]
    assert wire(clusters.get(GetClusterRequest(id=found[0].metadata.id), **ONE_TRY).wait()) == wire(found[0])
    for cluster, name, group_id in zip(found, ("worker-0", "serving"), (TRAINING, INFERENCE), strict=True):
        parent = cluster.metadata.id
        listed = here.groups.list(ListNodeGroupsRequest(parent_id=parent), **ONE_TRY).wait().items
        assert [group.metadata.id for group in listed] == [group_id]
        named = here.groups.get_by_name(GetByNameRequest(parent_id=parent, name=name), **ONE_TRY).wait()
        assert named.metadata.id == group_id


def test_what_is_not_there_is_not_found_by_name(here: World) -> None:
    for call in (
        lambda: here.group("mk8snodegroup-e00nope"),
        lambda: here.resize(1, group="mk8snodegroup-e00nope"),
        lambda: ClusterServiceClient(here.sdk).get(GetClusterRequest(id="mk8snodegroup-e00nope"), **ONE_TRY).wait(),
        lambda: (
            CapacityBlockGroupServiceClient(here.sdk)
            .get(GetCapacityBlockGroupRequest(id="mk8snodegroup-e00nope"), **ONE_TRY)
            .wait()
        ),
    ):
        error = refusal(call)
        assert error.status.code == grpc.StatusCode.NOT_FOUND
        assert "mk8snodegroup-e00nope" in (error.status.message or "")
        assert error.status.service_errors[0].resource_not_found.resource_id == "mk8snodegroup-e00nope"


def test_the_block_says_what_is_used_and_by_whom(here: World) -> None:
    status = here.capacity().status
    assert (status.current_limit, status.usage, status.usage_percentage) == (32, 16, "0.50")
    assert status.usage_state == UsageState.USAGE_STATE_USED
    assert status.state == CapacityBlockGroupStatus.State.STATE_ACTIVE
    client = CapacityBlockGroupServiceClient(here.sdk)
    resources = client.list_resources(ListCapacityBlockGroupResourcesRequest(id=BLOCK), **ONE_TRY).wait()
    assert set(resources.resource_ids) == set(here.fleet.machines)
    own = Catalogue()
    listed = client.list(ListCapacityBlockGroupsRequest(parent_id=own.tenant), **ONE_TRY).wait()
    assert [group.metadata.id for group in listed.items] == [BLOCK]
    affinity = ResourceAffinity(compute_v1=ResourceAffinityComputeV1(fabric=own.fabric, platform=own.platform))
    request = GetCapacityBlockGroupByResourceAffinityRequest(
        parent_id=own.tenant, region=own.region, resource_affinity=affinity
    )
    assert client.get_by_resource_affinity(request, **ONE_TRY).wait().metadata.id == BLOCK
    request.region = "eu-west1"
    error = refusal(lambda: client.get_by_resource_affinity(request, **ONE_TRY).wait())
    assert error.status.code == grpc.StatusCode.NOT_FOUND


def test_an_unknown_usage_shows_no_figure(here: World) -> None:
    here.block.usage_known = False
    status = here.capacity().status
    assert status.usage_state == UsageState.USAGE_STATE_UNKNOWN
    assert (status.usage, status.usage_percentage) == (0, "")
    assert status.current_limit == 32


def test_a_scheduled_change_of_the_limit_is_announced_and_then_made(here: World) -> None:
    here.block.schedule_limit(here.clock + 60, 16)
    here.block.reconciling = True
    status = here.capacity().status
    assert status.reconciling
    assert status.next_change_at is not None
    assert status.next_change_at.timestamp() == here.clock + 60
    assert (status.next_change_to, status.current_limit) == (16, 32)
    here.advance(60)
    status = here.capacity().status
    assert status.current_limit == 16
    assert status.next_change_at is None


def test_an_instance_names_the_block_that_pays_for_it(here: World) -> None:
    here.pending = {TRAINING: 1}
    here.advance(0)
    client = InstanceServiceClient(here.sdk)
    (made,) = client.list(ListInstancesRequest(parent_id=PROJECT), **ONE_TRY).wait().items
    assert (made.status.state, made.metadata.labels["mk8s-node-group-id"]) == (STATE.CREATING, TRAINING)
    listed = client.list(ListInstancesRequest(parent_id=INFERENCE_PROJECT), **ONE_TRY).wait().items
    assert [instance.status.state for instance in listed] == [STATE.RUNNING, STATE.RUNNING]
    got = client.get(GetInstanceRequest(id=listed[0].metadata.id), **ONE_TRY).wait()
    assert got.status.reservation_id == BLOCK
    assert got.metadata.labels["mk8s-node-group-id"] == INFERENCE


def test_lists_come_in_pages(here: World) -> None:
    client = InstanceServiceClient(here.sdk)
    names: list[str] = []
    token, calls = "", 0
    while token or not calls:
        request = ListInstancesRequest(parent_id=INFERENCE_PROJECT, page_size=1, page_token=token)
        answer = client.list(request, **ONE_TRY).wait()
        names += [instance.metadata.name for instance in answer.items]
        token, calls = answer.next_page_token, calls + 1
    assert names == list(here.fleet.machines)
    assert calls == 2


def test_every_answer_says_that_it_is_from_a_double(here: World) -> None:
    request = here.groups.get(GetNodeGroupRequest(id=INFERENCE), **ONE_TRY)
    request.wait()
    for metadata in (request.initial_metadata_sync(), request.trailing_metadata_sync()):
        assert metadata["x-sandbox-double"] == ["nebius"]
        assert metadata["x-request-id"] == [request.request_id_sync()]
    error = refusal(lambda: here.group("mk8snodegroup-e00nope"))
    assert error.status.request_id != ""


def test_what_the_double_lacks_says_so(here: World) -> None:
    delete = here.groups.delete(DeleteNodeGroupRequest(id=INFERENCE), **ONE_TRY)
    intervals = CapacityIntervalServiceClient(here.sdk).get(GetCapacityIntervalRequest(id="x"), **ONE_TRY)
    for request, name in ((delete, "NodeGroupService/Delete"), (intervals, "CapacityIntervalService/Get")):
        error = refusal(request.wait)
        assert error.status.code == grpc.StatusCode.UNIMPLEMENTED
        assert name in (error.status.message or "")
        assert "double" in (error.status.message or "")


def test_only_the_right_token_is_let_in(here: World) -> None:
    other = sdk_of(here.server, "some-other-token")
    try:
        client = NodeGroupServiceClient(other)
        error = refusal(lambda: client.get(GetNodeGroupRequest(id=INFERENCE), **ONE_TRY).wait())
        assert error.status.code == grpc.StatusCode.UNAUTHENTICATED
        assert "not one that this sandbox has given out" in (error.status.message or "")
    finally:
        other.sync_close()


def test_a_call_without_a_token_is_refused(here: World) -> None:
    with grpc.insecure_channel(here.server.address) as channel:
        call = channel.unary_unary("/nebius.mk8s.v1.NodeGroupService/Get")
        with pytest.raises(grpc.RpcError) as caught:
            call(GetNodeGroupRequest(id=INFERENCE).SerializeToString(), timeout=PATIENCE)
    assert caught.value.code() == grpc.StatusCode.UNAUTHENTICATED
    assert "no bearer token" in caught.value.details()


def test_a_service_account_trades_its_key_for_a_token(here: World) -> None:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    account = ServiceAccount(key, "publickey-e00sandbox", "serviceaccount-e00sandbox")
    with_key = sdk_of(here.server, Reader(account))
    try:
        client = NodeGroupServiceClient(with_key)
        assert client.get(GetNodeGroupRequest(id=INFERENCE), **ONE_TRY).wait().metadata.id == INFERENCE
    finally:
        with_key.sync_close()


def test_an_error_on_demand_is_unavailable_and_the_client_tries_again(here: World) -> None:
    here.faults.add(ApiFault("nebius", "error", "NodeGroupService/*", count=1))
    assert here.groups.get(GetNodeGroupRequest(id=INFERENCE), timeout=PATIENCE, retries=3).wait().spec
    here.faults.add(ApiFault("nebius", "error", "NodeGroupService/*", count=None))
    assert refusal(here.group).status.code == grpc.StatusCode.UNAVAILABLE
    assert here.capacity().status.current_limit == 32


def test_a_conflict_on_demand_changes_nothing(here: World) -> None:
    here.faults.add(ApiFault("nebius", "conflict", "NodeGroupService/Update"))
    error = refusal(lambda: here.resize(3))
    assert error.status.code == grpc.StatusCode.ABORTED
    assert error.status.service_errors[0].resource_conflict.resource_id == INFERENCE
    assert here.group().spec.fixed_node_count == 2


def test_a_call_that_hangs_ends_with_its_own_deadline(here: World) -> None:
    here.faults.add(ApiFault("nebius", "hang", "NodeGroupService/Get", count=None))
    request = here.groups.get(GetNodeGroupRequest(id=INFERENCE), timeout=0.3, retries=1)
    assert refusal(request.wait).status.code == grpc.StatusCode.DEADLINE_EXCEEDED


def test_a_server_stops_at_once_though_calls_hang(here: World) -> None:
    here.faults.add(ApiFault("nebius", "hang", "*", count=1))
    with grpc.insecure_channel(here.server.address) as channel:
        call = channel.unary_unary("/any.Service/Call")
        hung = call.future(b"", timeout=PATIENCE)
        deadline = time.monotonic() + PATIENCE
        while here.faults.describe():  # it is gone once it has struck
            assert time.monotonic() < deadline
            time.sleep(0.001)
        here.run(here.server.stop())
        with pytest.raises(grpc.RpcError) as error:
            hung.result(timeout=PATIENCE)
        # It would wait for its deadline by itself.
        assert error.value.code() is not grpc.StatusCode.DEADLINE_EXCEEDED


def test_a_port_is_served_by_one_server_only(here: World) -> None:
    with pytest.raises(RuntimeError):
        here.serve(port=here.server.port)
    assert here.group().metadata.id == INFERENCE


def test_the_async_client_works_on_any_loop(here: World) -> None:
    async def scenario() -> list[int]:
        async with sdk_of(here.server) as sdk:
            client = NodeGroupServiceClient(sdk)
            many = await asyncio.gather(*(_get(client, group) for group in [INFERENCE, TRAINING] * 20))
        return many

    assert asyncio.run(scenario()) == [2, 0] * 20


async def _get(client: NodeGroupServiceClient, group_id: str) -> int:
    group = await client.get(GetNodeGroupRequest(id=group_id), **ONE_TRY)
    return group.status.ready_node_count


def test_a_group_of_an_unknown_cluster_is_an_error_at_once(here: World) -> None:
    group = here.fleet.groups[TRAINING]
    group.cluster, group.size = "mk8scluster-e00nope", Autoscaling(0, 1)
    with pytest.raises(ValueError, match="mk8scluster-e00nope"):
        here.serve()
