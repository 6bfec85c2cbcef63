"""What tests of hooks and clients share: connections, clients of either kind, and a sandbox beside the one for all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import pytest

from sandbox.lifecycle import Sandbox
from sandbox.settings import Settings
from tests.contract.transports import connection_id
from tests.integration.clients import KINDS, ClientUnderTest
from tests.integration.cluster import Cluster
from tests.integration.connections import Connections
from tests.integration.shifts import Shifts
from tests.patience import PATIENCE
from tests.sandboxes import kept_up, owned

ConnectClient = Callable[..., ClientUnderTest]


@pytest.fixture
def connections(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Connections:
    return Connections(cluster, monkeypatch)


@pytest.fixture
def connect_kind(monkeypatch: pytest.MonkeyPatch) -> Iterator[ConnectClient]:
    """Makes clients of a kind to a sandbox, and closes them at the end."""
    opened: list[ClientUnderTest] = []

    def connect(kind: str, cluster: Cluster, user: str = "root") -> ClientUnderTest:
        uri = cluster.access["airflow_connections"]["AIRFLOW_CONN_SSH_DEFAULT"]
        name = f"{connection_id(cluster)}_{user}"
        monkeypatch.setenv(f"AIRFLOW_CONN_{name.upper()}", uri.replace("root@", f"{user}@"))
        opened.append(KINDS[kind](name))
        return opened[-1]

    yield connect
    for client in opened:
        client.close()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """What takes several questions is written once for both kinds of clients, and so is tested with one of them."""
    if "connect_client" in metafunc.fixturenames:
        both = metafunc.definition.get_closest_marker("each_client")
        metafunc.parametrize("connect_client", list(KINDS) if both else ["loop"], indirect=True)


@pytest.fixture
def connect_client(request: pytest.FixtureRequest, connect_kind: ConnectClient) -> ConnectClient:
    """The same for one kind; tests that are marked so run with each."""
    return partial(connect_kind, request.param)


@pytest.fixture
def connect_both(connect_kind: ConnectClient) -> Callable[[Cluster], list[ClientUnderTest]]:
    """One client of each kind at the same time, for what takes long to bring about."""
    return lambda cluster: [connect_kind(kind, cluster) for kind in KINDS]


@pytest.fixture
def slurm(cluster: Cluster, connect_client: ConnectClient) -> ClientUnderTest:
    """A client to the sandbox that all tests share."""
    return connect_client(cluster)


@pytest.fixture(scope="session")
def forgetful_sandbox(sandbox: Sandbox) -> Iterator[Sandbox]:
    """One whose queue forgets jobs within seconds of their end."""
    name = f"forgetful-{sandbox.settings.name}"[:32].rstrip("-")
    small = Settings(name=name, slurm=sandbox.settings.slurm, root=sandbox.settings.root, workers=1, static=0)
    made = Sandbox(replace(small, min_job_age=2))
    try:
        made.up()
        yield made
    finally:
        made.down()


@pytest.fixture
def forgetful(request: pytest.FixtureRequest, forgetful_sandbox: Sandbox) -> Iterator[Cluster]:
    with owned(request, Cluster(forgetful_sandbox)) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def shift_sandbox(sandbox: Sandbox) -> Iterator[Sandbox]:
    """One whose nodes are all on, and whose machines go soon."""
    name = f"shifts-{sandbox.settings.name}"[:32].rstrip("-")
    all_on = Settings(name=name, slurm=sandbox.settings.slurm, root=sandbox.settings.root, workers=4, initial=4)
    soon = replace(all_on, static=1, suspend_timeout=1, vm_boot=0.5, vm_lag=1, vm_removal=0.5)
    with kept_up(replace(soon, resume_timeout=PATIENCE // 2)) as made:
        yield made


@pytest.fixture
def shifts(request: pytest.FixtureRequest, shift_sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shifts]:
    cluster = Cluster(shift_sandbox)
    shifts = Shifts(cluster, monkeypatch)
    with owned(request, cluster, shifts.restore):
        yield shifts
        shifts.close()
