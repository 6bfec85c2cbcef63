"""The verbs of the API on collections, objects and their status and scale."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

from aiohttp import web

from sandbox.kube import errors
from sandbox.kube.managers import apply
from sandbox.kube.objects import Object
from sandbox.kube.patch import APPLY, apply_patch
from sandbox.kube.requests import Target, is_dry_run, is_true, manager_of, read_body, read_object
from sandbox.kube.scale import scale_of, with_scale
from sandbox.kube.schemas import shape_of
from sandbox.kube.store import PROPAGATIONS, ObjectStore, Part
from sandbox.kube.structure import check, pruned, unknown
from sandbox.kube.tables import table
from sandbox.kube.validation import settle_type
from sandbox.kube.watching import Watch

_LONGEST_WATCH = 3600.0


class Resources:
    """Answers requests for the objects of a store."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._watches: set[Watch] = set()

    async def answer(self, request: web.Request, target: Target) -> web.StreamResponse:
        if target.subresource == "scale" and target.kind.scale:
            return await self._scale(request, target)
        if target.subresource and not (target.subresource == "status" and target.kind.has_status):
            raise errors.unknown_path()
        verb = request.method
        if not target.name:
            if verb == "GET":
                return await self._watch(request, target) if is_true(request, "watch") else self._list(request, target)
            if verb == "POST":
                return await self._create(request, target)
            if verb == "DELETE":
                return await self._delete_all(request, target)
        elif verb == "GET":
            return self._one(request, target, self._store.get(target.kind, target.name, target.namespace))
        elif verb == "PUT":
            return await self._update(request, target)
        elif verb == "PATCH":
            return await self._patch(request, target)
        elif verb == "DELETE" and not target.subresource:
            return await self._delete(request, target)
        raise errors.method_not_allowed()

    def close(self) -> None:
        """End the watches that are open."""
        for watch in self._watches:
            watch.close()

    # Reading

    def _list(self, request: web.Request, target: Target) -> web.Response:
        found = self._selected(request, target)
        version = str(self._store.resource_version)
        if include := _wants_table(request):
            return json_answer(table(target.kind, found, self._store.now(), version, include))
        items = [self._shown(target, thing) for thing in found]
        if not target.kind.custom:
            # Only the items of custom resources say what they are.
            items = [{k: v for k, v in item.items() if k not in ("kind", "apiVersion")} for item in items]
        return json_answer(
            {
                "kind": f"{target.kind.kind}List",
                "apiVersion": target.api_version,
                "metadata": {"resourceVersion": version},
                "items": items,
            }
        )

    def _selected(self, request: web.Request, target: Target) -> list[Object]:
        labels, fields = request.query.get("labelSelector", ""), request.query.get("fieldSelector", "")
        return self._store.list(target.kind, target.namespace, labels=labels, fields=fields)

    async def _watch(self, request: web.Request, target: Target) -> web.StreamResponse:
        query = request.query
        watch = Watch(
            self._store,
            target.kind,
            target.namespace,
            labels=query.get("labelSelector", ""),
            fields=query.get("fieldSelector", ""),
            resource_version=query.get("resourceVersion", ""),
            initial_events=is_true(request, "sendInitialEvents"),
        )
        self._watches.add(watch)
        try:
            seconds = float(query.get("timeoutSeconds") or _LONGEST_WATCH)
            include = _wants_table(request)
            response = web.StreamResponse(headers={"Content-Type": "application/json"})
            response.enable_chunked_encoding()
            await response.prepare(request)
            loop = asyncio.get_running_loop()
            end = loop.time() + seconds
            # What has happened by the end is told, however late it is.
            while (event := await watch.next(max(0.0, end - loop.time()))) is not None:
                type_, thing = event
                if include and type_ not in ("ERROR", "BOOKMARK"):
                    version = thing["metadata"]["resourceVersion"]
                    thing = table(target.kind, [thing], self._store.now(), version, include)
                elif type_ not in ("ERROR", "BOOKMARK"):
                    thing = self._shown(target, thing)
                await response.write(json.dumps({"type": type_, "object": thing}).encode() + b"\n")
            await response.write_eof()
            return response
        finally:
            self._watches.discard(watch)
            watch.close()

    # Writing

    async def _create(self, request: web.Request, target: Target) -> web.Response:
        if target.kind.namespaced and not target.namespace:
            raise errors.method_not_allowed()
        body = _fitting(request, target, await read_object(request))
        return self._add(request, target, body)

    def _add(self, request: web.Request, target: Target, body: Object) -> web.Response:
        applied = request.method == "PATCH"
        made = self._store.create(
            target.kind,
            body,
            target.namespace,
            part="spec",
            dry_run=is_dry_run(request),
            # An apply has said already whose the fields are.
            manager=None if applied else manager_of(request, target),
        )
        return self._one(request, target, made, 201)

    async def _update(self, request: web.Request, target: Target) -> web.Response:
        body = await read_object(request)
        metadata = body.setdefault("metadata", {})
        if metadata.setdefault("name", target.name) != target.name:
            raise errors.bad_request(
                f"the name of the object ({metadata['name']}) is not the name on the URL ({target.name})"
            )
        if target.kind.made_by_update and not target.subresource and not self.has(target):
            return self._add(request, target, body)
        if (target.kind.custom or target.kind.needs_version) and not metadata.get("resourceVersion"):
            why = "must be specified for an update"
            raise errors.invalid(target.kind.resource, target.name, "metadata.resourceVersion", 0, why)
        made = self._store.update(
            target.kind,
            _fitting(request, target, body),
            target.namespace,
            part=_part(target),
            dry_run=is_dry_run(request),
            manager=manager_of(request, target),
        )
        return self._one(request, target, made)

    async def _patch(self, request: web.Request, target: Target) -> web.Response:
        body = await read_body(request)
        if request.content_type == APPLY:
            return await self._apply(request, target, body)
        if "force" in request.query:
            raise errors.invalid_options("force", "Forbidden: may not be specified for non-apply patch")

        def change(old: Object) -> Object:
            return _fitting(request, target, apply_patch(target.kind, old, request.content_type, body))

        made = self._store.patch(
            target.kind,
            target.name,
            change,
            target.namespace,
            part=_part(target),
            dry_run=is_dry_run(request),
            manager=manager_of(request, target),
        )
        return self._one(request, target, made)

    async def _apply(self, request: web.Request, target: Target, body: Any) -> web.Response:
        if not request.query.get("fieldManager"):
            raise errors.invalid_options("fieldManager", "Required value: is required for apply patch")
        if not isinstance(body, dict):
            raise errors.bad_request("a patch of this type is an object")
        if (named := (body.get("metadata") or {}).get("name", target.name)) != target.name:
            raise errors.bad_request(f"name in URL ({target.name}) does not match name in apply patch ({named})")
        manager, force = manager_of(request, target, "Apply"), is_true(request, "force")

        def change(old: Object) -> Object:
            applied = _fitting(request, target, body, whole=False)
            made = apply(target.kind, old, applied, manager, self._store.now(), force=force)
            return _fitting(request, target, made)

        if not target.subresource and not self.has(target):
            return self._add(request, target, change({"metadata": {"name": target.name}}))
        made = self._store.patch(
            target.kind, target.name, change, target.namespace, part=_part(target), dry_run=is_dry_run(request)
        )
        return self._one(request, target, made)

    async def _delete(self, request: web.Request, target: Target) -> web.Response:
        options = await read_body(request) or {}
        wanted = options.get("preconditions") or {}
        asked = options.get("propagationPolicy") or request.query.get("propagationPolicy") or "Background"
        if asked not in PROPAGATIONS:
            raise errors.bad_request(f"propagationPolicy: Unsupported value: {asked!r}")
        gone = self._store.delete(
            target.kind,
            target.name,
            target.namespace,
            uid=wanted.get("uid") or "",
            resource_version=wanted.get("resourceVersion") or "",
            propagation=asked,
            grace=options.get("gracePeriodSeconds"),
            dry_run=is_dry_run(request, options),
        )
        if target.kind.plural == "pods" or gone["metadata"].get("finalizers"):
            return self._one(request, target, gone)
        details = {"name": target.name, "kind": target.kind.plural, "uid": gone["metadata"]["uid"]}
        if target.kind.group:
            details["group"] = target.kind.group
        return json_answer(_success(details))

    async def _delete_all(self, request: web.Request, target: Target) -> web.Response:
        options = await read_body(request)
        dry_run = is_dry_run(request, options)
        for thing in self._selected(request, target):
            metadata = thing["metadata"]
            if self.has(target, metadata["name"], metadata.get("namespace", "")):
                self._store.delete(target.kind, metadata["name"], metadata.get("namespace", ""), dry_run=dry_run)
        return json_answer(_success({"kind": target.kind.plural}))

    async def _scale(self, request: web.Request, target: Target) -> web.Response:
        kind, name, namespace = target.kind, target.name, target.namespace
        if request.method == "GET":
            return json_answer(scale_of(kind, self._store.get(kind, name, namespace)))
        body = await read_body(request)
        change: Callable[[Object], Object]
        if request.method == "PUT" and isinstance(body, dict):

            def change(old: Object) -> Object:
                return with_scale(kind, old, body)

        elif request.method == "PATCH":

            def change(old: Object) -> Object:
                scale = apply_patch(kind, scale_of(kind, old), request.content_type, body)
                return with_scale(kind, old, scale)

        else:
            raise errors.method_not_allowed()
        manager = manager_of(request, target)
        made = self._store.patch(
            kind, name, change, namespace, part="spec", dry_run=is_dry_run(request), manager=manager
        )
        return json_answer(scale_of(kind, made))

    # Showing

    def _one(self, request: web.Request, target: Target, thing: Object, code: int = 200) -> web.Response:
        if include := _wants_table(request):
            version = thing["metadata"].get("resourceVersion", "")
            return json_answer(table(target.kind, [thing], self._store.now(), version, include), code)
        return json_answer(self._shown(target, thing), code)

    def has(self, target: Target, name: str = "", namespace: str = "") -> bool:
        """Whether the object is there."""
        try:
            self._store.get(target.kind, name or target.name, namespace or target.namespace)
        except errors.ApiError:
            return False
        return True

    @staticmethod
    def _shown(target: Target, thing: Object) -> Object:
        return {**thing, "apiVersion": target.api_version}


