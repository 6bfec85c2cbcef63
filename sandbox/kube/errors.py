"""The errors of the Kubernetes API, each with the Status body that clients read."""

from __future__ import annotations

from typing import Any, Protocol


class Asked(Protocol):
    """A request that its account has no right to."""

    @property
    def verb(self) -> str: ...
    @property
    def group(self) -> str: ...
    @property
    def resource(self) -> str: ...
    @property
    def namespace(self) -> str: ...
    @property
    def name(self) -> str: ...


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


def forbidden(user: str, wanted: Asked, missing: list[str]) -> ApiError:
    """As the API server says it; ``missing`` are roles that are bound, and do not exist."""
    plural = wanted.resource.partition("/")[0]
    resource = f"{plural}.{wanted.group}" if wanted.group else plural
    where = f'in the namespace "{wanted.namespace}"' if wanted.namespace else "at the cluster scope"
    said = f'User "{user}" cannot {wanted.verb} resource "{wanted.resource}" in API group "{wanted.group}" {where}'
    if missing:
        said += f": RBAC: {joined(missing)}"
    named = f'{resource} "{wanted.name}"' if wanted.name else resource
    return ApiError(403, "Forbidden", f"{named} is forbidden: {said}", _about(resource, wanted.name))


def joined(reasons: list[str]) -> str:
    """One as it is, several as a list."""
    return reasons[0] if len(reasons) == 1 else f"[{', '.join(reasons)}]"


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


def apply_conflict(resource: str, name: str, conflicts: list[tuple[str, str]]) -> ApiError:
    """Fields that others manage, as pairs of who does and which field."""
    if len(conflicts) == 1:
        said = f"conflict with {conflicts[0][0]}: {conflicts[0][1]}"
    else:
        lines = []
        for manager in sorted({manager for manager, _ in conflicts}):
            lines += [f"conflicts with {manager}:", *(f"- {field}" for other, field in conflicts if other == manager)]
        said = "\n".join(lines)
    count = f"{len(conflicts)} conflict{'' if len(conflicts) == 1 else 's'}"
    causes = [
        {"reason": "FieldManagerConflict", "message": f"conflict with {manager}", "field": field}
        for manager, field in conflicts
    ]
    return ApiError(409, "Conflict", f"Apply failed with {count}: {said}", {**_about(resource, name), "causes": causes})


def invalid(kind: str, name: str, field: str, value: object, why: str) -> ApiError:
    return invalid_all(kind, name, [("FieldValueInvalid", field, f"Invalid value: {value!r}: {why}")])


def invalid_all(kind: str, name: str, problems: list[tuple[str, str, str]]) -> ApiError:
    """All that is wrong with an object at once: the type, field and words of each problem."""
    causes = [{"reason": type_, "message": said, "field": field} for type_, field, said in problems]
    listed = [f"{field}: {said}" for _, field, said in problems]
    details = {**_about(kind, name), "causes": causes}
    return ApiError(422, "Invalid", f'{kind} "{name}" is invalid: {joined(listed)}', details)


def invalid_options(field: str, why: str) -> ApiError:
    return invalid_all("PatchOptions.meta.k8s.io", "", [("FieldValueRequired", field, why)])


def undeclared(kind: str, api_version: str, metadata: dict[str, Any], fields: list[str]) -> ApiError:
    """Server-side apply of fields that the kind does not have."""
    said = [f".{field}: field not declared in schema" for field in fields]
    listed = said[0] if len(said) == 1 else "".join(["errors:", *(f"\n  {one}" for one in said)])
    thing = f"{metadata.get('namespace', '')}/{metadata.get('name', '')}; {api_version}, Kind={kind}"
    return ApiError(500, "", f"failed to create typed patch object ({thing}): {listed}")


def too_many_requests(message: str, seconds: int, cause: dict[str, str]) -> ApiError:
    details: dict[str, Any] = {"causes": [cause]}
    return ApiError(429, "TooManyRequests", message, details | ({"retryAfterSeconds": seconds} if seconds else {}))


def internal(message: str) -> ApiError:
    return ApiError(500, "InternalError", f"Internal error occurred: {message}")


def unavailable(message: str) -> ApiError:
    return ApiError(503, "ServiceUnavailable", message)
