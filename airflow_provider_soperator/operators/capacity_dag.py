"""A DAG from a schedule: it moves capacity at each handover, and to what its trigger form says."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow.sdk import DAG, Asset, AssetAlias, AssetWatcher, Context, Param
from airflow.sdk.exceptions import AirflowFailException, DownstreamTasksSkipped

from airflow_provider_soperator.board.offers import action_tag
from airflow_provider_soperator.capacity.allocation import one_of, units_text
from airflow_provider_soperator.capacity.order import ShiftOrder
from airflow_provider_soperator.capacity.targets import SlurmNodesTarget
from airflow_provider_soperator.errors import CapacityMistake, name_remedy
from airflow_provider_soperator.operators.capacity import ShiftCapacityOperator, refuse_impossible
from airflow_provider_soperator.operators.steering import ACTIONS, SteerShiftOperator
from airflow_provider_soperator.timetables.capacity import ReconciledCapacityTimetable
from airflow_provider_soperator.triggers.capacity_watch import CapacityDifferenceTrigger
from airflow_provider_soperator.values import check_choice, check_durations

if TYPE_CHECKING:
    from airflow_provider_soperator.capacity.demand import Demand
    from airflow_provider_soperator.capacity.schedule import CapacitySchedule
    from airflow_provider_soperator.capacity.targets import Target
    from airflow_provider_soperator.operators.approval import OnNoAnswer

#: Parameters of the form beside the sizes of targets.
_PLAN_ONLY, _UNTIL, _BECAUSE = "plan_only", "until", "because"
_STEER, _NODES, _EXTEND_BY = "steer", "nodes", "extend_by"


def _text(title: str, description: str, default: str | None = None, **more: Any) -> Param:
    """A field of the form that may be left empty."""
    return Param(default, type=["null", "string"], title=title, description=description, **more)


_STEERING_OF = "Steer the shift that runs"
_FIELDS = {
    _UNTIL: _text(
        "Until",
        "Overrides the schedule until then; left empty, until its next handover, or the end of the override in force.",
        format="date-time",
    ),
    _BECAUSE: _text("Because", "Why, for plans and logs."),
    _PLAN_ONLY: Param(
        False,
        type=["null", "boolean"],
        title="Only show the plan",
        description="The plan is in the log, and says what each target has now. Nothing is moved.",
    ),
    _STEER: Param(
        None,
        enum=[None, *ACTIONS],
        values_display={"null": "leave it alone", **{action: action.replace("_", " ") for action in ACTIONS}},
        title="Steer",
        section=_STEERING_OF,
        description=(
            "stop: where it is, and the next run powers up again what powers down by then; force: end the jobs that "
            "are in the way; leave out: leave nodes as they are; extend: put off its end. Such a run moves nothing "
            "itself; leave the fields of the other section empty."
        ),
    ),
    _NODES: _text("Nodes", "For leave out, such as worker-[3-5].", section=_STEERING_OF),
    _EXTEND_BY: _text(
        "Extend by", "For extend, as 30m or 1h30m; left empty, an hour.", default="1h", section=_STEERING_OF
    ),
}
#: Runs at a time: one that moves, one that a person starts, one that waits for an answer, and one that steers. The
#: lease of the block lets one shift move at a time.
_RUNS = 4
#: Of the plan as the task before has returned it. Airflow's page shows the lines of a plain text as one.
_PLAN = "{{ ti.xcom_pull(task_ids='plan')['markdown'] }}"
_MOVES = (
    "{% set plan = ti.xcom_pull(task_ids='plan') %}"
    "{% for target, then in plan['possible'].items() %}{% set now = plan['moves'][target]['now'] %}"
    "{{ ', ' if not loop.first }}{{ target }} {{ 'keeps ' ~ now if now == then else 'from ' ~ now ~ ' to ' ~ then }}"
    "{% endfor %}"
)


def capacity_dag(
    dag_id: str,
    schedule: CapacitySchedule,
    targets: Sequence[Target],
    block: str,
    *,
    demand: Demand | None = None,
    approve: bool = False,
    response_timeout: timedelta | None = None,
    on_no_answer: OnNoAnswer = "fail",
    nebius_conn_id: str = "nebius_default",
    shift_args: dict[str, Any] | None = None,
    **dag_options: Any,
) -> DAG:
    """Make a DAG that moves capacity by a schedule.

        dag = capacity_dag("gpu_shifts", nights, [training, inference], "capacityblockgroup-e00example")

    Its tasks are ``steer``, which in most runs does nothing, ``plan``, which shows what would be done, ``approve`` if
    asked for, and ``shift``. It runs ahead of each handover, and when what the targets have has differed for some
    minutes from what is wished for. The trigger form asks for the size of each target; if it is left empty, the
    schedule is applied. It also steers the shift that runs. The DAG is paused when it is made, and unpausing it moves
    nothing by itself. Other arguments go to the DAG.

    :param dag_id: id of the DAG
    :param schedule: allocation of the GPUs by time
    :param targets: holders of GPUs of the block
    :param block: id of the capacity block
    :param demand: what decides within the ranges of the schedule; without it targets keep what they have in these
    :param approve: let a person approve each plan, on Airflow's page *Required Actions*
    :param response_timeout: time for the approval, which ends at the handover at the latest; of what demand wishes for
        now after an hour
    :param on_no_answer: without an answer carry out the shift (``"go"``), skip it (``"stay"``), or fail (``"fail"``)
    :param nebius_conn_id: Airflow connection to the Nebius API
    :param shift_args: further parameters of ``ShiftCapacityOperator``
    """
    check_choice("on_no_answer", on_no_answer, ("go", "stay", "fail"))
    check_durations(or_none=True, response_timeout=response_timeout)
    names = {target.name for target in targets}
    if taken := names & {*_FIELDS}:
        raise CapacityMistake(f"the form has a field {' and '.join(sorted(taken))} of its own", "rename the target")
    refuse_impossible(targets, schedule)
    params = {target.name: _amount(target, schedule) for target in targets}
    params |= _FIELDS | dag_options.get("params", {})
    overrides, demanded = f"{dag_id}_overrides", f"{dag_id}_demand"
    if demand:
        demand.check([target.name for target in targets])
    seen = ShiftOrder.to_look("watch", dag_id, block, nebius_conn_id, targets)
    watched, told = json.dumps(seen.write()), json.dumps(schedule.describe())
    by_demand = json.dumps(demand.write()) if demand else ""
    watcher = CapacityDifferenceTrigger(dag_id, watched, told, overrides, by_demand, demanded)
    differences = Asset(name=f"{dag_id}_differences", watchers=[AssetWatcher(name="wish_and_world", trigger=watcher)])
    options: dict[str, Any] = {
        "schedule": ReconciledCapacityTimetable(schedule, differences),
        "catchup": False,
        "max_active_runs": _RUNS,
        "is_paused_upon_creation": True,
    }
    # By which the page Soperator of the clusters whose nodes it moves finds it.
    clusters = {target.slurm_conn_id for target in targets if isinstance(target, SlurmNodesTarget)}
    kinds = ("shift", "approve") if approve else ("shift",)
    tags = {*dag_options.get("tags", ()), *(action_tag(kind, one) for kind in kinds for one in clusters)}
    with DAG(dag_id, **options | dag_options | {"params": params, "tags": tags}) as dag:
        common: dict[str, Any] = {
            "targets": targets,
            "block": block,
            "schedule": schedule,
            "desired": {target.name: f"{{{{ params[{target.name!r}] }}}}" for target in targets},
            "until": f"{{{{ params.{_UNTIL} }}}}",
            "because": f"{{{{ params.{_BECAUSE} or '' }}}}",
            "overrides_variable": overrides,
            "demand_variable": demanded if demand else None,
            "nebius_conn_id": nebius_conn_id,
            **(shift_args or {}),
        }
        steer = _SteerInstead(
            task_id="steer",
            pre_execute=partial(_refuse_conf, frozenset(params), names | {_UNTIL, _PLAN_ONLY}),
            block=block,
            action=f"{{{{ params.{_STEER} or '' }}}}",
            nodes=f"{{{{ params.{_NODES} or '' }}}}",
            extend_by=f"{{{{ params.{_EXTEND_BY} or '1h' }}}}",
        )
        plan = ShiftCapacityOperator(task_id="plan", **common | {"plan_only": True})
        steer >> plan
        ended = AssetAlias(f"{dag_id}_shifts")
        options = {"plan_only": f"{{{{ params.{_PLAN_ONLY} }}}}", "outlets": [ended]} | common
        if approve:
            from airflow_provider_soperator.operators.approval import ApproveShiftOperator

            question = ApproveShiftOperator(
                task_id="approve",
                schedule=schedule,
                overrides_variable=overrides,
                subject=f"Move capacity: {_MOVES}?",
                body=_PLAN,
                response_timeout=response_timeout,
                on_no_answer=on_no_answer,
            )
            plan >> question >> ShiftCapacityOperator(task_id="shift", **options | {"approved_plan": plan.output})
        else:
            plan >> ShiftCapacityOperator(task_id="shift", **options)
    return dag


class _SteerInstead(SteerShiftOperator):
    """The first task of a run, which plans and moves nothing if it is to steer."""

    custom_operator_name = "SteerShiftOperator"

    def execute(self, context: Context) -> str | None:
        told = super().execute(context)
        if told:
            raise DownstreamTasksSkipped(tasks=[*self.downstream_task_ids])  # type: ignore[no-untyped-call]
        return told


def _refuse_conf(known: Iterable[str], moves: Iterable[str], context: Any) -> None:
    """Fail a run whose conf has keys that nothing would heed: unknown ones, or to move something while it steers."""
    conf = context["dag_run"].conf or {}
    if unknown := sorted(set(conf) - set(known)):
        names = ", ".join(sorted(known))
        wrong = "; ".join(f"{name!r}: {name_remedy(name, known, f'the keys are {names}')}" for name in unknown)
        raise AirflowFailException(f"the conf of this run has unknown keys, so nothing is moved: {wrong}")
    if conf.get(_STEER) and (unheeded := sorted(name for name in moves if conf.get(name))):
        raise AirflowFailException(f"a run that steers moves nothing itself: leave {', '.join(unheeded)} empty")
    if conf.get(_UNTIL) and not any(conf.get(name) for name in {*moves} - {_UNTIL, _PLAN_ONLY}):
        raise AirflowFailException(f"until is for sizes of targets, got until {conf[_UNTIL]!r} alone")
    if conf.get(_NODES) and not conf.get(_STEER):
        raise AirflowFailException(f"nodes are for steer=leave_out, got nodes {conf[_NODES]!r} alone")


def _amount(target: Target, schedule: CapacitySchedule) -> Param:
    gives = {window.name: window.allocation for window in schedule.windows} | {"otherwise": schedule.otherwise or {}}
    said = units_text({name: one[target.name] for name, one in gives.items() if one})
    ends = [schedule.limit // target.gpus_per_unit] if schedule.limit else []
    ends += [target.size] if isinstance(target, SlurmNodesTarget) else []
    most = f" It can have 0 to {min(ends)}." if ends else ""
    description = (
        f'As "2" or "{2 * target.gpus_per_unit} gpus".{most} By the schedule it has: {said}. It can be left empty '
        "if no other is: it then has what they leave of the block. If all are empty, the schedule decides."
    )
    pattern = rf"^(\d+ *({one_of(target.units)}s?|gpus?|GPUs?)?)?$"
    return _text(f"{target.name}: how many {target.units}", description, pattern=pattern)
