"""The timetable of a schedule, as Airflow stores it, shows it and asks it."""

from __future__ import annotations

import json
from datetime import datetime, timedelta

import pendulum
import pytest
from airflow import plugins_manager
from airflow.sdk import DAG, Asset, AssetWatcher
from airflow.serialization.serialized_objects import DagSerialization
from airflow.timetables.base import DagRunInfo, DataInterval, TimeRestriction
from airflow.timetables.simple import AssetTriggeredTimetable

from airflow_provider_soperator.capacity.schedule import CapacitySchedule, Window
from airflow_provider_soperator.timetables import capacity
from airflow_provider_soperator.timetables.capacity import CapacityTimetable, ReconciledCapacityTimetable
from airflow_provider_soperator.triggers.events import SlurmQueueLongTrigger

SCHEDULE = CapacitySchedule(
    timezone="Europe/Amsterdam",
    windows=[
        Window("mon-fri 20:00 - 08:00", {"training": 8, "inference": 0}, name="night"),
        Window("mon-fri 08:00 - 20:00", {"training": 4, "inference": 4}),
    ],
    otherwise={"training": 6, "inference": 2},
    exceptions={"2026-12-24": "night", "2026-12-25/2026-12-27": {"training": 0, "inference": 8}},
    lead="30m",
)


def utc(text: str) -> pendulum.DateTime:
    return pendulum.instance(datetime.fromisoformat(f"{text}+00:00"))


def interval(handover: str) -> DataInterval:
    return DataInterval(utc(handover) - timedelta(minutes=30), utc(handover))


def asked(
    monkeypatch: pytest.MonkeyPatch,
    now: str,
    *,
    last: str | None = None,
    start: str | None = None,
    end: str | None = None,
    catchup: bool = False,
) -> str | None:
    """For which handover the next run is, as the timetable says at some time."""
    monkeypatch.setattr(capacity, "_now", lambda: utc(now))
    info = CapacityTimetable(SCHEDULE).next_dagrun_info(
        last_automated_data_interval=interval(last) if last else None,
        restriction=TimeRestriction(start and utc(start), end and utc(end), catchup),
    )
    if info is None:
        return None
    assert info.data_interval is not None
    assert info == DagRunInfo(run_after=info.data_interval.start, data_interval=info.data_interval)
    handover = info.data_interval.end
    assert info.data_interval == interval(f"{handover:%Y-%m-%dT%H:%M}")
    return f"{handover:%Y-%m-%dT%H:%M}"


def test_one_run_for_each_handover(monkeypatch: pytest.MonkeyPatch) -> None:
    wednesday, evening, morning = "2026-11-25T07:00", "2026-11-25T19:00", "2026-11-26T07:00"
    assert asked(monkeypatch, "2026-11-25T12:00", last=wednesday) == evening
    assert asked(monkeypatch, "2026-11-25T18:30", last=wednesday) == evening
    assert asked(monkeypatch, "2026-11-25T18:30", last=evening) == morning


def test_what_is_past_has_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    last = "2026-11-23T19:00"
    # The handover is ahead, though its shift was to have begun.
    assert asked(monkeypatch, "2026-11-25T07:00", last=last) == "2026-11-25T07:00"
    assert asked(monkeypatch, "2026-11-25T07:01", last=last) == "2026-11-25T19:00"
    assert asked(monkeypatch, "2026-11-30T06:00", last=last) == "2026-11-30T07:00"


def test_without_a_lead_a_busy_scheduler_may_be_late(monkeypatch: pytest.MonkeyPatch) -> None:
    timetable = CapacityTimetable(CapacitySchedule.read({**SCHEDULE.describe(), "lead": "0m"}))
    restriction = TimeRestriction(None, None, False)
    for minutes, handover in [(0, "2026-11-25T07:00"), (10, "2026-11-25T07:00"), (11, "2026-11-25T19:00")]:
        now = utc("2026-11-25T07:00") + timedelta(minutes=minutes)
        monkeypatch.setattr(capacity, "_now", lambda now=now: now)
        info = timetable.next_dagrun_info(last_automated_data_interval=None, restriction=restriction)
        assert info is not None
        assert info.run_after == utc(handover)


def test_with_catchup_all(monkeypatch: pytest.MonkeyPatch) -> None:
    now, start = "2026-11-25T18:30", "2026-11-23T12:00"
    assert asked(monkeypatch, now, start=start, catchup=True) == "2026-11-23T19:00"
    assert asked(monkeypatch, now, start=start, last="2026-11-23T19:00", catchup=True) == "2026-11-24T07:00"
    assert asked(monkeypatch, now, start=start, last="2026-11-25T19:00", catchup=True) == "2026-11-26T07:00"


