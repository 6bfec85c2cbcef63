"""A task that waits in a worker is ended from outside, and work that takes too long by itself."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowException, TaskDeferred
from airflow.sdk.execution_time import task_runner
from airflow.sdk.execution_time.supervisor import InProcessSupervisorComms

from airflow_provider_soperator.operators.work import Waiting, WaitingOperator, WorkOperator
from airflow_provider_soperator.triggers.base import KillableTrigger
from airflow_provider_soperator.work.protocols import Work, WorkTimeout
from tests.patience import PATIENCE
from tests.unit.operators.task_runs import TaskRun


class Endless(KillableTrigger):
    def __init__(self) -> None:
        super().__init__()
        self.begun, self.is_cancelled = threading.Event(), threading.Event()

    async def event(self) -> dict[str, Any]:
        self.begun.set()
        # As good as endless, and a test that fails ends.
        await asyncio.sleep(PATIENCE)
        return {}

    async def cancel(self) -> None:
        self.is_cancelled.set()

    @property
    def fate(self) -> str:
        return ", and has ended"


def test_work_that_ends_before_who_ends_it_goes_on_has_been_told_to(monkeypatch: pytest.MonkeyPatch) -> None:
    trigger = Endless()
    waiting = Waiting(trigger)
    said: list[bool] = []

    def kill() -> None:
        assert trigger.begun.wait(PATIENCE)
        loop = waiting._loop
        assert loop is not None
        call = loop.call_soon_threadsafe

        def slow(what: Callable[[], object]) -> None:
            call(what)
            said.append(trigger.is_cancelled.wait(PATIENCE))

        monkeypatch.setattr(loop, "call_soon_threadsafe", slow)
        waiting.kill()

    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(AirflowException, match="the task was told to end, and has ended"):
        waiting.event()
    killer.join(PATIENCE)
    assert said == [True]


class Task(WaitingOperator):
    deferrable = False

    def execute_complete(self, context: Any, event: dict[str, Any]) -> Any:
        return event


def test_a_task_that_is_ended_in_an_airflow_worker_ends_its_work() -> None:
    task, trigger = Task(task_id="fit"), Endless()

    def kill() -> None:
        assert trigger.begun.wait(PATIENCE)
        task.on_kill()

    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(AirflowException, match="the task was told to end, and has ended"):
        task.wait_for(trigger, {"ti": None})  # type: ignore[typeddict-item]
    killer.join(PATIENCE)
    assert trigger.is_cancelled.is_set()


def in_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """As ``dag.test()`` runs a task."""
    comms: Any = InProcessSupervisorComms(supervisor=None)  # type: ignore[arg-type]
    monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", comms, raising=False)


def test_no_task_is_deferred_where_there_is_no_triggerer(monkeypatch: pytest.MonkeyPatch) -> None:
    class Done(Endless):
        async def event(self) -> dict[str, Any]:
            return {"run": self.task_instance.run_id}

    task = Task(task_id="fit")
    task.deferrable = True
    context: Any = {"ti": TaskRun().begin()["ti"]}
    with pytest.raises(TaskDeferred):
        task.wait_for(Done(), context)
    in_one_process(monkeypatch)
    assert task.wait_for(Done(), context) == {"run": "scheduled__1"}


@pytest.fixture
def terminal() -> Iterator[None]:
    """Ctrl-C is heeded as in a terminal: a process that was started in the background ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


class Interrupted(Endless):
    """Ctrl-C is pressed while it waits."""

    async def event(self) -> dict[str, Any]:
        signal.raise_signal(signal.SIGINT)
        return await super().event()


@pytest.mark.usefixtures("terminal")
def test_ctrl_c_ends_the_work_of_a_task_that_no_other_process_goes_on_with(monkeypatch: pytest.MonkeyPatch) -> None:
    trigger = Interrupted()
    with pytest.raises(KeyboardInterrupt):
        Waiting(trigger).event()
    assert not trigger.is_cancelled.is_set()
    in_one_process(monkeypatch)
    with pytest.raises(AirflowException, match="the task was told to end, and has ended"):
        Waiting(trigger).event()
    assert trigger.is_cancelled.is_set()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_in_a_thread_of_a_notebook_a_task_waits_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    class Done(Endless):
        async def event(self) -> dict[str, Any]:
            return {"status": "success"}

    in_one_process(monkeypatch)
    with ThreadPoolExecutor() as threads:
        assert threads.submit(Waiting(Done()).event).result() == {"status": "success"}


@pytest.mark.usefixtures("terminal")
def test_another_ctrl_c_ends_the_wait_for_that(monkeypatch: pytest.MonkeyPatch) -> None:
    class Away(Interrupted):
        async def cancel(self) -> None:
            signal.raise_signal(signal.SIGINT)
            await asyncio.sleep(PATIENCE)

    in_one_process(monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        Waiting(Away()).event()


def test_a_task_that_is_told_to_end_after_its_work_is_left_alone() -> None:
    class Over(Endless):
        async def event(self) -> dict[str, Any]:
            return {"status": "timeout"}

    task, trigger = Task(task_id="fit"), Over()
    # Here a task raises AirflowTaskTimeout, and Airflow has it end what is left.
    assert task.wait_for(trigger, {"ti": None}) == {"status": "timeout"}  # type: ignore[typeddict-item]
    task.on_kill()
    assert not trigger.is_cancelled.is_set()


@dataclass(kw_only=True)
class EndlessWork(Work[None]):
    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        yield

    async def step(self, client: None) -> None: ...

    async def undo(self, client: None) -> str:
        return "All was undone"


class Working(WorkOperator):
    def work(self, context: Any) -> EndlessWork:
        return EndlessWork(**self.span())


def test_work_is_undone_when_the_time_of_its_task_is_over() -> None:
    # In an Airflow worker, whose alarm would close the loop.
    task = Working(
        task_id="fit", deferrable=False, timeout=timedelta(seconds=5), execution_timeout=timedelta(seconds=0.5)
    )
    with pytest.raises(WorkTimeout, match=r"not done within 0:00:00.5.*\. All was undone"):
        task.execute({"ti": None})  # type: ignore[typeddict-item]


@pytest.mark.parametrize(
    ("execution_timeout", "alarm", "seconds"),
    [
        (None, 0, 7200),
        (timedelta(hours=3), 0, 7200),
        (timedelta(hours=1), 0, 3600),
        # Half an hour of it has passed.
        (timedelta(hours=1), 1800, 1800),
        (timedelta(hours=9), 9000, 7200),
        # The alarm is not Airflow's.
        (None, 1800, 7200),
    ],
)
def test_work_has_the_shorter_one_of_two_limits(
    monkeypatch: pytest.MonkeyPatch, execution_timeout: timedelta | None, alarm: int, seconds: int
) -> None:
    monkeypatch.setattr(signal, "getitimer", lambda _: (alarm, 0.0))
    span = Working(task_id="fit", timeout=timedelta(hours=2), execution_timeout=execution_timeout).span()
    assert span["deadline"] - span["since"] == timedelta(seconds=seconds)