def json_answer(body: Object, code: int = 200) -> web.Response:
    return web.json_response(body, status=code)


def _success(details: dict[str, Any]) -> Object:
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}


def _part(target: Target) -> Part:
    return "status" if target.subresource == "status" else "spec"


def _fitting(request: web.Request, target: Target, thing: Object, *, whole: bool = True) -> Object:
    """An object that is of its kind's shape: without fields that are unknown, which a strict client is told of.

    What is applied is not the ``whole`` object, so it may lack what is required, but have no field that is unknown.
    """
    wanted = shape_of(target.kind)
    if wanted is None or target.subresource:
        return thing
    settle_type(target.kind, {**thing})
    fields = unknown(thing, wanted)
    if fields and not whole:
        raise errors.undeclared(target.kind.kind, target.api_version, thing.get("metadata") or {}, fields)
    if fields and request.query.get("fieldValidation") == "Strict":
        said = ", ".join(f'unknown field "{field}"' for field in fields)
        raise errors.bad_request(f"strict decoding error: {said}")
    if whole:
        check(target.kind, thing, wanted)
    return pruned(thing, wanted)


def _wants_table(request: web.Request) -> str:
    """What each row of the Table asked for is to hold, or nothing if JSON objects are asked for."""
    first = request.headers.get("Accept", "").split(",")[0].replace(" ", "")
    return request.query.get("includeObject", "Metadata") if ";as=Table" in first else ""
