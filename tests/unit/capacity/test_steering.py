"""A shift is steered while it runs: what people ask of it, what it makes of that, and what it shows."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import BaseNotifier, Variable
from airflow.sdk.definitions.callback import AsyncCallback
from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_soperator.capacity.lease_store import ShiftRecord
from airflow_provider_soperator.capacity.order import Timeouts
from airflow_provider_soperator.capacity.reconciliation import approval_of
from airflow_provider_soperator.capacity.shift import ShiftFailed
from airflow_provider_soperator.capacity.steering import ShiftAtWork, SteeringCommand, left_out, steered
from airflow_provider_soperator.capacity.targets import SlurmNodesTarget
from airflow_provider_soperator.operators.capacity import ShiftCapacityOperator
from airflow_provider_soperator.operators.steering import SteerShiftOperator
from airflow_provider_soperator.slurm.errors import NotPermitted
from airflow_provider_soperator.slurm.requests import PowerDownMode, UpdateJob
from airflow_provider_soperator.triggers import shift as trigger_module
from airflow_provider_soperator.triggers.shift import ShiftTrigger
from tests.unit.capacity.test_shift import DAY, NIGHT, ORDER, carry, made_cloud
from tests.unit.capacity.test_slurm_session import HOUR, NOW, Slurm, stopped_clock  # noqa: F401
from tests.unit.capacity.world import BLOCK, NEVER, SECOND, START, Cloud, Pace, UnitsSession

MINUTE = timedelta(minutes=1)


def asked(action: Any, **how: Any) -> SteeringCommand:
    return SteeringCommand(**{"action": action, "at": NOW, "by": "ann", **how})


# What an order becomes


def test_force_begins_when_it_is_asked_for() -> None:
    """The signal goes out at once, also ahead of the handover, and never later than it would have anyway."""
    order = replace(ORDER, wanted_at=NOW + 2 * HOUR, transfer=20 * MINUTE)
    assert order.release(NOW).mode is None
    forced = steered(order, [asked("force")])
    assert (forced.release(NOW).mode, forced.release(NOW).signals_at) == (PowerDownMode.FORCE, NOW)
    soon = replace(order, mode="force", wanted_at=NOW - HOUR, force_after=timedelta(0))
    assert steered(soon, [asked("force")]).force_after == timedelta(0)


def test_an_extension_moves_every_end() -> None:
    approved = {"goal": DAY, "end": (NOW + HOUR).isoformat()}
    order = replace(ORDER, stops_at=NOW + HOUR, approved=approved, timeouts=Timeouts(release=HOUR))
    later = steered(order, [asked("extend", extend_by=HOUR), asked("extend", extend_by=MINUTE)])
    assert (later.ends_at, later.timeouts.release) == (NOW + 2 * HOUR + MINUTE, 2 * HOUR + MINUTE)
    # By default two hours, or as long as the window lasts.
    without = replace(ORDER, timeouts=Timeouts())
    assert steered(without, [asked("extend", extend_by=HOUR)]).timeouts.release == 3 * HOUR
    window = replace(without, stops_at=NOW + HOUR)
    assert steered(window, [asked("extend", extend_by=HOUR)]).timeouts.release is None


# A shift


class Steering:
    """People who ask for something at a second of the cloud, and what they are shown."""

    def __init__(self, cloud: Cloud, *commands: tuple[int, SteeringCommand]) -> None:
        self._cloud, self._asked = cloud, commands
        self.shown: list[dict[str, Any]] = []

    async def commands(self, record: ShiftRecord) -> Sequence[SteeringCommand]:
        return [command for at, command in self._asked if self._cloud.now >= at]

    async def show(self, state: Mapping[str, Any]) -> None:
        self.shown.append(dict(state))


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cloud]:
    made = made_cloud(monkeypatch)
    yield made
    assert made.refused == 0


def test_it_shows_how_far_it_has_come(cloud: Cloud) -> None:
    steering = Steering(cloud)
    assert carry(cloud, steering=steering).state == "done"
    said = [state["text"] for state in steering.shown]
    assert said[0] == "0 of 4 replicas moved"
    assert said[-1] == "4 of 4 replicas moved"
    assert "2 of 4 replicas moved" in cloud.log.said
    pairs = zip(steering.shown, steering.shown[1:], strict=False)
    assert all(one != other for one, other in pairs), "only what has changed is shown"


def test_ahead_it_shows_when_nodes_leave(cloud: Cloud) -> None:
    steering = Steering(cloud)
    carry(cloud, replace(ORDER, wanted_at=START + 60 * SECOND), steering=steering)
    assert steering.shown[0]["text"] == "0 of 4 replicas moved; nodes leave from 21 Nov 20:01 UTC on"


def test_it_stops_where_it_is_and_says_who_asked(cloud: Cloud) -> None:
    cloud.targets["training"].pace = Pace(work=lambda unit: 40 * unit)
    outcome = carry(cloud, steering=Steering(cloud, (75, asked("stop"))))
    assert outcome.state == "partial"
    assert outcome.missing[-1].startswith("ann has asked to stop the shift where it is (")
    assert outcome.asked
    assert outcome.asked["units"] == outcome.allocation != DAY
    assert outcome.asked["now"] == NOW.isoformat(), "what it has is kept from then on"
    assert outcome.missing[-1] in cloud.log.said
    assert cloud.now < 100
    assert cloud.reservations.known == {}


def test_who_stops_all_or_nothing_keeps_what_there_is(cloud: Cloud) -> None:
    cloud.targets["training"].pace = Pace(work=lambda unit: 40 * unit)
    outcome = carry(cloud, replace(ORDER, rollback="all"), steering=Steering(cloud, (75, asked("stop"))))
    assert outcome.state == "partial"
    assert cloud.allowed() == outcome.allocation != NIGHT


def test_a_failure_is_shown_and_no_job_is_in_the_way_any_more(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(UnitsSession, "jobs_in_the_way", ({"id": "7"},))
    steering = Steering(cloud)
    cloud.targets["inference"].pace = Pace(boot=lambda unit: NEVER)
    with pytest.raises(ShiftFailed):
        carry(cloud, replace(ORDER, rollback="all"), steering=steering)
    *before, last = steering.shown
    assert "it was rolled back" in last["text"]
    assert (before[0]["jobs_in_the_way"][0], last["jobs_in_the_way"]) == ({"id": "7"}, [])


def test_a_way_back_is_stopped_as_well(cloud: Cloud) -> None:
    cloud.targets["inference"].pace = Pace(boot=lambda unit: NEVER if unit else 0)

    class Watching(Steering):
        async def commands(self, record: ShiftRecord) -> Sequence[SteeringCommand]:
            return [asked("stop")] if any("rolling back" in line for line in cloud.log.said) else []

    with pytest.raises(ShiftFailed, match="the rollback failed: ann has asked to stop"):
        carry(cloud, replace(ORDER, rollback="all"), steering=Watching(cloud))
    assert cloud.ready() == {"training": 4, "inference": 1}


def test_it_waits_for_longer_once_it_is_extended(cloud: Cloud) -> None:
    cloud.targets["training"].pace = Pace(work=lambda unit: 300)
    order = replace(ORDER, timeouts=replace(ORDER.timeouts, release=100 * SECOND))
    assert carry(cloud, order, steering=Steering(cloud, (50, asked("extend", extend_by=HOUR)))).state == "done"


# Nodes and jobs


def test_a_node_that_is_left_out_is_not_chosen_and_goes_on_working() -> None:
    slurm = Slurm(3)
    for number in range(3):
        slurm.run(f"worker-{number}", (number + 1) * HOUR)
    assert slurm.shrink(2) == []
    assert slurm.handover() == ["worker-0"]
    session = slurm.session()
    session.leave_out(left_out([asked("leave_out", nodes=("worker-0",))]))
    slurm_release = replace(ORDER, wanted_at=NOW).release(NOW)
    asyncio.run(session.shrink(2, slurm_release))
    assert slurm.handover() == ["worker-1"], "the next one takes its place, and new jobs start on it again"
    seen = asyncio.run(session.look())
    assert (seen.stuck, seen.possible(0)) == ({"worker-0": "is left out, as ann asked"}, 1)


def test_one_that_is_on_its_way_off_goes() -> None:
    slurm = Slurm(1)
    assert slurm.shrink(0) == ["worker-0"]
    session = slurm.session()
    session.leave_out({"worker-0": "is left out"})
    assert not asyncio.run(session.look()).stuck


def test_jobs_in_the_way_are_told_when_they_get_the_signal() -> None:
    slurm = Slurm(3)
    late, over, others = (slurm.run(f"worker-{number}", hours * HOUR) for number, hours in enumerate((9, 1, 9)))
    others.admin_comment = "keep: the demo"
    force = {"ends_jobs": True, "signals_at": NOW + 2 * HOUR}
    assert slurm.shrink(0, None, NOW + 2 * HOUR, **force) == []
    assert late.admin_comment.startswith("airflow:capacity/block-1: worker-0 is wanted elsewhere (a shift): ")
    assert f"SIGTERM at {NOW + 2 * HOUR:%d %b %Y %H:%M:%S} UTC" in late.admin_comment
    assert (over.admin_comment, others.admin_comment) == ("", "keep: the demo")
    # Another process, and another choice.
    before = len(slurm.asked)
    slurm.shrink(0, None, NOW + 2 * HOUR, **force)
    assert not [one for one in slurm.asked[before:] if isinstance(one, UpdateJob)], "it is told once"
    slurm.shrink(3, None, NOW + 2 * HOUR, **force)
    assert late.admin_comment == ""


def test_what_was_told_ahead_is_taken_back_once_no_node_is_to_go() -> None:
    slurm = Slurm(2)
    job = slurm.run("worker-0", 9 * HOUR)
    slurm.run("worker-1", 9 * HOUR)
    session, release = slurm.session(), replace(ORDER, mode="force", wanted_at=NOW + HOUR).release(NOW)
    asyncio.run(session.shrink(1, release))
    assert (slurm.handover(), bool(job.admin_comment)) == (["worker-0"], True)

    async def next_round() -> None:
        session.leave_out({"worker-0": "is left out, as ann asked", "worker-1": "is drained by root"})
        await session.look()
        await session.relax()

    asyncio.run(next_round())
    assert (slurm.handover(), job.admin_comment, session.jobs_in_the_way) == ([], "", ())


def test_what_was_told_is_withdrawn_at_the_end() -> None:
    slurm = Slurm(1)
    job = slurm.run("worker-0", 9 * HOUR)
    session, order = slurm.session(), replace(ORDER, mode="force", wanted_at=NOW + HOUR, transfer=30 * MINUTE)
    asyncio.run(session.shrink(0, order.release(NOW)))
    [said] = session.jobs_in_the_way
    assert (said["id"], said["nodes"], said["signal_at"]) == ("1", "worker-0", (NOW + 58 * MINUTE).isoformat())
    assert job.admin_comment
    asyncio.run(session.finish())
    assert (job.admin_comment, session.jobs_in_the_way) == ("", ())


def test_who_may_not_comment_on_jobs_moves_nodes_nevertheless() -> None:
    slurm = Slurm(2)
    slurm.run("worker-0", 9 * HOUR)
    answer, tried = slurm.answer, []

    def refuse(request: Any) -> Any:
        if isinstance(request, UpdateJob):
            tried.append(request)
            raise NotPermitted("Access/permission denied", "scontrol")
        return answer(request)

    slurm.answer = refuse  # type: ignore[method-assign]
    for _ in range(2):
        slurm.shrink(0, ends_jobs=True, signals_at=NOW + HOUR)
    assert slurm.nodes["worker-1"].is_told
    assert len(tried) == 1
    assert "Job 1 could not be told in its admin comment" in "\n".join(slurm.log.said)


def test_what_arrived_may_be_taken_back_by_an_approved_shift() -> None:
    """Of a target that only received, those units may go that were off when the plan was shown."""
    slurm = Slurm(3)
    for name in ("worker-1", "worker-2"):
        node = slurm.nodes[name]
        node.power, node.has_machine, node.drain = "off", False, "airflow:capacity/block-1: lent"
    order = replace(ORDER, rollback="all")
    back = asyncio.run(slurm.session().explain(1, order.release(NOW)))
    assert sorted(back) == ["worker-1", "worker-2"]
    plan = {"nodes": {"inference": []}, "back": {"training": list(back)}, "jobs": {}}
    order = replace(order, approved=approval_of(order, plan))
    for name in back:
        slurm.nodes[name].power, slurm.nodes[name].drain = "on", ""
    session = slurm.session(may_take=order.may_take("training"))
    assert list(asyncio.run(session.look()).stuck) == ["worker-0"]
    asyncio.run(session.shrink(1, order.release(NOW, back=True)))
    assert [node.name for node in slurm.nodes.values() if node.is_told] == ["worker-1", "worker-2"]


# Airflow's Variables


class Variables:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.known: dict[str, str] = {}
        self.state, self.runs = "deferred", 0
        monkeypatch.setattr(Variable, "get", lambda key, default=None: self.known.get(key, default))
        monkeypatch.setattr(Variable, "set", lambda key, text: self.known.update({key: text}))
        monkeypatch.setattr(trigger_module, "states_of", lambda run, tasks: {task: {-1: self.state} for task in tasks})

    def steer(self, action: str, tries: int = 1, **how: Any) -> None:
        task = SteerShiftOperator(task_id="steer", block=BLOCK, action=action, **how)
        self.runs += 1
        ti = SimpleNamespace(dag_id="shifts", run_id=f"manual__{self.runs}", task_id="steer", map_index=-1)
        run: Any = {"dag_run": SimpleNamespace(triggering_user_name="ann"), "ti": ti}
        for _ in range(tries):
            task.execute(run)

    def refused(self, action: str, **how: Any) -> str:
        with pytest.raises(AirflowFailException) as refused:
            self.steer(action, **how)
        return str(refused.value)


@pytest.fixture
def variables(monkeypatch: pytest.MonkeyPatch) -> Variables:
    return Variables(monkeypatch)


NODES = SlurmNodesTarget(name="training", nodes="worker-[0-7]")
MOVED = replace(ORDER, targets=(NODES, ORDER.targets[1]), task="shifts/manual__1/shift/-1")
RECORD = ShiftRecord(key=MOVED.key, task=MOVED.task).marked("began", NOW)


def test_a_command_is_heard_by_the_shift_at_work_and_by_no_other(variables: Variables) -> None:
    assert variables.refused("stop") == f"no shift of this Airflow is at work on block {BLOCK}; none is known"
    at_work = ShiftAtWork.begin(MOVED, RECORD, None)
    variables.steer("leave_out", nodes="worker-[3-4]")
    variables.steer("extend", tries=2, extend_by="30m")
    assert [str(one).partition(" (")[0] for one in at_work.commands()] == [
        "ann has asked to leave out worker-[3-4]",
        "ann has asked to extend the shift by 0:30:00",
    ]
    # Another process of the same one, and then another one.
    assert ShiftAtWork.begin(MOVED, RECORD, None).commands() == at_work.commands()
    following = replace(MOVED, key="another", task="shifts/manual__2/shift/-1")
    record = replace(RECORD, key=following.key)
    assert ShiftAtWork.begin(following, record, None).commands() == ()
    at_work.end("done", NOW)
    variables.steer("stop")
    # The task is cleared after its end, and begins afresh.
    ShiftAtWork.begin(following, record, None).end("partial", NOW)
    afresh = replace(record, marks={}).marked("began", NOW + HOUR)
    assert ShiftAtWork.begin(following, afresh, None).commands() == ()


def test_what_was_asked_is_heard_by_a_process_that_could_not_read_which_shift_it_is(variables: Variables) -> None:
    ShiftAtWork.begin(MOVED, RECORD, None)
    variables.steer("stop")
    # To Airflow a Variable that cannot be read is missing.
    del variables.known[f"soperator_shift_{BLOCK}"]
    assert [one.action for one in ShiftAtWork.begin(MOVED, RECORD, None).commands()] == ["stop"]


def test_it_is_refused_with_the_end_of_the_last_one(variables: Variables) -> None:
    ShiftAtWork.begin(MOVED, RECORD, None).end("done", NOW)
    assert f"the last one, task {MOVED.task}, ended on {NOW:%d %b %Y %H:%M:%S} UTC: done" in variables.refused("stop")
    ShiftAtWork.begin(MOVED, RECORD, None)
    variables.state = "failed"
    assert "the last one, task shifts/manual__1/shift/-1, is no longer running" in variables.refused("stop")


def test_what_cannot_be_carried_out_is_refused(variables: Variables) -> None:
    approved = {"goal": NIGHT, "jobs": {}}
    order = replace(MOVED, stops_at=NOW + HOUR, until=NOW + 2 * HOUR, approved=approved)
    ShiftAtWork.begin(order, RECORD, order.until)
    assert (
        variables.refused("leave_out", nodes="worker-9") == "no node worker-9 can be left out: did you mean 'worker-7'?"
    )
    assert "nodes are for leave_out, got action 'stop'" in variables.refused("stop", nodes="worker-1")
    assert "leave_out needs nodes" in variables.refused("leave_out")
    assert "approved without the end of any job" in variables.refused("force")
    assert "after the next handover" in variables.refused("extend", extend_by="61m")
    variables.steer("extend", extend_by="40m")
    assert "extend it by less, or override the schedule" in variables.refused("extend", extend_by="40m")
    with pytest.raises(ValueError, match="action must be one of None, '', 'stop'"):
        variables.steer("halt")


def test_without_an_action_nothing_is_done(variables: Variables) -> None:
    assert SteerShiftOperator(task_id="steer", block=BLOCK, action=None).execute({}) is None
    assert variables.known == {}


# In the triggerer


class Notifier(BaseNotifier):
    template_fields = ("text",)

    def __init__(self, said: list[Any], text: str) -> None:
        super().__init__()
        self.said, self.text = said, text

    async def async_notify(self, context: Any) -> None:
        self.said.append(self.text)


def test_a_notifier_is_told_with_its_text_rendered() -> None:
    said = list[Any]()
    text = "{% for job in jobs %}{{ job.user }}: {{ job.id }}{% endfor %}"
    callback = AsyncCallback(Notifier, kwargs={"said": said, "text": text})
    task = ShiftCapacityOperator(task_id="shift", targets=[NODES], block=BLOCK, desired={}, on_jobs_in_the_way=callback)
    [kept] = task.on_jobs_in_the_way
    context = {"jobs": [{"user": "ann", "id": "7"}], "block": BLOCK}
    asyncio.run(trigger_module._notify({"path": kept.path, "kwargs": kept.kwargs}, context))
    assert said == ["ann: 7"]


async def tell(said: list[Any], context: Any) -> None:
    said.append(context)
    if said[0] == "fail":
        raise OSError("no mail")


def test_the_trigger_hears_shows_and_tells(variables: Variables, monkeypatch: pytest.MonkeyPatch) -> None:
    path, said, pushed = f"{__name__}.tell", list[Any](), list[Any]()
    callbacks = [{"path": path, "kwargs": {"said": ["fail"]}}, {"path": path, "kwargs": {"said": said}}]
    order = replace(MOVED, targets=(NODES,), desired={"training": 1})
    trigger = ShiftTrigger(order.write(), callbacks=callbacks)

    async def push(key: str, value: Any) -> None:
        pushed.append((key, value))
        # As of an XCom backend that may write from workers only.
        raise PermissionError("read-only bucket")

    monkeypatch.setattr(trigger, "push", push)

    class Shift:
        async def __aenter__(self) -> Shift:
            return self

        async def __aexit__(self, *_: object) -> None: ...

        async def run(self, is_alive: Any, steering: Any) -> Any:
            assert await steering.commands(RECORD) == ()
            variables.steer("stop")
            [command] = await steering.commands(RECORD)
            kept = variables.known.copy()
            variables.known.clear()
            assert await steering.commands(RECORD) == (command,), "to Airflow what cannot be read is missing"
            variables.known |= kept
            for job in ("7", "7", "8"):
                await steering.show({"text": "", "jobs_in_the_way": [{"id": job}]})
            return SimpleNamespace(state="partial", describe=lambda: {"state": "partial"})

        async def report(self, state: str) -> dict[str, Any]:
            return {"state": state}

    trigger._open = Shift  # type: ignore[method-assign, assignment]
    assert asyncio.run(trigger.event())["status"] == "success"
    assert [key for key, _ in pushed] == ["state"] * 3
    assert [[job["id"] for job in one["jobs"]] for one in said] == [["7"], ["8"]], "each job once"
    last = ShiftAtWork.find(BLOCK)
    assert last
    assert last.ended.endswith(": partial")
    assert json.loads(variables.known[f"soperator_shift_{BLOCK}"])["task"] == order.task
