"""The parts of a block that projects may have, as CapacityAllowances: made, changed and taken back at once."""

from __future__ import annotations

from nebius.api.google.rpc import Status
from nebius.api.nebius.capacity.v1 import (
    CapacityAllowance,
    CapacityAllowanceSpec,
    CapacityAllowanceStatus,
    CreateCapacityAllowanceRequest,
    DeleteCapacityAllowanceRequest,
    GetCapacityAllowanceByParentAndCapacityBlockGroupRequest,
    GetCapacityAllowanceRequest,
    ListCapacityAllowancesByCapacityBlockGroupRequest,
    ListCapacityAllowancesRequest,
    ListCapacityAllowancesResponse,
    UpdateCapacityAllowanceRequest,
)
from nebius.api.nebius.common.v1 import Operation, ResourceMetadata

from sandbox.cloud.fleet import Fleet
from sandbox.nebius.catalogue import Catalogue
from sandbox.nebius.clock import moment
from sandbox.nebius.errors import invalid, not_found
from sandbox.nebius.paging import page
from sandbox.nebius.rpc import CALLER, Headers, Method

SERVICE = "capacity"
State = CapacityAllowanceStatus.State
UsageState = CapacityAllowanceStatus.UsageState


class CapacityAllowances:
    """CapacityAllowanceService: one allowance for each project at the most, as there is one block."""

    def __init__(self, fleet: Fleet, catalogue: Catalogue) -> None:
        self._fleet, self._block, self._catalogue = fleet, fleet.block, catalogue

    def methods(self) -> dict[str, Method]:
        return {
            "List": self.list,
            "ListByCapacityBlockGroup": self.list_by_block,
            "Get": self.get,
            "GetByParentAndCapacityBlockGroup": self.get_by_parent_and_block,
            "Create": self.create,
            "Update": self.update,
            "Delete": self.delete,
        }

    def list(self, request: ListCapacityAllowancesRequest, headers: Headers) -> ListCapacityAllowancesResponse:
        """Those of a project, also the one that nobody has made: it shows that there is no limit."""
        known = request.parent_id in self._catalogue.projects
        some, token = page(SERVICE, [request.parent_id] if known else [], request.page_size, request.page_token)
        return ListCapacityAllowancesResponse(items=[self._message(one) for one in some], next_page_token=token)

    def list_by_block(
        self, request: ListCapacityAllowancesByCapacityBlockGroupRequest, headers: Headers
    ) -> ListCapacityAllowancesResponse:
        self._require_block(request.capacity_block_group_id)
        some, token = page(SERVICE, sorted(self._block.allowances), request.page_size, request.page_token)
        return ListCapacityAllowancesResponse(items=[self._message(one) for one in some], next_page_token=token)

    def get(self, request: GetCapacityAllowanceRequest, headers: Headers) -> CapacityAllowance:
        return self._message(self._made(request.id))

    def get_by_parent_and_block(
        self, request: GetCapacityAllowanceByParentAndCapacityBlockGroupRequest, headers: Headers
    ) -> CapacityAllowance:
        self._require_block(request.capacity_block_group_id)
        self._require_project(request.parent_id)
        return self._message(request.parent_id)

    def create(self, request: CreateCapacityAllowanceRequest, headers: Headers) -> Operation:
        self._require_block(request.spec.capacity_block_group_id)
        self._require_project(request.metadata.parent_id)
        return self._set(request.metadata.parent_id, request.spec.limit, headers)

    def update(self, request: UpdateCapacityAllowanceRequest, headers: Headers) -> Operation:
        return self._set(self._made(request.metadata.id), request.spec.limit, headers)

    def delete(self, request: DeleteCapacityAllowanceRequest, headers: Headers) -> Operation:
        return self._set(self._made(request.id), None, headers)

    def _set(self, project: str, limit: int | None, headers: Headers) -> Operation:
        if limit is not None and limit > self._block.limit:
            raise invalid(SERVICE, "spec.limit", f"is above the limit of the block, which is {self._block.limit}")
        self._block.allow(project, limit)
        now = moment(self._fleet.now())
        return Operation(
            id=f"{_id(project)}-operation",
            created_at=now,
            created_by=headers[CALLER],
            finished_at=now,
            status=Status(code=0),
            resource_id=_id(project),
        )

    def _made(self, allowance_id: str) -> str:
        for project in self._block.allowances:
            if _id(project) == allowance_id:
                return project
        raise not_found(SERVICE, "capacity allowance", allowance_id)

    def _require_block(self, block_id: str) -> None:
        if block_id != self._block.id:
            raise not_found(SERVICE, "capacity block group", block_id)

    def _require_project(self, project: str) -> None:
        if project not in self._catalogue.projects:
            raise not_found(SERVICE, "project", project)

    def _message(self, project: str) -> CapacityAllowance:
        status = CapacityAllowanceStatus(state=State.STATE_ACTIVE, unit="GPU")
        if self._block.usage_known:
            status.usage = usage = self._block.usage_of(project)
            status.usage_state = UsageState.USAGE_STATE_USED if usage else UsageState.USAGE_STATE_NOT_USED
        else:
            status.usage_state = UsageState.USAGE_STATE_UNKNOWN
        spec = CapacityAllowanceSpec(capacity_block_group_id=self._block.id)
        if (limit := self._block.allowances.get(project)) is not None:
            spec.limit = limit
        return CapacityAllowance(
            metadata=ResourceMetadata(id=_id(project), parent_id=project, resource_version=1), spec=spec, status=status
        )


def _id(project: str) -> str:
    return f"capacityallowance-e00{project.partition('-e00')[2]}"
