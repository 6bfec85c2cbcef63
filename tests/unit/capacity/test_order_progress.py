"""A part of a shift fails when it has made no progress for too long, and says what it has waited for."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from airflow_provider_soperator.capacity.holdings import Holding, World
from airflow_provider_soperator.capacity.order import PartTookTooLong, ProgressTimer, Timeouts
from airflow_provider_soperator.nebius.api import NebiusUnauthenticated
from airflow_provider_soperator.nebius.capacity_blocks import CapacityBlock

START = datetime(2026, 11, 21, 20, tzinfo=timezone.utc)
MINUTE = timedelta(minutes=1)
TIMEOUTS = Timeouts(release=10 * MINUTE, free=20 * MINUTE, ready=30 * MINUTE, out_of_reach=40 * MINUTE)
GOAL = {"training": 4, "inference": 4}
TROUBLE = ConnectionError("nobody is there")


class Log:
    """Keeps what is said."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def info(self, event: str, *args: Any) -> None:
        self.said.append(event % args)

    warning = error = info


def holding(allowed: int, held: int | None = None, ready: int | None = None, *problems: str) -> Holding:
    held = allowed if held is None else held
    return Holding(allowed=allowed, held=held, ready=held if ready is None else ready, problems=problems)


def world(training: Holding, inference: Holding, usage: int | None = 64) -> World:
    return World(
        CapacityBlock(id="b", limit=64, usage=usage),
        {"training": training, "inference": inference},
        {"training": 8, "inference": 8},
    )


#: What is waited for, how long, and what is said of it then.
PARTS: Mapping[str, tuple[World, timedelta, str]] = {
    "release": (world(holding(6), holding(2)), TIMEOUTS.release, "training still has more than desired"),
    "free": (world(holding(4), holding(2)), TIMEOUTS.free, "only 0 GPUs of the block are free, too few for inference"),
    "unknown": (world(holding(4), holding(2), None), TIMEOUTS.free, "the number of free GPUs of the block is unknown"),
    "ready": (world(holding(4), holding(4, 4, 3)), TIMEOUTS.ready, "inference is not ready"),
    "machines": (world(holding(4), holding(4)), TIMEOUTS.free, "the released GPUs are not free"),
}


@pytest.mark.parametrize("part", PARTS)
def test_each_part_has_its_own_time(part: str) -> None:
    seen, limit, said = PARTS[part]
    patience = ProgressTimer(TIMEOUTS)
    patience.see(seen, GOAL, START, started=True)
    patience.see(seen, GOAL, START + limit, started=True)
    with pytest.raises(PartTookTooLong, match=said):
        patience.see(seen, GOAL, START + limit + MINUTE, started=True)


def test_each_unit_that_comes_or_goes_has_the_whole_time() -> None:
    patience = ProgressTimer(TIMEOUTS)
    steps = [
        (world(holding(6), holding(2)), TIMEOUTS.release),
        (world(holding(5), holding(2)), TIMEOUTS.release),
        (world(holding(4), holding(2)), TIMEOUTS.free),
        (world(holding(4), holding(2), 60), TIMEOUTS.free),
        (world(holding(4), holding(4, 3, 2), 56), TIMEOUTS.ready),
        (world(holding(4), holding(4, 4, 3)), TIMEOUTS.ready),
    ]
    now = START
    for seen, limit in steps:
        patience.see(seen, GOAL, now, started=True)
        now += limit
        patience.see(seen, GOAL, now, started=True)


def test_until_its_turn_comes_it_may_wait_for_ever() -> None:
    seen, limit, _ = PARTS["release"]
    patience = ProgressTimer(TIMEOUTS)
    for hours in range(5):
        patience.see(seen, GOAL, START + timedelta(hours=hours), started=False)
    begun = START + timedelta(hours=4)
    patience.see(seen, GOAL, begun + limit, started=True)
    with pytest.raises(PartTookTooLong):
        patience.see(seen, GOAL, begun + limit + MINUTE, started=True)


