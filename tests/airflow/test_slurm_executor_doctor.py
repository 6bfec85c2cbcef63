"""The doctor looks at what SlurmExecutor needs on nodes: each fault that is planted is named with its remedy."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import threading
from argparse import Namespace
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from airflow_provider_soperator.cli import executor_checks
from airflow_provider_soperator.cli.verdicts import Verdict
from tests.airflow.executors import on_nodes
from tests.airflow.stack import Stack
from tests.integration.cluster import Cluster

pytestmark = pytest.mark.lane("airflow of the executor")


class Bench:
    """Where faults are planted."""

    def __init__(self, stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
        self.stack, self.monkeypatch = stack, monkeypatch
        self.partition = "main"
        for name, value in stack.environment.items():
            if name.startswith("AIRFLOW_"):
                monkeypatch.setenv(name, value)
        # This process has read its own.
        monkeypatch.setattr("airflow.executors.executor_loader._executor_names", [])
        self.on_nodes()

    def set(self, section: str, **options: str) -> None:
        for option, value in options.items():
            self.monkeypatch.setenv(f"AIRFLOW__{section}__{option}".upper(), value)

    def on_nodes(self, **variables: str) -> None:
        # A node that cannot reach the API server gives up soon, and one whose answer is late does not.
        api = {"RETRIES": "2", "RETRY_WAIT_MAX": "1", "TIMEOUT": "60"}
        env = {f"AIRFLOW__WORKERS__EXECUTION_API_{name}": value for name, value in api.items()}
        env |= {**on_nodes(self.stack.folder), **variables}
        self.set("soperator", executor_job=json.dumps({"env": env}))

    def verdicts(self) -> list[Verdict]:
        return asyncio.run(executor_checks.executor_checks(Namespace(partition=self.partition)))


@pytest.fixture
def bench(stack: Stack, slurm: Cluster, monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(stack, monkeypatch)


class _NotFound(BaseHTTPRequestHandler):
    def do_PATCH(self) -> None:
        self.send_error(404)


@contextlib.contextmanager
def other_server() -> Iterator[str]:
    """A server that is no Airflow's."""
    with HTTPServer(("127.0.0.1", 0), _NotFound) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/execution/"
        finally:
            server.shutdown()
            thread.join()


def more_packages(bench: Bench) -> None:
    bench.monkeypatch.setattr(executor_checks, "installed_packages", lambda: ("no-such-package==1", "pip==0.1"))
    bench.monkeypatch.setattr(executor_checks, "local_packages", lambda: {"Our-DAGs", "pip"})


def no_partition(bench: Bench) -> None:
    bench.partition = "nowhere"


OURS = "airflow_provider_soperator.executors.SlurmExecutor"
OTHER_BUNDLE = '[{"name": "other", "classpath": "airflow.dag_processing.bundles.local.LocalDagBundle", "kwargs": {}}]'
#: What is planted, and how it is named; what does not hide each other is planted together, as a trial takes its time.
FAULTS: dict[str, tuple[Any, ...]] = {
    "not-configured": (lambda b: b.set("core", executor="LocalExecutor"), "has no SlurmExecutor"),
    "no-alias": (lambda b: b.set("core", executor=f"LocalExecutor,{OURS}"), "core. executor cannot be used"),
    "field-with-a-typo": (lambda b: b.set("soperator", executor_job='{"gpu": 1}'), "executor_job cannot be used"),
    "no-connection": (lambda b: b.set("soperator", executor_conn_id="nowhere"), "there is no connection nowhere"),
    "no-python": (lambda b: b.set("soperator", executor_python="/no/python"), "there is no Python /no/python"),
    "no-airflow": (lambda b: b.set("soperator", executor_python="/usr/bin/python3"), "python3 has no Airflow"),
    "packages-dags-and-nothing-answers": (
        lambda b: (
            more_packages(b),
            b.on_nodes(AIRFLOW__CORE__DAGS_FOLDER="/no/dags"),
            b.set("core", execution_api_server_url="http://127.0.0.1:9/execution/"),
        ),
        "packages .* 2 are not the same on nodes: no-such-package is missing, pip ",
        "the nodes have no Our-DAGs, which no index has",
        "is in /no/dags on the nodes",
        "its node did not reach Airflow's API server",
    ),
    "no-partition": (no_partition, "could not be submitted"),
    "other-bundle-and-secret": (
        lambda b: (
            b.on_nodes(AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST=OTHER_BUNDLE),
            b.set("api_auth", jwt_secret="another secret" * 8),
        ),
        "the nodes have no DAG bundle dags-folder",
        "Airflow refused its token",
    ),
}


def test_nothing_is_wrong_with_what_works(bench: Bench) -> None:
    verdicts = bench.verdicts()
    assert [str(one) for one in verdicts if one.state != "ok"] == []
    assert [one.subject for one in verdicts] == ["executor", "packages", "bundles", "way back"]
    assert "which accepts its token" in verdicts[-1].said


# A job for each: of those that are told alike one is enough.
@pytest.mark.parametrize("planted", FAULTS)
def test_a_planted_fault_is_named_with_its_remedy(planted: str, bench: Bench) -> None:
    plant, *names = FAULTS[planted]
    plant(bench)
    verdicts = bench.verdicts()
    for named in names:
        found = [one for one in verdicts if one.state != "ok" and re.search(named, f"{one.said}: {one.remedy}")]
        assert found, "\n".join(map(str, verdicts))
        assert all(one.remedy for one in found)


def test_another_server_is_not_taken_for_airflow(bench: Bench) -> None:
    with other_server() as url:
        bench.set("core", execution_api_server_url=url)
        found = bench.verdicts()[-1]
    assert (found.state, found.said) == ("wrong", f"what answers nodes at {url} is no API server of Airflow")
