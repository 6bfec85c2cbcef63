"""What only pods have: commands run in them, and their logs."""

from __future__ import annotations

from typing import Protocol

from aiohttp import web

from sandbox.kube import errors
from sandbox.kube.execution import (
    RESIZE,
    STDERR,
    STDIN,
    STDOUT,
    ExecRequest,
    PodRunner,
    choose_container,
    execute,
    require_running,
)
from sandbox.kube.objects import Object
from sandbox.kube.requests import Target, is_true
from sandbox.kube.spdy import PROTOCOL, Hijacked, SpdyWire
from sandbox.kube.store import ObjectStore
from sandbox.kube.websocket import WebSocketWire


class PodLogs(Protocol):
    """Reads what a container has written, all of it or its last lines."""

    async def __call__(self, pod: Object, container: str, tail_lines: int | None) -> bytes: ...


class Pods:
    """Answers requests for the exec and log of the pods in a store."""

    def __init__(self, store: ObjectStore, runner: PodRunner, logs: PodLogs, headers: dict[str, str]) -> None:
        self._store, self._runner, self._logs, self._headers = store, runner, logs, headers

    async def answer(self, request: web.Request, target: Target) -> web.StreamResponse:
        pod = self._store.get("pods", target.name, target.namespace)
        container = choose_container(pod, request.query.get("container", ""))
        if target.subresource == "log" and request.method == "GET":
            return await self._log(request, pod, container)
        if target.subresource == "exec" and request.method in ("GET", "POST"):
            return await self._exec(request, pod, container)
        raise errors.method_not_allowed()

    async def _log(self, request: web.Request, pod: Object, container: str) -> web.Response:
        tail = request.query.get("tailLines")
        if tail is not None and not tail.isdigit():
            raise errors.bad_request(f"tailLines: Invalid value: {tail!r}")
        text = await self._logs(pod, container, None if tail is None else int(tail))
        return web.Response(body=text, content_type="text/plain")

    async def _exec(self, request: web.Request, pod: Object, container: str) -> web.StreamResponse:
        argv = request.query.getall("command", [])
        if not argv:
            raise errors.bad_request("you must specify at least 1 command for the container")
        require_running(pod, container)
        tty = is_true(request, "tty")
        wanted = ExecRequest(
            pod,
            container,
            argv,
            stdin=is_true(request, "stdin"),
            stdout=is_true(request, "stdout"),
            # A terminal has no second stream to write to.
            stderr=is_true(request, "stderr") and not tty,
            tty=tty,
        )
        upgrade = request.headers.get("Upgrade", "").lower()
        if upgrade == PROTOCOL.lower():
            streams = ((STDIN, wanted.stdin), (STDOUT, wanted.stdout), (STDERR, wanted.stderr), (RESIZE, tty))
            channels = {channel for channel, present in streams if present}
            spdy = await SpdyWire.accept(request, channels, self._headers)
            await self._joined(wanted, spdy)
            return Hijacked()
        if upgrade != "websocket":
            raise errors.bad_request("Upgrade request required")
        wire = await WebSocketWire.accept(request)
        await self._joined(wanted, wire)
        return wire.response

    async def _joined(self, wanted: ExecRequest, wire: WebSocketWire | SpdyWire) -> None:
        try:
            await execute(wanted, self._runner, wire)
        except BaseException:
            # Clients take a connection that ends in good order, without a status, for a success.
            wire.abort()
            raise
        await wire.close()
