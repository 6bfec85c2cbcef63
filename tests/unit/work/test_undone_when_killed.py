"""What a task that is ended takes back, and when it only looks as if it were ended."""

from __future__ import annotations

import asyncio
import logging
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest

from airflow_provider_soperator.client.client import AsyncSlurmClient
from airflow_provider_soperator.hooks.cluster_clients import HealthSources
from airflow_provider_soperator.slurm.cluster_records import Node
from airflow_provider_soperator.slurm.job_ids import JobId
from airflow_provider_soperator.slurm.requests import CancelJobs, Undrain
from airflow_provider_soperator.slurm.states import NodeState
from airflow_provider_soperator.slurm.submission_keys import SubmissionKey
from airflow_provider_soperator.soperator.readiness import Wanted
from airflow_provider_soperator.triggers.work import WorkTrigger
from airflow_provider_soperator.work.clusters import ClusterClients, ClusterStart
from airflow_provider_soperator.work.machines import MachineReplacement
from tests.unit.client.tracking import Slurm, queued, run_without_waiting

NOW = datetime(2026, 11, 22, 12, tzinfo=timezone.utc)


class Observed(WorkTrigger):
    """Its task is in a state, and what it would undo is noted."""

    is_undone = False

    def __init__(self, is_in: str | None) -> None:
        work = MachineReplacement(
            slurm_conn_id="soperator_default", nodes=("worker-0",), owner="nights", since=NOW, deadline=NOW
        )
        super().__init__(work.write())
        self.is_in = is_in

    async def state(self) -> str | None:
        return self.is_in

    async def cancel(self) -> None:
        self.is_undone = True


@pytest.mark.parametrize(("is_in", "is_undone"), [("deferred", False), ("failed", True), ("scheduled", True)])
def test_drains_are_taken_back_unless_another_triggerer_goes_on(is_in: str, is_undone: bool) -> None:
    trigger = Observed(is_in)
    asyncio.run(trigger.on_kill())
    assert trigger.is_undone is is_undone


def test_drains_of_a_process_before_are_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    def drained(name: str, reason: str) -> Node:
        machine: Any = {"instance": f"computeinstance-{name}", "booted_at": NOW - timedelta(days=9)}
        return Node(name=name, state=NodeState.parse("MIXED+DRAIN"), reason=reason, reason_since=NOW, **machine)

    ours, theirs = "[hardware_problem] airflow:nights: NVLink", "[hardware_problem] gpu_health_check: XID 79"
    nodes = [drained("worker-0", ours), drained("worker-1", theirs)]
    slurm: Any = SimpleNamespace(ask=AsyncMock(), ask_shared=AsyncMock(return_value=nodes))
    monkeypatch.setattr(MachineReplacement, "_sources", AsyncMock(return_value=HealthSources()))
    work = MachineReplacement(
        slurm_conn_id="soperator_default", nodes=("worker-0", "worker-1"), owner="nights", since=NOW, deadline=NOW
    )
    said = asyncio.run(work.begin(logging.getLogger(__name__)).undo(slurm))
    assert said == "On their way, which they stay: worker-1. Their drains were taken back: worker-0"
    slurm.ask.assert_awaited_once_with(Undrain(("worker-0",)))


def test_jobs_that_try_a_cluster_are_cancelled_by_their_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = (SubmissionKey(letter * 12) for letter in "az")
    slurm = Slurm(queued("7", "RUNNING", ours.name("smoke-gpu")), queued("8", "RUNNING", theirs.name("smoke-gpu")))
    start = ClusterStart(
        kubernetes_conn_id=None,
        namespace="soperator",
        cluster="soperator",
        wanted=Wanted(),
        slurm_conn_id="soperator_default",
        smoke_job={},
        keys={"gpu": (ours.text,)},
        submitted_since=None,
        since=NOW,
        deadline=NOW,
    )
    # It has taken over from another process.
    progress = start.begin(logging.getLogger(__name__))
    run_without_waiting(progress.undo(ClusterClients(None, AsyncSlurmClient(slurm))), monkeypatch)
    assert slurm.orders == [CancelJobs(ids=(JobId(7),))]
