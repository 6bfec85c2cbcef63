"""The watcher of a capacity DAG, and a shift that looks at what is wished for."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import Variable
from airflow.sdk.exceptions import AirflowRuntimeError, ErrorType
from airflow.sdk.execution_time.comms import ErrorResponse
from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

from airflow_provider_soperator import values
from airflow_provider_soperator.capacity.demand import Decision, Demand, keep_decision, kept_demand
from airflow_provider_soperator.capacity.holdings import Holding
from airflow_provider_soperator.capacity.holdings import World as BlockWorld
from airflow_provider_soperator.capacity.loads import MetricLoad
from airflow_provider_soperator.capacity.order import ShiftOrder, headed_for
from airflow_provider_soperator.capacity.schedule import CapacitySchedule, Window
from airflow_provider_soperator.capacity.targets import NebiusNodeGroupTarget, SlurmNodesTarget
from airflow_provider_soperator.errors import AirflowAway, ConnectionMistake
from airflow_provider_soperator.nebius.capacity_blocks import CapacityBlock
from airflow_provider_soperator.triggers import capacity_watch, shift
from airflow_provider_soperator.triggers.capacity_watch import CapacityDifferenceTrigger
from airflow_provider_soperator.triggers.shift import ShiftTrigger

TARGETS = (
    SlurmNodesTarget(name="training", nodes="worker-[0-7]"),
    NebiusNodeGroupTarget(name="inference", node_group="mk8snodegroup-e00inference"),
)
SCHEDULE = CapacitySchedule(
    timezone="UTC",
    windows=[Window("daily 20:00 - 08:00", {"training": 8, "inference": 0}, name="night")],
    otherwise={"training": 4, "inference": 4},
)
NOON = datetime(2026, 11, 23, 12, tzinfo=timezone.utc)
MINUTE = timedelta(minutes=1)
KEY = "shifts_overrides"
OVERRIDE = {"when": "2026-11-23", "allocation": {"training": 6, "inference": 2}, "by": "ann"}


class Store:
    """What Airflow keeps beside an asset."""

    def __init__(self) -> None:
        self.kept: dict[str, Any] = {}

    def get(self, key: str) -> Any:
        return self.kept.get(key)

    def set(self, key: str, value: Any) -> None:
        self.kept[key] = json.loads(json.dumps(value))


class World:
    """What a watcher sees of Airflow and of the block, at a time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.variables, self.runs, self.reads = NOON, dict[str, str](), 0, 0
        self.gauges = dict[tuple[str, str, str], float]()
        self.has, self.drained = {"training": 4, "inference": 4}, list[str]()
        self.bought, self.requests = 0, 256.0

        class Clock(datetime):
            @classmethod
            def now(cls, tz: Any = None) -> Any:
                return self.now

        async def look(order: ShiftOrder, *_: Any) -> Any:
            assert order.targets == TARGETS
            holdings = {name: Holding(allowed=units, held=units, ready=units) for name, units in self.has.items()}
            fixed = dict.fromkeys(self.drained, "is drained by root")
            holdings["training"] = replace(holdings["training"], stuck=fixed)
            holdings["inference"] = replace(holdings["inference"], bought=self.bought)
            return BlockWorld(CapacityBlock(id="b", limit=64, usage=64), holdings, {"training": 8, "inference": 8})

        monkeypatch.setattr(capacity_watch, "datetime", Clock)
        monkeypatch.setattr(shift, "datetime", Clock)
        monkeypatch.setattr(shift, "_LOOK", 0)
        monkeypatch.setattr("airflow_provider_soperator.capacity.reconciliation.look", look)
        monkeypatch.setattr(Variable, "get", self._read)
        monkeypatch.setattr(Variable, "set", self.variables.__setitem__)
        monkeypatch.setattr(capacity_watch, "emit", self._emit)
        monkeypatch.setattr(RuntimeTaskInstance, "get_dr_count", staticmethod(self._count))

    def _read(self, key: str, default: Any) -> Any:
        self.reads += 1
        return self.variables.get(key, default)

    def _emit(self, gauges: Iterable[Any], dag_id: str) -> None:
        assert dag_id == "shifts"
        for name, value, tags in gauges:
            self.gauges[name, tags["window"], tags.get("target", "")] = value

    async def metric(self, conn_id: str, query: str) -> float:
        assert query == "requests"
        return self.requests

    def _count(self, dag_id: str, states: list[str]) -> int:
        assert (dag_id, states) == ("shifts", ["queued", "running"])
        return self.runs

    def looks(self, trigger: CapacityDifferenceTrigger, minutes: int) -> list[dict[str, Any]]:
        async def main() -> list[dict[str, Any]]:
            events: list[dict[str, Any]] = []
            for _ in range(minutes):
                events += await trigger.look(self)
                self.now += MINUTE
            return events

        return asyncio.run(main())


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