def test_the_first_run(monkeypatch: pytest.MonkeyPatch) -> None:
    now = "2026-11-25T12:00"
    assert asked(monkeypatch, now) == asked(monkeypatch, now, catchup=True) == "2026-11-25T19:00"
    assert asked(monkeypatch, now, start="2026-01-01T00:00") == "2026-11-25T19:00"
    # Shifts that were to begin before the start date are nobody's; one that begins at it is carried out.
    assert asked(monkeypatch, now, start="2026-11-25T18:31") == "2026-11-26T07:00"
    assert asked(monkeypatch, now, start="2026-11-25T18:30") == "2026-11-25T19:00"
    assert asked(monkeypatch, now, start="2027-06-01T00:00") == "2027-06-01T06:00"


def test_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    last = "2026-11-25T07:00"
    assert asked(monkeypatch, "2026-11-25T12:00", last=last, end="2026-11-25T18:30") == "2026-11-25T19:00"
    assert asked(monkeypatch, "2026-11-25T12:00", last=last, end="2026-11-25T18:29") is None


def test_a_schedule_that_hands_nothing_over() -> None:
    always = CapacitySchedule(timezone="UTC", windows=[Window("daily 00:00 - 24:00", {"training": 8})])
    timetable = CapacityTimetable(always)
    restriction = TimeRestriction(None, None, False)
    assert timetable.next_dagrun_info(last_automated_data_interval=None, restriction=restriction) is None
    now = utc("2026-11-25T12:00")
    assert timetable.infer_manual_data_interval(run_after=now) == DataInterval.exact(now)


def test_a_run_that_is_started_by_hand_is_for_the_newest_handover() -> None:
    timetable = CapacityTimetable(SCHEDULE)
    assert timetable.infer_manual_data_interval(run_after=utc("2026-11-25T18:29")) == interval("2026-11-25T07:00")
    assert timetable.infer_manual_data_interval(run_after=utc("2026-11-25T18:30")) == interval("2026-11-25T19:00")


def test_airflow_stores_it_with_a_dag_and_reads_it_again() -> None:
    dag = DAG("capacity", schedule=CapacityTimetable(SCHEDULE))
    stored = json.dumps(DagSerialization.to_dict(dag))
    again = DagSerialization.from_dict(json.loads(stored)).timetable
    assert isinstance(again, CapacityTimetable)
    assert again.schedule == SCHEDULE
    assert again.serialize() == CapacityTimetable(SCHEDULE).serialize()


def test_with_assets_airflow_stores_both_and_reads_them_again() -> None:
    trigger = SlurmQueueLongTrigger(min_jobs=1)
    asset = Asset(name="queue", watchers=[AssetWatcher(name="long", trigger=trigger)])
    dag = DAG("capacity", schedule=ReconciledCapacityTimetable(SCHEDULE, asset))
    stored = json.dumps(DagSerialization.to_dict(dag))
    again = DagSerialization.from_dict(json.loads(stored)).timetable
    assert isinstance(again, ReconciledCapacityTimetable)
    # To Airflow 3.4: one run for all events that wait.
    assert again.batch_asset_events
    # Airflow's scheduler makes runs by time, and for events of the asset.
    assert isinstance(again, AssetTriggeredTimetable)
    assert again.can_be_scheduled
    assert again.schedule == SCHEDULE
    [(_, read)] = again.asset_condition.iter_assets()
    [watcher] = read.watchers
    assert watcher.name == "long"
    assert again.serialize() == ReconciledCapacityTimetable(SCHEDULE, asset).serialize()
    assert again.summary == CapacityTimetable(SCHEDULE).summary


def test_backfills_have_a_run_for_each_handover() -> None:
    dag = DagSerialization.from_dict(DagSerialization.to_dict(DAG("capacity", schedule=CapacityTimetable(SCHEDULE))))
    found = list(dag.iter_dagrun_infos_between(utc("2026-12-24T00:00"), utc("2026-12-29T00:00")))
    assert [one.data_interval for one in found] == [
        interval(handover)
        for handover in ("2026-12-24T23:00", "2026-12-27T23:00", "2026-12-28T07:00", "2026-12-28T19:00")
    ]


def test_what_people_see() -> None:
    timetable = CapacityTimetable(SCHEDULE)
    assert timetable.summary == "night, mon-fri 08:00 - 20:00 (Europe/Amsterdam)"
    assert timetable.description == (
        "night (mon-fri 20:00 - 08:00): training 8, inference 0; mon-fri 08:00 - 20:00: training 4, inference 4; "
        "otherwise: training 6, inference 2; other than that on 2026-12-24, 2026-12-25/2026-12-27; "
        "times of Europe/Amsterdam, shifts begin 30m before"
    )


def test_a_long_description_is_shortened_to_what_airflow_can_store() -> None:
    # The 31 days of October, one by one.
    exceptions = {
        f"2026-10-{day:02}T{hour:02}:00/2026-10-{day:02}T{hour + 1:02}:00": "night"
        for day in range(1, 32)
        for hour in (1, 2)
    }
    fields = {**SCHEDULE.describe(), "exceptions": exceptions}
    description = CapacityTimetable(CapacitySchedule.read(fields)).description
    assert len(description) == 1000
    assert description.endswith("…")


def test_airflow_has_it_from_the_plugin() -> None:
    assert {CapacityTimetable, ReconciledCapacityTimetable} <= set(plugins_manager.get_timetables_plugins().values())
