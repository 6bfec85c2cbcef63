"""Figures of checks over time, equal findings of many nodes, and sources that cannot be asked."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_soperator.board import check_history
from airflow_provider_soperator.board.check_history import HealthLook, alike, courses, look_at_health
from airflow_provider_soperator.health.assessment import Observations
from airflow_provider_soperator.health.findings import Finding, FindingKind
from airflow_provider_soperator.soperator.active_checks import CheckSeen, LastRun
from airflow_provider_soperator.soperator.check_results import CheckResult, JobEnd, RunState

RUNS = {f"worker-{number}": [(day, {"busbw": 480.0}) for day in range(6)] for number in range(10)}
SLOW = {**RUNS, "worker-7": [*RUNS["worker-7"][:-1], (5, {"busbw": 240.0})], "gone-1": [(5, {"busbw": 1.0})]}
NODES = [f"worker-{number}" for number in range(10)]


def test_slow_nodes_come_first_and_nodes_of_other_clusters_do_not() -> None:
    found = courses({"all-reduce": SLOW}, NODES)
    assert [(one.node, one.is_slow) for one in found[:2]] == [("worker-7", True), ("worker-0", False)]
    assert len(found) == 8
    assert "gone-1" not in {one.node for one in found}


def test_a_course_begins_at_zero_so_that_a_small_change_looks_small() -> None:
    [one] = courses({"x": {"worker-7": [(1, {"busbw": 480.0}), (2, {"busbw": 240.0})]}}, NODES)
    assert one.points == "0.0,1.0 120.0,12.0"
    [alone] = courses({"x": {"worker-7": [(1, {"busbw": 0.0})]}}, NODES)
    assert alone.points == "0.0,23.0 120.0,23.0"


def test_a_finding_of_many_nodes_is_one_row() -> None:
    early, late = (datetime(2026, 11, day, tzinfo=timezone.utc) for day in (1, 2))
    found = {
        "worker-0": [Finding("worker-0", FindingKind.DRAINED, "disk swap", "slurm", late)],
        "worker-1": [
            Finding("worker-1", FindingKind.DRAINED, "disk swap", "slurm", early),
            Finding("worker-1", FindingKind.POD, "it is not ready", "kubernetes"),
        ],
    }
    (disk, of_disk), (pod, of_pod) = alike(found)
    assert (of_disk, disk.since) == (["worker-0", "worker-1"], early)
    assert (of_pod, pod.what) == (["worker-1"], "it is not ready")


class Objects:
    """A cluster with one check, whose Jobs Kubernetes has deleted."""

    async def list_all(self) -> list[CheckSeen]:
        ran = LastRun(
            outcome=CheckResult(state=RunState.FAILED, jobs=(JobEnd(job_id="7", state="FAILED", reason="hot"),)),
            submitted=datetime(2026, 11, 1, tzinfo=timezone.utc),
        )
        return [CheckSeen(name="ssh-check"), CheckSeen(name="gpu-fryer", is_of_slurm=True, last=ran)]

    async def runs(self) -> list[Any]:
        return []


class Hook:
    """A connection, and the Kubernetes connection that it names."""

    kubernetes_conn_id = "k8s"
    namespace = "soperator"

    def __init__(self, *args: str) -> None:
        pass

    async def async_settings(self) -> Hook:
        return self

    def objects(self) -> Hook:
        return self

    async def __aenter__(self) -> Hook:
        return self

    async def __aexit__(self, *error: object) -> None:
        pass


def look(monkeypatch: pytest.MonkeyPatch, before: HealthLook | None = None) -> HealthLook:
    async def pods(connection: str) -> Any:
        raise OSError("no route to host")

    for name in ("SlurmHook", "SoperatorClusterHook"):
        monkeypatch.setattr(check_history, name, Hook)
    monkeypatch.setattr(check_history, "ActiveChecks", lambda objects: Objects())
    monkeypatch.setattr(check_history, "_pods", pods)
    monkeypatch.setattr(check_history, "_all_figures", lambda failures: {"all-reduce": RUNS})
    return asyncio.run(look_at_health("c", before))


def test_each_source_is_asked_and_one_that_fails_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = look(monkeypatch)
    assert seen.observations.figures == {"all-reduce": RUNS}
    assert list(seen.failures) == ["Pods"]
    fryer, ssh = seen.checks
    assert (fryer.name, fryer.state, fryer.is_bad, fryer.why) == ("gpu-fryer", "Failed", True, "job 7 (FAILED, hot)")
    assert (ssh.state, ssh.is_bad, ssh.at) == ("never run", False, None)


def test_what_is_known_of_a_source_that_does_not_answer_has_its_age(monkeypatch: pytest.MonkeyPatch) -> None:
    before = HealthLook(taken=datetime(2026, 11, 25, tzinfo=timezone.utc), observations=Observations(kubernetes={}))
    first = look(monkeypatch, before)
    assert (first.observations.kubernetes, first.since) == ({}, {"Pods": before.taken})
    assert look(monkeypatch, first).since == first.since


def test_without_a_kubernetes_connection_there_are_no_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Hook, "kubernetes_conn_id", "")
    seen = look(monkeypatch)
    assert seen.checks == []


@pytest.mark.parametrize("edited", ["{broken", "[]", '{"worker-0": 3}', '{"worker-0": [[1, {"busbw": "fast"}]]}'])
def test_figures_that_were_edited_by_hand_are_told_and_others_shown(
    edited: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = {"soperator_figures_edited": edited, "soperator_figures_nccl": json.dumps(RUNS)}

    @contextmanager
    def session() -> Iterator[Any]:
        yield SimpleNamespace(scalars=lambda query: SimpleNamespace(all=lambda: [*kept]))

    monkeypatch.setattr("airflow.utils.session.create_session", session)
    monkeypatch.setattr("airflow.sdk.Variable.get", lambda key, default: kept[key])
    failures: dict[str, str] = {}
    found = check_history._all_figures(failures)
    assert [*found] == ["nccl"]
    assert failures == {
        "figures of edited": "The Airflow Variable soperator_figures_edited was edited, and has no figures: delete it."
    }
    assert len(courses(found, NODES)) == 8
