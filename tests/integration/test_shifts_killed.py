"""The process that carries out a shift is killed, again and again: the next goes on with it, and nothing is lost."""

from __future__ import annotations

import os
import random
from collections.abc import Callable

import pytest

from airflow_provider_soperator.capacity.order import ShiftOrder
from tests.integration.cluster import check_ledger
from tests.integration.doomed import Life, Step, alive
from tests.integration.shifts import Queue, Shifts

pytestmark = pytest.mark.lane("shifts")

#: In all tests of this module together.
KILLS = int(os.environ.get("SOPERATOR_SHIFT_KILLS", "15"))
HALF = (KILLS + 1) // 2
#: All that is ordered on the way there and back.
ORDERS = {
    "CreateReservation",
    "UpdateReservation",
    "DeleteReservation",
    "PowerDown",
    "Drain",
    "PowerUp",
    "Undrain",
    "NodeGroup",
}

#: Carries out an order in a process that may die; what is known of that process when it has ended.
Attempt = Callable[[ShiftOrder], Life]


def until_killed_so_often(kills: int, doomed: Attempt, safe: Attempt, shifts: Shifts) -> list[Life]:
    """Shifts there and back under a queue, with one process after the other; those that were killed."""
    before = len(shifts.cluster.ledger())
    killed: list[Life] = []
    queue = Queue(shifts, 300)
    queue.let_go()
    while len(killed) < kills:
        for goal in ((2, 2), (4, 0)):
            order = shifts.order(*goal)
            while (life := (doomed if len(killed) < kills else safe)(order)).was_killed:
                killed.append(life)
            assert life.outcome, "it failed"
            assert life.outcome["allocation"] == order.goal
            assert life.outcome["figures"]["jobs_requeued"] == life.outcome["figures"]["jobs_killed"] == 0
            shifts.check(goal[0], same_cluster=goal[1])
    queue.end()
    entries = shifts.cluster.ledger()
    check_ledger(entries)
    assert {entry["entry"] for entry in entries[before:]} == {"claim", "release"}
    return killed


def let_live(order: ShiftOrder, shifts: Shifts) -> Life:
    with alive(order, shifts.connections) as life:
        life.begin()
        assert life.end(120), "it does not end"
        return life


@pytest.mark.any_slurm
def test_it_is_killed_at_every_step(shifts: Shifts) -> None:
    dice = random.Random(6)

    def at_some_step(order: ShiftOrder) -> Life:
        step = Step(dice.randint(1, 3), done=dice.random() < 0.5)
        with alive(order, shifts.connections, step) as life:
            life.begin()
            assert life.end(120), "it does not end"
            return life

    killed = until_killed_so_often(HALF, at_some_step, lambda order: let_live(order, shifts), shifts)
    died_at = {life.died_at for life in killed}
    assert died_at <= ORDERS
    if KILLS >= 100:
        assert died_at == ORDERS


@pytest.mark.any_slurm("oldest")
def test_it_is_killed_at_any_moment(shifts: Shifts) -> None:
    dice = random.Random(11)

    def for_a_while(order: ShiftOrder) -> Life:
        with alive(order, shifts.connections) as life:
            life.begin()
            if not life.end(dice.uniform(0, 1.5)):
                life.process.kill()
                assert life.end(30)
            return life

    until_killed_so_often(HALF, for_a_while, lambda order: let_live(order, shifts), shifts)
