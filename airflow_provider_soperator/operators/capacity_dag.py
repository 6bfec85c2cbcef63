"""A DAG from a schedule: it moves capacity at each handover, and to what its trigger form says."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import DAG, Param

from airflow_provider_soperator.operators.capacity import ShiftCapacityOperator
from airflow_provider_soperator.timetables.capacity import CapacityTimetable

if TYPE_CHECKING:
    from airflow_provider_soperator.capacity.schedule import CapacitySchedule
    from airflow_provider_soperator.capacity.targets import Target

#: The parameter with which the plan is all that there is.
_PLAN_ONLY = "plan_only"
#: Of the plan as the task before has returned it. Airflow's page shows the lines of a plain text as one.
_PLAN = "{{ ti.xcom_pull(task_ids='plan')['markdown'] }}"
_MOVES = (
    "{% for target, move in ti.xcom_pull(task_ids='plan')['moves'].items() %}"
    "{{ ', ' if not loop.first }}{{ target }} "
    "{{ 'keeps ' ~ move.now if move.now == move.then else 'from ' ~ move.now ~ ' to ' ~ move.then }}"
    "{% endfor %}"
)


def capacity_dag(
    dag_id: str,
    schedule: CapacitySchedule,
    targets: Sequence[Target],
    block: str,
    *,
    approve: bool = False,
    response_timeout: timedelta | None = None,
    nebius_conn_id: str = "nebius_default",
    shift_args: dict[str, Any] | None = None,
    **dag_options: Any,
) -> DAG:
    """Make a DAG that moves capacity by a schedule.

        dag = capacity_dag("gpu_shifts", nights, [training, inference], "capacityblockgroup-e00example")

    Its tasks are ``plan``, which shows what would be done, ``approve`` if asked for, and ``shift``. The trigger form
    asks for the size of each target; if it is left empty, the schedule is applied. Other arguments go to the DAG.

    :param dag_id: id of the DAG
    :param schedule: allocation of the GPUs by time
    :param targets: holders of GPUs of the block
    :param block: id of the capacity block
    :param approve: let a person approve each plan, on Airflow's page *Required Actions*
    :param response_timeout: time for the approval; without an answer the shift is not carried out
    :param nebius_conn_id: Airflow connection to the Nebius API
    :param shift_args: further parameters of ``ShiftCapacityOperator``
    """
    fields = {target.name: _amount(target) for target in targets}
    fields[_PLAN_ONLY] = Param(
        False, type="boolean", title="Only show the plan", description="The plan is in the log, and nothing is moved."
    )
    options: dict[str, Any] = {"schedule": CapacityTimetable(schedule), "catchup": False, "max_active_runs": 1}
    options |= dag_options | {"params": fields | dag_options.get("params", {})}
    with DAG(dag_id, **options) as dag:
        common: dict[str, Any] = {
            "targets": targets,
            "block": block,
            "schedule": schedule,
            "desired": {target.name: f"{{{{ params[{target.name!r}] }}}}" for target in targets},
            "nebius_conn_id": nebius_conn_id,
            **(shift_args or {}),
        }
        plan = ShiftCapacityOperator(task_id="plan", **common | {"plan_only": True})
        move = ShiftCapacityOperator(task_id="shift", **{"plan_only": f"{{{{ params.{_PLAN_ONLY} }}}}"} | common)
        if approve:
            plan >> _approval(response_timeout) >> move
        else:
            plan >> move
    return dag


def _approval(response_timeout: timedelta | None) -> Any:
    from airflow.providers.standard.operators.hitl import ApprovalOperator

    subject = f"Move capacity: {_MOVES}?"
    return ApprovalOperator(task_id="approve", subject=subject, body=_PLAN, response_timeout=response_timeout)


def _amount(target: Target) -> Param:
    unit = target.units.removesuffix("s")
    return Param(
        None,
        type=["null", "string"],
        title=f"{target.name}: how many {target.units}",
        description=(
            f'As "2" or "{2 * target.gpus_per_unit} gpus". Left empty, it has what the others leave of the block; if '
            "all are empty, the schedule decides."
        ),
        pattern=rf"^(\d+ *({unit}s?|gpus?|GPUs?)?)?$",
    )
