"""The DAGs that move capacity, as Airflow's database has them: schedules, targets, overrides, and their shifts.

A DAG of ``capacity_dag`` is stored with its schedule, and its watcher with the targets and the block, so no DAG file is
read. What a DAG with a ``CapacityTimetable`` of its own moves is in its file alone.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, TypeVar

from airflow_provider_soperator.board.tasks import path_of
from airflow_provider_soperator.capacity.demand import Decision, newest_decision
from airflow_provider_soperator.capacity.figures import kept_reports
from airflow_provider_soperator.capacity.order import ShiftOrder
from airflow_provider_soperator.capacity.schedule import CapacitySchedule
from airflow_provider_soperator.capacity.steering import ShiftAtWork
from airflow_provider_soperator.errors import CapacityMistake

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

T = TypeVar("T")
_log = logging.getLogger(__name__)
#: What a report of a window has.
_REPORTED = {"window", "since", "until", "measured_hours", "gpu_hours", "idle_gpu_hours"}
#: What is stored in another way than this version does.
UNREADABLE = (AttributeError, LookupError, TypeError, ValueError)
_TIMETABLES = "airflow_provider_soperator.timetables.capacity."


@dataclass(frozen=True, kw_only=True)
class ShiftSeen:
    """A shift as its task has told of it: one that is at work, or the last one that has ended."""

    dag_id: str
    #: The page of its task, below the address of Airflow.
    path: str
    #: How far it has come and what it waits for, or the state in which it has ended.
    said: str
    at: datetime | None = None
    ends_at: datetime | None = None
    #: Who has started its run; empty for the schedule.
    by: str = ""
    jobs_in_the_way: tuple[str, ...] = ()
    #: Of one that has ended: seconds, the delay, and jobs by what became of them.
    seconds: float = 0.0
    late: float = 0.0
    jobs: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class CapacityDag:
    """A DAG that moves capacity."""

    dag_id: str
    is_paused: bool
    #: With the overrides that people have asked for.
    schedule: CapacitySchedule
    #: It names the block and the targets; None if these are in the DAG file alone.
    order: ShiftOrder | None = None
    #: Names of Airflow Variables: of its overrides, and of what demand decides, if anything does.
    overrides_variable: str = ""
    demand_variable: str = ""
    #: What targets could use in past windows, the newest last.
    reports: Sequence[Mapping[str, Any]] = ()
    #: The units by demand, if anything decides within ranges.
    demand: Decision | None = None
    at_work: ShiftSeen | None = None
    last: ShiftSeen | None = None
    #: What is wrong with its overrides.
    mistake: str = ""

    @property
    def gpus(self) -> dict[str, int]:
        """GPUs of one unit of each target."""
        named = {target.name: target.gpus_per_unit for target in self.order.targets} if self.order else {}
        return {
            target: self.schedule.gpus_per_unit.get(target, named.get(target, 1)) for target in self.schedule.targets
        }

    def is_of(self, connection: str) -> bool:
        """True if it may move nodes of this connection."""
        targets = self.order.targets if self.order else ()
        named = {target.slurm_conn_id for target in targets if hasattr(target, "slurm_conn_id")}
        return not named or connection in named


def capacity_dags(connection: str) -> list[CapacityDag]:
    """The DAGs that move capacity with nodes of this connection, by name."""
    from airflow.models.dag import DagModel
    from airflow.models.serialized_dag import SerializedDagModel
    from airflow.utils.session import create_session
    from sqlalchemy import select

    with create_session() as session:
        wanted = select(DagModel.dag_id, DagModel.is_paused).where(
            DagModel.timetable_type.startswith(_TIMETABLES, autoescape=True), DagModel.is_stale.is_(False)
        )
        stored = []
        for dag_id, is_paused in session.execute(wanted.order_by(DagModel.dag_id)).all():
            row = SerializedDagModel.get(dag_id, session=session)
            timetable = ((row and row.data) or {}).get("dag", {}).get("timetable", {}).get("__var")
            try:
                stored += [_stored(dag_id, bool(is_paused), timetable)] if timetable else []
            except UNREADABLE as error:
                # Another version of the provider has stored it, until the DAG processor does so again.
                _log.warning("The DAG %s is stored in a way that cannot be read: %s", dag_id, error)
        found = [replace(dag, last=_last_shift(session, dag.dag_id)) for dag in stored if dag.is_of(connection)]
    return [_with_variables(dag) for dag in found]


def _stored(dag_id: str, is_paused: bool, timetable: Mapping[str, Any]) -> CapacityDag:
    """A DAG as its serialized timetable has it."""
    told = watched(timetable)
    return CapacityDag(
        dag_id=dag_id,
        is_paused=is_paused,
        schedule=CapacitySchedule.read(timetable["schedule"]),
        order=ShiftOrder.read(json.loads(told["order"])) if told else None,
        overrides_variable=told.get("overrides", f"{dag_id}_overrides"),
        demand_variable=told["demanded"] if told.get("demand") else "",
    )


def watched(timetable: Mapping[str, Any]) -> Mapping[str, Any]:
    """What the watcher of a serialized timetable is told: the order, the demand, names of Variables."""
    watchers = (timetable.get("asset_condition") or {}).get("watchers") or ()
    asked = (one["trigger"]["kwargs"] for one in watchers)
    return next((one for one in asked if "order" in one), {})


def _with_variables(dag: CapacityDag) -> CapacityDag:
    """The DAG with what its runs, its watcher and its shifts keep in Airflow Variables."""
    try:
        dag = replace(dag, schedule=dag.schedule.as_kept(dag.overrides_variable, datetime.now(timezone.utc)))
    except CapacityMistake as error:
        dag = replace(dag, mistake=str(error))
    order = dag.order
    shift = _readable(lambda: ShiftAtWork.find(order.block)) if order else None
    return replace(
        dag,
        reports=_readable(lambda: [one for one in kept_reports(dag.dag_id) if one.keys() >= _REPORTED]) or (),
        demand=_readable(lambda: newest_decision(dag.demand_variable)) if order and dag.demand_variable else None,
        at_work=_readable(lambda: _at_work(shift)) if shift and not shift.ended else None,
    )


def _readable(read: Callable[[], T]) -> T | None:
    """What is kept; None if it was edited by hand, or is of another version."""
    with suppress(*UNREADABLE):
        return read()
    return None


def _at_work(shift: ShiftAtWork) -> ShiftSeen | None:
    """The shift that has the block, if its task has not ended."""
    from airflow.models.taskinstance import TaskInstance
    from airflow.models.xcom import XComModel
    from airflow.utils.session import create_session
    from airflow.utils.state import State
    from sqlalchemy import select

    # Only a run's id may have slashes.
    dag_id, _, rest = shift.task.partition("/")
    run_id, task_id, index = rest.rsplit("/", 2)
    of = {"dag_id": dag_id, "run_id": run_id, "task_id": task_id, "map_index": int(index)}
    with create_session() as session:
        state = session.scalar(select(TaskInstance.state).filter_by(**of))
        if state is None or state in State.finished:
            return None
        row = session.scalar(select(XComModel).filter_by(**of, key="state"))
        told = XComModel.deserialize_value(row) if row else {}
    return ShiftSeen(
        dag_id=dag_id,
        path=path_of(dag_id, run_id, task_id, int(index)),
        said=told.get("text") or f"its task is {state}",
        ends_at=shift.ends_after(_readable(shift.commands) or ()),
        jobs_in_the_way=tuple(str(job["id"]) for job in told.get("jobs_in_the_way", ())),
    )


def _last_shift(session: Session, dag_id: str) -> ShiftSeen | None:
    from airflow.models.dagrun import DagRun
    from airflow.models.xcom import XComModel
    from airflow.utils.types import DagRunType
    from sqlalchemy import select

    query = select(XComModel, DagRun).join(DagRun, DagRun.id == XComModel.dag_run_id)
    newest = query.where(XComModel.dag_id == dag_id, XComModel.key == "report").order_by(XComModel.timestamp.desc())
    found = session.execute(newest.limit(1)).first()
    if not found:
        return None
    row, run = found
    report = XComModel.deserialize_value(row)
    if not isinstance(report, dict) or not {"state", "at", "seconds"} <= report.keys():
        return None
    by_hand = run.run_type == DagRunType.MANUAL
    return ShiftSeen(
        dag_id=dag_id,
        path=path_of(dag_id, row.run_id, row.task_id, row.map_index),
        said=str(report["state"]).replace("_", " "),
        at=datetime.fromisoformat(report["at"]),
        by=(run.triggering_user_name or "by hand") if by_hand else "",
        seconds=report["seconds"],
        late=report.get("figures", {}).get("late_seconds") or 0.0,
        jobs={name: number for name, number in report.get("jobs", {}).items() if number},
    )
