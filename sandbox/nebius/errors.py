"""Refusals as the API words them: a gRPC code, a sentence, and service errors that a program can read."""

from __future__ import annotations

from grpc import StatusCode
from nebius.api.google.protobuf import Any as AnyMessage
from nebius.api.google.rpc import Status
from nebius.api.nebius.common.v1 import (
    BadRequest,
    InternalError,
    NotEnoughResources,
    OperationAborted,
    OperationConflict,
    ResourceConflict,
    ResourceNotFound,
    ServiceError,
)
from nebius.base.protos.direct import Message
from nebius.base.protos.dynamic import REGISTRY

Retry = ServiceError.RetryType


def pack(message: Message) -> AnyMessage:
    packed = REGISTRY.pack_any(message)
    assert isinstance(packed, AnyMessage)
    return packed


class ApiError(Exception):
    """A call that is answered with a failure."""

    def __init__(self, code: StatusCode, message: str, *errors: ServiceError) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.errors = errors

    def status(self) -> Status:
        number, _ = self.code.value
        return Status(code=number, message=self.message, details=[pack(error) for error in self.errors])


def not_found(service: str, kind: str, name: str) -> ApiError:
    error = ServiceError(
        service=service,
        code="NotFound",
        retry_type=Retry.NOTHING,
        resource_not_found=ResourceNotFound(resource_id=name),
    )
    return ApiError(StatusCode.NOT_FOUND, f"{kind} {name!r} not found", error)


def invalid(service: str, field: str, message: str) -> ApiError:
    error = ServiceError(
        service=service,
        code="BadRequest",
        retry_type=Retry.NOTHING,
        bad_request=BadRequest(violations=[BadRequest.Violation(field=field, message=message)]),
    )
    return ApiError(StatusCode.INVALID_ARGUMENT, f"{field}: {message}", error)


def resource_conflict(service: str, resource_id: str, message: str) -> ApiError:
    error = ServiceError(
        service=service,
        code="ResourceConflict",
        retry_type=Retry.UNIT_OF_WORK,
        resource_conflict=ResourceConflict(resource_id=resource_id, message=message),
    )
    return ApiError(StatusCode.ABORTED, f"ResourceConflict: {message}", error)


def operation_conflict(service: str, resource_id: str, running: str) -> ApiError:
    error = ServiceError(
        service=service,
        code="OperationConflict",
        retry_type=Retry.UNIT_OF_WORK,
        operation_conflict=OperationConflict(resource_id=resource_id, conflicting_operation_id=running),
    )
    message = f"OperationConflict: operation {running} is running on {resource_id}"
    return ApiError(StatusCode.ABORTED, message, error)


def operation_aborted(service: str, resource_id: str, aborted: str, by: str) -> ApiError:
    error = ServiceError(
        service=service,
        code="OperationAborted",
        retry_type=Retry.NOTHING,
        operation_aborted=OperationAborted(operation_id=aborted, aborted_by_operation_id=by, resource_id=resource_id),
    )
    return ApiError(StatusCode.ABORTED, f"operation {aborted} was aborted by operation {by}", error)


def not_enough_resources(service: str, message: str) -> ApiError:
    error = ServiceError(
        service=service,
        code="NotEnoughResources",
        retry_type=Retry.NOTHING,
        not_enough_resources=NotEnoughResources(
            violations=[NotEnoughResources.Violation(resource_type="gpu", message=message)]
        ),
    )
    return ApiError(StatusCode.RESOURCE_EXHAUSTED, message, error)


def unavailable(call: str, request_id: str) -> ApiError:
    error = ServiceError(
        service="sandbox",
        code="InternalError",
        retry_type=Retry.CALL,
        internal_error=InternalError(request_id=request_id),
    )
    return ApiError(StatusCode.UNAVAILABLE, f"{call} is unavailable (a fault of the sandbox)", error)


def unauthenticated(why: str) -> ApiError:
    return ApiError(StatusCode.UNAUTHENTICATED, why)


def unimplemented(call: str) -> ApiError:
    message = f"{call} does not exist here: this is the sandbox's double of the Nebius API, not Nebius"
    return ApiError(StatusCode.UNIMPLEMENTED, message)
