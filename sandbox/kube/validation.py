"""The little that is checked of an object before it is stored."""

from __future__ import annotations

import re

from sandbox.kube import errors
from sandbox.kube.kinds import Kind
from sandbox.kube.objects import Object, dig

_LEASE_FIELDS = {
    "holderIdentity": str,
    "leaseDurationSeconds": int,
    "leaseTransitions": int,
    "acquireTime": str,
    "renewTime": str,
    "preferredHolder": str,
    "strategy": str,
}
_MICRO_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}(Z|[+-]\d\d:\d\d)")
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.:]*[a-z0-9])?")


def settle_type(kind: Kind, thing: Object) -> None:
    group, _, version = str(thing.get("apiVersion") or kind.api_version).rpartition("/")
    if thing.get("kind") not in (None, "", kind.kind) or group != kind.group or version not in kind.versions:
        raise errors.bad_request(
            f"the type in the data ({thing.get('apiVersion')}, {thing.get('kind')}) does not match "
            f"the expected type ({kind.api_version}, {kind.kind})"
        )
    thing["apiVersion"], thing["kind"] = kind.api_version, kind.kind


def settle_namespace(kind: Kind, metadata: Object, namespace: str) -> str:
    if not kind.namespaced:
        metadata.pop("namespace", None)
        return ""
    given = metadata.get("namespace")
    if given and namespace and given != namespace:
        raise errors.bad_request(
            "the namespace of the provided object does not match the namespace sent on the request"
        )
    metadata["namespace"] = given or namespace or "default"
    return str(metadata["namespace"])


def validate_name(kind: Kind, name: object) -> None:
    if isinstance(name, str) and _NAME.fullmatch(name) and len(name) <= 253:
        return
    why = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.'"
    raise errors.invalid(kind.kind, str(name), "metadata.name", name, why)


def validate(kind: Kind, thing: Object) -> None:
    """Objects where objects belong, text in labels, and a count of replicas that is one."""
    name = str(dig(thing, "metadata.name"))
    for field in ("spec", "status"):
        if not isinstance(thing.get(field, {}), dict) and kind.has_status:
            raise errors.invalid(kind.kind, name, field, thing[field], "must be an object")
    labels = dig(thing, "metadata.labels") or {}
    for key, value in labels.items():
        if not isinstance(value, str):
            raise errors.invalid(kind.kind, name, f"metadata.labels.{key}", value, "must be a string")
    if kind.scale is not None:
        replicas = dig(thing, kind.scale.replicas)
        if replicas is not None and (not isinstance(replicas, int) or isinstance(replicas, bool)):
            raise errors.invalid(kind.kind, name, kind.scale.replicas, replicas, "must be of type integer")
        if replicas is not None and replicas < 0:
            raise errors.invalid(kind.kind, name, kind.scale.replicas, replicas, "must be greater than or equal to 0")
    if kind.kind == "Lease":
        _validate_lease(kind, name, thing.get("spec") or {})


def _validate_lease(kind: Kind, name: str, spec: Object) -> None:
    """As the API server reads a LeaseSpec, and as pkg/apis/coordination/validation of Kubernetes checks it."""
    for field, of in _LEASE_FIELDS.items():
        value = spec.get(field)
        if value is not None and (not isinstance(value, of) or isinstance(value, bool)):
            raise errors.bad_request(f'Lease in version "v1" cannot be handled as a Lease: spec.{field}: {value!r}')
    for field in ("acquireTime", "renewTime"):
        if spec.get(field) is not None and not _MICRO_TIME.fullmatch(spec[field]):
            raise errors.bad_request(
                f'Lease in version "v1" cannot be handled as a Lease: parsing time "{spec[field]}" as '
                '"2006-01-02T15:04:05.000000Z07:00": cannot parse'
            )
    for field, least, why in (
        ("leaseDurationSeconds", 1, "must be greater than 0"),
        ("leaseTransitions", 0, "must be greater than or equal to 0"),
    ):
        if spec.get(field) is not None and spec[field] < least:
            raise errors.invalid(kind.kind, name, f"spec.{field}", spec[field], why)
    if spec.get("preferredHolder") and not spec.get("strategy"):
        raise errors.invalid(
            kind.kind,
            name,
            "spec.preferredHolder",
            spec["preferredHolder"],
            "may only be specified if `strategy` is defined",
        )
