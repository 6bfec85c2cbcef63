"""What a task takes beyond its job: one that Slurm refuses, and one that is over at once."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from datetime import datetime

from benchmarks.table import Row
from sandbox.airflow.api import ENDS, DagRun
from sandbox.airflow.beside import Airflow

#: By the end of the id of the DAG of each.
OURS = {"worker": "in an Airflow worker", "deferred": "deferred", "triggerer": "in the triggerer alone"}
THEIRS = {"ssh_operator": "SSHOperator with sbatch --wait"}
JOBS = ("refused", "short")
DAGS = [f"{job}_{way}" for job in JOBS for way in (*OURS, *THEIRS)]
ROUNDS = 3
#: Seconds until the red square.
MOST = 8.0
_LONGEST = 120.0


def rows(airflow: Airflow) -> list[Row]:
    lives = {dag_id: [_life(airflow, dag_id) for _ in range(ROUNDS)] for dag_id in DAGS}
    refused = [statistics.median(lives[f"refused_{way}"]) for way in OURS]
    return [
        Row(
            "chains",
            "from the trigger of a run to the red square of its task, whose job Slurm refuses",
            _told(lives, "refused", OURS),
            f"{MOST:g} s\n{_told(lives, 'refused', THEIRS)}",
            max(refused) <= MOST,
        ),
        Row(
            "chains",
            "from the trigger of a run to the end of its task, whose job takes no time",
            _told(lives, "short", OURS),
            _told(lives, "short", THEIRS),
        ),
    ]


def _told(lives: Mapping[str, Sequence[float]], job: str, ways: Mapping[str, str]) -> str:
    return "\n".join(f"{name}: {statistics.median(lives[f'{job}_{way}']):.1f} s" for way, name in ways.items())


def _life(airflow: Airflow, dag_id: str) -> float:
    began = time.time()
    run = DagRun(airflow.api, dag_id, airflow.api.trigger(dag_id, {}))
    while (task := run.task("job"))["state"] not in ENDS:
        assert time.time() < began + _LONGEST, f"the task of {dag_id} takes too long"
        time.sleep(0.2)
    return datetime.fromisoformat(task["end_date"].replace("Z", "+00:00")).timestamp() - began
