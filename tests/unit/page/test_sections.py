"""The sections of the page beside nodes and queue: what a viewer sees of them, and that none is waited for."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_soperator.board.blocks import CapacityLook
from airflow_provider_soperator.board.capacity_dags import ShiftSeen
from airflow_provider_soperator.board.check_history import CheckLook, HealthLook
from airflow_provider_soperator.board.looks import _Frame
from airflow_provider_soperator.board.usage import UsageLook, Used, UsedDay
from airflow_provider_soperator.capacity.demand import Decision
from airflow_provider_soperator.capacity.overrides import Override
from airflow_provider_soperator.health.assessment import Observations
from airflow_provider_soperator.page import sections as page_sections
from airflow_provider_soperator.page import viewer
from airflow_provider_soperator.page.sections import Sections, said
from tests.patience import PATIENCE
from tests.unit.board.test_blocks import DAG, WORLD
from tests.unit.clock import StoppedClock
from tests.unit.page.test_app import HOSTILE, NOW, Everything, picture, rights, visit  # noqa: F401

SHIFT = ShiftSeen(
    dag_id="gpu_shifts",
    path="dags/gpu_shifts/runs/r/tasks/shift",
    said=HOSTILE,
    at=NOW,
    by=HOSTILE,
    jobs_in_the_way=("8",),
    ends_at=NOW,
    late=28,
    jobs={"ended": 2},
)
OVERRIDE = Override(
    f"{NOW - timedelta(hours=1):%Y-%m-%dT%H:%M:%S}/{NOW + timedelta(hours=1):%Y-%m-%dT%H:%M:%S}",
    {"training": 2, "inference": 2},
    by=HOSTILE,
    because=HOSTILE,
)
DEMAND = Decision({"training": 2, "inference": 4}, (f"jobs wait {HOSTILE}",), since=NOW, at=NOW.timestamp())
MOVER = replace(DAG, demand=DEMAND, at_work=SHIFT, last=SHIFT, schedule=DAG.schedule.overridden([OVERRIDE], NOW))
CAPACITY = CapacityLook(
    taken=NOW,
    dags=[MOVER, replace(DAG, dag_id="twin")],
    worlds={"gpu_shifts": WORLD},
    failures={"twin": HOSTILE},
)
HEALTH = HealthLook(
    taken=NOW,
    observations=Observations(figures={HOSTILE: {"worker-0": [(day, {HOSTILE: 1.0 + day}) for day in range(4)]}}),
    checks=[CheckLook(name=HOSTILE, state="Failed", is_bad=True, at=NOW, why=HOSTILE)],
    failures={"Pods": HOSTILE},
    since={"Pods": NOW - timedelta(hours=2)},
)
OF_DAGS = [
    Used(user=HOSTILE, dag_id=dag, name="fit", jobs=1, gpu_hours=4, failed_hours=4, waits=(60.0,))
    for dag in ("gpu_shifts", "twin")
]
USAGE = UsageLook(taken=NOW, days={NOW: UsedDay(used=OF_DAGS)})


@pytest.fixture(autouse=True)
def stopped_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (page_sections, viewer):
        monkeypatch.setattr(module, "datetime", StoppedClock(NOW))


class Known(Sections):
    """Sections of which all is known."""

    async def of(self, shown: Any, may_see: Any) -> dict[str, Any]:
        return said(shown, may_see, CAPACITY, HEALTH, USAGE)


def test_hostile_texts_of_sections_stay_texts(rights: Everything) -> None:  # noqa: F811
    rights.dags = frozenset({"gpu_shifts", "twin"})
    shown = visit("/", picture(), Known())
    assert shown.status_code == 200
    assert "<script>alert" not in shown.text
    # The shift at work and the last one, who started that, the override with its reason, and why demand is so.
    assert shown.text.partition('id="nodes"')[0].count("&lt;script&gt;alert") >= 7


def test_one_sees_who_has_the_block_what_comes_next_and_what_was_used(rights: Everything) -> None:  # noqa: F811
    rights.dags = frozenset({"gpu_shifts", "twin"})
    text = " ".join(visit("/", picture(), Known()).text.split())
    for part in (
        "training <strong>24</strong> (24 idle)",
        "inference <strong>16</strong> (8 at work, 8 on the way), 8 bought beside it",
        "free <strong>16</strong>",
        "Next handover <strong>",
        " Then ",
        "in its way: job 8",
        "<strong>training 2, inference 4</strong>",
        ", 28 s late, 2 jobs ended.",
        "gpu_shifts and twin both move training and inference",
        "8.0 GPU-hours of 2 jobs, 100 % of them of jobs that failed",
        "Not read: the block of twin.",
        "Not read: Pods.",
        "What is shown of it is 2 h",
    ):
        assert part in text


def test_a_dag_that_one_may_not_see_is_nowhere(rights: Everything) -> None:  # noqa: F811
    rights.dags = frozenset({"train"})
    text = visit("/", picture(), Known()).text
    for name in ("gpu_shifts", "twin", "block-1", "Conflict", "Next handover"):
        assert name not in text
    assert "other DAGs" in text


def test_dags_that_cannot_be_read_are_shown_with_their_age(rights: Everything) -> None:  # noqa: F811
    rights.dags = frozenset({"gpu_shifts"})

    class Stale(Sections):
        async def of(self, shown: Any, may_see: Any) -> dict[str, Any]:
            old = replace(CAPACITY, failures={"": "It is away."}, since={"": NOW - timedelta(hours=2)})
            return said(shown, may_see, old, HEALTH, USAGE)

    text = visit("/", picture(), Stale()).text
    assert "Not read: the DAGs that move capacity.</strong> It is away. What is shown of them is 2 h old.</p>" in text


def test_a_block_is_shown_as_the_dag_sees_it_that_is_not_paused() -> None:
    paused = replace(DAG, dag_id="a_draft", is_paused=True)
    look = replace(CAPACITY, dags=[paused, DAG], worlds={"a_draft": WORLD, "gpu_shifts": WORLD})
    [block] = page_sections._blocks(picture(), look)
    assert block["dag"] == DAG


def test_the_shift_of_a_dag_that_one_may_not_see_is_not_told_by_another(rights: Everything) -> None:  # noqa: F811
    rights.dags = frozenset({"gpu_shifts"})
    other = replace(MOVER, last=None, at_work=replace(SHIFT, dag_id="secret", path="dags/secret"))
    assert said(picture(), rights.dags.__contains__, replace(CAPACITY, dags=[other]), HEALTH, USAGE)["bands"]

    class Other(Sections):
        async def of(self, shown: Any, may_see: Any) -> dict[str, Any]:
            return said(shown, may_see, replace(CAPACITY, dags=[other]), HEALTH, USAGE)

    text = visit("/", picture(), Other()).text
    assert "Schedule" in text
    assert "secret" not in text


def test_no_viewer_waits_for_a_section_and_all_share_its_look(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    answering = asyncio.Event()

    def looks(what: str, look: Any) -> None:
        async def taken(connection: str, before: Any) -> Any:
            asked.append(what)
            await answering.wait()
            return look

        monkeypatch.setattr(page_sections, f"look_at_{what}", taken)

    async def story() -> list[bool]:
        for what, look in {"capacity": CAPACITY, "health": HEALTH, "usage": USAGE}.items():
            looks(what, look)
        sections, shown = Sections(), picture()
        views = [(await sections.of(shown, lambda dag: True))["is_whole"] for _ in range(50)]
        answering.set()
        await asyncio.sleep(0.01)
        return [*views, *[(await sections.of(shown, lambda dag: True))["is_whole"] for _ in range(50)]]

    assert asyncio.run(story()) == [False] * 50 + [True] * 50
    assert sorted(asked) == ["capacity", "health", "usage"]


def test_usage_of_days_that_were_read_is_not_told_as_that_of_all(rights: Everything) -> None:  # noqa: F811
    class Partial(Sections):
        async def of(self, shown: Any, may_see: Any) -> dict[str, Any]:
            return said(shown, may_see, CAPACITY, HEALTH, replace(USAGE, failure="slurmdbd is away"))

    text = " ".join(visit("/", picture(), Partial()).text.split())
    assert "8.0 GPU-hours of 2 jobs on 1 of these days, 100 % of them" in text
    assert "Not read: accounting." in text


def test_usage_that_could_not_be_read_is_asked_for_again_within_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = iter([replace(USAGE, failure="slurmdbd is away"), USAGE, USAGE])

    async def taken(connection: str, before: Any) -> UsageLook:
        return next(looks)

    monkeypatch.setattr(page_sections, "look_at_usage", taken)

    async def story() -> list[str]:
        usage, told = Sections()._usage, []
        usage.glance = PATIENCE
        for seconds in (0.0, 50.0, 20.0, 100.0):
            usage._frames.setdefault("c", _Frame()).at -= seconds
            look = await usage.newest("c")
            told.append(look.failure if look else "none")
        return told

    assert asyncio.run(story()) == ["slurmdbd is away", "slurmdbd is away", "", ""]
    # What was read holds for an hour.
    assert next(looks) is USAGE


def test_reports_that_were_edited_by_hand_leave_the_schedule_there(rights: Everything) -> None:  # noqa: F811
    rights.dags = frozenset({"gpu_shifts"})
    edited = dict.fromkeys(("window", "since", "until", "measured_hours", "gpu_hours", "idle_gpu_hours"), "x")

    class Edited(Sections):
        async def of(self, shown: Any, may_see: Any) -> dict[str, Any]:
            look = CapacityLook(taken=NOW, dags=[replace(DAG, reports=[edited])])
            return said(shown, may_see, look, HEALTH, USAGE)

    shown = visit("/", picture(), Edited())
    assert shown.status_code == 200
    assert "Next handover" in shown.text
