"""The DAG of a schedule as Airflow takes it, and what its tasks wish for and have approved."""

from __future__ import annotations

import json
import signal
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk import DAG, Variable
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException, DownstreamTasksSkipped
from airflow.serialization.encoders import encode_trigger
from airflow.triggers.base import BaseEventTrigger

from airflow_provider_soperator.capacity import overrides, reconciliation
from airflow_provider_soperator.capacity.holdings import Holding, World
from airflow_provider_soperator.capacity.order import ShiftOrder
from airflow_provider_soperator.capacity.reconciliation import approval_of
from airflow_provider_soperator.capacity.schedule import CapacitySchedule, Window
from airflow_provider_soperator.capacity.targets import NebiusNodeGroupTarget, SlurmNodesTarget
from airflow_provider_soperator.errors import AirflowAway, CapacityMistake
from airflow_provider_soperator.nebius.capacity_blocks import CapacityBlock
from airflow_provider_soperator.operators import approval, capacity
from airflow_provider_soperator.operators.approval import ApproveShiftOperator
from airflow_provider_soperator.operators.capacity_dag import capacity_dag
from airflow_provider_soperator.operators.steering import SteerShiftOperator
from airflow_provider_soperator.work.protocols import succeeded
from tests.unit.operators.dags import take

TRAINING = SlurmNodesTarget(name="training", nodes="worker-[0-7]")
INFERENCE = NebiusNodeGroupTarget(name="inference", node_group="mk8snodegroup-e00inference")
SCHEDULE = CapacitySchedule(
    timezone="UTC",
    windows=[Window("daily 20:00 - 08:00", {"training": 8, "inference": 0}, name="night")],
    otherwise={"training": {"min": 2, "max": 4}, "inference": 4},
    gpus_per_unit={"training": 8, "inference": 8},
    limit=64,
    lead="2h",
)
NOON = datetime(2026, 11, 23, 12, tzinfo=timezone.utc)
HOUR = timedelta(hours=1)
KEY = "shifts_overrides"


def made(**options: Any) -> DAG:
    return capacity_dag("shifts", SCHEDULE, [TRAINING, INFERENCE], "capacityblockgroup-e00example", **options)


def watcher(dag: DAG) -> Any:
    [(_, asset)] = dag.timetable.asset_condition.iter_assets()  # type: ignore[union-attr]
    return asset.watchers[0].trigger


@pytest.mark.parametrize("options", [{}, {"approve": True, "on_no_answer": "stay", "default_args": {"retries": 1}}])
def test_airflow_takes_it_paused_and_with_its_watcher(options: dict[str, Any]) -> None:
    dag = made(**options)
    take(dag)
    assert dag.is_paused_upon_creation
    assert dag.get_task("steer").operator_name == "SteerShiftOperator"
    assert list(dag.task_dict) == ["steer", "plan", *(["approve"] if options else []), "shift"]
    # Each time that the file is parsed it is the same watcher, and another one when the schedule is edited.
    hashes = [
        BaseEventTrigger.hash(each["classpath"], each["kwargs"])
        for each in (encode_trigger(watcher(dag)), encode_trigger(watcher(made(**options))))
    ]
    assert hashes[0] == hashes[1]


def test_the_form_says_what_each_side_can_have_and_what_the_schedule_gives() -> None:
    params = made().params
    assert list(params) == ["training", "inference", "until", "because", "plan_only", "steer", "nodes", "extend_by"]
    said = params.get_param("training").description
    assert "It can have 0 to 8. By the schedule it has: night 8, otherwise 2 to 4." in str(said)


