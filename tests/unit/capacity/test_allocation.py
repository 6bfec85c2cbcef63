"""What is wanted where: in units or in GPUs, from a form, from a template, or from a schedule."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from airflow_provider_soperator.capacity.allocation import Units
from airflow_provider_soperator.capacity.order import (
    DesiredAllocation,
    is_requested,
    requested_allocation,
    scheduled_allocation,
)
from airflow_provider_soperator.capacity.overrides import Override
from airflow_provider_soperator.capacity.schedule import CapacitySchedule, Window
from airflow_provider_soperator.capacity.targets import KubernetesScaleTarget, SlurmNodesTarget
from airflow_provider_soperator.errors import CapacityMistake

NOW = datetime(2026, 11, 21, 12, tzinfo=timezone.utc)
TRAINING = SlurmNodesTarget(name="training", nodes="worker-[0-7]")
INFERENCE = KubernetesScaleTarget(name="inference", resource="vllm", gpus_per_unit=4)


def units(desired: Any, *targets: Any, limit: int = 64) -> Mapping[str, Units]:
    return requested_allocation(desired, targets or (TRAINING, INFERENCE), limit, NOW).units


@pytest.mark.parametrize(
    ("desired", "expected"),
    [
        ({"training": 4, "inference": 8}, {"training": 4, "inference": 8}),
        ({"training": "4", "inference": "8 replicas"}, {"training": 4, "inference": 8}),
        ({"training": "1 node", "inference": "1 Replica"}, {"training": 1, "inference": 1}),
        ({"training": "32 gpus", "inference": "32GPUs"}, {"training": 4, "inference": 8}),
        ({"training": " 5 ", "inference": "1 replica"}, {"training": 5, "inference": 1}),
        ({"training": 0, "inference": 0}, {"training": 0, "inference": 0}),
        ('{"training": 4, "inference": "8"}', {"training": 4, "inference": 8}),
    ],
)
def test_what_is_said_is_meant(desired: Any, expected: dict[str, int]) -> None:
    assert units(desired) == expected


@pytest.mark.parametrize("nothing", [None, "", "None", " none ", "null"])
def test_what_is_not_named_gets_the_rest_of_the_block(nothing: Any) -> None:
    assert units({"training": 5, "inference": nothing}) == units({"training": 5}) == {"training": 5, "inference": 6}


def test_a_rest_is_whole_units_and_never_less_than_none() -> None:
    assert units({"inference": 3}, limit=64) == {"training": 6, "inference": 3}
    # Of a block with more GPUs than its nodes have, others may have the rest.
    assert units({"inference": 3}, limit=128) == {"training": 8, "inference": 3}
    # Too much is refused where the block is known, and not turned into less than nothing here.
    assert units({"training": 9}, limit=64) == {"training": 9, "inference": 0}


def test_targets_come_in_their_own_order() -> None:
    assert list(units({"inference": 8, "training": 4})) == ["training", "inference"]


@pytest.mark.parametrize(
    ("desired", "said"),
    [
        ({"trainign": 4}, "unknown target trainign"),
        ({}, "no number for training and inference"),
        ({"training": None, "inference": ""}, "no number for training and inference"),
        ({"training": -1}, "expected a number of nodes .*, got '?-1'?"),
        ({"training": 4.5}, "expected a number of nodes"),
        ({"training": True}, "expected a number of nodes"),
        ({"training": "half"}, "expected a number of nodes"),
        ({"training": "12 gpus"}, "12 GPUs are not a multiple of the 8 of its nodes"),
        ({"training": "4 replicas"}, "expected nodes or GPUs, got replicas"),
        ({"training": "4 s"}, "expected nodes or GPUs, got s"),
        ({"training": "4 no"}, "expected nodes or GPUs, got no"),
        ("4 nodes", "must be a JSON object"),
        ("[4, 4]", "must map each target to its units"),
        (4, "must map each target to its units"),
    ],
)
def test_what_cannot_be_meant_is_refused(desired: Any, said: str) -> None:
    with pytest.raises(CapacityMistake, match=said):
        units(desired)


def test_of_three_all_but_one_need_a_number() -> None:
    third = SlurmNodesTarget(name="research", nodes="gb-[0-3]")
    with pytest.raises(CapacityMistake, match="no number for inference and research"):
        units({"training": 4}, TRAINING, INFERENCE, third)
    assert units({"training": 4, "inference": 4}, TRAINING, INFERENCE, third)["research"] == 2


@pytest.mark.parametrize(
    ("desired", "is_said"),
    [
        (None, False),
        ("", False),
        ("None", False),
        ({}, False),
        ({"training": "None", "inference": ""}, False),
        ('{"training": null}', False),
        ({"training": 0}, True),
        ({"training": "None", "inference": "0"}, True),
    ],
)
def test_an_empty_form_asks_for_nothing(desired: Any, is_said: bool) -> None:
    assert is_requested(desired) is is_said


NIGHTS = CapacitySchedule(
    timezone="UTC",
    windows=[Window("mon-sun 20:00 - 08:00", {"training": 8, "inference": 0}, name="night")],
    otherwise={"training": 4, "inference": 4},
)


def test_a_schedule_says_what_holds_and_until_when() -> None:
    tonight = NOW.replace(hour=20)
    wanted = scheduled_allocation(NIGHTS, tonight, NOW)
    morning = tonight + timedelta(hours=12)
    assert wanted == DesiredAllocation({"training": 8, "inference": 0}, tonight, morning, "night", morning, morning)


@pytest.mark.parametrize(("hours", "stops"), [(1, 6), (11, 8)])
def test_a_shift_stops_where_the_next_one_begins_or_at_the_handover_within_its_lead(hours: int, stops: int) -> None:
    tonight = NOW.replace(hour=20)
    wanted = scheduled_allocation(replace(NIGHTS, lead="2h"), tonight, tonight + timedelta(hours=hours))
    assert wanted.stops_at == tonight + timedelta(hours=4 + stops)


def test_a_shift_does_not_stop_ahead_of_an_override_as_no_other_begins_then() -> None:
    tonight = NOW.replace(hour=20)
    ahead = replace(NIGHTS, lead="2h")
    for lasts, stops in (("21:00/{:%Y-%m-%d}T23:00", 21), ("18:30/{:%Y-%m-%d}T23:00", 23)):
        asked = Override(f"{NOW:%Y-%m-%d}T{lasts.format(NOW)}", {"training": 1, "inference": 1})
        made = ahead.overridden([asked], NOW)
        assert scheduled_allocation(made, tonight, tonight.replace(hour=18)).stops_at == tonight.replace(hour=stops)
    # Ahead of a handover another one does, also where an override ends with it, or within its lead.
    for ends in ("19:30", "20:00"):
        until_then = Override(f"{NOW:%Y-%m-%d}T13:00/{NOW:%Y-%m-%d}T{ends}", {"training": 1, "inference": 1})
        made = ahead.overridden([until_then], NOW)
        assert scheduled_allocation(made, NOW.replace(hour=14), NOW).stops_at == NOW.replace(hour=18)


def test_what_was_to_be_so_before_is_wanted_now() -> None:
    wanted = scheduled_allocation(NIGHTS, NOW - timedelta(hours=1), NOW)
    assert (wanted.units, wanted.at) == ({"training": 4, "inference": 4}, NOW)
    assert wanted.until == NOW.replace(hour=20)
    # The shift to what comes then begins its lead ahead.
    ahead = CapacitySchedule.read({**NIGHTS.describe(), "lead": "2h"})
    assert scheduled_allocation(ahead, NOW, NOW).stops_at == NOW.replace(hour=18)
    assert scheduled_allocation(ahead, NOW.replace(hour=19), NOW.replace(hour=19)).stops_at == NOW.replace(hour=20)
