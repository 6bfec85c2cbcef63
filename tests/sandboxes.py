"""One sandbox for each Slurm version, shared by all tests of a run, which leave it as they found it."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from sandbox import faults
from sandbox.lifecycle import Sandbox
from sandbox.rootfs import own_root
from sandbox.settings import SUITES, Settings
from tests.contract.transports import WAYS, Way, connection_id
from tests.integration.cluster import Cluster, check_ledger

#: Folders whose tests are about a running sandbox, and what those of them share that do not share a sandbox.
FOLDERS = {
    "airflow": "airflow",
    "contract": "sandboxes of their own",
    "integration": "sandboxes of their own",
    "ui": "browser",
}


#: Where tests run side by side, those that take long are begun first, so that all come to their end at the same time.
#: The Airflow of shifts is that of the others, if these are over first.
LONG = (max(SUITES), min(SUITES), "airflow", "airflow of shifts", "sandboxes of their own", "shifts", "browser")


# First, as xdist reads the marks in this same hook, and last, as pytest has an order of its own.
@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Iterator[None]:
    """Mark what needs a sandbox; where tests run side by side, those that share something follow each other."""
    here = Path(__file__).parent
    for item in items:
        folder = next((folder for folder in FOLDERS if here / folder in item.path.parents), None)
        if folder is None:
            continue
        item.add_marker(pytest.mark.sandbox)
        shared = getattr(item, "callspec", None) and item.callspec.params.get("sandbox")  # type: ignore[attr-defined]
        lane = item.get_closest_marker("lane")
        # A browser costs more than a sandbox, so it is the browser that is shared.
        group = shared["slurm"] if shared and folder != "ui" else FOLDERS[folder]
        item.add_marker(pytest.mark.xdist_group(lane.args[0] if lane else group))
    yield
    items.sort(key=_turn)


def _turn(item: pytest.Item) -> int:
    group = item.get_closest_marker("xdist_group")
    return LONG.index(group.args[0]) if group and group.args[0] in LONG else len(LONG)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slurm-root", metavar="DIR", help="test on the Slurm in this root only; see docs/native.md")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "sandbox" in metafunc.fixturenames:
        root = metafunc.config.getoption("--slurm-root")
        any_slurm = metafunc.definition.get_closest_marker("any_slurm")
        versions = [*SUITES]
        if any_slurm and not metafunc.definition.get_closest_marker("each_slurm"):
            # The oldest and the newest are tested side by side, and are to take as long.
            versions = [min(SUITES) if "oldest" in any_slurm.args else max(SUITES)]
        chosen = [own_root(root)] if root else [{"slurm": version} for version in versions]
        ids = [f"slurm-{one['slurm']}" for one in chosen]
        metafunc.parametrize("sandbox", chosen, indirect=True, scope="session", ids=ids)


@contextmanager
def kept_up(settings: Settings) -> Iterator[Sandbox]:
    """A sandbox for many tests, whose ledger is proved to be in order at their end."""
    made = Sandbox(settings)
    try:
        made.up()
        yield made
        check_ledger(Cluster(made).ledger())
    finally:
        made.down()


@pytest.fixture(scope="session")
def sandbox(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    """A sandbox of one Slurm version; tests that use it run on each."""
    if os.geteuid() != 0 or not Path("/etc/debian_version").exists():
        pytest.skip("a sandbox needs root on Debian")
    slurm: dict[str, str] = request.param
    # Its own name: a sandbox that the developer has running stays out of it.
    name = f"test-{slurm['slurm'].replace('.', '')}-{os.getpid()}"
    settings = Settings(name=name, **slurm, workers=4, resume_timeout=12, suspend_timeout=1, checks="off")
    with kept_up(replace(settings, vm_boot=0.5, vm_lag=3, vm_removal=0.5)) as made:
        yield made


@pytest.fixture
def cluster(sandbox: Sandbox) -> Iterator[Cluster]:
    """The sandbox with worker-0 on, worker-1 to worker-3 off, nothing queued, nothing broken.

    Machines of an earlier test may still hold their GPUs for a moment; ``cluster.settle`` waits until they do not.
    """
    cluster = Cluster(sandbox)
    cluster.reset()
    yield cluster
    cluster.close()
    sandbox.up()  # starts what the test has killed
    faults.bring(sandbox, "clear", argparse.Namespace())


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
