"""Bring one holder of GPUs to a number of units, as a task."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import conf
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from airflow_provider_soperator.errors import CapacityMistake
from airflow_provider_soperator.operators.waiting import WaitingOperator

if TYPE_CHECKING:
    from airflow.sdk.definitions.context import Context

    from airflow_provider_soperator.capacity.order import Hurry
    from airflow_provider_soperator.capacity.targets.protocol import Target
    from airflow_provider_soperator.triggers.scaling import ScaleTargetTrigger


class ScaleTargetOperator(WaitingOperator):
    """Bring one target to a number of units, and wait until it has just these and they can work.

        ScaleTargetOperator(
            task_id="serve",
            target=KubernetesScaleTarget(name="inference", resource="vllm", namespace="inference", gpus_per_unit=8),
            units=4,
            timeout=timedelta(minutes=20),
        )

    With a ``block`` it grows as far as this has GPUs free, and waits for the rest; node groups and Slurm's nodes need
    to be told theirs, a Kubernetes workload does not. ``hurry`` is for targets that run jobs: units go once they are
    ``idle``, once the jobs on them have ended (``asap``), or at once (``force``: jobs are requeued or killed).

    A task that is ended, or whose time is over, leaves the target as it is. To move GPUs from one target to another
    there is ``ShiftCapacityOperator``.
    """

    template_fields: Sequence[str] = ("units", "block", "nebius_conn_id")
    ui_color = "#fde8c8"

    def __init__(
        self,
        *,
        target: Target,
        units: int | str,
        timeout: timedelta = timedelta(minutes=30),
        hurry: Hurry = "asap",
        block: str | None = None,
        nebius_conn_id: str = "nebius_default",
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        poll_interval: float = 10.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if hurry not in ("idle", "asap", "force"):
            raise CapacityMistake(f"hurry={hurry!r} is none of 'idle', 'asap' and 'force'")
        self.target, self.units, self.timeout = target, units, timeout
        self.hurry, self.block, self.nebius_conn_id = hurry, block, nebius_conn_id
        self.deferrable, self.poll_interval = deferrable, poll_interval

    def execute(self, context: Context) -> Any:
        return self.wait_for(self._trigger(context), context, self.resume)

    def resume(self, context: Context, event: dict[str, Any]) -> Any:
        """It is there, or it is known why it is not."""
        if "mistake" in event:
            raise AirflowFailException(event["mistake"])
        if "failure" in event:
            raise AirflowException(event["failure"])
        return event["outcome"]

    def _trigger(self, context: Context) -> ScaleTargetTrigger:
        from airflow_provider_soperator.capacity.targets.protocol import write_target
        from airflow_provider_soperator.triggers.scaling import ScaleTargetTrigger

        ti = context["ti"]
        try:
            target, units = write_target(self.target), _count(self.units)
        except CapacityMistake as error:
            raise AirflowFailException(str(error)) from error
        return ScaleTargetTrigger(
            target,
            units,
            self.hurry,
            self.block or None,
            self.nebius_conn_id,
            "/".join(map(str, (ti.dag_id, ti.run_id, ti.task_id, ti.map_index))),
            time.time() + self.timeout.total_seconds(),
            self.poll_interval,
        )


def _count(units: int | str) -> int:
    """A number, also one that a template has made."""
    try:
        count = int(units)
    except ValueError:
        raise CapacityMistake(f"units={units!r} is no number") from None
    if count < 0:
        raise CapacityMistake(f"units={units!r}: nothing has less than nothing")
    return count
