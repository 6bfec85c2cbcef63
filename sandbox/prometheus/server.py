"""The HTTP server of the double: Prometheus' two query endpoints, which answer with what is the case now."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any

from aiohttp import web

from sandbox.prometheus.query import QueryError, Sample, evaluate

#: On every answer, so that nobody takes this for a Prometheus.
DOUBLE_HEADER = {"X-Sandbox-Double": "prometheus"}
_MOST_STEPS = 11_000

Scrape = Callable[[], Awaitable[list[Sample]]]


async def serve(scrape: Scrape, host: str, port: int) -> web.AppRunner:
    """Serve what ``scrape`` gives in the running event loop; its ``cleanup`` ends it."""
    api = _Api(scrape)
    app = web.Application()
    for method in ("GET", "POST"):
        app.router.add_route(method, "/api/v1/query", api.query)
        app.router.add_route(method, "/api/v1/query_range", api.query_range)
    app.router.add_get("/-/ready", api.ready)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.5)
    await runner.setup()
    await web.TCPSite(runner, host, port).start()
    return runner


class _Api:
    def __init__(self, scrape: Scrape) -> None:
        self._scrape = scrape

    async def ready(self, request: web.Request) -> web.Response:
        return web.Response(text="Prometheus Server is Ready.\n", headers=DOUBLE_HEADER)

    async def query(self, request: web.Request) -> web.Response:
        words = await _words(request)
        try:
            moment = _moment(words["time"]) if "time" in words else time.time()
            found = evaluate(words.get("query", ""), await self._scrape())
        except ValueError as problem:
            return _refusal(problem)
        return _answer("vector", [{"metric": s.labels, "value": [moment, _number(s.value)]} for s in found])

    async def query_range(self, request: web.Request) -> web.Response:
        """The present value at each step: there is no memory of others."""
        words = await _words(request)
        try:
            missing = [word for word in ("start", "end", "step") if word not in words]
            if missing:
                raise QueryError(f'invalid parameter "{missing[0]}": it is missing')
            start, end, step = _moment(words["start"]), _moment(words["end"]), _seconds(words["step"])
            if step <= 0 or not 0 <= (end - start) / step <= _MOST_STEPS:
                raise QueryError(f"there may be up to {_MOST_STEPS} steps, from start to end")
            moments = [start + step * number for number in range(int((end - start) / step) + 1)]
            found = evaluate(words.get("query", ""), await self._scrape())
        except ValueError as problem:
            return _refusal(problem)
        rows = [{"metric": s.labels, "values": [[moment, _number(s.value)] for moment in moments]} for s in found]
        return _answer("matrix", rows)


async def _words(request: web.Request) -> dict[str, str]:
    form = await request.post() if request.method == "POST" else {}
    return {**request.query, **{name: str(value) for name, value in form.items()}}


def _moment(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


def _seconds(text: str) -> float:
    units = {"s": 1, "m": 60, "h": 3600, "d": 86400}
    return float(text[:-1]) * units[text[-1]] if text[-1:] in units else float(text)


def _number(value: float) -> str:
    return f"{value:g}"


def _answer(type_: str, result: list[Any]) -> web.Response:
    body = {"status": "success", "data": {"resultType": type_, "result": result}}
    return web.json_response(body, headers=DOUBLE_HEADER)


def _refusal(problem: ValueError) -> web.Response:
    body = {"status": "error", "errorType": "bad_data", "error": str(problem)}
    return web.json_response(body, status=400, headers=DOUBLE_HEADER)
