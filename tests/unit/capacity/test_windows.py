"""What targets could use of a block while a window was in force."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from typing import Any

from airflow_provider_soperator.capacity.figures import note_window
from airflow_provider_soperator.capacity.holdings import Holding, World
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
        self.now, self.reports = EVENING, list[dict[str, Any]]()
        self._state = "{}"

    def look(self, seen: World, minutes: int = 1) -> None:
        for _ in range(minutes):
            state = json.loads(self._state)
            segment = SCHEDULE.at(self.now)
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