@pytest.mark.parametrize("training", [9, {"min": 2, "max": 9}])
def test_more_nodes_than_a_target_has_are_refused_and_not_offered(training: Any) -> None:
    window = Window("mon-fri 20:00 - 08:00", {"training": 8, "inference": 0}, name="night")
    roomy = replace(SCHEDULE, windows=[window], limit=128)
    said = capacity_dag("shifts", roomy, [TRAINING, INFERENCE], "block").params.get_param("training").description
    assert "It can have 0 to 8." in str(said)
    exceptions = {"2026-12-24": {"training": training, "inference": 0}}
    with pytest.raises(CapacityMistake, match="the exception '2026-12-24' has 9 nodes of training, which has 8 nodes"):
        capacity_dag("shifts", replace(roomy, exceptions=exceptions), [TRAINING, INFERENCE], "block")


def test_a_target_may_not_be_called_like_a_field_of_the_form() -> None:
    target = SlurmNodesTarget(name="until", nodes="worker-0")
    with pytest.raises(CapacityMistake, match="the form has a field until of its own: rename the target"):
        capacity_dag("shifts", SCHEDULE, [target], "block")
    with pytest.raises(ValueError, match="on_no_answer must be one of 'go', 'stay', 'fail', got 'wait'"):
        made(on_no_answer="wait")
    with pytest.raises(ValueError, match="response_timeout must be a timedelta"):
        made(approve=True, response_timeout="30m")


def test_a_window_names_a_target_that_there_is_not() -> None:
    schedule = CapacitySchedule(timezone="UTC", windows=[Window("daily 00:00 - 24:00", {"train": 8, "inference": 0})])
    with pytest.raises(
        CapacityMistake, match="is of train, inference, and the targets are training, inference: name t"
    ):
        capacity_dag("shifts", schedule, [TRAINING, INFERENCE], "block")


def test_unknown_keys_of_a_conf_are_refused() -> None:
    check = made(params={"team": "ml"}).get_task("steer")._pre_execute_hook
    check({"dag_run": SimpleNamespace(conf={"training": "6", "team": "a"})})
    check({"dag_run": SimpleNamespace(conf=None)})
    with pytest.raises(AirflowFailException, match="unknown keys, so nothing is moved: 'trainig': did you mean 'train"):
        check({"dag_run": SimpleNamespace(conf={"trainig": "6"})})
    # As Airflow's form sends them.
    steering = {"training": None, "until": None, "team": "a", "plan_only": False, "steer": "stop", "extend_by": "1h"}
    check({"dag_run": SimpleNamespace(conf=steering)})
    with pytest.raises(AirflowFailException, match="a run that steers moves nothing itself: leave plan_only, training"):
        check({"dag_run": SimpleNamespace(conf={**steering, "training": "6", "plan_only": True})})
    with pytest.raises(AirflowFailException, match="until is for sizes of targets, got until '2026-11-24' alone"):
        check({"dag_run": SimpleNamespace(conf={"training": "", "until": "2026-11-24", "because": "a deadline"})})
    with pytest.raises(AirflowFailException, match="nodes are for steer=leave_out, got nodes 'worker-3' alone"):
        check({"dag_run": SimpleNamespace(conf={"nodes": "worker-3"})})


def test_a_run_that_steers_plans_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    steer = made().get_task("steer")
    monkeypatch.setattr(SteerShiftOperator, "execute", lambda *_: "ann has asked to stop")
    with pytest.raises(DownstreamTasksSkipped) as skipped:
        steer.execute({})
    assert skipped.value.tasks == ["plan"]
    monkeypatch.setattr(SteerShiftOperator, "execute", lambda *_: None)
    assert steer.execute({}) is None


