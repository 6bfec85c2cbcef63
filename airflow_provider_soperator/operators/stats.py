"""A snapshot of a cluster as a task: for the log, for other tasks, and as metrics of Airflow's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow.sdk import Context

from airflow_provider_soperator.operators.work import StrictOperator, final_errors
from airflow_provider_soperator.work.protocols import emit


class SlurmStatsOperator(StrictOperator):
    """Take the figures of a cluster: queue and waits, states of nodes, GPUs, users, and fair shares.

        SlurmStatsOperator(task_id="stats", top=5)

    Returns them, logs a table, and sets the gauges ``soperator.queue.*``, ``soperator.nodes`` and ``soperator.gpus``.
    A cluster without accounting has no fair shares, and ``shares`` is null then.

    :param top: number of users to list
    :param metrics: set the gauges
    :param slurm_conn_id: Airflow connection to Slurm
    """

    template_fields: Sequence[str] = ("slurm_conn_id", "top")
    ui_color = "#d9f2e6"

    def __init__(
        self, *, top: int | str = 10, metrics: bool = True, slurm_conn_id: str = "soperator_default", **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.top = top
        self.metrics = metrics
        self.slurm_conn_id = slurm_conn_id

    def execute(self, context: Context) -> dict[str, Any]:
        from airflow_provider_soperator.hooks.slurm import SlurmHook
        from airflow_provider_soperator.slurm.stats import gauges, table

        with final_errors():
            if not str(self.top).isdecimal():
                raise ValueError(f"top must be a number of users, got {self.top!r}")
            with SlurmHook(self.slurm_conn_id).client() as slurm:
                stats = slurm.stats(int(self.top))
        self.log.info("%s", table(stats))
        if self.metrics:
            emit(gauges(stats), slurm_conn_id=self.slurm_conn_id)
        return stats.to_dict()
