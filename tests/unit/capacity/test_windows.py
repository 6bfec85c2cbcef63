"""What targets could use of a block while a window was in force."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

from airflow_provider_soperator.capacity.figures import note_window
from airflow_provider_soperator.capacity.holdings import Holding, World
from airflow_provider_soperator.capacity.overrides import Override
from airflow_provider_soperator.capacity.schedule import CapacitySchedule, Window
from airflow_provider_soperator.nebius.capacity_blocks import CapacityBlock

EVENING = datetime(2026, 11, 23, 19, tzinfo=timezone.utc)
SCHEDULE = CapacitySchedule(
    timezone="UTC",
    windows=[Window("daily 20:00 - 08:00", {"training": 8, "inference": 0}, name="night")],
    otherwise={"training": 4, "inference": 4},
)


def world(training: int, inference: int, **more: Any) -> World:
    holdings = {
        "training": Holding(allowed=training, held=training, ready=training, **more),
        "inference": Holding(allowed=inference, held=inference, ready=inference),
    }
    usage = 8 * (training + inference)
    return World(CapacityBlock(id="b", limit=64, usage=usage), holdings, {"training": 8, "inference": 8})


class Watch:
    """Looks at the world, each of which another process could make."""

    def __init__(self) -> None:
        self.now, self.reports, self.schedule = EVENING, list[dict[str, Any]](), SCHEDULE
        self._state = "{}"

    def look(self, seen: World, minutes: int = 1) -> None:
        for _ in range(minutes):
            state = json.loads(self._state)
            segment = self.schedule.at(self.now)
            goal = {target: units for target, units in segment.allocation.items() if isinstance(units, int)}
            if report := note_window(state, seen, segment, goal, self.now):
                self.reports.append(report)
            self._state = json.dumps(state)
            self.now += timedelta(minutes=1)


def test_a_window_is_reported_once_it_is_over() -> None:
    watch = Watch()
    watch.look(world(4, 4), 31)
    # One node is free in the block while inference is to have it; and two stand idle, as a shift has reserved them.
    watch.look(world(4, 3), 15)
    watch.look(world(4, 4, idle=2), 14)
    assert watch.reports == []
    watch.look(world(8, 0), 60)
    [report] = watch.reports
    assert report == {
        "window": "otherwise",
        "since": "2026-11-23T08:00:00+00:00",
        "until": "2026-11-23T20:00:00+00:00",
        "measured_hours": 1.0,
        "gpu_hours": {"training": 32.53, "inference": 29.47},
        "idle_gpu_hours": 3.73,
        "limbo_gpu_hours": 2.0,
        "unused_gpu_hours": 2.0,
    }
    watch.look(world(8, 0), 11 * 60 + 1)
    assert [one["window"] for one in watch.reports] == ["otherwise", "night"]
    assert watch.reports[1]["gpu_hours"] == {"training": 768.0, "inference": 0.0}


def test_what_was_not_looked_at_is_not_measured() -> None:
    watch = Watch()
    watch.look(world(4, 4), 11)
    watch.now += timedelta(minutes=30)
    watch.look(world(4, 4), 11)
    watch.now += timedelta(days=1)
    watch.look(world(4, 4))
    [report] = watch.reports
    assert (report["until"], report["measured_hours"]) == ("2026-11-23T20:00:00+00:00", 0.33)
    assert report["gpu_hours"] == {"training": 10.67, "inference": 10.67}


def test_a_window_that_others_have_shortened_afterwards_ends_after_it_has_begun() -> None:
    watch = Watch()
    asked = Override("2026-11-23T22:00/2026-11-24T04:00", {"training": 6, "inference": 2}, by="ann")
    overridden = SCHEDULE.overridden([asked], EVENING)
    moved = replace(SCHEDULE, windows=[Window("daily 19:00 - 08:00", {"training": 8, "inference": 0}, name="night")])
    # The override is removed at 22:30; from 23:00 to 23:30 the begin of the window is another one.
    for schedule, minutes in ((SCHEDULE, 120), (overridden, 90), (SCHEDULE, 30), (moved, 30)):
        watch.schedule = schedule
        watch.look(world(6, 2), minutes)
    watch.schedule = SCHEDULE
    watch.look(world(6, 2))
    assert [(one["window"], one["since"][11:16], one["until"][11:16]) for one in watch.reports] == [
        ("otherwise", "08:00", "20:00"),
        ("night", "20:00", "22:00"),
        ("override by ann", "22:00", "22:30"),
        ("night", "22:30", "23:00"),
        ("night", "23:00", "23:30"),
    ]
    assert [one["measured_hours"] for one in watch.reports] == [1.0, 2.0, 0.5, 0.5, 0.5]