def test_what_those_in_trouble_say_is_passed_on() -> None:
    seen = world(holding(4), holding(4, 3, 2, "worker-9: no capacity"))
    patience = ProgressTimer(TIMEOUTS)
    patience.see(seen, GOAL, START, started=True)
    with pytest.raises(PartTookTooLong, match=r"after 0:30:00 \(worker-9: no capacity\)"):
        patience.see(seen, GOAL, START + 31 * MINUTE, started=True)


def test_trouble_that_lasts_is_a_failure_and_is_told_once() -> None:
    patience, log = ProgressTimer(TIMEOUTS), Log()
    for minutes in range(41):
        patience.wait_out(TROUBLE, START + minutes * MINUTE, log)
    assert len(log.said) == 1
    with pytest.raises(PartTookTooLong, match="no step succeeded for 0:40:00: nobody is there"):
        patience.wait_out(TROUBLE, START + 41 * MINUTE, log)


def test_trouble_takes_nothing_of_the_time_of_a_part() -> None:
    seen, limit, _ = PARTS["release"]
    patience, log = ProgressTimer(TIMEOUTS), Log()
    patience.see(seen, GOAL, START, started=True)
    patience.wait_out(TROUBLE, START + MINUTE, log)
    back = START + limit + 20 * MINUTE
    patience.see(seen, GOAL, back, started=True)
    patience.worked()
    patience.see(seen, GOAL, back + limit - MINUTE, started=True)
    with pytest.raises(PartTookTooLong):
        patience.see(seen, GOAL, back + limit, started=True)


def test_answers_that_are_lost_now_and_then_do_not_make_a_part_endless() -> None:
    seen, limit, _ = PARTS["release"]
    patience, log = ProgressTimer(TIMEOUTS), Log()

    def every_second_minute() -> None:
        for minutes in range(3 * int(limit / MINUTE)):
            patience.see(seen, GOAL, START + minutes * MINUTE, started=True)
            if minutes % 2:
                patience.wait_out(TROUBLE, START + minutes * MINUTE, log)
            else:
                patience.worked()

    with pytest.raises(PartTookTooLong):
        every_second_minute()


def test_a_person_who_has_to_mend_a_connection_is_reminded() -> None:
    patience, log = ProgressTimer(TIMEOUTS), Log()
    for minutes in range(40):
        patience.wait_out(NebiusUnauthenticated("the token has expired"), START + minutes * MINUTE, log)
    assert len(log.said) == 4
    assert log.said[1] == (
        "The owner of the Airflow connection has to mend it within 0:29:00, or this ends: the token has expired"
    )


def test_trouble_that_has_passed_does_not_count_when_more_comes() -> None:
    seen, _, _ = PARTS["ready"]
    patience, log = ProgressTimer(TIMEOUTS), Log()
    patience.wait_out(TROUBLE, START, log)
    patience.see(seen, GOAL, START + MINUTE, started=True)
    patience.worked()
    patience.wait_out(TROUBLE, START + 41 * MINUTE, log)
    assert len(log.said) == 2


def test_who_can_be_looked_at_and_takes_no_orders_is_out_of_reach() -> None:
    seen, _, _ = PARTS["release"]
    patience, log = ProgressTimer(TIMEOUTS), Log()

    for minutes in range(41):
        patience.see(seen, GOAL, START + minutes * MINUTE, started=True)
        patience.wait_out(TROUBLE, START + minutes * MINUTE, log)
    assert len(log.said) == 1
    patience.see(seen, GOAL, START + 41 * MINUTE, started=True)
    with pytest.raises(PartTookTooLong, match="no step succeeded"):
        patience.wait_out(TROUBLE, START + 41 * MINUTE, log)


def test_on_the_way_back_only_those_are_waited_for_that_were_ready_before() -> None:
    seen, ready = world(holding(4, 4, 2), holding(4)), {"training": 2, "inference": 4}
    patience = ProgressTimer(TIMEOUTS)
    patience.see(seen, GOAL, START, started=True, ready=ready)
    with pytest.raises(PartTookTooLong, match="the released GPUs are not free"):
        patience.see(seen, GOAL, START + TIMEOUTS.free + MINUTE, started=True, ready=ready)
