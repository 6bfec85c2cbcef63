"""Work and watches carried out by their triggers: what is borne, what ends them, and what is undone."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from airflow_provider_soperator.slurm.errors import UnknownNode
from airflow_provider_soperator.transports.transport_errors import (
    ConnectFailed,
    ConnectionLost,
    UnknownEndpoint,
    Unreachable,
)
from airflow_provider_soperator.triggers.sbatch import SbatchTrigger
from airflow_provider_soperator.triggers.work import WatchTrigger, WorkTrigger
from airflow_provider_soperator.work.polling import reached
from airflow_provider_soperator.work.protocols import (
    Look,
    Watch,
    Work,
    WorkFailed,
    WorkRefused,
    WorkTimeout,
    failed,
    refused,
    result_of,
    succeeded,
    timed_out,
)
from tests.patience import PATIENCE
from tests.unit.client.tracking import run_without_waiting

LOST = ConnectionLost("the connection broke")
AWAY = Unreachable("nothing listens there")
WRONG = ConnectFailed("the login was refused")
NOWHERE = UnknownEndpoint("the host name is unknown")
NO_NODE = UnknownNode("there is no node worker-9")


class Script:
    """What the cluster does at each look or step, and what is heard of it."""

    def __init__(self) -> None:
        self.acts: list[Any] = []
        self.opened = 0
        self.max_ages: list[float] = []
        self.undone: list[str] = []

    def next(self) -> Any:
        act = self.acts.pop(0)
        if isinstance(act, Exception):
            raise act
        return act


SCRIPT = Script()


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def play(*acts: Any) -> None:
        SCRIPT.__init__()  # type: ignore[misc]
        SCRIPT.acts = list(acts)

    return play


@asynccontextmanager
async def script() -> AsyncIterator[Script]:
    SCRIPT.opened += 1
    yield SCRIPT


@dataclass(kw_only=True)
class Played(Watch[Script]):
    """A watch whose looks are those of the script."""

    poll_interval: float = 0.0

    def open(self) -> Any:
        return script()

    async def look(self, client: Script, max_age: float) -> Look:
        act = client.next()
        client.max_ages.append(max_age)
        return Look(act == "there", act, (str(act),))


def watched() -> dict[str, Any]:
    async def event() -> Any:
        return (await anext(WatchTrigger(json.loads(json.dumps(Played().write()))).run())).payload

    payload: dict[str, Any] = asyncio.run(event())
    return payload


@pytest.mark.parametrize(
    ("acts", "event"),
    [
        (("not yet", "there"), succeeded("there")),
        # A cluster that is away is waited for, also at the first look: a triggerer may just have been restarted.
        ((AWAY, LOST, "not yet", AWAY, "there"), succeeded("there")),
        # What has worked may be mended while the sensor waits.
        (("not yet", WRONG, NO_NODE, "there"), succeeded("there")),
        ((WRONG,), failed("the login was refused")),
        # Another try would find it as little.
        ((NOWHERE,), refused("the host name is unknown")),
        (("not yet", NOWHERE, "there"), succeeded("there")),
        ((NO_NODE,), refused(str(NO_NODE))),
        (("not yet", WorkFailed("the check has failed")), failed("the check has failed")),
        (("not yet", WorkRefused("it is drained")), refused("it is drained")),
    ],
)
def test_what_a_watch_comes_to(play: Callable[..., None], acts: tuple[Any, ...], event: dict[str, Any]) -> None:
    play(*acts)
    assert watched() == event
    assert SCRIPT.acts == []


def test_no_answer_from_before_the_wait_counts(play: Callable[..., None]) -> None:
    play("there", "there")
    for seconds in (0, 4 * PATIENCE):
        trigger = WatchTrigger(Played(poll_interval=4.0 * PATIENCE).write(), made=time.time() - seconds)
        asyncio.run(anext(trigger.run()))
    assert SCRIPT.max_ages[0] < PATIENCE
    assert SCRIPT.max_ages[1] == 2 * PATIENCE


def test_no_answer_from_before_the_work_counts() -> None:
    now = datetime.now(timezone.utc)
    since, deadline = now - timedelta(seconds=4 * PATIENCE), now + timedelta(hours=1)
    assert PlayedWork(since=now, deadline=deadline, poll_interval=4.0 * PATIENCE).max_age < PATIENCE
    assert PlayedWork(since=since, deadline=deadline, poll_interval=5.0).max_age == 2.5
    # Another try of it begins.
    work = PlayedWork(since=since, deadline=deadline, poll_interval=4.0 * PATIENCE)
    assert work.begin(logging.getLogger(__name__)).max_age < PATIENCE


def test_after_a_failure_the_connection_is_opened_anew(play: Callable[..., None]) -> None:
    play("not yet", LOST, "not yet", "there")
    watched()
    assert SCRIPT.opened == 2


@dataclass(kw_only=True)
class Told(Played):
    """A watch that needs no pause, as its client tells changes."""

    poll_interval: float = 60.0
    pause = 0.0


def test_a_watch_without_a_pause_has_one_after_a_failure(
    play: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def seconds() -> float:
        began = time.monotonic()
        await reached(Told(), logging.getLogger(__name__))
        return time.monotonic() - began

    for acts, pauses in ((("not yet", "there"), 0), ((AWAY, AWAY, "not yet", LOST, "there"), 3)):
        play(*acts)
        assert run_without_waiting(seconds(), monkeypatch) == 60 * pauses


@dataclass(kw_only=True)
class PlayedWork(Work[Script]):
    """Work whose steps are those of the script."""

    may_undo: bool = True

    def open(self) -> Any:
        return script()

    async def step(self, client: Script) -> dict[str, Any] | None:
        act = client.next()
        if act == "hangs":
            self.place = "worker-3 has jobs"
            self.has_begun = True
        if act in ("hangs", "asks"):
            await asyncio.Event().wait()
        return {"is": act} if act == "done" else None

    async def undo(self, client: Script) -> str:
        if not self.may_undo:
            raise AWAY
        client.undone.append("all")
        return "All was undone"

    def left(self, error: Exception) -> str:
        return f"Drains stay: {error}"


def worked(**fields: Any) -> dict[str, Any]:
    now = datetime.now(timezone.utc)
    work = PlayedWork(**{"since": now, "deadline": now + timedelta(hours=1), "poll_interval": 0.0, **fields})
    trigger = WorkTrigger(json.loads(json.dumps(work.write())))
    return asyncio.run(trigger.event())


def test_what_work_comes_to(play: Callable[..., None]) -> None:
    play(AWAY, "on", LOST, NOWHERE, AWAY, "done")
    assert worked() == succeeded({"is": "done"})
    assert SCRIPT.undone == []


@pytest.mark.parametrize(
    ("acts", "event"),
    [
        (("on", WorkFailed("a node is lost")), failed("a node is lost. All was undone")),
        (("on", WorkRefused("it cannot be")), refused("it cannot be. All was undone")),
        (("on", NO_NODE), refused(f"{NO_NODE}. All was undone")),
        # Nothing has been begun, so there is nothing to undo.
        ((NO_NODE,), refused(str(NO_NODE))),
        ((WRONG,), failed("the login was refused")),
        ((NOWHERE,), refused("the host name is unknown")),
    ],
)
def test_what_was_begun_is_undone(play: Callable[..., None], acts: tuple[Any, ...], event: dict[str, Any]) -> None:
    play(*acts)
    assert worked() == event


def test_a_job_over_a_connection_that_is_not_there_is_refused_at_once() -> None:
    event = asyncio.run(SbatchTrigger("no_such_id", {"command": "true"}, ["a" * 12]).event())
    assert event == refused("there is no connection no_such_id: add it, or name another one") | {"links": {}}


def test_what_cannot_be_undone_is_said(play: Callable[..., None]) -> None:
    play("on", WorkFailed("a node is lost"))
    assert worked(may_undo=False) == failed("a node is lost. Drains stay: nothing listens there")


def test_work_ends_at_its_deadline(play: Callable[..., None]) -> None:
    play("hangs")
    assert worked(deadline=datetime.now(timezone.utc)) == timed_out("worker-3 has jobs. All was undone")


def test_what_another_process_had_begun_before_the_deadline_is_undone(play: Callable[..., None]) -> None:
    play("asks")
    assert worked(deadline=datetime.now(timezone.utc)) == timed_out("it was not followed to its end. All was undone")


def test_another_class_is_not_read() -> None:
    with pytest.raises(TypeError, match=r"expected a Work, got tests.unit.work.test_polling.Played"):
        Work.read(Played().write())


@pytest.mark.parametrize(
    ("event", "error"),
    [
        (failed("why"), AirflowException),
        (refused("why"), AirflowFailException),
        (timed_out("why"), WorkTimeout),
    ],
)
def test_what_a_worker_makes_of_an_event(event: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error, match="why") as raised:
        result_of(event, timedelta(hours=1))
    assert type(raised.value) is error
    assert result_of(succeeded(1)) == 1


def test_the_same_is_logged_once(play: Callable[..., None], capsys: pytest.CaptureFixture[str]) -> None:
    play("not yet", "not yet", AWAY, AWAY, "not yet", "there")
    watched()
    # Where Airflow's loggers write to without a supervisor.
    said = capsys.readouterr().out
    assert (said.count("not yet"), said.count("asking again: nothing listens there")) == (1, 1)
