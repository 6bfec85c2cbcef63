"""Operations on node groups: each runs until the fleet has what was asked for, however long that takes."""

from __future__ import annotations

from base64 import b64decode

from nebius.api.google.protobuf import Any as AnyMessage
from nebius.api.google.rpc import Status
from nebius.api.nebius.common.v1 import (
    GetOperationRequest,
    ListOperationsRequest,
    ListOperationsResponse,
    Operation,
)
from nebius.api.nebius.mk8s.v1 import Problem, ProgressData, UpdateNodeGroupRequest

from sandbox.cloud.fleet import Fleet
from sandbox.nebius.clock import moment
from sandbox.nebius.errors import not_found, operation_aborted, pack
from sandbox.nebius.paging import page
from sandbox.nebius.rpc import CALLER, Headers, Method
from sandbox.nebius.state import NebiusState, OperationRecord, encoded

SERVICE = "mk8s"
PREFIX = "mk8snodegroupoperation-e00"
#: Headers without which the request of an operation cannot be understood.
KEPT_HEADERS = ("x-resetmask",)
#: Finished operations that are still known. Each look at a group lists them, and each step writes them down.
KEPT = 20


class Operations:
    """The operations of all node groups, at most one of which runs on each."""

    def __init__(self, fleet: Fleet, state: NebiusState) -> None:
        self._fleet = fleet
        self._state = state

    def methods(self) -> dict[str, Method]:
        return {"Get": self.get, "List": self.list}

    def get(self, request: GetOperationRequest, headers: Headers) -> Operation:
        self.settle()
        operation = self._state.operations.get(request.id)
        if operation is None:
            raise not_found(SERVICE, "operation", request.id)
        return self.message(operation)

    def list(self, request: ListOperationsRequest, headers: Headers) -> ListOperationsResponse:
        """The newest first."""
        self.settle()
        found = [op for op in self._state.operations.values() if op.resource_id == request.resource_id]
        some, token = page(SERVICE, found[::-1], request.page_size, request.page_token)
        return ListOperationsResponse(operations=[self.message(op) for op in some], next_page_token=token)

    def start(self, group_id: str, request: UpdateNodeGroupRequest, headers: Headers) -> OperationRecord:
        operation = OperationRecord(
            id=self._next_id(),
            resource_id=group_id,
            created_at=self._fleet.now(),
            request=encoded(pack(request).SerializeToString()),
            headers={name: headers[name] for name in KEPT_HEADERS if name in headers},
            created_by=headers[CALLER],
        )
        self._state.operations[operation.id] = operation
        self._state.forget_finished(KEPT)
        return operation

    def running(self, group_id: str) -> OperationRecord | None:
        return next(
            (
                operation
                for operation in self._state.operations.values()
                if operation.resource_id == group_id and operation.status is None
            ),
            None,
        )

    def settle(self) -> None:
        """Finish every operation whose group has become what was asked for."""
        for operation in self._state.operations.values():
            if operation.status is None and self._fleet.within_size(operation.resource_id):
                self._finish(operation, Status(code=0))

    def abort(self, operation: OperationRecord, by: OperationRecord) -> None:
        error = operation_aborted(SERVICE, operation.resource_id, operation.id, by.id)
        self._finish(operation, error.status())

    def message(self, record: OperationRecord) -> Operation:
        operation = Operation(
            id=record.id,
            description="Update node group",
            created_at=moment(record.created_at),
            created_by=record.created_by,
            request=AnyMessage.FromString(b64decode(record.request)),
            request_headers={name: Operation.RequestHeader(values=[value]) for name, value in record.headers.items()},
            resource_id=record.resource_id,
        )
        problem = self._fleet.groups[record.resource_id].problem
        if record.status is not None and record.finished_at is not None:
            operation.status = Status.FromString(b64decode(record.status))
            operation.finished_at = moment(record.finished_at)
        elif problem is not None:
            data = ProgressData(problems=[Problem(stage="create-node", message=problem)])
            operation.progress_data = pack(data)
        return operation

    def _finish(self, operation: OperationRecord, status: Status) -> None:
        operation.status = encoded(status.SerializeToString())
        operation.finished_at = self._fleet.now()

    def _next_id(self) -> str:
        self._state.serial += 1
        return f"{PREFIX}{self._state.serial:06d}"
