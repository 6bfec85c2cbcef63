"""Chains of tasks without jobs."""

from __future__ import annotations

import os
from pathlib import Path

from airflow.sdk import DAG, chain

from benchmarks.chains.shape import FLOORS, STAGES, WORK
from benchmarks.idle import IdleOperator

for way in FLOORS:
    note = str(Path(os.environ["AIRFLOW_HOME"]) / way)
    with DAG(way):
        chain(
            *(
                IdleOperator(task_id=str(stage), seconds=WORK, note=note, deferrable=way == "floor_deferred")
                for stage in range(STAGES)
            )
        )
