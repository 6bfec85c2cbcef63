"""A task that is ended, at whatever moment its trigger is cancelled, has a trigger that knows it, and no job."""

from __future__ import annotations

import asyncio
import random
from uuid import uuid4

import pytest

from airflow_provider_soperator.slurm.submission_keys import SubmissionKey
from airflow_provider_soperator.triggers.sbatch import SbatchTrigger
from tests.integration.cluster import Cluster
from tests.integration.connections import WAYS, Connections

#: With these words Airflow's triggerer cancels what the user has ended, and calls ``on_kill`` if they come back.
BY_USER = "__airflow_user_action__"
TIMES = 60
#: Seconds within which a job is submitted and begins to be followed.
BEGINNING = 1.5


async def end(trigger: SbatchTrigger, after: float) -> None:
    """What Airflow does to a trigger whose task is marked."""
    work = asyncio.ensure_future(trigger.event())
    await asyncio.sleep(after)
    while not work.done():
        work.cancel(BY_USER)
        await asyncio.wait([work], timeout=1)
    with pytest.raises(asyncio.CancelledError) as cancelled:
        await work
    assert cancelled.value.args == (BY_USER,), f"it was not told why it was ended, {after:.3f} s after its beginning"
    await trigger.on_kill()


@pytest.mark.soak
@pytest.mark.parametrize("way", ["own-fields", "kubernetes_conn_id", "soperator_rest", "rest-tokens-over-ssh"])
def test_a_trigger_that_is_ended_at_any_moment_leaves_no_job(
    way: str, connections: Connections, cluster: Cluster, request: pytest.FixtureRequest
) -> None:
    hook = WAYS[way](connections)
    dice = random.Random(str(request.config.getoption("--shuffle")))
    name = f"ended-{way}"

    async def end_many() -> None:
        for _ in range(TIMES):
            key = SubmissionKey.derive("ended", uuid4().hex, name, -1, "1")
            job = {"command": "sleep 300", "name": name, "partition": "main"}
            await end(SbatchTrigger(hook.slurm_conn_id, job, [key.text], poll_interval=0.2), dice.uniform(0, BEGINNING))

    asyncio.run(end_many())
    cluster.wait("no job is left", lambda: not cluster.active_jobs())
