"""The errors of the Kubernetes API, each with the Status body that clients read."""

from __future__ import annotations

from typing import Any


class ApiError(Exception):
    """A refusal, as the API server words it.

    >>> not_found("nodesets.slurm.nebius.ai", "worker").code
    404
    """

    def __init__(self, code: int, reason: str, message: str, details: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.details = details or {}

    def status(self) -> dict[str, Any]:
        """The ``Status`` object to answer with."""
        body = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "code": self.code,
        }
        if self.details:
            body["details"] = self.details
        return body


def _about(resource: str, name: str) -> dict[str, Any]:
    plural, _, group = resource.partition(".")
    return {"name": name, "group": group, "kind": plural} if group else {"name": name, "kind": plural}


def bad_request(message: str) -> ApiError:
    return ApiError(400, "BadRequest", message)


def unauthorized() -> ApiError:
    return ApiError(401, "Unauthorized", "Unauthorized")


def forbidden(resource: str, name: str, subresource: str, verb: str) -> ApiError:
    plural, _, group = resource.partition(".")
    what = f"{plural}/{subresource}" if subresource else plural
    message = f'{resource} "{name}" is forbidden: User "viewer" cannot {verb} resource "{what}" in API group "{group}"'
    return ApiError(403, "Forbidden", message, _about(resource, name))


def not_found(resource: str, name: str) -> ApiError:
    return ApiError(404, "NotFound", f'{resource} "{name}" not found', _about(resource, name))


def unknown_path() -> ApiError:
    return ApiError(404, "NotFound", "the server could not find the requested resource")


def method_not_allowed() -> ApiError:
    return ApiError(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")


def already_exists(resource: str, name: str) -> ApiError:
    return ApiError(409, "AlreadyExists", f'{resource} "{name}" already exists', _about(resource, name))


def conflict(resource: str, name: str, why: str = "") -> ApiError:
    why = why or ("the object has been modified; please apply your changes to the latest version and try again")
    message = f'Operation cannot be fulfilled on {resource} "{name}": {why}'
    return ApiError(409, "Conflict", message, _about(resource, name))


def precondition(resource: str, name: str, what: str, wanted: str, found: str) -> ApiError:
    why = f"Precondition failed: {what} in precondition: {wanted}, {what} in object meta: {found}"
    return conflict(resource, name, why)


def gone(oldest: int, asked: int) -> ApiError:
    return ApiError(410, "Expired", f"too old resource version: {asked} ({oldest})")


def unsupported_media_type(accepted: tuple[str, ...]) -> ApiError:
    return ApiError(
        415,
        "UnsupportedMediaType",
        "the body of the request was in an unknown format - accepted media types include: " + ", ".join(accepted),
    )


def invalid(kind: str, name: str, field: str, value: object, why: str) -> ApiError:
    problem = f"Invalid value: {value!r}: {why}"
    details = {
        "name": name,
        "kind": kind,
        "causes": [{"reason": "FieldValueInvalid", "message": problem, "field": field}],
    }
    return ApiError(422, "Invalid", f'{kind} "{name}" is invalid: {field}: {problem}', details)


def internal(message: str) -> ApiError:
    return ApiError(500, "InternalError", f"Internal error occurred: {message}")


def unavailable(message: str) -> ApiError:
    return ApiError(503, "ServiceUnavailable", message)
