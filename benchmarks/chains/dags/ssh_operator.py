"""A chain of tasks, each of which runs an ``sbatch --wait`` over an SSH connection of its own."""

from __future__ import annotations

from airflow.providers.ssh.operators.ssh import SSHOperator
from airflow.sdk import DAG, chain

from benchmarks.chains.shape import STAGES, command

with DAG("ssh_operator"):
    chain(
        *(
            SSHOperator(
                task_id=f"job_{stage}",
                ssh_conn_id="ssh_default",
                command=f"sbatch --wait --wrap '{command('ssh_operator', stage, '{{ dag_run.conf.round }}')}'",
                cmd_timeout=None,
            )
            for stage in range(STAGES)
        )
    )
