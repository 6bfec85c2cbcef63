"""The sandboxes of the integration tests, reached over every transport in turn."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.contract.transports import WAYS, Way, connection_id
from tests.integration.cluster import Cluster


@pytest.fixture
def connect(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Way]]:
    """Opens ways to the sandbox by their names, and closes them at the end."""
    uri = cluster.access["airflow_connections"]["AIRFLOW_CONN_SSH_DEFAULT"]
    monkeypatch.setenv(f"AIRFLOW_CONN_{connection_id(cluster).upper()}", uri)
    opened: list[Way] = []

    def connect(name: str) -> Way:
        opened.append(WAYS[name](cluster))
        return opened[-1]

    yield connect
    for way in opened:
        way.close()


@pytest.fixture(params=list(WAYS))
def way(request: pytest.FixtureRequest, connect: Callable[[str], Way]) -> Way:
    """One way to the sandbox after another; tests that use it run over each."""
    return connect(request.param)
