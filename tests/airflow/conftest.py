"""One Airflow and one sandbox for all tests of this folder, which run one after the other on them."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sandbox.airflow import database
from sandbox.lifecycle import Sandbox
from sandbox.settings import Settings
from tests import leftovers
from tests.airflow import executors
from tests.airflow.shifts import Capacity
from tests.airflow.stack import FIRST, Run, Stack
from tests.integration.cluster import Cluster
from tests.lanes import lane_of
from tests.patience import PATIENCE


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of Airflow, which nodes see, too."""
    return tmp_path_factory.mktemp("airflow")


@pytest.fixture(scope="session")
def slurm(home: Path) -> Iterator[Cluster]:
    """A sandbox whose nodes boot and fail in seconds, with a partition whose jobs preempt those of others."""
    if os.geteuid() != 0 or not Path("/etc/debian_version").exists():
        pytest.skip("a sandbox needs root on Debian")
    settings = Settings(
        name=f"airflow-{os.getpid()}",
        slurm="26.05",
        workers=4,
        # Only strikes where a test is to see it: Cluster.give_up_boot.
        resume_timeout=1800,
        suspend_timeout=1,
        # Runs are looked at minutes after they began.
        min_job_age=3600,
        vm_boot=0.5,
        vm_lag=1,
        vm_removal=0.5,
        visible=executors.visible(home),
        slurm_conf=[
            "PartitionName=urgent Nodes=ALL State=UP PriorityTier=20",
            "JobAcctGatherParams=OverMemoryKill",
            "JobAcctGatherFrequency=task=1",
        ],
    )
    sandbox = Sandbox(settings)
    try:
        sandbox.up()
        cluster = Cluster(sandbox)
        yield cluster
        cluster.close()
    finally:
        sandbox.down()


@pytest.fixture(scope="session")
def metrics() -> Iterator[socket.socket]:
    """Where Airflow sends those of its metrics that are ours, a datagram for each."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver:
        receiver.bind(("127.0.0.1", 0))
        receiver.setblocking(False)
        yield receiver


@pytest.fixture(scope="session")
def stack(slurm: Cluster, metrics: socket.socket, home: Path) -> Iterator[Stack]:
    folder = home / "home"
    url = database.start(slurm.sandbox, FIRST)
    host, port = metrics.getsockname()
    more = {
        "AIRFLOW__METRICS__STATSD_ON": "True",
        "AIRFLOW__METRICS__STATSD_HOST": host,
        "AIRFLOW__METRICS__STATSD_PORT": str(port),
        "AIRFLOW__METRICS__METRICS_ALLOW_LIST": "soperator",
        **executors.options(slurm.sandbox, folder),
        "AIRFLOW__SCHEDULER__TASK_QUEUED_TIMEOUT_CHECK_INTERVAL": "5",
    }
    with Stack(folder, slurm.access["airflow_connections"] | more, url) as stack:
        yield stack


@pytest.fixture(scope="session")
def early(request: pytest.FixtureRequest, stack: Stack, slurm: Cluster) -> dict[str, Any]:
    """What all modules that have a ``start`` have begun, under way at the same time: each mostly waits."""
    modules = dict.fromkeys(item.module for item in request.session.items if _is_early(item))
    return {module.__name__: module.start(stack, slurm) for module in modules}


@pytest.fixture(scope="module")
def begun(request: pytest.FixtureRequest, early: dict[str, Any]) -> Any:
    """What the module's ``start`` has begun, together with all others."""
    return early[request.module.__name__]


@pytest.fixture(scope="module")
def run(begun: Run) -> Run:
    """The same, where it is a run."""
    return begun


@pytest.fixture(scope="module", autouse=True)
def nothing_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """What a module leaves on the cluster fails its last test, and not what comes after it.

    Modules whose runs were begun early come first, and end in any order: they are checked together, before all others.
    """
    own = [item for item in request.session.items if item.path == request.path]
    if "slurm" not in own[0].fixturenames or _is_early(own[0]):
        yield
        return
    slurm: Cluster = request.getfixturevalue("slurm")
    _wait_until_nothing_is_left(slurm, "early runs")
    yield
    _wait_until_nothing_is_left(slurm, request.path.stem)


def _wait_until_nothing_is_left(slurm: Cluster, by: str) -> None:
    # What has just been ended may still be seen. Of functions that have failed the files are kept.
    deadline = time.monotonic() + PATIENCE
    while left := leftovers.look(slurm.sandbox).without(jobs=slurm.jobs, drained=slurm.drained, kinds={"files"}):
        if time.monotonic() > deadline:
            slurm.restore(leftovers.look(slurm.sandbox))
            pytest.fail(f"this is left by {by}: {left}", pytrace=False)
        time.sleep(0.5)


# After the hook that sorts by lanes.
@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Iterator[None]:
    """Tests of early runs come first in their lane: what comes after them may disturb a cluster or an Airflow."""
    yield
    places = [place for place, item in enumerate(items) if lane_of(item) == "airflow"]
    for place, item in zip(places, sorted((items[place] for place in places), key=_is_late), strict=True):
        items[place] = item


def _is_early(item: pytest.Item) -> bool:
    return hasattr(getattr(item, "module", None), "start") and Path(__file__).parent in item.path.parents


def _is_late(item: pytest.Item) -> bool:
    return not _is_early(item)


@pytest.fixture(scope="module")
def capacity(slurm: Cluster) -> Iterator[Capacity]:
    """The sandbox's block, which a module moves as it likes."""
    slurm.reset()
    capacity = Capacity(slurm)
    yield capacity
    capacity.end()
