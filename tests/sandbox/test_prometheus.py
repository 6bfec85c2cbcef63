"""The double of Prometheus: what its queries select, and how it refuses what is beyond it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest

from sandbox.prometheus.query import QueryError, Sample, evaluate
from sandbox.prometheus.server import serve
from tests.patience import PATIENCE

SAMPLES = [
    Sample({"__name__": "temperature", "pod": pod, "gpu": gpu}, value)
    for pod, gpu, value in (("worker-0", "0", 30), ("worker-0", "1", 90), ("worker-1", "0", 40))
] + [Sample({"__name__": "info", "reason": 'a "b" > 1, {c}'}, 1)]


def values(query: str) -> list[float]:
    return [sample.value for sample in evaluate(query, SAMPLES)]


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("temperature", [30, 90, 40]),
        ('temperature{pod="worker-0"}', [30, 90]),
        ('temperature{pod!="worker-0",}', [40]),
        ('temperature{pod=~"worker-.*", gpu!~"1|2"}', [30, 40]),
        ('temperature{pod=~"worker"}', []),
        ('{__name__=~"temp.*",gpu="1"}', [90]),
        ("temperature > 40", [90]),
        ("temperature >= 4e1", [90, 40]),
        ("(temperature) != 40", [30, 90]),
        ("max by (pod) (temperature)", [90, 40]),
        ("count(temperature) by (gpu)", [2, 1]),
        ("sum(temperature > 35)", [130]),
        ('info{reason="a \\"b\\" > 1, {c}"}', [1]),
        ('temperature{missing=""}', [30, 90, 40]),
        ("nothing", []),
    ],
)
def test_queries(query: str, found: list[float]) -> None:
    assert values(query) == found


@pytest.mark.parametrize(
    "query",
    ["", "rate(temperature[5m])", "a + b", "max(temperature{gpu='1'})", "temperature{pod}", 'temperature{pod=~"("}'],
)
def test_what_is_beyond_it(query: str) -> None:
    with pytest.raises(QueryError):
        values(query)


@pytest.fixture
def ask(tmp_path: Path) -> Iterator[Any]:
    """Asks a served double, in a loop of its own."""
    loop = asyncio.new_event_loop()

    async def scrape() -> list[Sample]:
        return SAMPLES

    runner = loop.run_until_complete(serve(scrape, "127.0.0.1", 0))
    url = f"http://127.0.0.1:{runner.addresses[0][1]}/api/v1/"

    def asking(endpoint: str, **words: str) -> tuple[int, Any]:
        def fetch() -> tuple[int, Any]:
            try:
                with urlopen(f"{url}{endpoint}?{urlencode(words)}", timeout=PATIENCE) as answer:
                    assert answer.headers["X-Sandbox-Double"] == "prometheus"
                    return answer.status, json.load(answer)
            except HTTPError as refused:
                with refused:
                    return refused.code, json.load(refused)

        return loop.run_until_complete(loop.run_in_executor(None, fetch))

    yield asking
    loop.run_until_complete(runner.cleanup())
    loop.close()


def test_a_moment(ask: Any) -> None:
    code, said = ask("query", query='temperature{gpu="1"}', time="12.5")
    metric = {"__name__": "temperature", "pod": "worker-0", "gpu": "1"}
    assert (code, said["status"], said["data"]["resultType"]) == (200, "success", "vector")
    assert said["data"]["result"] == [{"metric": metric, "value": [12.5, "90"]}]


def test_a_range(ask: Any) -> None:
    code, said = ask("query_range", query="info", start="100", end="1970-01-01T00:02:40Z", step="30s")
    assert (code, said["data"]["resultType"]) == (200, "matrix")
    assert said["data"]["result"][0]["values"] == [[100, "1"], [130, "1"], [160, "1"]]


@pytest.mark.parametrize(
    ("endpoint", "words"),
    [
        ("query", {"query": "rate(up[5m])"}),
        ("query", {"query": "up", "time": "soon"}),
        ("query_range", {"query": "up", "start": "1", "end": "2"}),
        ("query_range", {"query": "up", "start": "1", "end": "2", "step": "0"}),
    ],
)
def test_refusals(ask: Any, endpoint: str, words: dict[str, str]) -> None:
    code, said = ask(endpoint, **words)
    assert (code, said["status"], said["errorType"]) == (400, "error", "bad_data")
