"""What a DAG file of many jobs costs to parse, against one of as many shell commands."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.table import Row, spread

OPERATORS = 50
ROUNDS = 9
#: Times the seconds of the other.
PROMISED = 1.1

_BASH = f"""
from airflow.sdk import DAG
from airflow.providers.standard.operators.bash import BashOperator

with DAG("many"):
    for number in range({OPERATORS}):
        BashOperator(task_id=f"task_{{number}}", bash_command="true")
"""
_SBATCH = f"""
from airflow.sdk import DAG
from airflow_provider_soperator.operators.sbatch import SbatchOperator

with DAG("many"):
    for number in range({OPERATORS}):
        SbatchOperator(task_id=f"task_{{number}}", command="true", nodes=2, gpus_per_node=8, time_limit=60)
"""


def run() -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        # One after the other by turns, so that whatever else the machine does meets both.
        rounds = [(cpu_seconds(_SBATCH, folder), cpu_seconds(_BASH, folder)) for _ in range(ROUNDS)]
    sbatch, bash = ([pair[side] for pair in rounds] for side in (0, 1))
    ratio = statistics.median(sbatch) / statistics.median(bash)
    what = f"parse a file of {OPERATORS} SbatchOperators, CPU"
    return [Row("parsing", what, spread(sbatch), f"BashOperators: {spread(bash)}, x {ratio:.2f}", ratio <= PROMISED)]


def cpu_seconds(source: str, folder: str) -> float:
    """User and system time of a fresh interpreter that runs a DAG file."""
    file = Path(folder) / "dag.py"
    file.write_text(source)
    before = os.times()
    subprocess.run([sys.executable, str(file)], env={**os.environ, "AIRFLOW_HOME": folder}, check=True)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system
