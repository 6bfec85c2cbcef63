"""Metrics from a Prometheus or a compatible server, over the stock connection of type ``http``."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from airflow.sdk import BaseHook

from airflow_provider_soperator.health.metrics import METRICS, Metric, Sample
from airflow_provider_soperator.hooks.connections import http_address, installed, read_connection
from airflow_provider_soperator.transports.transport_errors import (
    ConnectFailed,
    ConnectRefused,
    Unreachable,
    without_login,
)

if TYPE_CHECKING:
    import httpx

T = TypeVar("T")
#: Seconds for an answer.
_PATIENCE = 20.0
_CHECK = "check the address in the connection: it is that of Prometheus itself, such as http://prometheus:9090"


class PrometheusHook(BaseHook):
    """A Prometheus behind a connection of type ``http``.

    Its host may be a whole address, with a path before ``/api/v1``. A login with a password is sent as it is, and a
    password alone, or ``bearer_token`` in the extra, as a bearer token. ``headers`` and ``verify`` (false, or a file
    with certificates) can be in the extra.

        faults = await PrometheusHook("prometheus_default").faults()
    """

    conn_name_attr = "prometheus_conn_id"
    default_conn_name = "prometheus_default"

    def __init__(self, prometheus_conn_id: str = default_conn_name) -> None:
        super().__init__()
        self.prometheus_conn_id = prometheus_conn_id

    async def faults(self, labels: Mapping[str, str] | None = None) -> dict[Metric, list[Sample]]:
        """Samples of all known metrics of faults, from the series with some labels."""
        async with await self._client() as client:
            answers = await asyncio.gather(*(self._query(client, metric.query(labels or {})) for metric in METRICS))
        return dict(zip(METRICS, answers, strict=True))

    async def query(self, expression: str) -> list[Sample]:
        """Evaluate a PromQL expression now; its value must be a vector."""
        async with await self._client() as client:
            return await self._query(client, expression)

    async def query_range(self, expression: str, since: datetime, until: datetime, step: timedelta) -> Any:
        """Evaluate a PromQL expression at up to 11,000 steps of a time: the ``data`` of the answer."""
        span = {"start": str(since.timestamp()), "end": str(until.timestamp()), "step": str(step.total_seconds())}
        async with await self._client() as client:
            answer = await self._ask(client, "api/v1/query_range", {"query": expression, **span})
        return _read(answer.status_code, answer.content, expression, dict)

    async def _query(self, client: httpx.AsyncClient, expression: str) -> list[Sample]:
        answer = await self._ask(client, "api/v1/query", {"query": expression})
        return vector_of(answer.status_code, answer.content, expression)

    async def _ask(self, client: httpx.AsyncClient, path: str, params: dict[str, str]) -> httpx.Response:
        import httpx

        try:
            return await client.get(path, params=params)
        except httpx.TimeoutException as error:
            raise ConnectRefused(
                f"Prometheus did not answer within {_PATIENCE:g} s", "see whether it is overloaded"
            ) from error
        except httpx.HTTPError as error:
            place = without_login(str(client.base_url))
            raise Unreachable(f"Prometheus at {place} does not answer ({error})", _CHECK) from error

    async def _client(self) -> httpx.AsyncClient:
        with installed("rest"):
            import httpx
        connection, extra = await read_connection(self.prometheus_conn_id)
        if not (connection.host or "").strip():
            raise ConnectFailed(f"the connection {self.prometheus_conn_id} has no host", _CHECK)
        token = extra.get("bearer_token") or ("" if connection.login else connection.password)
        headers, verify = dict(extra.get("headers") or {}), extra.get("verify", True)
        if token:
            headers["Authorization"] = f"Bearer {token}"
        try:
            return httpx.AsyncClient(
                base_url=http_address(connection),
                headers=headers,
                auth=(connection.login, connection.password or "") if connection.login else None,
                # In a URI a flag is a text.
                verify={"true": True, "false": False}.get(str(verify).lower(), verify),
                timeout=_PATIENCE,
            )
        except (httpx.InvalidURL, OSError) as error:
            raise ConnectFailed(f"the connection {self.prometheus_conn_id} cannot be used ({error})", _CHECK) from error


def vector_of(status: int, content: bytes, expression: str) -> list[Sample]:
    """The series of an answer; raises ``ConnectFailed`` for an error or an unexpected answer."""

    def series(data: Mapping[str, Any]) -> list[Sample]:
        if data["resultType"] != "vector":
            raise ConnectFailed(f"{expression} is a {data['resultType']}, not a vector", "ask for series")
        # A value comes with its time.
        return [Sample(dict(one["metric"]), float(one["value"][1])) for one in data["result"]]

    return _read(status, content, expression, series)


def _read(status: int, content: bytes, expression: str, read: Callable[[Mapping[str, Any]], T]) -> T:
    """The data of an answer, as it is read."""
    if status in (401, 403):
        raise ConnectFailed(
            f"Prometheus refused the credentials (HTTP {status})",
            "set login and password, or a bearer token, in its connection",
        )
    try:
        answer = json.loads(content)
        if answer["status"] != "success":
            said = f"{answer.get('errorType', '')}: {answer.get('error', '')}"
            words = f"Prometheus could not answer {expression} ({said})"
            if answer.get("errorType") in ("bad_data", "not_acceptable"):
                raise ConnectFailed(words, "see whether labels are named as Prometheus allows")
            raise ConnectRefused(words, "see whether it is overloaded")
        return read(answer["data"])
    except (ValueError, KeyError, TypeError) as error:
        if status == 429 or status >= 500:
            raise ConnectRefused(
                f"Prometheus cannot answer at present (HTTP {status})", "see whether it is starting or overloaded"
            ) from error
        raise ConnectFailed(f"the server that answered is not a Prometheus (HTTP {status})", _CHECK) from error
