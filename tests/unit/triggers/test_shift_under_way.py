"""What this Airflow knows of a task that holds a block: whether it can still give it back."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

import pytest
from airflow.executors.workloads.task import TaskInstanceDTO
from airflow.sdk.exceptions import AirflowRuntimeError, ErrorType
from airflow.sdk.execution_time.comms import ErrorResponse

from airflow_provider_soperator.capacity.lease_store import ShiftRecord
from airflow_provider_soperator.triggers import shift
from airflow_provider_soperator.triggers.shift import _is_under_way, _will_rest


def is_under_way(monkeypatch: pytest.MonkeyPatch, states: dict[int, str | None], task: str = "") -> bool:
    def states_of(ti: Any, task_ids: list[str]) -> dict[str, dict[int, str | None]]:
        assert (ti.dag_id, ti.run_id, task_ids) == ("shifts", "manual__a/b", ["shift"])
        return {"shift": states}

    monkeypatch.setattr(shift, "states_of", states_of)
    return asyncio.run(_is_under_way(ShiftRecord(key="k", task=task or "shifts/manual__a/b/shift/-1")))


@pytest.mark.parametrize("state", ["running", "deferred", "up_for_retry", "queued", "scheduled"])
def test_a_task_that_has_another_step_to_do_holds_its_block(monkeypatch: pytest.MonkeyPatch, state: str) -> None:
    assert is_under_way(monkeypatch, {-1: state})


@pytest.mark.parametrize("state", ["success", "failed", "skipped", "upstream_failed", "removed", None])
def test_one_that_has_none_does_not(monkeypatch: pytest.MonkeyPatch, state: str | None) -> None:
    assert not is_under_way(monkeypatch, {-1: state})


def test_a_task_that_airflow_does_not_know_was_deleted_with_its_dag(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not is_under_way(monkeypatch, {})


def test_for_a_name_that_was_cut_airflow_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_under_way(monkeypatch, {-1: "failed"}, task="shifts/manual__…")


def test_while_airflow_does_not_answer_the_term_of_its_lease_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    def states_of(ti: Any, task_ids: list[str]) -> Any:
        raise AirflowRuntimeError(ErrorResponse(error=ErrorType.API_SERVER_ERROR))

    monkeypatch.setattr(shift, "states_of", states_of)
    assert asyncio.run(_is_under_way(ShiftRecord(key="k", task="shifts/manual__a/b/shift/-1")))


@pytest.mark.parametrize(("state", "will_rest"), [("running", False), ("up_for_retry", False), ("failed", True)])
def test_a_shift_goes_on_if_the_next_try_of_its_task_runs_already(state: str, will_rest: bool) -> None:
    """As after a clear, if a worker is quicker than the triggerer, whose instance of the task has no ``max_tries``."""
    place: dict[str, Any] = {"dag_id": "shifts", "task_id": "shift", "run_id": "manual", "try_number": 1}
    known = TaskInstanceDTO(
        **place, id=UUID(int=1), dag_version_id=UUID(int=2), pool_slots=1, queue="default", priority_weight=1
    )
    assert _will_rest(known, state) is will_rest
