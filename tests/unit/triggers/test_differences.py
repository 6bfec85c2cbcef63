"""When a difference between wish and world starts a run, minute by minute."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone

from airflow_provider_soperator.triggers.capacity_watch import Differences

NOON = datetime(2026, 11, 23, 12, tzinfo=timezone.utc)
MINUTE = timedelta(minutes=1)
DAY, NIGHT = {"training": 4, "inference": 4}, {"training": 8, "inference": 0}


class Watched:
    """A watcher that looks each minute, also over restarts."""

    def __init__(self) -> None:
        self.now, self.watch = NOON, Differences()

    def looks(self, minutes: int, wished: dict[str, int], *, differs: bool = True, busy: bool = False) -> list[int]:
        """The minutes in which a run was started, counted from the first look."""
        told = []
        for minute in range(minutes):
            if self.watch.look(wished, self.now, is_different=differs, is_busy=busy):
                told.append(minute)
            self.now += MINUTE
        return told

    def restart(self, gap: timedelta, *, was_stopped: bool) -> None:
        self.watch = Differences(json.loads(json.dumps({**self.watch.state, "stopped": was_stopped})))
        self.now += gap


def in_force(wished: dict[str, int] = DAY) -> Watched:
    watched = Watched()
    watched.looks(2, wished, differs=False)
    return watched


def test_a_difference_that_lasts_starts_a_run() -> None:
    assert in_force().looks(7, DAY) == [5]


def test_one_that_comes_and_goes_starts_none() -> None:
    watched = in_force()
    for _ in range(5):
        assert watched.looks(4, DAY) == watched.looks(1, DAY, differs=False) == []


def test_what_was_wished_for_when_it_was_switched_on_is_not_put_into_force() -> None:
    watched = Watched()
    assert watched.looks(600, DAY) == []
    # The next handover is.
    assert watched.looks(6, NIGHT) == [5]


def test_a_wish_that_somebody_else_has_put_into_force_is_kept() -> None:
    watched = Watched()
    watched.looks(10, DAY)
    watched.looks(1, DAY, differs=False)
    assert watched.looks(6, DAY) == [5]


def test_nothing_is_started_while_a_run_is_at_it() -> None:
    watched = in_force()
    assert watched.looks(60, NIGHT, busy=True) == []
    # And the run has left nothing.
    assert watched.looks(60, NIGHT, differs=False) == []


def test_it_backs_off_while_runs_do_not_mend_it() -> None:
    assert in_force().looks(400, DAY) == [5, 15, 35, 75, 155, 275, 395]
    # A new wish is tried at once, and what was mended for as long as it waited counts as new.
    watched = in_force()
    watched.looks(100, DAY)
    assert watched.looks(6, NIGHT) == [5]
    watched.looks(60, NIGHT, differs=False)
    assert watched.looks(16, NIGHT) == [5, 15]


def test_what_flaps_does_not_start_a_run_each_time() -> None:
    watched, told = in_force(), []
    for _ in range(10):
        told += watched.looks(6, DAY)
        watched.looks(1, DAY, differs=False)
    assert len(told) <= 4


def test_an_outage_over_a_handover_is_made_up_for() -> None:
    watched = in_force()
    watched.restart(timedelta(hours=9), was_stopped=False)
    assert watched.looks(6, NIGHT) == [5]


def test_an_edited_schedule_is_put_into_force() -> None:
    watched = in_force()
    watched.restart(MINUTE, was_stopped=True)
    assert watched.looks(6, NIGHT) == [5]


def test_a_pause_over_a_handover_is_not_made_up_for() -> None:
    watched = in_force()
    watched.restart(timedelta(hours=9), was_stopped=True)
    assert watched.looks(600, NIGHT) == []
    # The memory goes on from there.
    watched.restart(MINUTE, was_stopped=False)
    assert watched.looks(600, NIGHT) == []
    assert watched.looks(6, DAY) == [5]