def order(**fields: Any) -> ShiftOrder:
    ids = {"key": "k", "task": "t", "block": "b", "nebius_conn_id": "n"}
    return ShiftOrder(**{**ids, "targets": TARGETS, "desired": {}, "wanted_at": NOON, **fields})


def watcher(schedule: CapacitySchedule = SCHEDULE) -> CapacityDifferenceTrigger:
    return CapacityDifferenceTrigger("shifts", json.dumps(order().write()), json.dumps(schedule.describe()), KEY)


def test_a_hand_that_has_changed_a_target_is_noticed(world: World) -> None:
    trigger = watcher()
    assert world.looks(trigger, 2) == []
    world.has = {"training": 6, "inference": 2}
    [event] = world.looks(trigger, 7)
    assert event == {
        "wished": {"training": 4, "inference": 4},
        "has": {"training": 6, "inference": 2},
        "name": "otherwise",
    }


def test_what_cannot_be_moved_is_no_difference_until_it_can(world: World) -> None:
    trigger = watcher()
    world.looks(trigger, 2)
    world.has, world.drained = {"training": 6, "inference": 2}, [f"worker-{number}" for number in range(6)]
    assert world.looks(trigger, 60) == []
    world.drained = []
    assert len(world.looks(trigger, 7)) == 1


@pytest.mark.parametrize(("ready", "bought", "events"), [(4, 1, 1), (3, 1, 0), (4, 0, 0)])
def test_what_was_bought_goes_once_the_block_has_enough(world: World, ready: int, bought: int, events: int) -> None:
    trigger = watcher()
    world.looks(trigger, 2)
    # Others have what the block lacks for a fourth unit.
    world.has, world.bought = {"training": 4, "inference": ready}, bought
    assert len(world.looks(trigger, 7)) == events


def test_a_run_that_is_under_way_is_left_to_mend_it(world: World) -> None:
    trigger = watcher()
    world.looks(trigger, 2)
    world.has, world.runs = {"training": 6, "inference": 2}, 1
    assert world.looks(trigger, 60) == []


@pytest.mark.parametrize("has", [{"training": 4, "inference": 4}, {"training": 5, "inference": 3}])
def test_a_shift_that_is_over_ahead_of_its_handover_is_not_undone(world: World, has: dict[str, int]) -> None:
    schedule = CapacitySchedule.read({**SCHEDULE.describe(), "lead": "2h"})
    trigger = watcher(schedule)
    world.now, world.has = NOON.replace(hour=5), {"training": 8, "inference": 0}
    assert world.looks(trigger, 60) == []
    world.runs = 1
    assert world.looks(trigger, 104) == []
    world.runs, world.has = 0, has
    # At 07:44, and what is left of it is moved on.
    events = world.looks(trigger, 30)
    day = {"training": 4, "inference": 4}
    assert events[:1] == ([] if has == day else [{"wished": day, "has": has, "name": "otherwise"}])
    # Also if the DAG was unpaused after the shift was to begin.
    world.now = NOON.replace(hour=7)
    assert world.looks(watcher(schedule), 7) == events[:1]


@pytest.mark.parametrize(("most", "name"), [(7, "otherwise"), (5, "daily 08:00 - 20:00")])
def test_what_demand_wishes_for_before_and_after_a_handover_does_not_wait_for_it(
    world: World, most: int, name: str
) -> None:
    trigger = by_demand()
    day = {"training": {"min": 1, "max": 7}, "inference": {"min": 1, "max": most}}
    trigger.schedule = json.dumps(replace(RANGED, windows=[Window("daily 08:00 - 20:00", day)], lead="2h").describe())
    world.now = NOON.replace(hour=6)
    assert world.looks(trigger, 10) == []
    world.requests = 6 * 64
    [event] = world.looks(trigger, 6)
    assert (event["name"], event["wished"]["inference"]) == (name, min(most, 6))


