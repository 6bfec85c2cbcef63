"""SlurmHook against a running Slurm: jobs over every way that a connection can name, and the documented examples."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest

from airflow_provider_soperator.client.client import AsyncSlurmClient
from airflow_provider_soperator.slurm.job import BatchJob
from airflow_provider_soperator.slurm.requests import Ping, WhoAmI
from airflow_provider_soperator.slurm.states import JobBase
from airflow_provider_soperator.slurm.submission_keys import SubmissionKey
from tests.integration.cluster import LOGIN, Cluster
from tests.integration.connections import WAYS, Connections
from tests.integration.outside import REPOSITORY
from tests.patience import PATIENCE

EXAMPLES = re.findall(r"^```python\n(.+?)^```", (REPOSITORY / "docs" / "connection.md").read_text(), re.M | re.S)


@pytest.fixture
def commands(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slurm's commands on this machine, as a node of the cluster has them."""
    enter = shlex.join(cluster.sandbox.init.enter(LOGIN, []))
    for name in ("scontrol", "sbatch", "squeue", "sacct", "sacctmgr", "scancel", "sdiag"):
        (tmp_path / name).write_text(f'#!/bin/sh\nexec {enter} {name} "$@"\n')
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")


def hello() -> tuple[BatchJob, SubmissionKey]:
    key = SubmissionKey.derive("dag", f"{time.time_ns()}", "hello", -1, "1")
    return BatchJob(command="echo hello from $SLURM_JOB_NAME", output="/root/hook-%j.out"), key


@pytest.mark.parametrize("way", WAYS)
def test_a_client_runs_a_job_and_reads_its_output(way: str, connections: Connections) -> None:
    with WAYS[way](connections).client() as slurm:
        assert slurm.ask(WhoAmI()) == "root"
        submitted = slurm.submit(*hello())
        assert slurm.watch(submitted.id).end().state.base is JobBase.COMPLETED
        said = slurm.read_file(f"/root/hook-{submitted.id}.out")
        assert said.startswith(b"hello from ")


@pytest.mark.parametrize("way", WAYS)
def test_a_client_for_event_loops_does_the_same(way: str, connections: Connections) -> None:
    async def main() -> None:
        async with WAYS[way](connections).async_client() as slurm:
            assert await slurm.ask(WhoAmI()) == "root"
            submitted = await slurm.submit(*hello())
            assert (await slurm.watch(submitted.id).end()).state.base is JobBase.COMPLETED
            said = await slurm.read_file(f"/root/hook-{submitted.id}.out")
            assert said.startswith(b"hello from ")

    asyncio.run(main())


@pytest.mark.usefixtures("commands")
def test_this_machine_may_be_a_node_itself(connections: Connections) -> None:
    hook = connections.other(transport="local")
    with hook.client() as slurm:
        submitted = slurm.submit(*hello())
        assert slurm.watch(submitted.id).end().state.base is JobBase.COMPLETED
    works, said = hook.test_connection()
    assert works, said


def test_tasks_that_wait_at_the_same_time_share_a_connection(connections: Connections) -> None:
    hook = connections.login_node()

    async def main() -> None:
        async def wait() -> AsyncSlurmClient:
            async with hook.async_client() as slurm:
                await slurm.ask(Ping())
                return slurm

        clients = await asyncio.gather(*(wait() for _ in range(30)))
        assert len(set(map(id, clients))) == 1

    asyncio.run(main())
    with hook.client() as one, hook.client() as two:
        assert vars(one) == vars(two)


@pytest.mark.parametrize("example", EXAMPLES, ids=["client", "async-client"])
def test_the_examples_in_the_documentation_run(example: str, cluster: Cluster) -> None:
    environment = os.environ | cluster.access["airflow_connections"]
    command = [sys.executable, "-c", example]
    said = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert said.returncode == 0, said.stderr
    assert re.search(r"^COMPLETED$|^main UP$", said.stdout, re.M), said.stdout
