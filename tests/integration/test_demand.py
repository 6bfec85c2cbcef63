"""Demand by a metric and by the queue: nodes that trained serve a burst, and train again after it."""

from __future__ import annotations

import asyncio
import json
import math
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from threading import Thread
from typing import Any

import pytest
from airflow.sdk import Variable
from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

from airflow_provider_soperator.capacity.demand import Demand
from airflow_provider_soperator.capacity.loads import MetricLoad, QueueLoad
from airflow_provider_soperator.capacity.schedule import CapacitySchedule, Window
from airflow_provider_soperator.hooks.cluster_clients import ShiftClients
from airflow_provider_soperator.triggers.capacity_watch import CapacityDifferenceTrigger
from sandbox.prometheus.query import Sample
from sandbox.prometheus.server import serve
from tests.integration.shifts import WHOLE_NODE, Shifts
from tests.patience import PATIENCE

pytestmark = pytest.mark.lane("shifts")

SCHEDULE = CapacitySchedule(
    timezone="UTC",
    windows=[
        Window("daily 00:00 - 24:00", {"training": {"min": 2, "max": 4}, "inference": {"min": 0, "max": 2}}, name="all")
    ],
)
DEMAND = Demand(
    [
        MetricLoad(target="inference", query="requests", per_unit=64),
        QueueLoad(target="training", partition="main", min_wait=timedelta(0), min_work=timedelta(0)),
    ],
    calm=timedelta(seconds=15),
)


class Service:
    """A service whose requests a test decides, with a Prometheus that knows of them."""

    def __init__(self) -> None:
        self.requests = 0.0
        self.loop = asyncio.new_event_loop()
        self.runner = self.loop.run_until_complete(serve(self._scrape, "127.0.0.1", 0))
        self._thread = Thread(target=self.loop.run_forever)
        self._thread.start()

    async def _scrape(self) -> list[Sample]:
        return [Sample({"__name__": "requests"}, self.requests)]

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self.runner.cleanup(), self.loop).result(PATIENCE)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    found = Service()
    monkeypatch.setenv("AIRFLOW_CONN_PROMETHEUS_DEFAULT", f"http://127.0.0.1:{found.runner.addresses[0][1]}")
    yield found
    found.close()


class Watcher:
    """The watcher of a DAG that no run of is under way, looking when a test says so."""

    def __init__(self, shifts: Shifts, monkeypatch: pytest.MonkeyPatch, calm: timedelta = DEMAND.calm) -> None:
        self.shifts, self.variables, self.calm = shifts, dict[str, str](), calm
        monkeypatch.setattr(Variable, "get", lambda key, default=None: self.variables.get(key, default))
        monkeypatch.setattr(Variable, "set", self.variables.__setitem__)
        monkeypatch.setattr(RuntimeTaskInstance, "get_dr_count", staticmethod(lambda **_: 0))
        order, schedule = shifts.order(0, 0, desired={}), json.dumps(SCHEDULE.describe())
        names = {"demand": json.dumps(replace(DEMAND, calm=calm).write()), "demanded": "shifts_demand"}
        self.trigger = CapacityDifferenceTrigger("shifts", json.dumps(order.write()), schedule, "o", **names)

    def look(self) -> dict[str, int] | None:
        """What is wished for, if a run shall begin for it."""
        events: list[Any] = [*asyncio.run(self.trigger.look(ShiftClients()))]
        return events[0]["wished"] if events else None

    def why(self) -> list[str]:
        found: list[str] = json.loads(self.variables["shifts_demand"])["decisions"][-1]["because"]
        return found


def test_a_burst_is_served_by_nodes_that_trained_and_that_train_again_after_it(
    shifts: Shifts, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, watcher = shifts.cluster, Watcher(shifts, monkeypatch)
    # Of a name of their own: how long jobs last counts in other shifts.
    jobs = [cluster.held_job(WHOLE_NODE, "--job-name=burst", f"--nodelist={name}") for name in shifts.workers]
    for job in jobs:
        cluster.wait_job(job, "RUNNING")
    assert watcher.look() is None
    service.requests = 100.0
    wished = watcher.look()
    assert wished == {"training": 2, "inference": 2}
    assert watcher.why() == [
        "inference needs 2: 100, of which a unit bears 64",
        "training needs 4: jobs use 32 GPUs of 4 nodes, and none waits",
    ]
    force: dict[str, Any] = {"mode": "force", "grace": timedelta(seconds=1)}
    figures = shifts.run(shifts.order(2, 2, **force)).figures
    assert (figures.jobs_requeued, figures.jobs_killed, figures.bought_gpus) == (2, 0, 0)
    shifts.check(2, same_cluster=2)
    requeued = [job for job, fate in shifts.fates(jobs).items() if fate == ("PENDING", 1)]
    assert len(requeued) == 2
    service.requests = 0.0
    for job in requeued:
        cluster.start_soon(job)

    looked = math.inf

    def again() -> bool:
        nonlocal watcher, looked
        before, looked = looked, time.monotonic()
        if looked - before > watcher.calm.total_seconds() / 2:
            # What was seen longer ago than `calm` is forgotten, and on a busy machine looks may be as far apart.
            watcher = Watcher(shifts, monkeypatch, 2 * watcher.calm)
        return watcher.look() == {"training": 4, "inference": 0}

    cluster.wait("the queue has what inference needs no more", again)
    # Now, or at the look before.
    assert re.match(r"training needs (4|\d \(lately 4\)): jobs use 16 GPUs of 2 nodes, and ", watcher.why()[1])
    shifts.run(shifts.order(4, 0))
    for job in jobs:
        cluster.wait_job(job, "RUNNING")
        cluster.let_go(job)
    cluster.wait("all jobs have ended", lambda: not cluster.active_jobs())
    assert {state for state, _ in shifts.fates(jobs).values()} == {"COMPLETED"}
    shifts.check_at_rest()