def test_an_override_of_the_variable_is_wished_for(world: World) -> None:
    trigger = watcher()
    world.looks(trigger, 2)
    # A watcher asks again after such an error.
    world.variables[KEY] = "6 until Sunday"
    with pytest.raises(ConnectionMistake, match="the Airflow Variable shifts_overrides is no list of overrides"):
        world.looks(trigger, 1)
    world.variables[KEY] = json.dumps([OVERRIDE])
    [event] = world.looks(trigger, 7)
    assert (event["name"], event["wished"]) == ("override by ann", OVERRIDE["allocation"])


def test_an_edited_schedule_is_not_another_watcher_and_a_pause_is_told_from_an_outage(world: World) -> None:
    trigger, store = watcher(), Store()
    trigger.asset_state_store = store  # type: ignore[assignment]
    world.looks(trigger, 2)
    # Airflow ends it in this way when its arguments change, and when the DAG is paused.
    asyncio.run(trigger.on_kill())
    edited = watcher(CapacitySchedule.read({**SCHEDULE.describe(), "otherwise": {"training": 5, "inference": 3}}))
    [memory] = store.kept.values()
    assert memory["stopped"]
    assert edited.identity() == trigger.identity()
    edited.remember(memory)
    assert len(world.looks(edited, 6)) == 1
    paused = watcher()
    paused.remember(memory)
    world.now += timedelta(hours=9)
    assert world.looks(paused, 60) == []
    # However short it was.
    paused.remember(memory)
    world.now = NOON + 3 * MINUTE
    world.has = {"training": 6, "inference": 2}
    assert world.looks(paused, 60) == []


RANGED = CapacitySchedule.read(
    {**SCHEDULE.describe(), "otherwise": {"training": {"min": 1, "max": 7}, "inference": {"min": 1, "max": 7}}}
)
BURST = {"training": 2, "inference": 6}


def by_demand(observe: bool = False) -> CapacityDifferenceTrigger:
    trigger = watcher(RANGED)
    load = MetricLoad(target="inference", query="requests", per_unit=64)
    trigger.demand, trigger.demanded = json.dumps(Demand([load], observe=observe).write()), "shifts_demand"
    return trigger


def test_demand_begins_a_run_at_once_and_is_kept_for_it(world: World) -> None:
    trigger = by_demand()
    assert world.looks(trigger, 2) == []
    world.requests = 6 * 64
    [event] = world.looks(trigger, 1)
    assert event == {"wished": BURST, "has": {"training": 4, "inference": 4}, "name": "otherwise"}
    kept = json.loads(world.variables["shifts_demand"])["decisions"]
    assert [one["units"] for one in kept] == [{"training": 4, "inference": 4}, BURST]
    assert kept[-1]["because"] == ["inference needs 6: 384, of which a unit bears 64"]
    # The run that has begun is left to mend it.
    assert world.looks(trigger, 5) == []


def test_demand_that_is_only_observed_moves_nothing(world: World) -> None:
    trigger = by_demand(observe=True)
    world.looks(trigger, 2)
    world.requests = 6 * 64
    assert world.looks(trigger, 60) == []
    assert json.loads(world.variables["shifts_demand"])["decisions"][-1]["units"] == BURST


def test_bought_nodes_serve_what_demand_has_decided_while_a_metric_lies(world: World) -> None:
    trigger = by_demand()
    world.has, world.requests = {"training": 2, "inference": 2}, 6 * 64
    world.looks(trigger, 1)
    world.bought, world.requests = 4, -1.0
    world.looks(trigger, 60)
    assert kept_demand("shifts_demand", world.now) == BURST


def test_demand_that_is_observed_no_more_is_known_to_the_run_that_begins(world: World) -> None:
    world.requests = 6 * 64
    world.looks(by_demand(observe=True), 1)
    assert kept_demand("shifts_demand", world.now) is None
    world.looks(by_demand(), 1)
    assert kept_demand("shifts_demand", world.now) == BURST


def test_what_differs_without_demand_has_to_last(world: World) -> None:
    trigger = by_demand()
    world.looks(trigger, 2)
    # Another project takes a machine of the block's for a moment.
    world.bought = 1
    world.has = {"training": 4, "inference": 4}
    assert world.looks(trigger, 4) == []
    assert len(world.looks(trigger, 4)) == 1


