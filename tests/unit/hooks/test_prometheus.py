"""What a Prometheus may answer, and what is made of it."""

from __future__ import annotations

import asyncio
import json
import math
from typing import Any

import httpx
import pytest
from airflow.sdk import Connection

from airflow_provider_soperator.errors import ConnectionMistake
from airflow_provider_soperator.health.metrics import Sample
from airflow_provider_soperator.hooks.cluster_clients import ShiftClients
from airflow_provider_soperator.hooks.connections import http_address
from airflow_provider_soperator.hooks.prometheus import PrometheusHook, vector_of
from airflow_provider_soperator.transports.transport_errors import ConnectFailed, ConnectRefused


def answer(code: int, **said: Any) -> list[Sample]:
    return vector_of(code, json.dumps(said).encode(), "up")


def test_a_vector() -> None:
    result = [{"metric": {"__name__": "up", "job": "a"}, "value": [1795316051.1, "79"]}]
    assert answer(200, status="success", data={"resultType": "vector", "result": result}) == [
        Sample({"__name__": "up", "job": "a"}, 79.0)
    ]


def test_a_login_in_the_address_is_not_told() -> None:
    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("nobody is there")

    async def ask() -> None:
        nobody = httpx.MockTransport(refuse)
        async with httpx.AsyncClient(base_url="http://ada:hunter2@figures:9090", transport=nobody) as client:
            await PrometheusHook()._query(client, "up")

    with pytest.raises(ConnectFailed, match=r"http://figures:9090/? does not answer \(nobody is there\)"):
        asyncio.run(ask())


@pytest.mark.parametrize("status", [401, 403])
def test_credentials_are_refused(status: int) -> None:
    with pytest.raises(ConnectFailed, match=rf"refused the credentials \(HTTP {status}\): set login and password"):
        vector_of(status, b"no", "up")


@pytest.mark.parametrize(("kind", "error"), [("bad_data", ConnectFailed), ("timeout", ConnectRefused)])
def test_it_cannot_answer(kind: str, error: type[Exception]) -> None:
    with pytest.raises(error, match=rf"could not answer up \({kind}: why\)") as refused:
        answer(503, status="error", errorType=kind, error="why")
    assert refused.value.retryable == (kind == "timeout")  # type: ignore[attr-defined]


@pytest.mark.parametrize("content", [b"<html>", b"[]", b"{}", b'{"status": "success"}'])
def test_somebody_else_answers(content: bytes) -> None:
    with pytest.raises(ConnectFailed, match=r"the server that answered is not a Prometheus \(HTTP 200\)"):
        vector_of(200, content, "up")


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_it_may_start_or_be_overloaded(status: int) -> None:
    with pytest.raises(ConnectRefused, match=rf"Prometheus cannot answer at present \(HTTP {status}\)"):
        vector_of(status, b"Service Unavailable", "up")


@pytest.mark.parametrize(
    ("uri", "address"),
    [
        ("http://[fd00::1]:9090", "http://[fd00::1]:9090"),
        ("https://ada:hunter2@[2001:db8::10]", "https://[2001:db8::10]"),
        ("http://[::1]:9090/https", "https://[::1]:9090"),
        ("http://%3A%3Affff%3A10.0.0.1%2Fprom:9090", "http://[::ffff:10.0.0.1]:9090/prom"),
        ("http://figures:9090", "http://figures:9090"),
    ],
)
def test_an_address_of_ipv6_has_its_brackets(uri: str, address: str) -> None:
    assert http_address(Connection.from_uri(uri, conn_id="figures")) == address
    httpx.URL(address)


@pytest.mark.parametrize("host", ["http://me:secret@[fd00::1:9090", "[fd00::1", "http://me:secret@figures\u2100"])
def test_a_host_that_is_no_address_is_refused_without_its_password(host: str) -> None:
    with pytest.raises(ConnectionMistake, match="the host of the connection figures is no address: write") as caught:
        http_address(Connection(conn_id="figures", conn_type="http", host=host))
    assert "secret" not in str(caught.value)
    assert caught.value.__suppress_context__


@pytest.mark.parametrize("verify", ["true", "false"])
def test_a_flag_may_be_a_text(verify: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []

    def client(**said: Any) -> None:
        made.append(said["verify"])

    monkeypatch.setattr(httpx, "AsyncClient", client)
    monkeypatch.setenv("AIRFLOW_CONN_FIGURES", f"https://figures:9090/?verify={verify}")
    asyncio.run(PrometheusHook("figures")._client())
    assert made == [verify == "true"]


def test_a_question_that_is_not_for_series() -> None:
    with pytest.raises(ConnectFailed, match="up is a scalar, not a vector"):
        answer(200, status="success", data={"resultType": "scalar", "result": [1, "2"]})


@pytest.mark.parametrize(
    ("values", "value"), [([1.0, 2.0], 3.0), ([], None), ([1.0, math.nan], None), ([1e308, 1e308], None)]
)
def test_the_value_of_a_query_is_a_number_or_none(
    values: list[float], value: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def query(hook: PrometheusHook, expression: str) -> list[Sample]:
        return [Sample({}, one) for one in values]

    monkeypatch.setattr(PrometheusHook, "query", query)
    assert asyncio.run(ShiftClients().metric("prometheus_default", "up")) == value
