"""The OpenAPI documents kubectl asks for before it applies, patches or explains."""

from __future__ import annotations

from sandbox.kube.discovery import GIT_VERSION
from sandbox.kube.kinds import Kind, Kinds
from sandbox.kube.objects import Object

_TITLE = "Kubernetes (a sandbox double)"
_QUERY = ("dryRun", "fieldManager", "fieldValidation")


def v2() -> Object:
    return {
        "swagger": "2.0",
        "info": {"title": _TITLE, "version": GIT_VERSION},
        "paths": {},
        "definitions": {},
    }


def v2_protobuf() -> bytes:
    """The same document in the one encoding that kubectl takes for it: ``swagger`` and ``info``."""
    return _text(1, "2.0") + _bytes(2, _text(1, _TITLE) + _text(2, GIT_VERSION))


def _bytes(field: int, value: bytes) -> bytes:
    # One length byte is enough for what is written here.
    assert len(value) < 128
    return bytes([field << 3 | 2, len(value)]) + value


def _text(field: int, value: str) -> bytes:
    return _bytes(field, value.encode())


def v3_index(kinds: Kinds) -> Object:
    paths = {_root(group, version): None for group, versions in kinds.groups().items() for version in versions}
    return {"paths": {path: {"serverRelativeURL": f"/openapi/v3/{path}"} for path in paths}}


def v3(kinds: Kinds, path: str) -> Object | None:
    """The document of one group and version, or None if there is no such thing at the path."""
    found = [(kind, version) for kind in kinds for version in kind.versions if _root(kind.group, version) == path]
    if not found:
        return None
    paths: Object = {}
    schemas: Object = {}
    for kind, version in found:
        identity = {"group": kind.group, "version": version, "kind": kind.kind}
        scope = "/namespaces/{namespace}" if kind.namespaced else ""
        collection = f"/{path}{scope}/{kind.plural}"
        paths[collection] = {"post": _operation("post", identity)}
        paths[collection + "/{name}"] = {verb: _operation(verb, identity) for verb in ("patch", "put")}
        schemas[f"{kind.group or 'core'}.{version}.{kind.kind}"] = _schema(kind, identity)
    info = {"title": _TITLE, "version": GIT_VERSION}
    return {"openapi": "3.0.0", "info": info, "paths": paths, "components": {"schemas": schemas}}


def _root(group: str, version: str) -> str:
    return f"apis/{group}/{version}" if group else f"api/{version}"


def _operation(verb: str, identity: Object) -> Object:
    # kubectl leaves validation to the server where it finds these parameters. What a PATCH may contain is
    # left out: told that strategic merges are among it, kubectl would want full schemas to compute them from.
    return {
        "x-kubernetes-action": verb,
        "x-kubernetes-group-version-kind": identity,
        "parameters": [{"name": name, "in": "query", "schema": {"type": "string"}} for name in _QUERY],
        "responses": {"200": {"description": "OK"}},
    }


def _schema(kind: Kind, identity: Object) -> Object:
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    return {
        "type": "object",
        "description": f"{kind.kind}, as the sandbox keeps it: its fields are not described.",
        "x-kubernetes-group-version-kind": [identity],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": anything,
            "spec": anything,
            "status": anything,
        },
    }
