"""Schedules as bands: windows, leads and what was at their places, and conflicts in words."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pytest

from airflow_provider_soperator.board.capacity_dags import CapacityDag
from airflow_provider_soperator.board.schedule_band import HEIGHT, band, conflicts
from airflow_provider_soperator.capacity.order import ShiftOrder
from airflow_provider_soperator.capacity.overrides import Override
from airflow_provider_soperator.capacity.schedule import CapacitySchedule, Window
from airflow_provider_soperator.capacity.targets import SlurmNodesTarget
from airflow_provider_soperator.nebius.capacity_blocks import CapacityBlock

#: A Wednesday; the band begins on Monday at noon, and a day is 100 / 7 of it.
NOW = datetime(2026, 11, 25, 12, tzinfo=timezone.utc)
DAY = 100 / 7
SCHEDULE = CapacitySchedule(
    timezone="UTC",
    windows=[Window("daily 20:00 - 08:00", {"training": 8, "inference": 0}, name="night")],
    otherwise={"training": {"min": 2, "max": 4}, "inference": 4},
    gpus_per_unit={"training": 8, "inference": 8},
    limit=64,
    lead="2h",
)


def order(block: str = "block-1", nodes: str = "worker-[0-7]") -> ShiftOrder:
    targets = (SlurmNodesTarget(name="training", nodes=nodes), SlurmNodesTarget(name="inference", nodes=f"i{nodes}"))
    said = {"key": "w", "task": "t", "nebius_conn_id": "n", "desired": {}, "wanted_at": NOW}
    return ShiftOrder(block=block, targets=targets, **said)  # type: ignore[arg-type]


def dag(schedule: CapacitySchedule = SCHEDULE, dag_id: str = "gpu_shifts", **more: object) -> CapacityDag:
    said = {"dag_id": dag_id, "is_paused": False, "schedule": schedule, "order": order()}
    return CapacityDag(**(said | more))  # type: ignore[arg-type]


def test_windows_are_at_their_places_with_what_each_target_has() -> None:
    drawn = band(dag(), NOW)
    assert drawn.now == pytest.approx(2 * DAY, abs=0.01)
    first, night = drawn.wished[:2]
    # From noon to 20:00.
    assert (first.name, first.x, first.width) == ("otherwise", 0, pytest.approx(DAY / 3, abs=0.01))
    assert night.said == "night, Mon 20:00 to Tue 08:00: training 8, inference 0"
    # All 64 GPUs; of a range what is sure.
    assert night.bars == [(0, 0, HEIGHT)]
    assert first.bars == [(0, 30, 10), (1, 10, 20)]
    assert drawn.leads[0] == (pytest.approx(DAY / 4, abs=0.01), pytest.approx(DAY / 12, abs=0.01))
    assert [day for _, day in drawn.days][:2] == ["Tue 24", "Wed 25"]


def test_the_next_handovers_are_told() -> None:
    drawn = band(dag(), NOW)
    change, then = drawn.change, drawn.then
    assert change
    assert (change.at, change.begins, change.after.name) == (
        NOW.replace(hour=20),
        NOW.replace(hour=18),
        "night",
    )
    assert then
    assert then.at > change.at
    assert then.before == change.after


def test_a_handover_beyond_the_band_is_told_as_well() -> None:
    schedule = replace(SCHEDULE, exceptions={"2026-12-24": {"training": 0, "inference": 8}}, windows=[
        Window("mon 00:00 - mon 00:00", {"training": 8, "inference": 0}, name="always")
    ])  # fmt: skip
    change = band(dag(schedule), NOW).change
    assert change
    assert change.at == datetime(2026, 12, 24, tzinfo=timezone.utc)


def test_what_was_is_drawn_from_the_reports_of_windows() -> None:
    report = {
        "window": "night",
        "since": "2026-11-24T20:00:00+00:00",
        "until": "2026-11-25T08:00:00+00:00",
        "measured_hours": 10.0,
        "gpu_hours": {"training": 480.0, "inference": 0.0},
        "idle_gpu_hours": 3.5,
    }
    old = report | {"since": "2026-11-20T20:00:00+00:00", "until": "2026-11-21T08:00:00+00:00"}
    unmeasured = report | {"measured_hours": 0.0}
    [was] = band(dag(reports=[old, unmeasured, report]), NOW).was
    assert was.said == (
        "night, Tue 20:00 to Wed 08:00: training 48.0 GPUs, inference 0.0 GPUs on average, 3.5 GPU-hours idle"
    )
    assert [(target, height) for target, _, height in was.bars] == [(0, HEIGHT * 48 / 64)]


def test_an_override_stands_out_until_it_is_over() -> None:
    over = Override("2026-11-24T10:00/2026-11-24T12:00", {"training": 8, "inference": 0}, by="ann")
    holds = Override("2026-11-25T10:00/2026-11-26T10:00", {"training": 6, "inference": 2}, by="ann", because="demo")
    drawn = band(dag(SCHEDULE.overridden([over, holds], NOW)), NOW)
    assert [part.name for part in drawn.wished if part.is_override] == ["override by ann", "override by ann (demo)"]
    assert drawn.overrides == [holds]


def test_two_dags_that_move_the_same_nodes_collide() -> None:
    twin = dag(dag_id="twin")
    assert conflicts([dag(), twin], {}, NOW) == ["gpu_shifts and twin both move training and inference."]
    days = dag(replace(SCHEDULE, otherwise={"training": 8, "inference": 0}, exceptions={}), "twin")
    assert conflicts([dag(), days], {}, NOW) == [
        "gpu_shifts and twin both move training and inference, and wish for different sizes now."
    ]
    late = replace(SCHEDULE, exceptions={"2026-11-27": {"training": 0, "inference": 8}})
    [said] = conflicts([dag(), dag(late, "twin")], {}, NOW)
    assert said.endswith("and wish for different sizes from Fri 27 Nov 00:00 on.")
    assert conflicts([dag(), replace(twin, is_paused=True)], {}, NOW) == []


def test_sizes_that_differ_are_those_of_what_two_dags_share_whatever_its_name() -> None:
    common, other = order().targets[1], SlurmNodesTarget(name="inference", nodes="gpu-[0-7]")
    shared = replace(order(), targets=(replace(common, name="training"), other))

    def twin(training: int) -> CapacityDag:
        night = Window("daily 20:00 - 08:00", {"training": 0, "inference": 3}, name="night")
        sizes = {"training": training, "inference": 3}
        return dag(replace(SCHEDULE, windows=[night], otherwise=sizes), "twin", order=shared)

    assert conflicts([dag(), twin(4)], {}, NOW) == ["gpu_shifts and twin both move inference."]
    [said] = conflicts([dag(), twin(2)], {}, NOW)
    assert said.endswith("and wish for different sizes now.")


def test_two_dags_may_share_a_block_alone_or_nothing() -> None:
    [said] = conflicts([dag(), dag(dag_id="twin", order=order(nodes="gpu-[0-7]"))], {}, NOW)
    assert said == "gpu_shifts and twin both move block block-1."
    assert conflicts([dag(), dag(dag_id="twin", order=order("block-2", "gpu-[0-7]"))], {}, NOW) == []


def test_a_window_that_a_block_will_be_too_small_for_is_told() -> None:
    falls = CapacityBlock(id="b", limit=64, usage=0, next_change_at=NOW + timedelta(days=1), next_change_to=48)
    assert conflicts([dag()], {"gpu_shifts": falls}, NOW) == [
        "From Thu 26 Nov 20:00 on gpu_shifts wishes for 64 GPUs, and the block has 48."
    ]
    assert conflicts([dag()], {"gpu_shifts": replace(falls, next_change_at=NOW + timedelta(days=9))}, NOW) == []
    # It does not hide what is too small now that something is announced.
    grows = replace(falls, limit=40, next_change_to=64)
    assert conflicts([dag()], {"gpu_shifts": grows}, NOW) == [
        "From Wed 25 Nov 12:00 on gpu_shifts wishes for 48 GPUs, and the block has 40."
    ]
    assert conflicts([dag()], {"gpu_shifts": replace(falls, next_change_to=40)}, NOW) == [
        "From Thu 26 Nov 12:00 on gpu_shifts wishes for 48 GPUs, and the block has 40."
    ]
