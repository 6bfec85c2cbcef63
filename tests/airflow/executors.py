"""DAGs whose tasks are on nodes, and what Airflow has noted of their jobs."""

from __future__ import annotations

from tests.airflow.stack import Run
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


def told(run: Run, task_id: str) -> str:
    """The audit log of a task."""
    found = run.stack.call("GET", "/eventLogs", params={"dag_id": run.dag_id, "task_id": task_id, "limit": 100})
    return "\n".join(f"{row['event']}: {row['extra']}" for row in found["event_logs"])
