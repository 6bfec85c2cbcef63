"""Hundreds of jobs that wait for each other, submitted together, against a shell loop on the login node itself."""

from __future__ import annotations

import shlex
import statistics
import uuid
from collections.abc import Sequence

from airflow_provider_soperator.client.client import AsyncSlurmClient
from airflow_provider_soperator.client.sync import SlurmClient
from airflow_provider_soperator.slurm.dependencies import Dependency
from airflow_provider_soperator.slurm.job import BatchJob
from airflow_provider_soperator.slurm.submission_keys import SubmissionKey
from airflow_provider_soperator.transports.ssh import SshTransport
from benchmarks.table import Row
from benchmarks.transports import Login, login, seconds

JOBS = 500
ROUNDS = 3
_SCRIPT = "#!/bin/sh\nhostname\n"

#: For each job the places of those before it that it waits for.
Shape = Sequence[Sequence[int]]
SHAPES: dict[str, Shape] = {
    f"a chain of {JOBS} jobs": [[place - 1] if place else [] for place in range(JOBS)],
    f"1 job, {JOBS - 2} after it, 1 after all": [[], *([[0]] * (JOBS - 2)), range(1, JOBS - 1)],
}


def run() -> list[Row]:
    with login() as node:
        client = SlurmClient(AsyncSlurmClient(SshTransport(node.connector)))
        client.config()
        rows = [_compare(node, client, name, shape) for name, shape in SHAPES.items()]
        client.close()
        return rows


def _compare(node: Login, client: SlurmClient, name: str, shape: Shape) -> Row:
    """Either way in turn, so that a slow moment of the machine hits both."""
    ours, loop = [], []
    for _ in range(ROUNDS):
        jobs = _jobs(shape)
        ours.append(seconds(lambda jobs=jobs: client.submit_together(jobs)))  # type: ignore[misc]
        node.clear()
        loop.append(seconds(lambda: node.sandbox.init.run("sshd", ["bash", "-c", _loop(shape)], timeout=300)))
        node.clear()
    mine, theirs = statistics.median(ours), statistics.median(loop)
    return Row(
        "chains",
        f"{name}, all or none, each exactly once, over SSH",
        f"{mine:.2f} s, {mine / theirs:.2f} times the loop",
        f"{theirs:.2f} s, a shell loop of sbatch --dependency on the login node itself",
        mine / theirs <= 1.3,
    )


def _jobs(shape: Shape) -> tuple[BatchJob, ...]:
    run = uuid.uuid4().hex
    keys = [SubmissionKey.derive("bench", run, "job", place, 1) for place in range(len(shape))]
    return tuple(
        BatchJob(
            name=key.name("bench"),
            script=_SCRIPT,
            dependency=Dependency("afterok", *(keys[other] for other in others)) if others else None,
        )
        for key, others in zip(keys, shape, strict=True)
    )


def _loop(shape: Shape) -> str:
    """What people write, but with the shape as data: the places of the others of each job on a line."""
    lines = "\n".join(" ".join(map(str, others)) for others in shape)
    return f"""
ids=()
while read -r others; do
    needs=
    for other in $others; do needs+=:${{ids[other]}}; done
    ids+=("$(sbatch --parsable --job-name=bench ${{needs:+--dependency=afterok$needs}} <<<{shlex.quote(_SCRIPT)})")
done <<<{shlex.quote(lines)}
"""
