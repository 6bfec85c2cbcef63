"""Search for a good rate by ordinary Airflow tasks, of which those that need GPUs are jobs of `SlurmExecutor`.

Nothing else in the file knows of Slurm. In an Airflow without that executor all tasks run beside the scheduler.
"""

from __future__ import annotations

from typing import Any

from airflow.configuration import conf
from airflow.sdk import Param, dag, task

ON_NODES: dict[str, Any] = {"executor": "SlurmExecutor"} if "SlurmExecutor" in conf.get("core", "executor") else {}


@dag(
    description=__doc__.splitlines()[0],
    schedule=None,
    params={"rates": Param([0.01, 0.1, 0.3, 1.1], type="array", items={"type": "number"})},
    doc_md=__doc__,
    tags=["soperator", "example"],
)
def tune() -> None:
    @task
    def rates(params: dict[str, Any]) -> list[float]:
        return list(params["rates"])

    # What the job asks for. Mapped tasks that become ready together are one array.
    @task(**ON_NODES, executor_config={"gpus": 1, "time_limit": "0:10:00"})
    def fit(rate: float) -> dict[str, float]:
        """Descend along a parabola."""
        import os
        import platform

        place = 1.0
        for step in range(20):
            place -= rate * 2 * place
            print(f"step {step + 1} of 20: {place:.3g}")
        print(f"on {platform.node()}, in job {os.environ.get('SLURM_JOB_ID', '(none)')}")
        return {"rate": rate, "loss": place**2}

    @task
    def best(fitted: list[dict[str, float]]) -> dict[str, float]:
        return min(fitted, key=lambda one: one["loss"])

    best(fit.expand(rate=rates()))


tune()
