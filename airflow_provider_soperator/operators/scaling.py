"""Bring one holder of GPUs to a number of units, as a task."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_soperator.errors import CapacityMistake
from airflow_provider_soperator.operators.work import WorkOperator

if TYPE_CHECKING:
    from airflow.sdk.definitions.context import Context

    from airflow_provider_soperator.capacity.order import ReleaseMode
    from airflow_provider_soperator.capacity.targets.protocol import Target
    from airflow_provider_soperator.work.targets import TargetScaling


class ScaleTargetOperator(WorkOperator):
    """Bring one target to a number of units, and wait until they can work.

        ScaleTargetOperator(
            task_id="serve",
            target=KubernetesScaleTarget(name="inference", resource="vllm", namespace="inference", gpus_per_unit=8),
            units=4,
            timeout=timedelta(minutes=20),
        )

    A task that is stopped or times out leaves the target as it is. To move GPUs between targets there is
    ``ShiftCapacityOperator``.

    :param target: holder of GPUs
    :param units: number of units, such as nodes or replicas
    :param timeout: time limit of the work
    :param mode: when units with jobs leave: once ``"idle"``, once their jobs have ended (``"asap"``), or at once
        (``"force"``: jobs are requeued or killed)
    :param block: id of the capacity block in which the target grows as far as GPUs are free; node groups and Slurm
        nodes need it, a Kubernetes workload does not
    :param nebius_conn_id: Airflow connection to the Nebius API
    """

    template_fields: Sequence[str] = ("units", "block", "nebius_conn_id")

    def __init__(
        self,
        *,
        target: Target,
        units: int | str,
        timeout: timedelta = timedelta(minutes=30),
        mode: ReleaseMode = "asap",
        block: str | None = None,
        nebius_conn_id: str = "nebius_default",
        **kwargs: Any,
    ) -> None:
        super().__init__(timeout=timeout, **kwargs)
        if mode not in ("idle", "asap", "force"):
            raise CapacityMistake(f"mode must be 'idle', 'asap' or 'force', got {mode!r}")
        self.target, self.units = target, units
        self.mode, self.block, self.nebius_conn_id = mode, block, nebius_conn_id

    def work(self, context: Context) -> TargetScaling:
        from airflow_provider_soperator.capacity.targets.protocol import write_target
        from airflow_provider_soperator.work.targets import TargetScaling

        ti = context["ti"]
        try:
            target, units = write_target(self.target), _count(self.units)
        except CapacityMistake as error:
            raise AirflowFailException(str(error)) from error
        return TargetScaling(
            target=target,
            units=units,
            mode=self.mode,
            block=self.block or None,
            nebius_conn_id=self.nebius_conn_id,
            key="/".join(map(str, (ti.dag_id, ti.run_id, ti.task_id, ti.map_index))),
            **self.span(),
        )


def _count(units: int | str) -> int:
    """A number, also one that a template has made."""
    try:
        count = int(units)
    except ValueError:
        raise CapacityMistake(f"units must be a number, got {units!r}") from None
    if count < 0:
        raise CapacityMistake(f"units must be >= 0, got {count}")
    return count