class Airflow:
    """What a task of the DAG asks of Airflow and of the world, at a time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.variables = NOON, dict[str, str]()
        self.orders: list[ShiftOrder] = []
        self.asked: list[timedelta | None] = []

        class Clock(datetime):
            @classmethod
            def now(cls, tz: Any = None) -> Any:
                return self.now

        async def begin(order_for: Callable[[int], Any], *_: Any, **__: Any) -> Any:
            order = await order_for(64)
            self.orders.append(order)
            return order, SimpleNamespace(describe=lambda: {"nodes": {"training": ["worker-7"]}, "jobs": {}})

        async def look(order: ShiftOrder, *_: Any) -> Any:
            holdings = {
                "training": Holding(allowed=3, held=3, ready=3),
                "inference": Holding(allowed=4, held=4, ready=4),
            }
            return World(CapacityBlock(id="b", limit=64, usage=56), holdings, {"training": 8, "inference": 8})

        monkeypatch.setattr(capacity, "datetime", Clock)
        monkeypatch.setattr(approval, "datetime", Clock)
        monkeypatch.setattr(reconciliation, "begin", begin)
        monkeypatch.setattr(overrides, "_SETTLED", 0)
        monkeypatch.setattr("airflow_provider_soperator.capacity.reconciliation.look", look)
        monkeypatch.setattr(capacity.ShiftCapacityOperator, "wait_for", lambda *_: "moved")
        monkeypatch.setattr(Variable, "get", lambda key, default=None: self.variables.get(key, default))
        monkeypatch.setattr(Variable, "set", lambda key, text, **_: self.variables.update({key: text}))
        monkeypatch.setattr(ApprovalOperator, "execute", lambda task, _: self.asked.append(task.response_timeout))

    def run(self, task_id: str, *, handover: datetime | None = None, **fields: Any) -> Any:
        """Run a task with what its templates have rendered to: of a handover, or by hand."""
        task = made().get_task(task_id)
        rendered = {"desired": {"training": None, "inference": None}, "until": "None", "because": "", **fields}
        if task_id == "shift":
            rendered.setdefault("plan_only", "False")
        for name, value in rendered.items():
            setattr(task, name, value)
        run = SimpleNamespace(
            run_type="scheduled" if handover else "manual",
            run_after=self.now,
            data_interval_end=handover or self.now,
            triggering_user_name="ann",
        )
        ti = SimpleNamespace(
            **{"dag_id": "shifts", "run_id": "run", "task_id": task_id, "map_index": -1},
            try_number=1,
            max_tries=0,
            xcom_push=lambda *_: None,
        )
        return task.execute({"ti": ti, "dag_run": run, "params": {}})

    @property
    def order(self) -> ShiftOrder:
        return self.orders[-1]


@pytest.fixture
def airflow(monkeypatch: pytest.MonkeyPatch) -> Airflow:
    return Airflow(monkeypatch)


FORM: Mapping[str, Any] = {"desired": {"training": "6", "inference": ""}, "because": "the deadline"}


def test_what_the_form_says_holds_until_its_end_for_all_runs(airflow: Airflow) -> None:
    # Without a zone it is by the clocks of the schedule.
    airflow.run("plan", **FORM, until="2026-11-24T10:00")
    assert airflow.order.until == NOON + 22 * HOUR
    assert KEY not in airflow.variables
    airflow.run("shift", **FORM, until="2026-11-24T10:00:00Z")
    assert airflow.order.desired == {"training": 6, "inference": 2}
    # No run begins ahead of its end.
    assert airflow.order.until == airflow.order.stops_at == NOON + 22 * HOUR
    assert airflow.order.why == "override by ann (the deadline) (shifts)"
    [kept] = json.loads(airflow.variables[KEY])
    assert kept["when"] == "2026-11-23T12:00:00/2026-11-24T10:00:00"
    # The handover of the evening changes nothing, and one who leaves the form empty gets the same.
    airflow.run("shift", handover=NOON + 8 * HOUR)
    assert airflow.order.desired == {"training": 6, "inference": 2}
    airflow.now = NOON + HOUR
    airflow.run("shift")
    assert airflow.order.desired == {"training": 6, "inference": 2}
    # After its end the schedule holds again, and nothing of it is left with the next one.
    airflow.now = NOON + 23 * HOUR
    airflow.run("shift")
    assert airflow.order.desired == {"training": 3, "inference": 4}
    airflow.run("shift", desired={"training": "1", "inference": "1"})
    assert [one["when"] for one in json.loads(airflow.variables[KEY])] == ["2026-11-24T11:00:00/2026-11-24T20:00:00"]


def test_why_one_overrides_is_refused_where_it_could_not_be_the_reason_of_a_drain(airflow: Airflow) -> None:
    form = {**FORM, "because": "worker-5 has [hardware_problem] gpu_health_check"}
    with pytest.raises(AirflowFailException, match="on which Soperator reboots or replaces the machine"):
        airflow.run("plan", **form, until="2026-11-24T10:00")
    with pytest.raises(AirflowFailException, match="must be one printable line of at most 768 bytes"):
        airflow.run("plan", **{**form, "because": "late " * 200}, until="2026-11-24T10:00")
    # What is pasted may have any blanks.
    airflow.run("shift", **{**form, "because": " the\n dead\xa0line "}, until="2026-11-24T10:00")
    assert airflow.order.why == "override by ann (the dead line) (shifts)"


def test_an_override_does_not_take_the_place_of_those_that_could_not_be_read(
    airflow: Airflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    airflow.run("shift", **FORM, until="2026-11-24T10:00")
    kept = airflow.variables[KEY]

    def away(key: str, default: object = None) -> None:
        raise AirflowAway(key)

    monkeypatch.setattr("airflow_provider_soperator.values.variable", away)
    with pytest.raises(AirflowAway):
        airflow.run("shift", **{**FORM, "desired": {"training": "5", "inference": ""}}, until="2026-11-24T10:00")
    assert airflow.variables[KEY] == kept


def test_the_time_of_a_shift_counts_from_the_start_of_its_task(
    airflow: Airflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.time", lambda: 1000.0)
    monkeypatch.setattr(capacity.ShiftCapacityOperator, "wait_for", lambda task, trigger, context: trigger.deadline)
    assert airflow.run("shift") is None
    # The plan has waited for half an hour until the cloud was back.
    monkeypatch.setattr(signal, "getitimer", lambda _: (1800.0, 0.0))
    assert airflow.run("shift", execution_timeout=HOUR) == 1000 + 1800


def test_a_newer_request_comes_before_an_older_one_that_was_not_carried_out_yet(airflow: Airflow) -> None:
    airflow.now = NOON + HOUR
    airflow.run("shift", desired={"training": "1", "inference": "1"})
    with pytest.raises(AirflowSkipException, match="is superseded: override by ann is in force since 23 Nov 13:00"):
        airflow.run("shift", **FORM, at=NOON)


def test_a_form_without_an_end_lasts_until_the_next_handover(airflow: Airflow) -> None:
    airflow.run("shift", **FORM)
    assert (airflow.order.until, airflow.order.stops_at) == (NOON + 8 * HOUR, NOON + 6 * HOUR)


def test_a_run_within_the_lead_is_for_the_handover_that_comes(airflow: Airflow) -> None:
    airflow.now = NOON + 7 * HOUR
    airflow.run("shift")
    assert (airflow.order.desired, airflow.order.wanted_at) == ({"training": 8, "inference": 0}, NOON + 8 * HOUR)
    assert airflow.order.stops_at == NOON + 18 * HOUR
    # Unless something else was asked for until later.
    airflow.run("shift", **FORM, until="2026-11-23T21:00")
    airflow.run("shift")
    assert (airflow.order.desired, airflow.order.wanted_at) == ({"training": 6, "inference": 2}, airflow.now)


def test_what_a_schedule_does_not_give_away_is_refused(airflow: Airflow) -> None:
    with pytest.raises(AirflowFailException, match="needs 80 GPUs"):
        airflow.run("plan", desired={"training": "8", "inference": "2"})
    with pytest.raises(AirflowFailException, match="until must be after"):
        airflow.run("plan", **FORM, until="2026-11-23T11:00:00Z")
    airflow.variables[KEY] = "training 6"
    with pytest.raises(AirflowFailException, match="the Airflow Variable shifts_overrides is no list of overrides"):
        airflow.run("plan")


def test_an_override_that_is_over_is_in_no_way_of_an_edited_schedule(airflow: Airflow) -> None:
    yesterday, tomorrow = ("2026-11-22T10:00/2026-11-22T12:00", "2026-11-24T10:00/2026-11-24T12:00")
    for allocation, said in (
        ({"training": 4, "batch": 2}, "names the target 'batch', but 'night' does not"),
        ({"training": 8, "inference": 8}, "needs 128 GPUs"),
    ):
        airflow.variables[KEY] = json.dumps([{"when": yesterday, "allocation": allocation}])
        airflow.run("shift")
        assert airflow.order.desired == {"training": 3, "inference": 4}
        airflow.variables[KEY] = json.dumps([{"when": tomorrow, "allocation": allocation}])
        with pytest.raises(AirflowFailException, match=said):
            airflow.run("shift")


def test_a_run_whose_window_is_over_is_skipped(airflow: Airflow) -> None:
    airflow.now = NOON + 9 * HOUR
    with pytest.raises(AirflowSkipException, match="otherwise is superseded: night is in force since 23 Nov 20:00"):
        airflow.run("shift", handover=NOON - 4 * HOUR)
    with pytest.raises(AirflowSkipException, match="is superseded"):
        airflow.run("shift", **FORM, at=NOON, until=str(NOON + HOUR))


def test_a_target_keeps_what_it_has_within_its_range(airflow: Airflow) -> None:
    airflow.run("plan")
    assert airflow.order.desired == {"training": 3, "inference": 4}


def test_a_shift_does_what_was_approved(airflow: Airflow) -> None:
    plan = airflow.run("plan")
    assert plan["approval"] == approval_of(airflow.order, plan)
    assert len(plan["approval"]["digest"]) == 12
    assert {**plan["approval"], "digest": ""} == {
        "goal": {"training": 3, "inference": 4},
        "nodes": {"training": ["worker-7"]},
        "jobs": {},
        "buys": {},
        "end": str(NOON + 6 * HOUR).replace(" ", "T"),
        "digest": "",
    }
    # Within the range it is the goal that was shown, whatever the target has by now.
    shown = ShiftOrder(**{**vars(airflow.order), "desired": {"training": 2, "inference": 4}})
    plan["approval"] = approval_of(shown, plan)
    airflow.run("shift", approved_plan=json.loads(json.dumps(plan)))
    assert airflow.order.desired == {"training": 2, "inference": 4}
    assert airflow.order.approved == plan["approval"]
    # Nobody has approved what is wished for by the evening.
    airflow.now = NOON + 8 * HOUR
    with pytest.raises(
        AirflowSkipException, match="training 2, inference 4 was approved, but training 8, inference 0 is"
    ):
        airflow.run("shift", approved_plan=plan)


def test_what_was_approved_is_not_moved_once_demand_is_another(airflow: Airflow) -> None:
    plan = airflow.run("plan")
    decision = {"since": airflow.now.isoformat(), "units": plan["approval"]["goal"], "because": []}
    kept = {"at": airflow.now.timestamp(), "observed": False, "decisions": [decision]}
    airflow.variables["demanded"] = json.dumps(kept)
    assert airflow.run("shift", approved_plan=plan, demand_variable="demanded") == "moved"
    decision["units"] = {"training": 2, "inference": 4}
    airflow.variables["demanded"] = json.dumps(kept)
    with pytest.raises(AirflowSkipException, match="was approved, but demand is training 2, inference 4 by now"):
        airflow.run("shift", approved_plan=plan, demand_variable="demanded")


def test_a_question_about_demand_does_not_stand_in_the_way_of_the_next_one(
    airflow: Airflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ApprovalOperator, "execute_complete", lambda *_: None)
    demand: dict[str, Any] = {"demand_variable": "demanded"}
    assert airflow.run("plan", **demand)["answer_by"] == "2026-11-23T18:00:00+00:00"
    decision = {"since": airflow.now.isoformat(), "units": {"training": 2, "inference": 4}, "because": []}
    kept = {"at": airflow.now.timestamp(), "observed": False, "decisions": [decision]}
    airflow.variables["demanded"] = json.dumps(kept)
    # Those are no questions of demand alone.
    assert airflow.run("plan", handover=NOON + 8 * HOUR, **demand)["answer_by"] == "2026-11-23T20:00:00+00:00"
    assert not airflow.run("plan", **demand, desired={"training": "2", "inference": "4"})["is_demanded"]
    moves = {"training": {"now": 4, "then": 2}, "inference": {"now": 4, "then": 4}}
    plan = {**PLAN, **airflow.run("plan", **demand), "moves": moves}
    assert (plan["is_demanded"], plan["answer_by"]) == (True, "2026-11-23T13:00:00+00:00")
    asked(airflow, plan, {"error": "no response", "error_type": "timeout"})
    assert KEY not in airflow.variables
    asked(airflow, plan, {"chosen_options": ["Reject"]})
    assert KEY in airflow.variables


def test_a_decision_of_other_targets_is_none(airflow: Airflow) -> None:
    decision = {"since": airflow.now.isoformat(), "units": {"training": 2, "serving": 4}, "because": []}
    kept = {"at": airflow.now.timestamp(), "observed": False, "decisions": [decision]}
    airflow.variables["demanded"] = json.dumps(kept)
    airflow.run("shift", demand_variable="demanded")
    assert airflow.order.desired == {"training": 3, "inference": 4}


def test_what_a_person_has_stopped_is_kept_until_the_next_handover(airflow: Airflow) -> None:
    events = dict[str, Any]()
    added = SimpleNamespace(add=lambda asset, extra: events.update({asset.name: extra}))
    asked = {"units": {"training": 3, "inference": 4}, "by": "ann", "because": "ann has asked to stop"}
    # The Airflow worker that tells of it may begin after the next handover.
    asked["now"] = (NOON - HOUR).isoformat()
    ended = {"state": "partial", "allocation": asked["units"], "missing": ["ann has asked to stop"]}
    task = made().get_task("shift")
    context: Any = {"outlet_events": defaultdict(lambda: added)}
    task.execute_complete(context, succeeded({**ended, "figures": {}, "asked": None}))
    assert airflow.variables == {}
    task.execute_complete(context, succeeded({**ended, "figures": {}, "asked": asked}))
    [kept] = json.loads(airflow.variables[KEY])
    assert (kept["allocation"], kept["by"]) == (asked["units"], "ann")
    assert kept["when"] == "2026-11-23T11:00:00/2026-11-23T20:00:00"
    # Or until the end of what was asked for before.
    before = {"when": "2026-11-23T10:00/2026-11-23T15:00", "allocation": {"training": 6, "inference": 2}}
    airflow.variables[KEY] = json.dumps([before])
    task.execute_complete(context, succeeded({**ended, "figures": {}, "asked": asked}))
    assert json.loads(airflow.variables[KEY])[-1]["when"] == "2026-11-23T11:00:00/2026-11-23T15:00:00"
    assert events == {"shifts_shifts": ended}


# The question


def asked(airflow: Airflow, plan: dict[str, Any], event: Any = None, **options: Any) -> ApproveShiftOperator:
    """A question about a plan, and what has come of it."""
    params = options.pop("params", {})
    fields = {"task_id": "approve", "subject": "Move?", "schedule": SCHEDULE, "on_no_answer": "fail", **options}
    task = ApproveShiftOperator(**fields, overrides_variable=KEY)
    context: Any = {"ti": SimpleNamespace(xcom_pull=lambda task_ids: plan), "params": params}
    task.execute(context)
    if event:
        task.execute_complete(context, event)
    return task


PLAN = {
    "moves": {"training": {"now": 4, "then": 8}},
    "possible": {"training": 8},
    "nodes": {},
    "buys": [],
    "steps": ["now: ..."],
    "is_requested": False,
    "is_demanded": False,
    "answer_by": str(NOON + 2 * HOUR),
}


@pytest.mark.parametrize(("response_timeout", "expected"), [(None, 2 * HOUR), (HOUR, HOUR), (24 * HOUR, 2 * HOUR)])
def test_a_question_ends_at_the_handover(
    airflow: Airflow, response_timeout: timedelta | None, expected: timedelta
) -> None:
    asked(airflow, PLAN, response_timeout=response_timeout)
    assert airflow.asked == [expected]


def test_without_a_lead_a_question_ends_as_the_next_shift_begins(airflow: Airflow) -> None:
    assert airflow.run("plan", handover=NOON)["answer_by"] == "2026-11-23T18:00:00+00:00"
    assert airflow.run("plan", handover=NOON + 8 * HOUR)["answer_by"] == "2026-11-23T20:00:00+00:00"


def test_nobody_is_asked_about_what_moves_nothing(airflow: Airflow) -> None:
    # Nor about units of its own that are not ready: a plan that was rejected would return as long as one is not.
    still = {**PLAN, "possible": {"training": 4}, "answer_by": None}
    asked(airflow, still)
    asked(airflow, PLAN, params={"plan_only": True})
    assert airflow.asked == []
    asked(airflow, {**still, "nodes": {"training": ["worker-7"]}})
    asked(airflow, {**still, "buys": ["training"]})
    assert airflow.asked == [None, None]


def test_somebody_is_told_that_nobody_has_answered(airflow: Airflow) -> None:
    no_answer = {"error": "The response timeout has passed", "error_type": "timeout"}
    with pytest.raises(AirflowFailException, match="No approver has answered in time, so this handover is skipped"):
        asked(airflow, PLAN, no_answer)
    with pytest.raises(AirflowSkipException, match="No approver has answered in time"):
        asked(airflow, PLAN, no_answer, on_no_answer="stay")
    # Airflow answers with it.
    assert asked(airflow, PLAN, on_no_answer="go").defaults == ["Approve"]


@pytest.mark.parametrize("answer", ["Reject", None])
def test_what_was_not_approved_stays_as_it_is_until_the_next_handover(
    airflow: Airflow, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], answer: str | None
) -> None:
    monkeypatch.setattr(ApprovalOperator, "execute_complete", lambda *_: None)
    moves = {"training": {"now": 6, "then": 4}, "inference": {"now": 2, "then": 4}}
    event = {"chosen_options": [answer]} if answer else {"error": "no response", "error_type": "timeout"}
    asked(airflow, {**PLAN, "moves": moves, "is_requested": True}, event)
    asked(airflow, {**PLAN, "moves": moves}, {"chosen_options": ["Approve"]})
    assert KEY not in airflow.variables
    asked(airflow, {**PLAN, "moves": moves}, event)
    [stay] = json.loads(airflow.variables[KEY])
    assert (stay["when"], stay["because"]) == ("2026-11-23T12:00:00/2026-11-23T20:00:00", "the plan was not approved")
    # More than the block has is no override, which would be refused in each run.
    asked(airflow, {**PLAN, "moves": {**moves, "inference": {"now": 8, "then": 4}}}, event)
    assert len(json.loads(airflow.variables[KEY])) == 1
    assert "training 6, inference 8 cannot be kept, so the next run plans again: " in capsys.readouterr().out
    # So nobody finds a difference, and nobody is asked again.
    assert stay["allocation"] == {"training": 6, "inference": 2}
