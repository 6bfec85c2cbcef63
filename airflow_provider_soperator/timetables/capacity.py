"""Timetables whose runs are the handovers of a capacity schedule."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import pendulum
from airflow.timetables.base import DagRunInfo, DataInterval, TimeRestriction, Timetable
from airflow.timetables.simple import AssetTriggeredTimetable

from airflow_provider_soperator.capacity.allocation import units_text
from airflow_provider_soperator.capacity.schedule import CapacitySchedule, ScheduleChange

if TYPE_CHECKING:
    from airflow.models.dag import DagModel
    from pendulum import DateTime

#: How long after a shift was to begin its run may still be made, if the handover is past by then: a scheduler that is
#: there may be busy.
_LATE = timedelta(minutes=10)
#: What Airflow's database has room for.
_DESCRIPTION_LENGTH = 1000


class CapacityTimetable(Timetable):
    """Runs a DAG once for each handover of a schedule, the schedule's lead before it.

    The data interval of a run is the time that its shift has: it starts when the shift begins, which is also the run's
    logical date, and ends at the handover. However late a run starts, ``data_interval_end`` says for which handover it
    is::

        with DAG("capacity", schedule=CapacityTimetable(schedule)) as dag:
            ...

    Without ``catchup`` no run is made for a handover that is past, so a DAG that is unpaused puts nothing into force
    but what comes, and without a lead what was to come in the last ten minutes. A scheduler that was down over some
    makes a run for the newest, as older ones are superseded, but none for a past one if the DAG processor has read the
    file in the meantime: then the watcher of ``capacity_dag`` sees that it is not in force. With a ``start_date`` only
    handovers whose shift begins after it are carried out. With ``catchup`` each handover has its run. A run that is
    triggered by hand, without a date, has the data interval of the newest one.

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
        after: list[datetime] = [last_automated_data_interval.end] if last_automated_data_interval else []
        if restriction.earliest is not None:
            after.append(restriction.earliest + self.schedule.lead_time - datetime.resolution)
        if not restriction.catchup or not after:
            now = _now()
            due = self.schedule.due(now)
            oldest = now - max(timedelta(0), _LATE - self.schedule.lead_time)
            after.append((max(due.at, oldest) if due else oldest) - datetime.resolution)
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
        if dag is None or dag.catchup or (dag.end_date and dag.end_date < due.begins):
            return noted
        return DagRunInfo(run_after=due.begins, data_interval=_interval(due))


class ReconciledCapacityTimetable(CapacityTimetable, AssetTriggeredTimetable):
    """Beside the handovers, runs a DAG for each event of assets: those of a watcher that finds a difference."""

    # As of timetables with times of their own.
    periodic = True

    def __init__(self, schedule: CapacitySchedule, assets: Any) -> None:
        AssetTriggeredTimetable.__init__(self, assets)
        # From Airflow 3.4 on each event would have a run of its own; one does what all of them ask for.
        self.batch_asset_events = True
        CapacityTimetable.__init__(self, schedule)

    def serialize(self) -> dict[str, Any]:
        return CapacityTimetable.serialize(self) | AssetTriggeredTimetable.serialize(self)

    @classmethod
    def deserialize(cls, data: dict[str, Any]) -> ReconciledCapacityTimetable:
        from airflow.serialization.decoders import decode_asset_like

        return cls(CapacitySchedule.read(data["schedule"]), decode_asset_like(data["asset_condition"]))


def _now() -> DateTime:
    return pendulum.now("UTC")


def _interval(change: ScheduleChange) -> DataInterval:
    return DataInterval(change.begins, change.at)


def _description(schedule: CapacitySchedule) -> str:
    """For the page of a DAG, and shortened to what Airflow's database has room for."""
    named = {
        one.name if one.name == one.when else f"{one.name} ({one.when})": one.allocation for one in schedule.windows
    }
    if schedule.otherwise is not None:
        named["otherwise"] = schedule.otherwise
    parts = [f"{name}: {units_text(allocation)}" for name, allocation in named.items()]
    if dates := [*schedule.exceptions, *schedule.holidays, *(one.when for one in schedule.overrides)]:
        parts.append(f"other than that on {', '.join(dates)}")
    begin = f"shifts begin {schedule.lead} before" if schedule.lead_time else "shifts begin at these times"
    text = f"{'; '.join(parts)}; times of {schedule.timezone}, {begin}"
    return text if len(text) <= _DESCRIPTION_LENGTH else f"{text[: _DESCRIPTION_LENGTH - 1]}…"
