"""What is left over: whose it is, and what is released."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from airflow_provider_soperator.board import leftovers, picture
from airflow_provider_soperator.board.picture import OldFiles
from airflow_provider_soperator.capacity.lease_store import ShiftRecord
from airflow_provider_soperator.cli import glance
from airflow_provider_soperator.slurm.cluster_records import Node, Reservation
from airflow_provider_soperator.slurm.files import RemoveFiles
from airflow_provider_soperator.slurm.job_ids import JobId
from airflow_provider_soperator.slurm.job_records import Job
from airflow_provider_soperator.slurm.requests import (
    DeleteReservation,
    ListJobs,
    ListNodes,
    ListReservations,
    ShowConfig,
    Undrain,
)
from airflow_provider_soperator.slurm.states import NodeState
from tests.unit.cli.calls import called

NOW = datetime.now(timezone.utc)
AHEAD = timedelta(days=64 * 365.25)
HOME = "/root/.airflow-soperator"


def drained(name: str, reason: str) -> Node:
    return Node(name=name, state=NodeState.parse("IDLE+DRAIN"), reason=reason, reason_since=NOW)


def lease(name: str, renewed: datetime, task: str, airflow: str = "") -> Reservation:
    start = renewed + AHEAD
    record, end = ShiftRecord(key="k", task=task, airflow=airflow), start + timedelta(minutes=5)
    return Reservation(name=name, nodelist="a", start=start, end=end, comment=record.write())


class Cluster:
    """A cluster with things of several owners; requests that change it are noted."""

    def __init__(self) -> None:
        self.changed: list[Any] = []
        self.renewed = NOW - timedelta(hours=1)
        self.dags = {"idle_dag": False, "busy_dag": True}
        self.reserved: tuple[Reservation, ...] = ()
        self.files: tuple[str, ...] = (f"{HOME}/aaaaaaaaaaaa.zip", f"{HOME}/bbbbbbbbbbbb.zip")
        self.nodes: tuple[Node, ...] = (
            drained("a", "airflow:idle_dag: tested"),
            drained("b", "airflow:busy_dag: tested"),
            drained("c", "airflow:of_another_airflow: tested"),
            drained("d", "airflow:capacity/block: night (idle_dag)"),
            drained("e", "by hand"),
            drained("f", "airflow:of_another_airflow: tested"),
        )

    @asynccontextmanager
    async def async_client(self) -> AsyncIterator[Cluster]:
        yield self

    async def ask_now(self, request: Any, max_age: float) -> Any:
        return await self.ask(request)

    async def ask(self, request: Any) -> Any:
        found = {
            ListNodes: self.nodes,
            ListReservations: (
                Reservation(name="airflow-handover-1", nodelist="a", comment="night (idle_dag)"),
                lease("airflow-shift-lapsed", self.renewed, "busy_dag/r/shift/-1"),
                lease("airflow-shift-held", datetime.now(timezone.utc), "busy_dag/r/shift/-1"),
                *self.reserved,
                Reservation(name="by-hand", nodelist="a"),
            ),
            ListJobs: (Job(id=JobId(7), name="x.af-aaaaaaaaaaaa"),),
            OldFiles: self.files,
        }
        if type(request) not in (*found, ShowConfig):
            self.changed.append(request)
        return found.get(type(request))


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    made = Cluster()
    for module in (glance, picture):
        monkeypatch.setattr(module, "SlurmHook", lambda connection: made)
    monkeypatch.setattr(picture, "find_tasks", lambda jobs, known, new: {})
    monkeypatch.setattr(leftovers, "installation_id", lambda: "mine")
    monkeypatch.setattr(glance, "dags_at_work", lambda ids: {one: made.dags[one] for one in ids if one in made.dags})
    return made


def test_each_has_an_owner(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    rows = called(capsys, "leftovers", "--json").rows
    assert {
        row["what"].split(" of ")[-1 if row["what"].startswith("drain") else 0]: row["at_work"] for row in rows
    } == {
        # A failed check is one of the reasons to keep a node drained when the run is over.
        "a": "unknown",
        "b": "yes",
        "c,f": "unknown",
        # A schedule keeps nodes drained between its shifts.
        "d": "yes",
        "reservation airflow-handover-1": "no",
        "reservation airflow-shift-lapsed": "no",
        "reservation airflow-shift-held": "yes",
        f"file {HOME}/bbbbbbbbbbbb.zip": "no",
    }
    assert cluster.changed == []


def test_what_no_owner_may_need_is_released_and_drains_stay(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    assert called(capsys, "leftovers", "--release").status == "Nothing was changed. Repeat it with --yes."
    assert cluster.changed == []
    assert called(capsys, "leftovers", "--release", "--yes").status == 0
    assert cluster.changed == [
        DeleteReservation("airflow-handover-1"),
        DeleteReservation("airflow-shift-lapsed"),
        RemoveFiles((f"{HOME}/bbbbbbbbbbbb.zip",)),
    ]


def test_what_another_airflow_has_left_is_not_released_for_a_dag_of_the_same_name(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    now = datetime.now(timezone.utc)
    cluster.files, cluster.reserved = (
        (),
        (
            lease("airflow-shift-theirs", now, "idle_dag/r/shift/-1", "theirs"),
            lease("airflow-shift-mine", now, "idle_dag/r/shift/-1", "mine"),
            Reservation(name="airflow-handover-2", nodelist="a", comment="night (idle_dag) of Airflow theirs"),
            Reservation(name="airflow-power-down-1", nodelist="a", comment="(idle_dag) of Airflow theirs"),
            Reservation(name="airflow-power-down-2", nodelist="a", comment="(idle_dag) of Airflow mine"),
        ),
    )
    assert called(capsys, "leftovers", "--release", "--yes").status == 0
    released = ["airflow-handover-1", "airflow-shift-lapsed", "airflow-shift-mine", "airflow-power-down-2"]
    assert cluster.changed == [DeleteReservation(name) for name in released]


def test_what_is_named_is_released_whoever_owns_it(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    assert called(capsys, "leftovers", "a,c", "airflow-shift-held", "--release", "--yes").status == 0
    assert cluster.changed == [Undrain(("a",)), Undrain(("c",)), DeleteReservation("airflow-shift-held")]
    file = f"{HOME}/bbbbbbbbbbbb.zip"
    assert called(capsys, "leftovers", file, "--release", "--yes").status == 0
    assert cluster.changed[3:] == [RemoveFiles((file,))]
    assert "nothing that is left is called e" in str(called(capsys, "leftovers", "e").status).lower()


@pytest.mark.parametrize("reason", ["[hardware_problem] gpu", "airflow:idle_dag: broken"])
def test_what_has_changed_since_the_plan_is_left_alone(
    reason: str, cluster: Cluster, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def change(args: Any, question: str) -> None:
        cluster.nodes = (drained("a", reason), *cluster.nodes[1:])

    monkeypatch.setattr(glance, "agreed", change)
    said = called(capsys, "leftovers", "a", "--release")
    assert "Not released, as it has changed: drain of a" in said.err
    assert said.status == 1
    assert Undrain(("a",)) not in cluster.changed


def test_what_a_shift_has_taken_since_the_plan_is_left_alone(
    cluster: Cluster, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def change(args: Any, question: str) -> None:
        cluster.renewed = datetime.now(timezone.utc)
        cluster.dags["idle_dag"] = True
        cluster.files = (*cluster.files, f"{HOME}/cccccccccccc.zip")

    monkeypatch.setattr(glance, "agreed", change)
    said = called(capsys, "leftovers", "--release")
    for name in ("airflow-handover-1", "airflow-shift-lapsed"):
        assert f"Not released, as it has changed: reservation {name} of a" in said.err
    assert said.status == 1
    # Another file may be old by now.
    assert cluster.changed == [RemoveFiles((f"{HOME}/bbbbbbbbbbbb.zip",))]
