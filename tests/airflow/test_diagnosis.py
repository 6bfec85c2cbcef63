"""The log of a task whose job has failed ends with what Slurm and Kubernetes know, in a worker and in the triggerer."""

from __future__ import annotations

import pytest

from tests.airflow.stack import Run, Stack
from tests.integration.cluster import Cluster

TASKS = """
for deferrable in (False, True):
    SbatchOperator(
        task_id=f"fails_{deferrable}",
        command="exit 3",
        nodelist="worker-0",
        deferrable=deferrable,
        slurm_conn_id="soperator_kubernetes",
    )
"""


def start(stack: Stack, slurm: Cluster) -> Run:
    return stack.add_dag("kubernetes_view", TASKS).trigger()


@pytest.mark.parametrize("deferrable", [False, True])
def test_a_failed_job_is_explained_by_both(run: Run, deferrable: bool) -> None:
    run.wait(f"fails_{deferrable}", "failed")
    lines = run.wait_log(f"fails_{deferrable}", "with exit code 3").splitlines()
    at = lines.index("  Kubernetes")
    assert lines.index("  Accounting") < at
    assert lines[at + 1].startswith("    Pod worker-0: Running, on Node ")
    assert any(": Ready" in line for line in lines[at:])
