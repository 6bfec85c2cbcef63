"""The actions of the page *Soperator*: drain and power nodes, replace machines, run checks, cancel jobs.

Each is a DAG of its own without a schedule. Those that may end jobs are paused at first.
"""

from __future__ import annotations

from airflow_provider_soperator.operators.action_dags import action_dags

dags = action_dags(
    slurm_conn_id="soperator_default",
    # Without it there is no DAG for checks.
    kubernetes_conn_id="kubernetes_default",
    # A person waits for what it does.
    default_args={"poll_interval": 2},
    tags=["example"],
)
