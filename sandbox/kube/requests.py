"""Requests: what a path addresses, and what a body says."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import yaml
from aiohttp import web

from sandbox.kube import protobuf
from sandbox.kube.errors import bad_request
from sandbox.kube.kinds import Kind, Kinds
from sandbox.kube.managers import Manager
from sandbox.kube.objects import Object


@dataclass(frozen=True)
class Target:
    """The collection, object or subresource that a path names."""

    kind: Kind
    version: str
    namespace: str = ""
    name: str = ""
    subresource: str = ""

    @property
    def called(self) -> str:
        """As faults name it: ``nodesets/worker``, ``pods/``, ``deployments/vllm/scale``."""
        return f"{self.kind.plural}/{self.name}" + (f"/{self.subresource}" if self.subresource else "")

    @property
    def api_version(self) -> str:
        return f"{self.kind.group}/{self.version}" if self.kind.group else self.version


def parse_target(kinds: Kinds, path: str) -> Target | None:
    """What a path under /api or /apis addresses, or None.

    >>> from sandbox.kube.catalogue import KINDS
    >>> parse_target(KINDS, "/apis/apps/v1/namespaces/default/deployments/vllm/scale").called
    'deployments/vllm/scale'
    """
    parts = path.strip("/").split("/")
    if parts[0] == "api" and len(parts) > 2:
        group, version, rest = "", parts[1], parts[2:]
    elif parts[0] == "apis" and len(parts) > 3:
        group, version, rest = parts[1], parts[2], parts[3:]
    else:
        return None
    namespace = ""
    if rest[0] == "namespaces" and len(rest) > 2 and kinds.at(group, version, rest[2]):
        namespace, rest = rest[1], rest[2:]
    kind = kinds.at(group, version, rest[0])
    if kind is None or len(rest) > 3 or (namespace and not kind.namespaced):
        return None
    name, subresource = (*rest[1:], "", "")[:2]
    if name and kind.namespaced and not namespace:
        return None
    return Target(kind, version, namespace, name, subresource)


async def read_body(request: web.Request) -> Any:
    """The body as JSON data; an empty one is None."""
    content_type = request.content_type
    if content_type == protobuf.CONTENT_TYPE:
        # Apart from objects only options come so, and they have nothing here that matters.
        return protobuf.decode(await request.read())
    try:
        text = await request.text()
    except UnicodeDecodeError as problem:
        raise bad_request(f"error decoding the body: {problem}") from None
    if not text.strip():
        return None
    try:
        # JSON is tried first whatever the type says: it is faster, and most "yaml" bodies are JSON.
        return json.loads(text)
    except ValueError as problem:
        if "yaml" not in content_type:
            raise bad_request(f"error decoding the body: {problem}") from None
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as problem:
        raise bad_request(f"error decoding the body: {problem}") from None


async def read_object(request: web.Request) -> Object:
    body = await read_body(request)
    if not isinstance(body, dict):
        raise bad_request("the body of the request is not an object")
    return body


def is_dry_run(request: web.Request, body: Any = None) -> bool:
    asked = request.query.getall("dryRun", [])
    if isinstance(body, dict) and isinstance(body.get("dryRun"), list):
        asked = [*asked, *body["dryRun"]]
    if any(value not in ("", "All") for value in asked):
        raise bad_request(f"dryRun: Unsupported value: {asked}: supported values: All")
    return "All" in asked


def is_true(request: web.Request, name: str) -> bool:
    return request.query.get(name, "") in ("1", "true", "True")


def manager_of(request: web.Request, target: Target, operation: str = "Update") -> Manager:
    """Who writes: as the request says, else by the name that the client goes by."""
    name = request.query.get("fieldManager") or request.headers.get("User-Agent", "").partition("/")[0] or "unknown"
    return Manager(name, operation, target.api_version, target.subresource)
