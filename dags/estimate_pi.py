"""Estimate pi with Python functions as jobs: arguments, results and mapped tasks are as with `@task`.

The functions run with the cluster's own `python3`, of any version from 3.8 on. For a function that needs packages, name
them in its decorator, such as `requirements=["numpy==2.*"]`: the first job installs them, and all others share them.
"""

from __future__ import annotations

import random
from datetime import timedelta
from typing import Any

from airflow.sdk import Param, dag, task


def hits(darts: int, seed: int) -> int:
    """What a function uses of its file goes to the cluster with it."""
    chance = random.Random(seed)
    return sum(chance.random() ** 2 + chance.random() ** 2 < 1 for _ in range(darts))


@dag(
    description=__doc__.splitlines()[0],
    schedule=None,
    params={
        "jobs": Param(4, type="integer", minimum=1),
        "darts": Param(200_000, type="integer", minimum=1, description="of each job"),
    },
    default_args={"slurm_conn_id": "soperator_default", "partition": "main", "deferrable": True, "poll_interval": 1},
    doc_md=__doc__,
    tags=["soperator", "example"],
)
def estimate_pi() -> None:
    @task
    def seeds(params: dict[str, Any]) -> list[int]:
        return list(range(params["jobs"]))

    @task.sbatch(time_limit=timedelta(minutes=5), retries=2, retry_delay=timedelta(seconds=10))
    def throw(seed: int, darts: str) -> float:
        import platform

        pi = 4 * hits(int(darts), seed) / int(darts)
        print(f"Python {platform.python_version()} on {platform.node()}: {pi}")
        return pi

    @task
    def mean(estimates: list[float]) -> float:
        return sum(estimates) / len(estimates)

    # Arguments are templates, whose results are strings.
    mean(throw.partial(darts="{{ params.darts }}").expand(seed=seeds()))


estimate_pi()