def test_another_process_goes_on_with_what_was_needed_lately(world: World) -> None:
    trigger, store = by_demand(), Store()
    trigger.asset_state_store = store  # type: ignore[assignment]
    world.looks(trigger, 20)
    asyncio.run(trigger.on_kill())
    [memory] = store.kept.values()
    other = by_demand()
    other.remember(memory)
    assert other.memory()["demand"] == trigger.memory()["demand"] != {}


def test_a_window_that_is_over_is_told_also_after_a_restart(world: World) -> None:
    trigger, store = watcher(), Store()
    trigger.asset_state_store = store  # type: ignore[assignment]
    world.looks(trigger, 7 * 60)
    asyncio.run(trigger.on_kill())
    [memory] = store.kept.values()
    trigger = watcher()
    trigger.remember(memory)
    world.looks(trigger, 60)
    assert world.gauges == {}
    world.looks(trigger, 2)
    assert world.gauges == {
        ("window.measured_hours", "otherwise", ""): 8.0,
        ("window.target_gpu_hours", "otherwise", "training"): 256.0,
        ("window.target_gpu_hours", "otherwise", "inference"): 256.0,
        ("window.idle_gpu_hours", "otherwise", ""): 0.0,
        ("window.limbo_gpu_hours", "otherwise", ""): 0.0,
        ("window.unused_gpu_hours", "otherwise", ""): 0.0,
    }
    [report] = json.loads(world.variables["shifts_windows"])
    assert (report["window"], report["since"], report["until"]) == (
        "otherwise",
        "2026-11-23T08:00:00+00:00",
        "2026-11-23T20:00:00+00:00",
    )


# A shift that is under way


def stopped(
    world: World,
    order_for: dict[str, int],
    kept: list[dict[str, Any]],
    until: datetime | None = None,
    wanted_at: datetime = NOON,
    **wish: Any,
) -> Any:
    """The event of a shift that looks at what is wished for, and whether it has given the block back."""
    trigger = ShiftTrigger(
        order(desired=order_for, stops_at=until, wanted_at=wanted_at, transfer=10 * MINUTE).write(),
        wish={"schedule": SCHEDULE.describe(), "overrides": KEY, **wish},
    )
    world.variables[KEY], world.reads = json.dumps(kept), 0
    left = []

    class Shift:
        async def run(self, *_: Any) -> Any:
            # Until there were some looks at what is wished for.
            while world.reads < 3:
                await asyncio.sleep(0)
            return SimpleNamespace(state="done", describe=lambda: {"allocation": order_for})

        async def report(self, state: str) -> dict[str, Any]:
            return {"state": state}

        async def leave_if_possible(self) -> None:
            left.append(True)

        async def __aenter__(self) -> Shift:
            return self

        async def __aexit__(self, *_: object) -> None:
            pass

    trigger._open = Shift  # type: ignore[method-assign, assignment]
    return asyncio.run(trigger.event()), bool(left)


def test_a_shift_stops_where_it_is_once_somebody_wishes_for_something_else(world: World) -> None:
    event, has_left = stopped(world, {"training": 4, "inference": 4}, [OVERRIDE])
    assert (event["status"], event["report"]) == ("success", {"state": "superseded"})
    assert event["result"] == {
        "superseded": "override by ann wishes for training 6, inference 2 by now; what was moved stays where it is"
    }
    assert has_left


def test_a_shift_stops_once_the_schedule_is_edited_to_wish_for_something_else(world: World) -> None:
    asked: dict[str, Any] = {"edited": ["shifts", world.now.timestamp()]}
    goal = {"training": 4, "inference": 4}
    # The watcher keeps what the file has; that was not edited since.
    world.now -= MINUTE
    world.looks(
        watcher(CapacitySchedule.read({**SCHEDULE.describe(), "otherwise": {"training": 5, "inference": 3}})), 2
    )
    assert stopped(world, goal, [], **asked)[0]["report"] == {"state": "done"}
    world.looks(watcher(), 1)
    assert stopped(world, goal, [], **asked)[0]["report"] == {"state": "done"}
    world.looks(
        watcher(CapacitySchedule.read({**SCHEDULE.describe(), "otherwise": {"training": 6, "inference": 2}})), 2
    )
    event, has_left = stopped(world, goal, [], **asked)
    assert event["result"]["superseded"].startswith("otherwise wishes for training 6, inference 2 by now")
    assert has_left
    for text in (
        "{",
        "[]",
        '{"at": 9999999999}',
        '{"at": 9999999999, "schedule": {"windows": 1}}',
        '{"at": 9999999999, "schedule": 1}',
    ):
        world.variables["shifts_schedule"] = text
        assert stopped(world, goal, [], **asked)[0]["report"] == {"state": "done"}


