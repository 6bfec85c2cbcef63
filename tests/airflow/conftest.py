"""One Airflow and one sandbox for all tests of this folder, which run one after the other on them."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandbox.airflow import database
from sandbox.lifecycle import Sandbox
from sandbox.settings import Settings
from tests.airflow.shifts import Capacity
from tests.airflow.stack import Stack
from tests.integration.cluster import Cluster


@pytest.fixture(scope="session")
def slurm() -> Iterator[Cluster]:
    """A sandbox whose nodes boot and fail in seconds, with a partition whose jobs preempt those of others."""
    if os.geteuid() != 0 or not Path("/etc/debian_version").exists():
        pytest.skip("a sandbox needs root on Debian")
    settings = Settings(
        name=f"airflow-{os.getpid()}",
        slurm="26.05",
        workers=4,
        resume_timeout=12,
        suspend_timeout=1,
        slurmd_timeout=10,
        vm_boot=0.5,
        vm_lag=1,
        vm_removal=0.5,
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
def stack(slurm: Cluster, metrics: socket.socket, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("airflow") / "home"
    url = database.start(slurm.sandbox)
    host, port = metrics.getsockname()
    more = {
        "AIRFLOW__METRICS__STATSD_ON": "True",
        "AIRFLOW__METRICS__STATSD_HOST": host,
        "AIRFLOW__METRICS__STATSD_PORT": str(port),
        "AIRFLOW__METRICS__METRICS_ALLOW_LIST": "soperator",
    }
    with Stack(folder, slurm.access["airflow_connections"] | more, url) as stack:
        yield stack


@pytest.fixture(scope="module")
def capacity(slurm: Cluster) -> Iterator[Capacity]:
    """The sandbox's block, which a module moves as it likes."""
    slurm.reset()
    capacity = Capacity(slurm)
    yield capacity
    capacity.end()
