"""What a task that does nothing takes, from when it is queued to its end."""

from __future__ import annotations

import statistics
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import Any

from benchmarks.airflow import airflow_beside
from benchmarks.table import Row, spread
from sandbox.airflow.api import ENDS, DagRun
from sandbox.settings import Settings

NAME, DAG = "bench-executor", "executor"
_DAGS = Path(__file__).parent / "dags"
#: Seconds that a task may take more than a bare job, and each of a hundred that share one.
MORE, EACH = 2.5, 0.5
#: Seconds for the whole run.
PATIENCE = 600.0


def run() -> list[Row]:
    home = str(Settings(name=NAME).paths.airflow)
    more = {"AIRFLOW__CORE__PARALLELISM": "200", "AIRFLOW__SCHEDULER__MAX_TIS_PER_QUERY": "200"}
    visible = [sys.prefix, str(Path(__file__).parents[2]), home]
    with airflow_beside(NAME, _DAGS, [DAG], more, user="root", visible=visible) as (sandbox, airflow):
        bare = []
        for _ in range(5):
            began = time.monotonic()
            sandbox.init.run("sshd", ["sbatch", "--wait", "--partition=main", "--output=/dev/null", "--wrap=true"])
            bare.append(time.monotonic() - began)
        tasks = _finished(DagRun(airflow.api, DAG, airflow.api.trigger(DAG, {})))
        local, ours = (
            [_seconds(one) for one in tasks if one["task_id"].startswith(executor)]
            for executor in ("LocalExecutor", "SlurmExecutor")
        )
        each, beside = (_each([one for one in tasks if one["task_id"] == name]) for name in ("sharing", "beside"))
        extra = statistics.median(ours) - statistics.median(bare)
        name = "executor"
        return [
            Row(name, "bare sbatch --wait", spread(bare)),
            Row(name, "LocalExecutor: a task that does nothing", spread(local)),
            Row(name, "SlurmExecutor: the same", spread(ours), f"bare + {MORE:g} s", extra <= MORE),
            Row(
                name,
                "each of 100 that share a job",
                f"{each:.2f} s",
                f"{EACH:g} s\nLocalExecutor, 100 at once: {beside:.2f} s",
                each <= EACH,
            ),
        ]


def _finished(run: DagRun) -> list[dict[str, Any]]:
    deadline = time.monotonic() + PATIENCE
    while True:
        tasks = run.tasks()
        if len(tasks) > 200 and all(one["state"] in ENDS for one in tasks):
            return tasks
        if time.monotonic() > deadline:
            raise TimeoutError(f"the run has not ended: {[one['state'] for one in tasks]}")
        time.sleep(2)


def _each(tasks: list[dict[str, Any]]) -> float:
    return (max(map(_end, tasks)) - min(map(_queued, tasks))) / len(tasks)


def _queued(task: dict[str, Any]) -> float:
    return datetime.fromisoformat(task["queued_when"]).timestamp()


def _end(task: dict[str, Any]) -> float:
    return datetime.fromisoformat(task["end_date"]).timestamp()


def _seconds(task: dict[str, Any]) -> float:
    return _end(task) - _queued(task)
