"""A wide fan-out of equal jobs on a cluster that limits calls: what it asks of slurmctld, and how long it takes."""

from __future__ import annotations

import asyncio
import json
import time
import uuid

from airflow_provider_soperator.client.batcher import QUIET
from airflow_provider_soperator.client.client import AsyncSlurmClient
from airflow_provider_soperator.slurm.job import BatchJob
from airflow_provider_soperator.slurm.requests.submission import Submitted
from airflow_provider_soperator.slurm.submission_keys import ELEMENTS, SubmissionKey
from airflow_provider_soperator.transports.ssh import SshTransport
from benchmarks.sdiag import counts
from benchmarks.table import Row
from benchmarks.transports import Login
from sandbox.lifecycle import Sandbox
from sandbox.settings import USER, Settings

JOBS = 10_000
#: Calls of sbatch.
MOST = 10
#: As strict as sites are: so many calls, and then so many a minute.
BUCKET, REFILL = 40, 4
_SLURM_CONF = [
    "MaxJobCount=50000",
    "SlurmctldParameters=cloud_dns,idle_on_node_suspend,power_save_interval=0,power_save_min_interval=0,"
    f"rl_enable,rl_bucket_size={BUCKET},rl_refill_rate={REFILL},rl_refill_period=60",
]


def run() -> list[Row]:
    sandbox = Sandbox(Settings(name="bench-fan-outs", workers=1, static=0, slurm_conf=_SLURM_CONF))
    sandbox.up()
    try:
        login = {**json.loads(sandbox.paths.access.read_text())["ssh"], "user": USER}
        before = _calls(sandbox)
        taken = asyncio.run(_submit(Login(sandbox, login)))
        calls = _calls(sandbox) - before
    finally:
        sandbox.down()
    hours = (JOBS - BUCKET) / REFILL / 60
    return [
        Row(
            "fan_outs",
            f"{JOBS:,} equal jobs of mapped tasks, {BUCKET} calls allowed and then {REFILL} a minute",
            f"{calls} calls of sbatch, {taken:.1f} s",
            f"{MOST} calls; one for each job takes {hours:.0f} hours",
            calls <= MOST,
        )
    ]


async def _submit(node: Login) -> float:
    """Seconds until all are submitted."""
    client, run = AsyncSlurmClient(SshTransport(node.connector)), uuid.uuid4().hex
    began = time.monotonic()
    try:
        answers = await asyncio.gather(*(_submit_one(client, run, index) for index in range(JOBS)))
    finally:
        await client.close()
    assert len({answer.id for answer in answers}) == JOBS
    return time.monotonic() - began - QUIET


async def _submit_one(client: AsyncSlurmClient, run: str, index: int) -> Submitted:
    thousand, element = divmod(index, ELEMENTS)
    key = SubmissionKey.derive("bench", run, "fit", thousand, 1, element=element)
    job = BatchJob(script="#!/bin/sh\nexec fit $1\n", args=[str(index)], hold=True, name=f"fit.{index}.bench")
    return await client.submit(job, key, gather=True)


def _calls(sandbox: Sandbox) -> int:
    said = sandbox.init.run("slurmctld", ["sdiag"], timeout=60)
    return counts(said.stdout)["REQUEST_SUBMIT_BATCH_JOB"]
