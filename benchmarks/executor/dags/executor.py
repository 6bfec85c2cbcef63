"""Tasks that do nothing, one after the other, and a hundred at once, by either executor."""

from __future__ import annotations

from itertools import pairwise

from airflow.sdk import DAG, task

SHARING = {"share": 100, "cpus_per_task": 2}


@task
def nothing(place: int) -> None:
    """End at once."""


with DAG("executor", schedule=None, max_active_tasks=200):
    for executor in ("LocalExecutor", "SlurmExecutor"):
        tasks = [nothing.override(task_id=f"{executor}{n}", executor=executor)(n) for n in range(5)]
        for before, after in pairwise(tasks):
            before >> after
    sharing = nothing.override(task_id="sharing", executor="SlurmExecutor", executor_config=SHARING)
    beside = nothing.override(task_id="beside", executor="LocalExecutor")
    tasks[-1] >> sharing.expand(place=list(range(100))) >> beside.expand(place=list(range(100)))
