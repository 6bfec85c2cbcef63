"""Processes die, and people change their minds, in the midst of a shift: it goes on, or the next one does."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator

import pytest

from tests.airflow.shifts import HEAD, Capacity, in_an_hour
from tests.airflow.stack import Dag, Run, Stack

pytestmark = pytest.mark.lane("second airflow")

#: What a shift says that has come as far as to wait for a job.
WAITS = "worker-0 powers down after its jobs"


@pytest.fixture
def job(capacity: Capacity) -> Iterator[str]:
    """On worker-0: a shift that takes this node has to wait for it, and is in its midst for as long."""
    capacity.bring(4, 0)
    job = capacity.cluster.held_job("--nodelist=worker-0", "--exclusive", "--time=60")
    capacity.cluster.wait_job(job, "RUNNING")
    yield job
    capacity.cluster.let_go(job)


def add_dag(stack: Stack, name: str, body: str) -> Dag:
    return stack.add_dag(name, body, head=HEAD, dag_options="default_args={'retry_delay': timedelta(seconds=1)}")


def in_its_midst(run: Run, capacity: Capacity) -> None:
    """Three nodes have gone, and the fourth one waits for its job."""
    run.wait("move", "running", "deferred")
    capacity.wait_for_inference(1)
    capacity.cluster.wait("worker-0 is kept free", capacity.handovers)


def began(capacity: Capacity) -> float:
    """When the shift began that has the block, as its lease remembers it."""
    [lease] = capacity.leases()
    shown = capacity.cluster.run("scontrol", "show", "--oneliner", "reservation", lease)
    found = re.search(r"Comment=({.*})", shown)
    assert found, shown
    return float(json.loads(found[1])["marks"]["began"])


@pytest.mark.soak
def test_a_shift_survives_its_triggerer_and_others_wait_for_it(stack: Stack, capacity: Capacity, job: str) -> None:
    run = add_dag(stack, "holding", "shift('move', 0, 1, deferrable=True)").trigger()
    in_its_midst(run, capacity)
    refused = add_dag(stack, "refused", "shift('move', 4, 0, if_running='fail')").trigger()
    waiting = add_dag(stack, "waiting", "shift('move', 3, 1)").trigger()
    holder = f"task holding/{run.run_id}/move/-1"
    refused.wait("move", "failed")
    refused.wait_log("move", f"{holder} (reservation {capacity.leases()[0]}) is moving block")
    waiting.wait_log("move", f"Waiting for {holder}")

    since = began(capacity)
    stack.end("triggerer", signal.SIGKILL)
    stack.components["triggerer"].start()
    # Both triggerers have said what they were waiting for.
    stack.wait("another triggerer goes on", lambda: run.log("move").count(WAITS) > 1)
    assert began(capacity) == since
    assert run.task("move")["state"] == "deferred"
    capacity.cluster.let_go(job)
    run.wait("move", "success")
    outcome = run.xcom("move")
    assert outcome["allocation"] == {"training": 0, "inference": 1}
    assert (outcome["figures"]["jobs_killed"], outcome["figures"]["jobs_requeued"]) == (0, 0)
    assert capacity.cluster.job_state(job) == "COMPLETED"
    waiting.wait("move", "success")
    assert capacity.allocation() == {"training": 3, "inference": 1}
    assert not capacity.reservations()


def test_a_cleared_task_goes_on_with_its_shift(stack: Stack, capacity: Capacity, job: str) -> None:
    run = add_dag(stack, "cleared", "shift('move', 0, 1, deferrable=True)").trigger()
    in_its_midst(run, capacity)
    since = began(capacity)
    run.clear("move")
    run.wait("move", "deferred", least_try=2)
    run.wait_log("move", WAITS, number=2)
    assert began(capacity) == since
    capacity.cluster.let_go(job)
    run.wait("move", "success", least_try=2)
    assert capacity.allocation() == {"training": 0, "inference": 1}
    assert not capacity.reservations()


# In a worker Airflow gives a task five seconds to end, which on a busy machine may be too few: the next shift sees to
# what is left then, as below.
def test_a_task_that_is_marked_failed_leaves_nothing_behind(stack: Stack, capacity: Capacity) -> None:
    capacity.bring(4, 0)
    run = add_dag(stack, "marked", f"shift('move', 0, 1, at={in_an_hour()!r}, deferrable=True)").trigger()
    capacity.cluster.wait("nodes are reserved", capacity.handovers)
    assert len(capacity.leases()) == 1
    run.wait("move", "deferred")
    run.mark("move", "failed")
    capacity.cluster.wait("nothing is reserved", lambda: not capacity.reservations())
    assert capacity.allocation() == {"training": 4, "inference": 0}


def test_who_is_no_more_holds_nothing(stack: Stack, capacity: Capacity) -> None:
    capacity.bring(4, 0)
    gone = add_dag(stack, "gone", f"shift('move', 0, 1, at={in_an_hour()!r}, deferrable=True)").trigger()
    capacity.cluster.wait("nodes are reserved", capacity.handovers)
    gone.wait("move", "deferred")
    stack.end("triggerer", signal.SIGKILL)
    try:
        # Nobody is there who could give the block back.
        gone.mark("move", "failed")
        heir = add_dag(stack, "heir", "shift('move', 3, 1)").trigger()
        heir.wait("move", "success")
    finally:
        stack.start_all()
    heir.wait_log("move", f"the shift of task gone/{gone.run_id}/move/-1")
    assert capacity.allocation() == {"training": 3, "inference": 1}
    assert not capacity.reservations()


@pytest.mark.soak
def test_the_time_of_a_task_is_over(stack: Stack, capacity: Capacity) -> None:
    capacity.bring(4, 0)
    limits = "execution_timeout=timedelta(seconds=30), retries=1"
    run = add_dag(stack, "too_long", f"shift('move', 2, 2, at={in_an_hour()!r}, deferrable=True, {limits})").trigger()
    run.wait_log("move", "the time of the task was over; its next try goes on with the shift", number=1)
    assert capacity.leases()
    run.wait("move", "failed")
    run.wait_log("move", "the time of the task was over; what the shift has moved by now stays where it is", number=2)
    assert not capacity.reservations()
