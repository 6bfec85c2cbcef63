"""When a reservation that exists is taken for the one that a task would make, and which nodes a new one gets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from airflow_provider_soperator.operators.reservations import CreateReservationOperator
from airflow_provider_soperator.operators.work import final_errors
from airflow_provider_soperator.slurm.cluster_records import Node, Reservation
from airflow_provider_soperator.slurm.errors import InvalidRequest, ReservationConflict
from airflow_provider_soperator.slurm.requests import CreateReservation, ListNodes
from airflow_provider_soperator.slurm.states import NodeState

START = datetime(2026, 11, 22, 20, tzinfo=timezone.utc)
END = START + timedelta(hours=12)
NODES = [Node(name=f"worker-{number}", state=NodeState.parse("IDLE")) for number in range(4)]


def reservation(name: str = "night", nodes: str = "worker-0", hours: float = 12) -> Reservation:
    return Reservation(name=name, start=START, end=START + timedelta(hours=hours), nodelist=nodes, users=("root",))


def make(*there: Reservation, **options: Any) -> tuple[Reservation, bool]:
    """The reservation of a task, in a Slurm with some others, and whether it was there."""
    known = list(there)

    def ask(request: Any) -> Any:
        if isinstance(request, ListNodes):
            return NODES
        if isinstance(request, CreateReservation):
            known.append(reservation(request.name, ",".join(request.nodes)))
        return known

    return made_in(ask, **options)


def made_in(ask: Callable[[Any], Any], **options: Any) -> tuple[Reservation, bool]:
    slurm: Any = SimpleNamespace(ask=ask)
    return CreateReservationOperator(task_id="reserve", name="night", users=["root"], **options)._make(slurm)


@pytest.mark.parametrize(
    "times",
    [
        {"end": "2026-11-23T08:00:00+00:00"},
        {"end": "2026-11-23T09:00:00+01:00"},
        {"duration": timedelta(hours=12)},
        {"start": "2026-11-22T20:00:00+00:00", "duration": timedelta(hours=12)},
        {},
        # As a template renders a parameter of a form that is left empty.
        {"start": "None"},
        {"start": "None", "duration": timedelta(hours=12)},
    ],
)
def test_one_with_the_same_times_is_the_same(times: dict[str, Any]) -> None:
    assert make(reservation(), nodes="worker-0", **times) == (reservation(), True)


@pytest.mark.parametrize(
    ("times", "says"),
    [
        ({"end": "2026-11-23T08:00:00+00:00"}, "end 2026-11-22 22:00:00+00:00, not 2026-11-23 08:00:00+00:00"),
        ({"duration": timedelta(hours=12)}, "duration 2:00:00, not 12:00:00"),
    ],
)
def test_one_that_ends_at_another_time_differs_also_without_a_start(times: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidRequest, match=says.replace("+", "[+]")):
        make(reservation(hours=2), nodes="worker-0", **times)


@pytest.mark.parametrize("users", ["{{ ','.join(params.users) }}", ["{{ params.users | join(', ') }}"], "ana, root"])
def test_users_of_a_template_are_those_that_it_renders(users: str | list[str]) -> None:
    task = CreateReservationOperator(task_id="reserve", name="night", nodes="worker-0", users=users)
    task.render_template_fields({"params": {"users": ["ana", "root"]}}, task.get_template_env())  # type: ignore[typeddict-item]
    there = replace(reservation(), users=("root", "ana"))
    slurm: Any = SimpleNamespace(ask=lambda request: NODES if isinstance(request, ListNodes) else [there])
    assert task._make(slurm) == (there, True)


def test_users_may_be_the_result_of_another_task() -> None:
    with DAG("d", schedule=None):
        asked = EmptyOperator(task_id="ask")
        users: Any = asked.output
        assert CreateReservationOperator(task_id="a", name="night", count=1, users=users).upstream_list == [asked]


def test_nodes_that_others_have_reserved_at_that_time_are_not_chosen() -> None:
    others = reservation("maintenance", "worker-[0-1]"), replace(reservation("next", "worker-2"), start=END, end=None)
    made, _ = make(*others, count=2, start=START, end=END)
    assert made.nodelist == "worker-2,worker-3"
    made, _ = make(*others, count=2, start=END, duration=timedelta(hours=1))
    assert made.nodelist == "worker-0,worker-1"
    with pytest.raises(InvalidRequest, match="3 nodes are wanted, and 4 are usable, 2 of which others have reserved"):
        make(*others, count=3, start=START, end=END)


def test_nodes_that_are_busy_may_be_free_at_another_try() -> None:
    def ask(request: Any) -> Any:
        if isinstance(request, CreateReservation):
            raise ReservationConflict("Error creating the reservation: Requested nodes are busy")
        return NODES if isinstance(request, ListNodes) else []

    with pytest.raises(AirflowException, match="Requested nodes are busy") as refused, final_errors():
        made_in(ask, nodes="worker-0", flags=["MAINT"])
    assert not isinstance(refused.value, AirflowFailException)
