"""One sandbox for each Slurm version, shared by all integration tests, which leave it as they found it."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandbox import faults
from sandbox.lifecycle import Sandbox
from sandbox.settings import SUITES, Settings
from tests.integration.cluster import Cluster


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything here needs a sandbox."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.sandbox)


@pytest.fixture(scope="session", params=list(SUITES), ids=[f"slurm-{version}" for version in SUITES])
def sandbox(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    """A sandbox of one Slurm version; tests that use it run on each."""
    if os.geteuid() != 0 or not Path("/etc/debian_version").exists():
        pytest.skip("a sandbox needs root on Debian")
    version: str = request.param
    # Its own name: a sandbox that the developer has running stays out of it.
    name = f"test-{version.replace('.', '')}-{os.getpid()}"
    made = Sandbox(Settings(name=name, slurm=version, workers=4, resume_timeout=15, suspend_timeout=3, vm_lag=2))
    try:
        made.up()
        yield made
    finally:
        made.down()


@pytest.fixture
def cluster(sandbox: Sandbox) -> Iterator[Cluster]:
    """The sandbox with worker-0 on, worker-1 to worker-3 off, nothing queued, nothing broken."""
    cluster = Cluster(sandbox)
    cluster.reset()
    yield cluster
    sandbox.up()  # starts what the test has killed
    faults.bring(sandbox, "clear", argparse.Namespace())
