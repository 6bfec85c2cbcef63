"""Node groups: the fleet's groups as specs and statuses, and the one call that resizes them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import timedelta

from nebius.api.nebius.common.v1 import (
    GetByNameRequest,
    Operation,
    RecurrentResourceEvent,
    ResourceEvent,
    ResourceMetadata,
)
from nebius.api.nebius.mk8s.v1 import (
    GetNodeGroupRequest,
    GpuClusterSpec,
    ListNodeGroupsRequest,
    ListNodeGroupsResponse,
    NodeGroup,
    NodeGroupAutoscalingSpec,
    NodeGroupDeploymentStrategy,
    NodeGroupSpec,
    NodeGroupStatus,
    NodeMetadataTemplate,
    NodeTemplate,
    PercentOrCount,
    ReservationPolicy,
    ResourcesSpec,
    UpdateNodeGroupRequest,
)
from nebius.base.fieldmask import Mask
from nebius.base.fieldmask_parser import ParseError, parse

from sandbox.cloud import fleet as cloud
from sandbox.nebius.catalogue import Catalogue
from sandbox.nebius.clock import moment
from sandbox.nebius.errors import (
    invalid,
    not_enough_resources,
    not_found,
    operation_conflict,
    resource_conflict,
)
from sandbox.nebius.operations import SERVICE, Operations
from sandbox.nebius.paging import page
from sandbox.nebius.reset_mask import merged
from sandbox.nebius.rpc import Headers, Method
from sandbox.nebius.state import GroupRecord, NebiusState

MAX_NODES = 100
POLICY = ReservationPolicy.Policy
POLICIES = {
    cloud.Reservation.STRICT: POLICY.STRICT,
    cloud.Reservation.AUTO: POLICY.AUTO,
    cloud.Reservation.FORBID: POLICY.FORBID,
}
RESERVATIONS = {policy: reservation for reservation, policy in POLICIES.items()}
#: What the service fills in where a spec says nothing.
DEFAULT_STRATEGY = NodeGroupDeploymentStrategy(
    max_unavailable=PercentOrCount(percent=50),
    max_surge=PercentOrCount(count=0),
    drain_timeout=timedelta(minutes=10),
)


class NodeGroups:
    """NodeGroupService over a fleet.

    An update that arrives while another operation runs on the group is refused with OperationConflict. There
    is one exception: an operation that *hangs for want of capacity* is aborted and the new one takes over, so
    that a client can always take back what the block cannot give. With ``abort_running`` every running
    operation gives way. The real API says only that either may happen.

    An update with the idempotency key of an earlier one is answered with the operation of that one, in its
    present state, whatever it asks for. A template may be changed, which is counted and touches no machine.
    """

    def __init__(
        self,
        fleet: cloud.Fleet,
        catalogue: Catalogue,
        state: NebiusState,
        operations: Operations,
        *,
        abort_running: bool,
    ) -> None:
        self._fleet = fleet
        self._catalogue = catalogue
        self._state = state
        self._operations = operations
        self._abort_running = abort_running
        for group in fleet.groups.values():
            if catalogue.cluster(group.cluster) is None:
                raise ValueError(f"node group {group.id} is in cluster {group.cluster!r}, which is not there")
            now = fleet.now()
            state.groups[group.id] = GroupRecord(self._first_spec(group), {}, created_at=now, updated_at=now)

    def methods(self) -> dict[str, Method]:
        return {"Get": self.get, "GetByName": self.get_by_name, "List": self.list, "Update": self.update}

    def get(self, request: GetNodeGroupRequest, headers: Headers) -> NodeGroup:
        return self._message(self._group(request.id))

    def get_by_name(self, request: GetByNameRequest, headers: Headers) -> NodeGroup:
        for group in self._groups_of(request.parent_id):
            if group.name == request.name:
                return self._message(group)
        raise not_found(SERVICE, "node group", request.name)

    def list(self, request: ListNodeGroupsRequest, headers: Headers) -> ListNodeGroupsResponse:
        groups = self._groups_of(request.parent_id)
        some, token = page(SERVICE, groups, request.page_size, request.page_token)
        return ListNodeGroupsResponse(items=[self._message(group) for group in some], next_page_token=token)

    def update(self, request: UpdateNodeGroupRequest, headers: Headers) -> Operation:
        self._operations.settle()
        key = headers.get("x-idempotency-key", "")
        if key in self._state.keys:
            return self._operations.message(self._state.operations[self._state.keys[key]])
        if key and not re.fullmatch(r"[A-Za-z0-9-]+", key):
            raise invalid(SERVICE, "x-idempotency-key", "may have letters, digits and dashes only")
        group = self._group(request.metadata.id)
        record = self._state.groups[group.id]
        metadata, spec = self._merged(group, record, request, headers)
        self._check(spec)
        expected = request.metadata.resource_version
        if expected and expected != record.resource_version:
            raise resource_conflict(SERVICE, group.id, f"resource version is {record.resource_version}, not {expected}")
        running = self._operations.running(group.id)
        if running is not None and group.problem is None and not self._abort_running:
            raise operation_conflict(SERVICE, group.id, running.id)
        operation = self._operations.start(group.id, request, headers)
        if running is not None:
            self._operations.abort(running, by=operation)
        self._apply(group, record, metadata, spec)
        if key:
            self._state.keys[key] = operation.id
        self._operations.settle()
        return self._operations.message(operation)

    def adopt_policies(self) -> None:
        """Let the fleet take GPUs as the specs say."""
        for group_id, record in self._state.groups.items():
            policy = record.spec.template.reservation_policy.policy
            self._fleet.groups[group_id].reservation = RESERVATIONS[policy]

    def _group(self, group_id: str) -> cloud.NodeGroup:
        if not group_id:
            raise invalid(SERVICE, "metadata.id", "is required")
        if group_id not in self._state.groups:
            raise not_found(SERVICE, "node group", group_id)
        return self._fleet.groups[group_id]

    def _groups_of(self, cluster_id: str) -> Sequence[cloud.NodeGroup]:
        groups = (self._fleet.groups[group_id] for group_id in self._state.groups)
        return [group for group in groups if group.cluster == cluster_id]

    def _merged(
        self, group: cloud.NodeGroup, record: GroupRecord, request: UpdateNodeGroupRequest, headers: Headers
    ) -> tuple[ResourceMetadata, NodeGroupSpec]:
        try:
            mask = parse(headers.get("x-resetmask", ""))
        except ParseError as error:
            raise invalid(SERVICE, "x-resetmask", str(error)) from error
        current = UpdateNodeGroupRequest(metadata=self._metadata(group, record), spec=self._spec(group, record))
        result = merged(current, request, mask)
        return result.metadata, result.spec

    def _check(self, spec: NodeGroupSpec) -> None:
        size = spec.WhichOneof("size")
        if size is None:
            raise invalid(SERVICE, "spec.size", "one of fixed_node_count and autoscaling is required")
        if size == "fixed_node_count":
            if not 0 <= (spec.fixed_node_count or 0) <= MAX_NODES:
                raise invalid(SERVICE, "spec.fixed_node_count", f"must be from 0 to {MAX_NODES}")
        else:
            low, high = _bounds(spec)
            if not 0 <= low <= MAX_NODES:
                raise invalid(SERVICE, "spec.autoscaling.min_node_count", f"must be from 0 to {MAX_NODES}")
            if not low <= high <= MAX_NODES:
                raise invalid(SERVICE, "spec.autoscaling.max_node_count", f"must be from {low} to {MAX_NODES}")
        reservation = spec.template.reservation_policy
        field = "spec.template.reservation_policy.reservation_ids"
        if reservation.policy not in RESERVATIONS:
            raise invalid(SERVICE, "spec.template.reservation_policy.policy", "is not known")
        if reservation.policy == POLICY.FORBID and reservation.reservation_ids:
            raise invalid(SERVICE, field, "must be empty where the policy is FORBID")
        if reservation.reservation_ids and self._fleet.block.id not in reservation.reservation_ids:
            raise invalid(SERVICE, field, f"the only capacity block group is {self._fleet.block.id}")

    def _apply(
        self, group: cloud.NodeGroup, record: GroupRecord, metadata: ResourceMetadata, spec: NodeGroupSpec
    ) -> None:
        size: cloud.Size
        if spec.WhichOneof("size") == "fixed_node_count":
            size = cloud.Fixed(spec.fixed_node_count or 0)
        else:
            size = cloud.Autoscaling(*_bounds(spec))
        spec.ClearField("size")
        record.template_changes += _wire(spec.template) != _wire(record.spec.template)
        record.spec = spec
        record.labels = dict(metadata.labels)
        record.resource_version += 1
        record.updated_at = self._fleet.now()
        self.adopt_policies()
        if size != group.size:
            self._fleet.resize(group.id, size)

    def _message(self, group: cloud.NodeGroup) -> NodeGroup:
        record = self._state.groups[group.id]
        return NodeGroup(
            metadata=self._metadata(group, record),
            spec=self._spec(group, record),
            status=self._status(group, record),
        )

    def _metadata(self, group: cloud.NodeGroup, record: GroupRecord) -> ResourceMetadata:
        return ResourceMetadata(
            id=group.id,
            parent_id=group.cluster,
            name=group.name,
            resource_version=record.resource_version,
            created_at=moment(record.created_at),
            updated_at=moment(record.updated_at),
            labels=record.labels,
        )

    def _first_spec(self, group: cloud.NodeGroup) -> NodeGroupSpec:
        shape = self._catalogue.template(group.id)
        template = NodeTemplate(
            metadata=NodeMetadataTemplate(labels=group.labels),
            resources=ResourcesSpec(platform=shape.platform, preset=shape.preset),
            max_pods=shape.max_pods,
        )
        if shape.gpu_cluster:
            template.gpu_cluster = GpuClusterSpec(id=shape.gpu_cluster)
        if group.gpus_per_node:
            reserved = group.reservation is not cloud.Reservation.FORBID
            template.reservation_policy = ReservationPolicy(
                policy=POLICIES[group.reservation],
                reservation_ids=[self._fleet.block.id] if reserved else [],
            )
        return NodeGroupSpec(version=self._kubernetes(group), template=template)

    def _spec(self, group: cloud.NodeGroup, record: GroupRecord) -> NodeGroupSpec:
        spec = NodeGroupSpec(record.spec)
        if isinstance(group.size, cloud.Fixed):
            spec.fixed_node_count = group.size.count
        else:
            spec.autoscaling = NodeGroupAutoscalingSpec(
                min_node_count=group.size.minimum, max_node_count=group.size.maximum
            )
        return spec

    def _status(self, group: cloud.NodeGroup, record: GroupRecord) -> NodeGroupStatus:
        machines = self._fleet.machines_of(group.id)
        ready = sum(machine.state is cloud.MachineState.RUNNING for machine in machines)
        return NodeGroupStatus(
            state=NodeGroupStatus.State.RUNNING,
            version=f"{self._kubernetes(group)}.0-nebius-node.1",
            target_node_count=group.target,
            # A machine on its way out is one that still holds its GPUs, so it is counted.
            node_count=len(machines),
            ready_node_count=ready,
            events=self._events(group),
            strategy=merged(DEFAULT_STRATEGY, record.spec.strategy, Mask()),
            reconciling=not self._fleet.settled(group.id),
        )

    def _events(self, group: cloud.NodeGroup) -> Sequence[RecurrentResourceEvent]:
        if group.problem is None or group.problem_since is None:
            return []
        event = ResourceEvent(
            occurred_at=moment(self._fleet.now()),
            level=ResourceEvent.Level.WARN,
            code="NotEnoughResources",
            message=group.problem,
            error=not_enough_resources(SERVICE, group.problem).status(),
        )
        first = moment(group.problem_since)
        return [RecurrentResourceEvent(first_occurred_at=first, last_occurrence=event, occurrence_count=1)]

    def _kubernetes(self, group: cloud.NodeGroup) -> str:
        cluster = self._catalogue.cluster(group.cluster)
        return cluster.version if cluster else ""


def _bounds(spec: NodeGroupSpec) -> tuple[int, int]:
    bounds = spec.autoscaling or NodeGroupAutoscalingSpec()
    return bounds.min_node_count, bounds.max_node_count


def _wire(template: NodeTemplate) -> bytes:
    return template.SerializeToString(deterministic=True)
