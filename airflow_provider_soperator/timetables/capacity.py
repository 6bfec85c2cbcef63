"""A timetable whose runs are the handovers of a capacity schedule."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pendulum
from airflow.timetables.base import DagRunInfo, DataInterval, TimeRestriction, Timetable

from airflow_provider_soperator.capacity.schedule import CapacitySchedule, ScheduleChange

if TYPE_CHECKING:
    from airflow.models.dag import DagModel
    from pendulum import DateTime

#: What Airflow's database has room for.
_DESCRIPTION_LENGTH = 1000


class CapacityTimetable(Timetable):
    """Runs a DAG once for each handover of a schedule, the schedule's lead before it.

    The data interval of a run is the time that its shift has: it starts when the shift begins, which is also the run's
    logical date, and ends at the handover. However late a run starts, ``data_interval_end`` says for which handover it
    is::

        with DAG("capacity", schedule=CapacityTimetable(schedule)) as dag:
            ...

    Without ``catchup`` a run is for the newest handover whose shift should have begun, also after Airflow was down over
    several: older ones are superseded. This applies to the first run, too, so a DAG that is switched on applies the
    schedule at once; with a ``start_date`` only handovers whose shift begins after it are carried out. With ``catchup``
    each handover has its run. A run that is triggered by hand, without a date, has the data interval of the newest one.

    :param schedule: allocation of the GPUs by time
    """

    def __init__(self, schedule: CapacitySchedule) -> None:
        self.schedule = schedule
        self.description = _description(schedule)

    @property
    def summary(self) -> str:
        return f"{', '.join(window.name for window in self.schedule.windows)} ({self.schedule.timezone})"

    def serialize(self) -> dict[str, Any]:
        return {"schedule": self.schedule.describe()}

    @classmethod
    def deserialize(cls, data: dict[str, Any]) -> CapacityTimetable:
        return cls(CapacitySchedule.read(data["schedule"]))

    def infer_manual_data_interval(self, *, run_after: DateTime) -> DataInterval:
        due = self.schedule.due(run_after)
        return _interval(due) if due else DataInterval.exact(run_after)

    def next_dagrun_info(
        self, *, last_automated_data_interval: DataInterval | None, restriction: TimeRestriction
    ) -> DagRunInfo | None:
        after: list[datetime] = []
        if last_automated_data_interval is not None:
            after.append(last_automated_data_interval.end)
        if restriction.earliest is not None:
            after.append(restriction.earliest + self.schedule.lead_time - datetime.resolution)
        if not restriction.catchup or not after:
            now = _now()
            due = self.schedule.due(now)
            after.append(due.at - datetime.resolution if due else now + self.schedule.lead_time)
        change = self.schedule.next_change(max(after))
        if change is None or (restriction.latest is not None and restriction.latest < change.begins):
            return None
        return DagRunInfo(run_after=change.begins, data_interval=_interval(change))

    def next_run_info_from_dag_model(self, *, dag_model: DagModel) -> DagRunInfo | None:
        """The next run for the scheduler; the one that it has noted may have been superseded in the meantime."""
        noted = super().next_run_info_from_dag_model(dag_model=dag_model)
        due = self.schedule.due(_now())
        if noted is None or noted.data_interval is None or due is None or due.at <= noted.data_interval.end:
            return noted
        # Only the DAG knows whether it catches up, and when it is to end.
        from airflow.models.serialized_dag import SerializedDagModel
        from sqlalchemy.orm import object_session

        session = object_session(dag_model)
        dag = SerializedDagModel.get_dag(dag_model.dag_id, session=session) if session else None
        if dag is None:
            return noted
        before = DagRunInfo.exact(noted.data_interval.end - datetime.resolution)
        return dag.next_dagrun_info(last_automated_run_info=before) or noted


def _now() -> DateTime:
    return pendulum.now("UTC")


def _interval(change: ScheduleChange) -> DataInterval:
    return DataInterval(change.begins, change.at)


def _description(schedule: CapacitySchedule) -> str:
    """For the page of a DAG, and shortened to what Airflow's database has room for."""
    parts = []
    for window in schedule.windows:
        when = "" if window.name == window.when else f" ({window.when})"
        parts.append(f"{window.name}{when}: {_units(window.allocation)}")
    if schedule.otherwise is not None:
        parts.append(f"otherwise: {_units(schedule.otherwise)}")
    if schedule.exceptions:
        parts.append(f"other than that on {', '.join(schedule.exceptions)}")
    begin = f"shifts begin {schedule.lead} before" if schedule.lead_time else "shifts begin at these times"
    text = f"{'; '.join(parts)}; times of {schedule.timezone}, {begin}"
    return text if len(text) <= _DESCRIPTION_LENGTH else f"{text[: _DESCRIPTION_LENGTH - 1]}…"


def _units(allocation: Mapping[str, int]) -> str:
    return ", ".join(f"{target} {units}" for target, units in allocation.items())
