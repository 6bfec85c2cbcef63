"""The HTTPS server of the double: who may ask, what is asked, and what goes wrong on demand."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, replace
from pathlib import Path

from aiohttp import web

from sandbox.cloud.faults import ApiFaults
from sandbox.kube import discovery, errors, openapi
from sandbox.kube.catalogue import SECRET
from sandbox.kube.certificates import ensure_certificates
from sandbox.kube.chart_kinds import SERVICE_ACCOUNT
from sandbox.kube.evictions import evict
from sandbox.kube.execution import PodRunner
from sandbox.kube.patch import APPLY
from sandbox.kube.pods import PodLogs, Pods
from sandbox.kube.requests import Target, parse_target, read_object
from sandbox.kube.resources import Resources, json_answer
from sandbox.kube.rights import REVIEWS, Rights, User, attributes
from sandbox.kube.store import ObjectStore
from sandbox.kube.tokens import Tokens

#: On every answer, so that nobody takes this for a cluster.
DOUBLE_HEADER = {"X-Sandbox-Double": "kubernetes"}

#: Answered without a token.
_OPEN = ("/readyz", "/livez", "/healthz")
_HANG_SECONDS = 600.0
_PROTOBUF_OPENAPI = "application/com.github.proto-openapi.spec.v2"
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class KubernetesDouble:
    """A running server; ``close`` ends it, with all that is still open, in under a second."""

    url: str
    port: int
    ca_file: Path
    runner: web.AppRunner

    async def close(self) -> None:
        await self.runner.cleanup()


async def serve(
    store: ObjectStore,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    token: str,
    certificates: Path,
    runner: PodRunner,
    logs: PodLogs,
    faults: ApiFaults,
    viewer_token: str = "",
) -> KubernetesDouble:
    """Serve a store over HTTPS in the running event loop; port 0 takes a free one.

    Who comes with ``token`` may do anything, who comes with ``viewer_token`` may read. A ServiceAccount with a token
    of its own may do what roles allow.
    """
    made = ensure_certificates(certificates)
    api = _Api(store, Tokens(store, token, made.ca_file.read_bytes(), viewer_token), runner, logs, faults)
    app = web.Application(client_max_size=64 * 1024**2)
    app.router.add_route("*", "/{path:.*}", api.handle)
    app.on_response_prepare.append(_sign)
    app.on_shutdown.append(api.close)
    # Handlers are cancelled when their client leaves: a watch or a hung call must not stay behind.
    serving = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.5)
    await serving.setup()
    try:
        site = web.TCPSite(serving, host, port, ssl_context=made.server_context(), backlog=512)
        await site.start()
    except BaseException:
        await serving.cleanup()
        raise
    bound = serving.addresses[0][1]
    name = f"[{host}]" if ":" in host else host
    return KubernetesDouble(f"https://{name}:{bound}", bound, made.ca_file, serving)


async def _sign(request: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(DOUBLE_HEADER)


class _Api:
    def __init__(self, store: ObjectStore, tokens: Tokens, runner: PodRunner, logs: PodLogs, faults: ApiFaults) -> None:
        self._store, self._tokens, self._faults = store, tokens, faults
        self._rights = Rights(store)
        self._resources = Resources(store)
        self._pods = Pods(store, runner, logs, DOUBLE_HEADER)
        self._held: set[asyncio.Task[object]] = set()

    async def close(self, app: web.Application) -> None:
        self._resources.close()
        for task in self._held:
            task.cancel()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        try:
            if request.path in _OPEN:
                return self._describe(request)
            return await self._dispatch(request, self._tokens.admit(request))
        except errors.ApiError as problem:
            return json_answer(problem.status(), problem.code)
        except (web.HTTPException, ConnectionError):
            raise
        except Exception as problem:
            _log.exception("%s %s failed", request.method, request.path)
            return json_answer(errors.internal(repr(problem)).status(), 500)

    async def _dispatch(self, request: web.Request, user: User) -> web.StreamResponse:
        if request.path == REVIEWS and request.method == "POST":
            return json_answer(self._rights.review(user, await read_object(request)), 201)
        target = parse_target(self._store.kinds, request.path)
        if target is None:
            return self._describe(request)
        wanted = attributes(request, target)
        self._rights.demand(user, wanted)
        await self._strike(request, target)
        if target.kind == SERVICE_ACCOUNT and target.subresource == "token" and request.method == "POST":
            return json_answer(self._tokens.request(target.name, target.namespace, await read_object(request)), 201)
        if target.kind.plural == "pods" and target.subresource == "eviction":
            return json_answer(await evict(self._store, request, target), 201)
        if target.kind.plural == "pods" and target.subresource in ("exec", "log"):
            with self._holding():
                return await self._pods.answer(request, target)
        if request.content_type == APPLY and not target.subresource and not self._resources.has(target):
            # An apply that makes the object needs the right to.
            self._rights.demand(user, replace(wanted, verb="create"))
        answer = await self._resources.answer(request, target)
        if target.kind == SECRET and wanted.verb in ("create", "update", "patch"):
            self._tokens.fill(target.namespace)
        return answer

    async def _strike(self, request: web.Request, target: Target) -> None:
        effect = self._faults.strike("kubernetes", f"{request.method} {target.called}")
        if effect == "error":
            # Without Retry-After: with it most clients try again by themselves, and nobody sees the fault.
            raise errors.unavailable("the server is currently unable to handle the request (fault on demand)")
        if effect == "conflict":
            raise errors.conflict(target.kind.resource, target.name)
        if effect == "hang":
            with self._holding():
                await asyncio.sleep(_HANG_SECONDS)
            raise errors.ApiError(504, "Timeout", "the request did not complete in time (fault on demand)")

    def _holding(self) -> _Holding:
        return _Holding(self._held)

    def _describe(self, request: web.Request) -> web.Response:
        if request.method not in ("GET", "HEAD"):
            raise errors.unknown_path()
        path, kinds = request.path.rstrip("/"), self._store.kinds
        if path in _OPEN:
            return web.Response(text="ok")
        if path == "/openapi/v2" and _PROTOBUF_OPENAPI in request.headers.get("Accept", ""):
            return web.Response(body=openapi.v2_protobuf(), content_type="application/octet-stream")
        parts = path.strip("/").split("/")
        found = None
        if path == "/version":
            found = discovery.version()
        elif path == "/api":
            found = discovery.core_versions(request.host)
        elif path == "/apis":
            found = discovery.groups(kinds)
        elif parts[0] == "api" and len(parts) == 2:
            found = discovery.resources(kinds, "", parts[1])
        elif parts[0] == "apis" and len(parts) == 2:
            found = discovery.group(kinds, parts[1])
        elif parts[0] == "apis" and len(parts) == 3:
            found = discovery.resources(kinds, parts[1], parts[2])
        elif path == "/openapi/v2":
            found = openapi.v2()
        elif path == "/openapi/v3":
            found = openapi.v3_index(kinds)
        elif path.startswith("/openapi/v3/"):
            found = openapi.v3(kinds, path[len("/openapi/v3/") :])
        if found is None:
            raise errors.unknown_path()
        return json_answer(found)


class _Holding:
    """Marks the present task as one to cancel when the server ends."""

    def __init__(self, held: set[asyncio.Task[object]]) -> None:
        self._held = held
        self._task: asyncio.Task[object] | None = None

    def __enter__(self) -> None:
        self._task = asyncio.current_task()
        if self._task is not None:
            self._held.add(self._task)

    def __exit__(self, *problem: object) -> None:
        if self._task is not None:
            self._held.discard(self._task)
