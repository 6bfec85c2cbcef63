"""Capacity is moved by DAGs: by a schedule, by hand, after somebody has agreed; and what is wrong is said at once."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from airflow_provider_soperator.capacity.schedule import CapacitySchedule, Window
from sandbox.airflow.beside import DAGS
from sandbox.cloud.landscape import BLOCK_ID
from sandbox.errors import SandboxError
from tests.airflow.shifts import HEAD, Capacity
from tests.airflow.stack import Dag, Run, Stack

# One story: each test begins with what the one before has moved.
pytestmark = [pytest.mark.lane("second airflow"), pytest.mark.in_order]

#: One whose clocks are never changed.
ZONE = "Asia/Kolkata"
LEAD = timedelta(seconds=15)
BY_SCHEDULE = """
dag = capacity_dag(
    {name!r}, CapacitySchedule.read({schedule!r}), [training, inference], BLOCK,
    shift_args={{"poll_interval": 1, "deferrable": True}}, is_paused_upon_creation=False, {options}
)
"""
ALWAYS = CapacitySchedule(timezone="UTC", windows=[Window("daily 00:00 - 24:00", {"training": 4, "inference": 0})])


def now() -> datetime:
    return datetime.now(timezone.utc)


def add_capacity_dag(stack: Stack, name: str, schedule: CapacitySchedule, options: str = "") -> Dag:
    return stack.add_source(name, HEAD + BY_SCHEDULE.format(name=name, schedule=schedule.describe(), options=options))


@pytest.fixture(scope="module", autouse=True)
def nothing_is_watched_afterwards(stack: Stack) -> Iterator[None]:
    """Watchers would put right what other modules move."""
    yield
    for dag_id in ("scheduled", "approved", "unanswered", "steered", "gpu_shifts"):
        with suppress(SandboxError):  # of tests that did not run
            stack.call("PATCH", f"/dags/{dag_id}", json={"is_paused": True})


# By a schedule


@pytest.fixture(scope="module")
def handover() -> datetime:
    """The next minute at which Airflow has had time to get to know the DAG."""
    return (now() + timedelta(seconds=90)).replace(second=0, microsecond=0)


@pytest.fixture(scope="module")
def scheduled(stack: Stack, capacity: Capacity, handover: datetime) -> Dag:
    """A DAG for a day on which GPUs train until the handover, and half of them serve from then on."""
    begin = handover.astimezone(ZoneInfo(ZONE)).replace(tzinfo=None)
    dates = f"{begin:%Y-%m-%dT%H:%M}/{begin + timedelta(days=30):%Y-%m-%dT%H:%M}"
    schedule = CapacitySchedule(
        timezone=ZONE,
        windows=ALWAYS.windows,
        exceptions={dates: {"training": 2, "inference": 2}},
        gpus_per_unit={"training": 8, "inference": 8},
        limit=32,
        lead=LEAD,
    )
    return add_capacity_dag(stack, "scheduled", schedule)


#: What the block shows, and what a template may make of an argument: more is in tests/integration/test_shifts_failures.
MISTAKES = {
    "a_block_that_is_not_there": (
        'shift("{}", 4, 0, block="capacityblockgroup-e00none")',
        "capacityblockgroup-e00none",
    ),
    "what_is_no_number": (
        'shift("{}", "abc", None)',
        "training: expected a number of nodes or GPUs ('32 gpus'), got 'abc'",
    ),
    "what_is_no_moment": ('shift("{}", 4, 0, at="tomorrow")', "at='tomorrow' is not a date and time"),
}


def test_mistakes_are_said_at_once_and_not_tried_again(scheduled: Dag, stack: Stack, capacity: Capacity) -> None:
    body = "\n".join(made.format(name) for name, (made, _) in MISTAKES.items())
    options = "default_args={'retries': 3, 'retry_delay': timedelta(seconds=1)}"
    run = stack.add_dag("mistakes", body, head=HEAD, dag_options=options).trigger()
    assert set(run.wait_all().values()) == {"failed"}
    for name, (_, said) in MISTAKES.items():
        run.wait_failed_for_good(name)
        log = run.wait_log(name, "AirflowFailException: ")
        assert said in log.partition("AirflowFailException: ")[2], log
    assert not capacity.reservations()


def test_a_handover_takes_place_when_it_is_scheduled(
    scheduled: Dag, stack: Stack, capacity: Capacity, handover: datetime, metrics: socket.socket
) -> None:
    [run] = stack.wait("the handover has its run", scheduled.runs)
    # What has come from others could leave no room for what comes from this run.
    gauges = sent(metrics)
    run.wait("shift", "deferred", "success")
    plan = run.xcom("plan")
    assert plan["moves"] == {"training": {"now": 4, "then": 2}, "inference": {"now": 0, "then": 2}}
    assert "training goes from 4 to 2 nodes" in plan["text"]
    assert plan["text"] in run.log("plan")
    assert run.xcom("shift", key="plan")["moves"] == plan["moves"]
    run.wait("shift", "success")
    outcome = run.xcom("shift")
    assert outcome["allocation"] == {"training": 2, "inference": 2} == capacity.allocation()
    # Of Slurm's nodes some may have been off, whose GPUs were free already.
    claimed = [entry["at"] for entry in capacity.cluster.ledger() if entry["entry"] == "claim"]
    assert all(at >= handover.timestamp() for at in claimed[-2:]), (claimed, handover)
    assert outcome["figures"]["bought_gpus"] == outcome["figures"]["jobs_killed"] == 0
    assert not capacity.reservations()
    gauges |= sent(metrics)
    figures = outcome["figures"]
    assert set(figures.pop("target_gpu_seconds")) == {"training", "inference"}
    for name, value in figures.items():
        if value is not None:
            assert gauges[f"airflow.soperator.shift.{name}"] == pytest.approx(value)
    report = run.xcom("shift", key="report")
    assert (report["state"], report["bought_gpus"], report["jobs"]["killed"]) == ("done", 0, 0)


def sent(metrics: socket.socket) -> dict[str, float]:
    """The newest of each gauge."""
    found: dict[str, float] = {}
    while True:
        try:
            line = metrics.recv(65536).decode()
        except BlockingIOError:
            return found
        for name, value in re.findall(r"(\S+):([\d.]+)\|g", line):
            found[name] = float(value)


# By hand


def test_what_the_form_says_is_moved(scheduled: Dag, stack: Stack, capacity: Capacity) -> None:
    capacity.bring(2, 2)
    run = scheduled.trigger(training="3")
    run.wait("shift", "success")
    assert run.xcom("shift")["allocation"] == {"training": 3, "inference": 1} == capacity.allocation()
    shown = scheduled.trigger(inference="16 gpus", plan_only=True)
    shown.wait("shift", "success")
    assert shown.xcom("shift")["moves"]["inference"] == {"now": 1, "then": 2}
    assert capacity.allocation() == {"training": 3, "inference": 1}
    # It holds until the next handover.
    kept = stack.call("GET", f"/variables/{scheduled.dag_id}_overrides")["value"]
    assert [one["allocation"] for one in json.loads(kept)] == [{"training": 3, "inference": 1}]
    # What the schedule says, once that is over.
    stack.call("DELETE", f"/variables/{scheduled.dag_id}_overrides")
    run = scheduled.trigger()
    run.wait("shift", "success")
    assert run.xcom("shift")["allocation"] == {"training": 2, "inference": 2} == capacity.allocation()


@pytest.mark.parametrize("said", ["abc", "-1", "4 replicas", "2.5"])
def test_the_form_refuses_what_is_no_amount(scheduled: Dag, said: str) -> None:
    with pytest.raises(SandboxError, match=r"400 .*training"):
        scheduled.trigger(training=said)


def test_an_event_of_the_watcher_starts_a_run(scheduled: Dag, stack: Stack, capacity: Capacity) -> None:
    capacity.bring(3, 1)
    before = {run.run_id for run in scheduled.runs()}
    [asset] = stack.call("GET", "/assets", params={"name_pattern": f"{scheduled.dag_id}_differences"})["assets"]
    stack.call("POST", "/assets/events", json={"asset_id": asset["id"], "extra": {}})
    [run] = stack.wait("it has its run", lambda: [run for run in scheduled.runs() if run.run_id not in before])
    run.wait("shift", "success")
    assert run.xcom("shift")["allocation"] == {"training": 2, "inference": 2} == capacity.allocation()


def test_keys_that_nothing_would_heed_are_refused(scheduled: Dag) -> None:
    run = scheduled.trigger(trainig="3")
    run.wait("steer", "failed")
    run.wait("shift", "upstream_failed")
    run.wait_log("steer", "unknown keys, so nothing is moved: 'trainig': did you mean 'training'?")


def test_a_run_whose_handover_is_not_the_newest_does_nothing(
    scheduled: Dag, stack: Stack, capacity: Capacity, handover: datetime
) -> None:
    stack.wait("the handover is past", lambda: now() > handover)
    yesterday = (now() - timedelta(days=1)).isoformat()
    made = stack.call("POST", f"/dags/{scheduled.dag_id}/dagRuns", json={"logical_date": yesterday, "conf": {}})
    run = next(run for run in scheduled.runs() if run.run_id == made["dag_run_id"])
    run.wait("plan", "skipped")
    run.wait("shift", "skipped")
    run.wait_log("plan", "daily 00:00 - 24:00 is superseded: ")
    assert not capacity.reservations()


# With somebody who agrees, or does not


@pytest.fixture(scope="module")
def answered(stack: Stack, capacity: Capacity) -> Mapping[str, Run]:
    """Runs that wait for an answer, all of them at the same time."""
    # Its watcher would put right what these move.
    stack.call("PATCH", "/dags/scheduled", json={"is_paused": True})
    slow = add_capacity_dag(stack, "approved", ALWAYS, "approve=True, max_active_runs=2")
    fast = add_capacity_dag(stack, "unanswered", ALWAYS, "approve=True, response_timeout=timedelta(seconds=3)")
    capacity.bring(2, 2)
    return {
        "Approve": slow.trigger(training="3"),
        "Reject": slow.trigger(training="0"),
        "": fast.trigger(training="0"),
    }


def test_nothing_moves_that_nobody_has_agreed_to(answered: Mapping[str, Run], capacity: Capacity) -> None:
    answered[""].wait("approve", "failed")
    answered[""].wait("shift", "upstream_failed")
    asked = answered["Reject"].answer("approve", "Reject")
    assert asked["subject"] == "Move capacity: training from 2 to 0, inference from 2 to 4?"
    assert "- training goes from 2 to 0 nodes\n" in asked["body"]
    assert "\n\n1. now: training releases idle nodes, and busy ones" in asked["body"]
    answered["Reject"].wait("shift", "skipped")
    assert capacity.allocation() == {"training": 2, "inference": 2}


def test_what_was_agreed_to_is_moved(answered: Mapping[str, Run], capacity: Capacity) -> None:
    answered["Approve"].answer("approve", "Approve")
    answered["Approve"].wait("shift", "success")
    assert capacity.allocation() == {"training": 3, "inference": 1}


# While it runs


def test_a_shift_that_runs_is_steered(stack: Stack, capacity: Capacity) -> None:
    dag = add_capacity_dag(stack, "steered", ALWAYS)
    capacity.bring(4, 0)
    jobs = {
        node: capacity.cluster.sbatch(f"--nodelist={node}", "--exclusive", "--time=60", wrap="srun sleep 3000")
        for node in ("worker-2", "worker-3")
    }
    for job in jobs.values():
        capacity.cluster.wait_job(job, "RUNNING")
    run = dag.trigger(training="1")

    def kept_free() -> list[str]:
        return [one["node_list"] for name, one in capacity.reservations().items() if name in capacity.handovers()]

    def state() -> dict[str, Any]:
        with suppress(SandboxError):  # the trigger has not come as far
            return dict(run.xcom("shift", key="state"))
        return {"moved": None}

    run.wait("shift", "deferred")
    stack.wait("two have moved", lambda: state()["moved"] == 2)
    [node] = kept_free()
    text = state()["text"]
    assert text.startswith(f"2 of 3 nodes moved; {node} powers down after its jobs: runs {jobs[node]} (")
    run.wait_log("shift", text)
    mistake = dag.trigger(steer="leave_out", nodes="worker-33")
    mistake.wait("steer", "failed")
    mistake.wait_log("steer", "no node worker-33 can be left out: did you mean 'worker-3'?")
    # The other one takes its place.
    other = next(name for name in jobs if name != node)
    told = dag.trigger(steer="leave_out", nodes=node)
    told.wait("shift", "skipped")
    assert told.task("steer")["state"] == "success"
    stack.wait("another node is to go", lambda: kept_free() == [other])
    run.wait_log("shift", f" has asked to leave out {node} (")
    dag.trigger(steer="force").wait("shift", "skipped")
    told_job = stack.wait("its user can see why", lambda: capacity.cluster.job(jobs[other])["admin_comment"])
    assert told_job.startswith(f"airflow:capacity/{BLOCK_ID}: {other} is wanted elsewhere")
    run.wait("shift", "success")
    assert run.xcom("shift")["allocation"] == {"training": 1, "inference": 3} == capacity.allocation()
    assert capacity.cluster.job_state(jobs[node]) == "RUNNING"
    assert state()["text"] == "3 of 3 nodes moved"
    late = dag.trigger(steer="stop")
    late.wait("steer", "failed")
    late.wait_log("steer", f"the last one, task steered/{run.run_id}/shift/-1, ended on ")

    # What is stopped stays, until the next handover.
    run = dag.trigger(training="0")
    run.wait_log("shift", f"{node} powers down after its jobs")
    dag.trigger(steer="stop", because="the demo").wait("shift", "skipped")
    run.wait("shift", "success")
    assert run.xcom("shift")["state"] == "partial"
    kept = json.loads(stack.call("GET", "/variables/steered_overrides")["value"])
    assert kept[-1]["allocation"] == {"training": 1, "inference": 3}
    assert " has asked to stop the shift where it is (" in kept[-1]["because"]
    assert capacity.cluster.job(jobs[node])["admin_comment"] == ""
    found = stack.call("GET", "/assets/events", params={"source_dag_id": "steered"})["asset_events"]
    assert {one["extra"]["state"] for one in found} == {"done", "partial"}
    capacity.cluster.run("scancel", *jobs.values())


# The example


@pytest.mark.soak
def test_the_example_runs(stack: Stack, capacity: Capacity, tmp_path: Path) -> None:
    # As it stands, but where it is midday now: half an hour before a handover its shift would begin to wait for that.
    west = datetime.now(timezone.utc).hour - 12
    midday = tmp_path / "gpu_shifts.py"
    midday.write_text((DAGS / midday.name).read_text().replace("Europe/Amsterdam", f"Etc/GMT{west:+d}"))
    dag = stack.add_file(midday)
    stack.call("PATCH", f"/dags/{dag.dag_id}", json={"is_paused": False})
    assert not dag.runs(), "it is to wait until somebody asks, or for the next handover"
    run = dag.trigger()
    run.wait("shift", "success")
    assert run.xcom("shift")["allocation"] == capacity.allocation()
    assert sum(capacity.allocation().values()) == 4
