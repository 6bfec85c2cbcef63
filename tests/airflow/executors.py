"""An Airflow and DAGs whose tasks are on nodes, and what Airflow has noted of their jobs."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from sandbox.airflow import interpreter
from sandbox.lifecycle import Sandbox
from tests.airflow.stack import CALL, Run
from tests.integration.cluster import until

HEAD = f"""
ON_NODE = dict(executor="SlurmExecutor", executor_config={{"partition": "main"}})

def held(task_id, **asked):
    BashOperator(
        task_id=task_id,
        bash_command='echo begun; {until("/root/go-$SLURM_JOB_ID")}; echo let go',
        executor="SlurmExecutor",
        executor_config={{"partition": "main", **asked}},
    )
"""


def wait_told(run: Run, task_id: str, text: str) -> None:
    """Wait until the audit log of a task has this text, which may be written after its state and its own log."""

    def told() -> str:
        asked = {"dag_id": run.dag_id, "task_id": task_id, "limit": 100}
        found = run.stack.call("GET", "/eventLogs", params=asked)
        return "\n".join(f"{row['event']}: {row['extra']}" for row in found["event_logs"])

    try:
        run.stack.wait(f"the audit log of {task_id} has {text!r}", lambda: text in told())
    except AssertionError as error:
        raise AssertionError(f"{error}\n--- the task's audit log\n{told()}") from None


def visible(home: Path) -> list[str]:
    """What nodes have to see: an Airflow's folder, and the packages of this process."""
    return [str(Path(__file__).parents[2]), sys.prefix, str(home)]


def options(sandbox: Sandbox, folder: Path) -> dict[str, str]:
    """Options of an Airflow in this folder for which tasks run on the nodes of a sandbox, too."""
    return {
        "AIRFLOW__CORE__EXECUTOR": "LocalExecutor,SlurmExecutor:airflow_provider_soperator.executors.SlurmExecutor",
        "AIRFLOW__SOPERATOR__EXECUTOR_PYTHON": interpreter.environment(sandbox.init.root()),
        "AIRFLOW__SOPERATOR__EXECUTOR_JOB": json.dumps({"env": on_nodes(folder)}),
    }


def on_nodes(folder: Path) -> dict[str, str]:
    """Variables of an Airflow in this folder for its tasks on nodes."""
    return {
        "AIRFLOW_HOME": str(folder),
        "AIRFLOW__CORE__DAGS_FOLDER": str(folder / "dags"),
        "AIRFLOW__WORKERS__EXECUTION_API_TIMEOUT": CALL,
    }
