"""The process that carries out a shift is killed at each kind of order: the next goes on with it, and nothing is lost.

Here it dies once at each, in ``make soak`` only, which also kills it at any moment, and on either side of each order.
"""

from __future__ import annotations

import pytest

from tests.integration.cluster import check_ledger
from tests.integration.doomed import USUAL, Step, check_arrived, to_its_end
from tests.integration.shifts import Queue, Shifts

pytestmark = pytest.mark.lane("shifts")


@pytest.mark.soak
def test_it_is_killed_at_each_kind_of_order(shifts: Shifts) -> None:
    before = len(shifts.cluster.ledger())
    left = USUAL
    queue = Queue(shifts, 300)
    queue.let_go()
    for training, inference in ((2, 2), (4, 0)):
        order = shifts.order(training, inference)
        # Carried out and not told of: to die before an order is to die after the one that came before.
        while (life := to_its_end(order, shifts.connections, Step(done=True, kinds=left) if left else None)).was_killed:
            left -= {life.died_at}
        check_arrived(life, order)
        shifts.check(training, same_cluster=inference)
    # Up to 4.1 Soperator may end a drain before the next life of the shift does.
    may_be_done = {"Undrain"} if shifts.cluster.settings.auto_undrains else set()
    assert left <= may_be_done, "it was never killed at these"
    queue.end()
    entries = shifts.cluster.ledger()
    check_ledger(entries)
    assert {entry["entry"] for entry in entries[before:]} == {"claim", "release"}
