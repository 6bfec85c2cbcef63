"""DAGs that move capacity, as Airflow stores them."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import Variable
from airflow.serialization.serialized_objects import DagSerialization

from airflow_provider_soperator.board import capacity_dags
from airflow_provider_soperator.board.capacity_dags import CapacityDag, _stored, _with_variables
from airflow_provider_soperator.capacity.demand import Decision, Demand, keep_decision
from airflow_provider_soperator.capacity.loads import QueueLoad
from airflow_provider_soperator.capacity.overrides import Override
from airflow_provider_soperator.capacity.schedule import CapacitySchedule, Window
from airflow_provider_soperator.capacity.steering import ShiftAtWork, SteeringCommand
from airflow_provider_soperator.capacity.targets import NebiusNodeGroupTarget, SlurmNodesTarget
from airflow_provider_soperator.errors import CapacityMistake
from airflow_provider_soperator.operators.capacity_dag import capacity_dag
from airflow_provider_soperator.timetables.capacity import CapacityTimetable

SCHEDULE = CapacitySchedule(
    timezone="UTC",
    windows=[Window("daily 20:00 - 08:00", {"training": 4, "inference": 0}, name="night")],
    otherwise={"training": 1, "inference": 3},
    limit=32,
    gpus_per_unit={"training": 8, "inference": 8},
)
REPORT = dict.fromkeys(("window", "since", "until", "measured_hours", "gpu_hours", "idle_gpu_hours"), "x")
TARGETS = [
    SlurmNodesTarget(name="training", nodes="worker-[0-3]", slurm_conn_id="cluster_a"),
    NebiusNodeGroupTarget(name="inference", node_group="mk8snodegroup-1"),
]


def stored(timetable: dict[str, Any]) -> CapacityDag:
    return _stored("gpu_shifts", True, timetable)


@pytest.fixture
def dag() -> CapacityDag:
    made = capacity_dag("gpu_shifts", SCHEDULE, TARGETS, "block-1")
    return stored(DagSerialization.to_dict(made)["dag"]["timetable"]["__var"])


def test_a_dag_is_read_as_airflow_stores_it_with_its_targets_and_its_block(dag: CapacityDag) -> None:
    assert (dag.schedule, dag.is_paused) == (SCHEDULE, True)
    assert dag.order is not None
    assert (dag.order.targets, dag.order.block) == (tuple(TARGETS), "block-1")
    assert dag.gpus == {"training": 8, "inference": 8}
    assert dag.is_of("cluster_a")
    assert not dag.is_of("cluster_b")


def test_of_a_dag_with_a_timetable_alone_the_schedule_is_known() -> None:
    said = stored(CapacityTimetable(SCHEDULE).serialize())
    variables = [said.overrides_variable, said.demand_variable]
    assert (said.schedule, said.order, variables) == (SCHEDULE, None, ["gpu_shifts_overrides", ""])
    assert said.is_of("any")


def with_variables(
    dag: CapacityDag, monkeypatch: pytest.MonkeyPatch, overrides: Any = (), shift: ShiftAtWork | None = None
) -> CapacityDag:
    def kept(key: str) -> Any:
        if isinstance(overrides, Exception):
            raise overrides
        return list(overrides)

    monkeypatch.setattr("airflow_provider_soperator.capacity.schedule.kept_overrides", kept)
    monkeypatch.setattr(capacity_dags, "kept_reports", lambda dag_id: [REPORT, {"edited": "by hand"}])
    monkeypatch.setattr(ShiftAtWork, "find", lambda block: shift)
    monkeypatch.setattr(capacity_dags, "_at_work", lambda shift: shift)
    return _with_variables(dag)


def test_overrides_reports_and_the_shift_at_work_come_from_variables(
    dag: CapacityDag, monkeypatch: pytest.MonkeyPatch
) -> None:
    override = Override("2026-11-27T18:00/2026-11-29T18:00", {"training": 2, "inference": 2}, by="ann")
    shift = ShiftAtWork(id="1", key="k", block="block-1", task="gpu_shifts/r/shift/-1")
    seen = with_variables(dag, monkeypatch, [override], shift)
    assert seen.schedule.at(datetime(2026, 11, 28, tzinfo=timezone.utc)).name == "override by ann"
    assert (list(seen.reports), seen.at_work) == ([REPORT], shift)
    over = ShiftAtWork(id="1", key="k", block="block-1", task="gpu_shifts/r/shift/-1", ended="done")
    assert with_variables(dag, monkeypatch, [], over).at_work is None


def test_what_demand_has_decided_is_read_if_anything_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    made = capacity_dag("gpu_shifts", SCHEDULE, TARGETS, "block-1", demand=Demand([QueueLoad(target="training")]))
    dag = stored(DagSerialization.to_dict(made)["dag"]["timetable"]["__var"])
    now, kept = datetime(2026, 11, 28, tzinfo=timezone.utc), dict[str, str]()
    monkeypatch.setattr(Variable, "get", lambda key, default=None: kept.get(key, default))
    monkeypatch.setattr(Variable, "set", kept.__setitem__)
    assert _with_variables(dag).demand is None
    keep_decision(dag.demand_variable, Decision({"training": 4, "inference": 0}, ("jobs wait",)), True, now)
    seen = _with_variables(dag).demand
    assert seen is not None
    assert (seen.units, seen.because, seen.since) == ({"training": 4, "inference": 0}, ("jobs wait",), now)
    assert seen.is_observed
    assert seen.holds(now + timedelta(minutes=15))
    assert not seen.holds(now + timedelta(minutes=16))
    kept[dag.demand_variable] = '{"edited": "by hand"}'
    assert _with_variables(dag).demand is None


def test_a_mistake_in_overrides_is_told_and_the_schedule_is_there(
    dag: CapacityDag, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = with_variables(dag, monkeypatch, CapacityMistake("the Airflow Variable x is no list of overrides"))
    assert (seen.mistake, seen.schedule) == ("the Airflow Variable x is no list of overrides", SCHEDULE)
    too_much = Override("2026-11-27T18:00/2026-11-29T18:00", {"training": 9, "inference": 2})
    assert "needs 88 GPUs" in with_variables(dag, monkeypatch, [too_much]).mistake


class _Session:
    """A database with two DAGs, the first of which another version has stored."""

    def __enter__(self) -> _Session:
        return self

    def __exit__(self, *error: object) -> None:
        return None

    def execute(self, query: Any) -> _Session:
        return self

    def scalar(self, query: Any) -> str | None:
        """The state of a task, which has told nothing of its shift yet."""
        return "deferred" if query.column_descriptions[0]["name"] == "state" else None

    def all(self) -> list[tuple[str, bool]]:
        return [("newer", False), ("gpu_shifts", False)]


def test_a_dag_that_another_version_has_stored_hides_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def row(dag_id: str, session: Any) -> Any:
        timetable = CapacityTimetable(SCHEDULE).serialize()
        more = {"field_of_a_newer_version": 1} if dag_id == "newer" else {}
        timetable["schedule"] = {**timetable["schedule"], **more}
        return SimpleNamespace(data={"dag": {"timetable": {"__var": timetable}}})

    monkeypatch.setattr("airflow.utils.session.create_session", _Session)
    monkeypatch.setattr("airflow.models.serialized_dag.SerializedDagModel.get", row)
    monkeypatch.setattr(capacity_dags, "_last_shift", lambda session, dag_id: None)
    monkeypatch.setattr(capacity_dags, "_with_variables", lambda dag: dag)
    assert [dag.dag_id for dag in capacity_dags.capacity_dags("c")] == ["gpu_shifts"]


def test_a_shift_that_was_extended_ends_later(monkeypatch: pytest.MonkeyPatch) -> None:
    end, kept = datetime(2026, 11, 28, 9, tzinfo=timezone.utc), dict[str, str]()
    monkeypatch.setattr("airflow.utils.session.create_session", _Session)
    monkeypatch.setattr(Variable, "get", lambda key, default=None: kept.get(key, default))
    monkeypatch.setattr(Variable, "set", kept.__setitem__)
    shift = ShiftAtWork(id="1", key="k", block="block-1", task="gpu_shifts/r/shift/-1", ends_at=end)

    def ends_at() -> datetime | None:
        seen = capacity_dags._at_work(shift)
        assert seen is not None
        return seen.ends_at

    assert ends_at() == end
    for minutes in (30, 45):
        shift.give(SteeringCommand(action="extend", at=end, extend_by=timedelta(minutes=minutes)))
    assert ends_at() == end + timedelta(minutes=75)
    # As the shift itself, which heeds nothing of what it cannot read.
    kept["soperator_steering_block-1"] = '{"shift": "1", "commands": "edited by hand"}'
    assert ends_at() == end
