"""A DAG that runs at the handovers of a schedule, also after Airflow was down over some of them."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest

from airflow_provider_soperator.capacity.schedule import CapacitySchedule, ScheduleChange, Window
from tests.airflow.stack import Dag, Run, Stack

pytestmark = pytest.mark.lane("second airflow")

LEAD = timedelta(seconds=5)
#: When the handovers are, from the moment on at which the tests begin.
HANDOVERS = [timedelta(seconds=seconds) for seconds in (60, 110, 115)]
#: One whose clocks are never changed.
ZONE = "Asia/Kolkata"
HEAD = """
from airflow_provider_soperator.capacity.schedule import CapacitySchedule
from airflow_provider_soperator.timetables.capacity import CapacityTimetable

schedule = CapacitySchedule.read({schedule!r})
"""
BODY = """
@task
def handover(data_interval_end=None):
    return data_interval_end.isoformat()

handover()
"""


def now() -> datetime:
    return datetime.now(timezone.utc)


def made(pace: int) -> CapacitySchedule:
    """Three handovers, of which the first comes once Airflow has the DAGs."""
    first = now().astimezone(ZoneInfo(ZONE)).replace(tzinfo=None)
    times = [f"{first + pace * after:%Y-%m-%dT%H:%M:%S}" for after in HANDOVERS]
    exceptions: Mapping[str, Mapping[str, int]] = {
        f"{times[0]}/{times[1]}": {"training": 1},
        f"{times[1]}/{times[2]}": {"training": 2},
        f"{times[2]}/{first + timedelta(days=100):%Y-%m-%dT%H:%M:%S}": {"training": 3},
    }
    return CapacitySchedule(
        timezone=ZONE, windows=[Window("daily 00:00 - 24:00", {"training": 0})], exceptions=exceptions, lead=LEAD
    )


def add_dag(stack: Stack, name: str, schedule: CapacitySchedule, options: str) -> Dag:
    head = HEAD.format(schedule=schedule.describe())
    return stack.add_dag(name, BODY, head=head, schedule="CapacityTimetable(schedule)", dag_options=options)


def wait_for_runs(stack: Stack, dags: Sequence[Dag], end: datetime) -> None:
    stack.wait("the first handover has its runs", lambda: all(dag.runs() for dag in dags) or now() > end)


def interrupted(stack: Stack) -> tuple[Dag, Dag, list[ScheduleChange]]:
    """A DAG of the newest handovers and one of all, of an Airflow without a scheduler since the first of them.

    A slow Airflow gets handovers that are further apart.
    """
    for pace in (1, 2, 5):
        began = now()
        schedule = made(pace)
        handovers = list(schedule.changes(began, began + pace * timedelta(minutes=10)))
        newest_only = add_dag(stack, f"handovers_{pace}", schedule, "catchup=False")
        all_of_them = add_dag(stack, f"all_handovers_{pace}", schedule, "catchup=True, start_date=datetime(2026, 1, 1)")
        wait_for_runs(stack, [newest_only, all_of_them], handovers[1].begins)
        # What comes next has been noted, and there is no scheduler to note that it is superseded. One that is
        # told to end would take its time.
        for name in ("scheduler", "dag-processor"):
            stack.end(name, signal.SIGKILL)
        if len(newest_only.runs()) == len(all_of_them.runs()) == 1 and now() < handovers[1].begins:
            return newest_only, all_of_them, handovers
        stack.start_all()
    raise AssertionError("this Airflow is too slow to make a run within minutes")


def carried_out(run: Run) -> datetime:
    """The moment of the handover that a run is for, as its task knows it."""
    run.wait("handover", "success")
    return datetime.fromisoformat(run.xcom("handover"))


def test_the_page_of_the_dag_says_when_it_runs(stack: Stack) -> None:
    page = stack.call("GET", f"/dags/{add_dag(stack, 'told', made(1), 'catchup=False').dag_id}")
    assert page["timetable_summary"] == f"daily 00:00 - 24:00 ({ZONE})"
    assert page["timetable_description"].startswith("daily 00:00 - 24:00: training 0; ")
    assert page["timetable_description"].endswith(f"times of {ZONE}, shifts begin 5s before")


def test_each_handover_has_its_run_but_for_those_that_are_superseded(stack: Stack) -> None:
    try:
        newest_only, all_of_them, handovers = interrupted(stack)
        first, _, last = handovers
        [run], [same] = newest_only.runs(), all_of_them.runs()
        stack.wait("two more shifts were to begin", lambda: now() > last.begins)
        stack.components["scheduler"].start()
        stack.wait("the handovers have their runs", lambda: len(all_of_them.runs()) == 3)
        stack.wait("the newest handover has its run", lambda: len(newest_only.runs()) > 1)
    finally:
        stack.start_all()
    assert carried_out(run) == carried_out(same) == first.at
    answer = stack.call("GET", run.path)
    assert datetime.fromisoformat(answer["run_after"]) == first.begins
    assert datetime.fromisoformat(answer["logical_date"]) == first.begins
    assert first.begins <= datetime.fromisoformat(answer["queued_at"])
    assert [carried_out(run) for run in all_of_them.runs()] == [one.at for one in handovers]
    assert [carried_out(run) for run in newest_only.runs()] == [first.at, last.at]