def test_no_schedule_is_read_in_the_event_loop_of_the_triggerer(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    read, said, reads = CapacitySchedule.read, SCHEDULE.describe(), list[bool]()

    def noted(said: Any) -> CapacitySchedule:
        reads.append(asyncio._get_running_loop() is not None)
        return read(said)

    monkeypatch.setattr(CapacitySchedule, "read", noted)
    world.looks(watcher(), 1)
    stopped(world, {"training": 4, "inference": 4}, [])
    # What wishes for the same sooner is looked for, too.
    stopped(world, NIGHT, [], wanted_at=NOON.replace(hour=20), schedule={**said, "lead": "2h"})
    assert len(reads) >= 3
    assert not any(reads)


def test_a_shift_goes_on_while_it_is_wished_for(world: World) -> None:
    for goal, kept in [({"training": 4, "inference": 4}, []), (OVERRIDE["allocation"], [OVERRIDE])]:
        event, has_left = stopped(world, goal, kept)  # type: ignore[arg-type]
        assert event["result"]["allocation"] == goal
        assert not has_left
    # It is wished for in the range of a window, too.
    ranged = CapacitySchedule.read(
        {**SCHEDULE.describe(), "otherwise": {"training": {"min": 2, "max": 6}, "inference": 4}}
    )
    event, _ = stopped(world, {"training": 3, "inference": 4}, [], schedule=ranged.describe())
    assert event["result"]["allocation"] == {"training": 3, "inference": 4}


NIGHT = {"training": 8, "inference": 0}
SEVEN = {"training": {"min": 7, "max": 8}, "inference": {"min": 0, "max": 1}}
ALL = {"training": {"min": 0, "max": 8}, "inference": {"min": 0, "max": 8}}


@pytest.mark.parametrize(
    ("at", "kept", "otherwise", "is_superseded"),
    [
        ("18:31", {"when": "2026-11-23T18:30/2026-11-24T08:00", "allocation": NIGHT}, None, True),
        ("18:31", {"when": "2026-11-23T18:30/2026-11-24T08:00", "allocation": SEVEN}, ALL, True),
        # Between two windows with a range that has it, it was not asked for sooner.
        ("18:31", None, ALL, False),
        # Its own run has been there before.
        ("18:31", {"when": "2026-11-23T17:30/2026-11-24T08:00", "allocation": NIGHT}, None, False),
        # By the handover it is at work anyway.
        ("19:50", {"when": "2026-11-23T18:30/2026-11-24T08:00", "allocation": NIGHT}, None, False),
    ],
)
def test_a_shift_stops_once_what_it_waits_for_is_wished_for_sooner(
    world: World, at: str, kept: Any, otherwise: Any, is_superseded: bool
) -> None:
    said = {**SCHEDULE.describe(), "lead": "2h"} | ({"otherwise": otherwise} if otherwise else {})
    begun, handover = NOON + 360 * MINUTE, NOON + 480 * MINUTE
    world.now = datetime.fromisoformat(f"2026-11-23T{at}+00:00")
    wish = {"schedule": said, "edited": ["shifts", begun.timestamp()]}
    event, has_left = stopped(world, NIGHT, [kept] if kept else [], wanted_at=handover, **wish)
    expected = "override wishes for it sooner by now; what was moved stays where it is" if is_superseded else None
    assert (event["result"].get("superseded"), has_left) == (expected, is_superseded)
    if is_superseded:
        # Then it is the turn of the run that was triggered: it waits for nothing more.
        overridden = CapacitySchedule.read(said).as_kept(KEY, world.now)
        assert headed_for(overridden, world.now) == world.now
        assert stopped(world, NIGHT, [kept], wanted_at=world.now, **wish)[0]["report"] == {"state": "done"}


@pytest.mark.parametrize(("edited", "is_superseded"), [("19:00", True), ("17:30", True), ("20:00", False)])
def test_a_shift_stops_once_its_handover_is_edited_to_be_sooner(world: World, edited: str, is_superseded: bool) -> None:
    said = {**SCHEDULE.describe(), "lead": "2h"}
    begun, handover = NOON + 360 * MINUTE, NOON + 480 * MINUTE
    world.now = begun + 29 * MINUTE
    windows = [Window(f"daily {edited} - 08:00", NIGHT, name="night")]
    world.looks(watcher(replace(CapacitySchedule.read(said), windows=windows)), 2)
    wish = {"schedule": said, "edited": ["shifts", begun.timestamp()]}
    event, has_left = stopped(world, NIGHT, [], wanted_at=handover, **wish)
    expected = "night wishes for it sooner by now; what was moved stays where it is" if is_superseded else None
    assert (event["result"].get("superseded"), has_left) == (expected, is_superseded)


@pytest.mark.parametrize(("observed", "minutes", "said"), [(False, 1, "demand is"), (True, 1, ""), (False, 16, "")])
def test_a_shift_stops_once_demand_is_another(world: World, observed: bool, minutes: int, said: str) -> None:
    keep_decision("shifts_demand", Decision(BURST, ("",)), observed, world.now - minutes * MINUTE)
    wish = {"schedule": RANGED.describe(), "demanded": "shifts_demand"}
    for goal, why in [({"training": 4, "inference": 4}, said), (BURST, "")]:
        event, _ = stopped(world, goal, [], **wish)
        assert event["result"].get("superseded", "").startswith(why)
        assert event["report"]["state"] == ("superseded" if why else "done")


DECIDED = {"since": "2026-11-23T12:00:00+00:00", "units": {"training": 4, "inference": 4}, "because": []}
AT_NOON = json.dumps({"at": "noon", "observed": False, "decisions": [DECIDED]})
OF_FOUR = json.dumps({"at": NOON.timestamp(), "observed": False, "decisions": [{**DECIDED, "units": 4}]})
OF_NONE = json.dumps({"at": NOON.timestamp(), "observed": False, "decisions": ["none"]})


@pytest.mark.parametrize("kept", ["{", "[]", '{"units": {"training": 4}}', AT_NOON, OF_FOUR, OF_NONE])
def test_a_decision_that_was_edited_ends_no_shift_and_is_made_anew(world: World, kept: str) -> None:
    world.variables["shifts_demand"] = kept
    event, _ = stopped(world, BURST, [], schedule=RANGED.describe(), demanded="shifts_demand")
    assert event["report"]["state"] == "done"
    world.looks(by_demand(), 1)
    assert kept_demand("shifts_demand", world.now) == {"training": 4, "inference": 4}


def test_a_shift_stops_for_the_schedule_also_while_the_demand_cannot_be_read(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(key: str, default: Any) -> Any:
        if key == "shifts_demand":
            world.reads += 1
            raise AirflowRuntimeError(ErrorResponse(error=ErrorType.GENERIC_ERROR))
        return world._read(key, default)

    monkeypatch.setattr(Variable, "get", read)
    event, _ = stopped(world, {"training": 4, "inference": 4}, [OVERRIDE], demanded="shifts_demand")
    assert event["report"]["state"] == "superseded"


def test_a_shift_goes_on_while_airflow_does_not_tell_what_is_wished_for(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def variable(key: str) -> str:
        world.reads += 1
        raise AirflowAway(key)

    monkeypatch.setattr(values, "variable", variable)
    # Without the override, the schedule wishes for something else.
    event, _ = stopped(world, {"training": 6, "inference": 2}, [OVERRIDE])
    assert event["report"]["state"] == "done"


def test_a_shift_whose_window_is_over_is_left_to_tell_what_it_has_moved(world: World) -> None:
    goal = {"training": 8, "inference": 0}
    event, has_left = stopped(world, goal, [], until=world.now)
    assert event["result"]["allocation"] == goal
    assert not has_left
    # It has not ended in time, so it waits for something.
    event, _ = stopped(world, goal, [], until=world.now - MINUTE)
    assert event["report"] == {"state": "superseded"}
