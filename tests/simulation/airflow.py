"""An Airflow in memory: its database, and processes that run the provider's operators and triggers as they are.

Its rules are those of Airflow 3.3: ``clear_task_instances``, the supervisor's signals, the triggerer's rounds.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import random
import time
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import cache, partial
from types import SimpleNamespace
from typing import Any, Protocol
from unittest import mock
from uuid import UUID

from airflow.sdk import DAG
from airflow.sdk.bases.xcom import BaseXCom
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException, TaskDeferred
from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance
from airflow.sdk.execution_time.xcom import XCom
from airflow.triggers.base import TaskFailedEvent, TaskSuccessEvent
from async_timeout import timeout
from sqlalchemy.util.concurrency import await_only, greenlet_spawn

from airflow_provider_soperator.client.job_run import JobRun
from airflow_provider_soperator.client.sync import LoopThread
from airflow_provider_soperator.hooks import slurm as slurm_hook
from airflow_provider_soperator.hooks.slurm import Settings, SlurmHook
from airflow_provider_soperator.operators.pipeline import SbatchPipeline, afterany
from airflow_provider_soperator.operators.sbatch import SbatchOperator
from airflow_provider_soperator.pipelines.submit import CancelRestOperator, SubmitAheadOperator
from airflow_provider_soperator.slurm.submission_keys import readable_name
from airflow_provider_soperator.triggers import base as trigger_base
from airflow_provider_soperator.triggers import sbatch as sbatch_triggers
from airflow_provider_soperator.triggers.base import SlurmTrigger
from airflow_provider_soperator.triggers.sbatch import SbatchStartTrigger, SbatchTrigger
from tests.simulation.clock import PROCESS, Process, outside
from tests.simulation.slurm import Cluster, Way

#: The end of a task instance.
ENDS = frozenset({"success", "failed", "skipped", "upstream_failed"})
#: Seconds from SIGTERM to SIGKILL, of Airflow's supervisor.
ESCALATION = 5.0
#: Seconds of ``on_kill`` that a triggerer waits for.
ON_KILL = 30.0
#: Seconds without a heartbeat after which a task is taken for dead.
HEARTBEAT_TIMEOUT = 300.0


@dataclass(frozen=True)
class Spec:
    """A task as a DAG file has it."""

    task_id: str = "fit"
    #: In a ``worker``, ``deferred``, ``resumed``: deferred, and ended in a worker, or ``triggerer``: begun there, too.
    mode: str = "deferred"
    retries: int = 0
    array: str | None = None
    poll_interval: float = 10.0
    name: str | None = None


class WorkerDied(Exception):
    """There are no heartbeats any more."""


def _id() -> UUID:
    """The id of an instance, which begins with the time: it gets another at each clear."""
    return UUID(int=int(time.time() * 1000) << 80)


class Instance:
    """A task instance, as operators and triggers see it, and as the database has it."""

    def __init__(
        self, airflow: Airflow, spec: Spec, dag_id: str, run_id: str, map_index: int = -1, task: Any = None
    ) -> None:
        self.airflow, self.spec = airflow, spec
        self.dag_id, self.run_id, self.task_id, self.map_index = dag_id, run_id, spec.task_id, map_index
        self.retries = spec.retries
        #: The operator of a task that is not alone in its DAG, and all tasks of that DAG's run.
        self.task, self.siblings = task, [self]
        self.try_number, self.max_tries = 0, spec.retries
        self.state: str | None = None
        self.xcoms: dict[str, Any] = {}
        # No two Airflows begin a run in the same microsecond.
        self.begun = datetime.fromtimestamp(time.time(), timezone.utc).replace(microsecond=ord(airflow.name))
        #: How often it was cleared.
        self.epoch = 0
        self.id = _id()
        #: When its try has begun, and when it was ended by hand the last time.
        self.try_since = self.ordered_at = 0.0
        #: Set when somebody marks or clears it.
        self.ordered = asyncio.Event()
        self.worker: Process | None = None
        #: Its last try has ended with its worker.
        self.is_orphaned = False
        #: Its row in the table of triggers.
        self.deferral: Deferral | None = None
        self.life: asyncio.Task[None] | None = None

    @property
    def name(self) -> str:
        return readable_name(self.dag_id, self.run_id, self.task_id, self.map_index)

    def __str__(self) -> str:
        return f"{self.airflow.name}: {self.name}"

    @property
    def is_job(self) -> bool:
        return self.task is None or isinstance(self.task, SbatchOperator)

    @property
    def upstream(self) -> list[Instance]:
        return [one for one in self.siblings if self.task and one.task_id in self.task.upstream_task_ids]

    @property
    def downstream(self) -> list[Instance]:
        """This one and all that come after it."""
        after = [self]
        for one in self.siblings:
            after += [one] if one not in after and set(one.upstream) & set(after) else []
        return after

    def get_template_context(self) -> Any:
        cleared = max(one.epoch for one in self.siblings)
        run = SimpleNamespace(start_date=self.begun, clear_number=cleared, conf=None)
        return {
            "ti": self,
            "dag_run": run,
            "task_instance_key_str": f"{self.dag_id}__{self.task_id}__{self.run_id}",
        }

    def xcom_push(self, key: str, value: Any) -> None:
        self.xcoms[key] = value

    def xcom_pull(self, task_ids: Any, key: str, **others: Any) -> Any:
        wanted = [task_ids] if isinstance(task_ids, str) else task_ids
        found = [one.xcoms[key] for one in self.siblings if one.task_id in wanted and key in one.xcoms]
        return found if wanted is task_ids else next(iter(found), None)


@dataclass(eq=False)
class Deferral:
    """A trigger in the database."""

    kind: type[Any]
    arguments: dict[str, Any]
    event: Any = None
    #: What a worker would have been told, where none is needed.
    told: dict[str, Any] = field(default_factory=dict)
    fired: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None
    is_killed: bool = False


class Judge(Protocol):
    """What hears of the lives of tasks."""

    def note(self, text: str, *values: object) -> None: ...

    def key_used(self, key: str, instance: Instance, epoch: int) -> None: ...

    def try_ended(self, instance: Instance, report: Any, error: BaseException | None) -> None: ...

    def gap(self, name: str, instance: Instance) -> None: ...

    def escalated(self, instance: Instance) -> None: ...

    def triggerer_ended(self, instance: Instance) -> None: ...


#: The task instance for which a process works, and how often it had been cleared when that began.
ACTING: ContextVar[tuple[Instance, int]] = ContextVar("ACTING")


class Airflow:
    """One installation: a scheduler, workers as many as it takes, and one triggerer at a time."""

    def __init__(self, name: str, dice: random.Random, judge: Judge) -> None:
        self.name, self._dice, self._judge = name, dice, judge
        self.instances: list[Instance] = []
        self._count = 0
        self.triggerer = self._process("triggerer")

    def _process(self, kind: str) -> Process:
        self._count += 1
        return Process(f"{kind} {self._count} of {self.name}", self)

    def add(self, one: Instance) -> None:
        self.instances.append(one)
        one.life = outside(self._live(one))

    # ---------------------------------------------------------------------------------------------- what people do

    def mark(self, one: Instance, state: str) -> None:
        """Mark it as failed or as successful, by hand."""
        before, one.state = one.state, state
        self._judge.note("%s is marked as %s; it was %s", one, state, before)
        self._order(one)

    def clear(self, one: Instance) -> None:
        """Clear it, and in a pipeline all that comes after it."""
        for cleared in one.downstream:
            # One that has not begun has the job of before, unless all are submitted anew.
            if cleared.try_number or one is one.siblings[0]:
                self._clear(cleared)

    def _clear(self, one: Instance) -> None:
        before = one.state
        self._judge.note("%s is cleared; it was %s", one, before)
        one.epoch += 1
        one.id = _id()
        if before == "running":
            one.state = "restarting"
            self._judge.gap("cleared in a worker", one)
        else:
            one.state, one.max_tries = None, one.try_number + one.retries
        self._order(one)
        if one.life is None or one.life.done():
            one.life = outside(self._live(one))

    def _order(self, one: Instance) -> None:
        one.ordered_at = time.monotonic()
        one.ordered.set()
        held, one.deferral = one.deferral, None
        if held and "job_id" not in one.xcoms:
            self._judge.gap("cleared while it submits", one)
        if held is None:
            if one.worker and not one.worker.is_alive:
                self._judge.gap("no worker", one)
            return
        if held.task and self.triggerer.is_alive:
            outside(self._kill_trigger(one, held, held.task))
        else:
            self._judge.gap("no triggerer", one)

    def kill_worker(self, one: Instance) -> None:
        """As by SIGKILL."""
        if one.worker:
            self._judge.note("%s is killed, which runs %s", one.worker.name, one)
            one.worker.die()

    async def restart_triggerer(self, pause: float) -> None:
        """A triggerer ends, in order or not, and another one takes over its triggers."""
        self._judge.note("%s ends", self.triggerer.name)
        for one in self.instances:
            if one.deferral is None and time.monotonic() - one.ordered_at < 2 * ON_KILL:
                self._judge.gap("no triggerer", one)
            if one.deferral is None:
                self._judge.triggerer_ended(one)
        self.triggerer.die()
        await asyncio.sleep(pause)
        self.triggerer = self._process("triggerer")
        self._judge.note("%s begins", self.triggerer.name)
        for one in self.instances:
            if one.deferral:
                self._begin(one, one.deferral)

    # ------------------------------------------------------------------------------------------------- the scheduler

    async def _live(self, one: Instance) -> None:
        while one.state not in ENDS:
            await asyncio.sleep(self._dice.uniform(0.2, 3))
            if not all(before.state in ENDS for before in one.upstream):
                continue
            if one.task and one.task.trigger_rule == "all_success":
                states = {before.state for before in one.upstream}
                if not states <= {"success"}:
                    one.state = "skipped" if states <= {"success", "skipped"} else "upstream_failed"
            if one.state in ENDS:
                return
            one.try_number += 1
            one.ordered.clear()
            one.xcoms.clear()
            one.try_since = time.monotonic()
            self._judge.note("%s: try %s begins", one, one.try_number)
            try:
                one.is_orphaned = False
                await self._try(one)
            except WorkerDied as error:
                one.is_orphaned = True
                self._failed(one, error)
            except asyncio.CancelledError:
                # Something in the provider has let go of a cancellation.
                self._failed(one, RuntimeError("cancelled"))
            except Exception as error:
                self._failed(one, error)
            self._judge.note("%s: try %s has ended: %s", one, one.try_number, one.state)
            if one.state == "up_for_retry":
                await self._ordered_within(one, self._dice.uniform(1, 60))

    async def _ordered_within(self, one: Instance, seconds: float) -> None:
        with contextlib.suppress(asyncio.TimeoutError):
            async with timeout(seconds):
                await one.ordered.wait()

    async def _try(self, one: Instance) -> None:
        """One try, in as many processes as it takes; raises what its worker raises."""
        operator = operator_of(one)
        # Without the guard that it is called by Airflow's own runner.
        method: Any = partial(inspect.unwrap(type(operator).execute), operator, one.get_template_context())
        start = operator.start_trigger_args
        deferral = Deferral(SbatchStartTrigger, start.trigger_kwargs or {}) if start else None
        while True:
            if deferral:
                if not await self._deferred(one, deferral):
                    return
                operator = operator_of(one)
                method = partial(operator.execute_complete, one.get_template_context(), deferral.event)
            try:
                report = await self._worker(one, operator, method)
            except TaskDeferred as raised:
                deferral = Deferral(type(raised.trigger), raised.trigger.serialize()[1])
                continue
            if one.state == "running":
                one.state = "success"
                self._judge.try_ended(one, report, None)
            elif one.state == "restarting":
                one.state = "up_for_retry"
            return

    def _failed(self, one: Instance, error: Exception) -> None:
        if one.state == "restarting":
            # As one that was cleared while it ran it is granted another try.
            one.state = "up_for_retry"
        elif one.state == "running":
            if isinstance(error, AirflowSkipException):
                one.state = "skipped"
            elif isinstance(error, AirflowFailException) or one.try_number > one.max_tries:
                one.state = "failed"
            else:
                one.state = "up_for_retry"
            self._judge.try_ended(one, None, error)

    # ------------------------------------------------------------------------------------------------------- workers

    async def _worker(self, one: Instance, operator: Any, method: Any) -> Any:
        """Run a method in a worker; raises what it raises."""
        one.worker = worker = self._process("worker")
        one.state = "running"
        work = worker.start(_acting(one, greenlet_spawn(method)))
        ordered = outside(one.ordered.wait())
        try:
            await asyncio.wait([work, ordered], return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                # The supervisor learns of it by the answer to a heartbeat.
                await asyncio.wait([work], timeout=self._dice.uniform(0, 5))
            if not work.done():
                operator.on_kill()
                await asyncio.wait([work], timeout=ESCALATION)
            if not work.done():
                self._judge.note("%s is killed, as it does not end", worker.name)
                self._judge.escalated(one)
                worker.die()
            if not worker.is_alive:
                if not one.ordered.is_set():
                    # It takes the scheduler a while to see that there are no heartbeats.
                    await self._ordered_within(one, HEARTBEAT_TIMEOUT)
                raise WorkerDied(worker.name)
            return work.result()
        finally:
            ordered.cancel()
            one.worker = None
            worker.die()

    # -------------------------------------------------------------------------------------------------- the triggerer

    async def _deferred(self, one: Instance, deferral: Deferral) -> bool:
        """Wait in the triggerer; False if the task has ended there, or was ended."""
        if one.ordered.is_set():
            # Marked or cleared as it deferred: the supervisor is told so, and there is no trigger.
            return False
        one.state, one.deferral = "deferred", deferral
        if self.triggerer.is_alive:
            self._begin(one, deferral)
        fired, ordered = outside(deferral.fired.wait()), outside(one.ordered.wait())
        await asyncio.wait([fired, ordered], return_when=asyncio.FIRST_COMPLETED)
        fired.cancel()
        ordered.cancel()
        if one.deferral is not deferral:
            return False
        one.deferral = None
        event = deferral.event
        if isinstance(event, TaskSuccessEvent):
            one.state = "success"
            self._judge.try_ended(one, one.xcoms.get(XCom.XCOM_RETURN_KEY), None)
            return False
        if isinstance(event, TaskFailedEvent):
            self._fail(one, deferral)
            return False
        await asyncio.sleep(self._dice.uniform(0.2, 3))
        if one.ordered.is_set():
            return False
        if isinstance(event, Exception):
            one.state = "running"
            raise event
        deferral.event = event.payload
        return True

    def _fail(self, one: Instance, deferral: Deferral) -> None:
        """End a task as failed, without a worker: Airflow asks for its tries only."""
        one.state = "up_for_retry" if one.retries and one.try_number <= one.max_tries else "failed"
        try:
            operator_of(one).execute_complete(one.get_template_context(), deferral.told)
        except Exception as error:
            if one.state == "up_for_retry" and isinstance(error, AirflowFailException):
                raise AssertionError(f"{one} is retried, and should not be") from error
            self._judge.try_ended(one, None, error)
        else:
            raise AssertionError(f"{one} has failed, and would have succeeded in a worker")

    def _begin(self, one: Instance, deferral: Deferral) -> None:
        trigger = deferral.kind(**deferral.arguments)
        trigger.task_instance = one
        deferral.task = self.triggerer.start(_acting(one, self._run_trigger(one, deferral, trigger)))

    async def _run_trigger(self, one: Instance, deferral: Deferral, trigger: Any) -> None:
        try:
            async for event in trigger.run():
                self._fire(one, deferral, event)
        except asyncio.CancelledError:
            if deferral.is_killed:
                async with timeout(ON_KILL):
                    await trigger.on_kill()
            raise
        except Exception as error:
            self._fire(one, deferral, error)

    def _fire(self, one: Instance, deferral: Deferral, event: Any) -> None:
        process = PROCESS.get()
        if process and process.is_alive and one.deferral is deferral:
            assert not deferral.fired.is_set(), f"the end of {one} is reported twice"
            deferral.event = event
            deferral.fired.set()

    async def _kill_trigger(self, one: Instance, deferral: Deferral, task: asyncio.Task[None]) -> None:
        """The triggerer cancels what it is to kill once in each of its rounds, until that has ended."""
        await asyncio.sleep(self._dice.uniform(0.1, 2))
        deferral.is_killed = True
        while not task.done():
            task.cancel()
            await asyncio.sleep(1)


async def _acting(one: Instance, work: Any) -> Any:
    ACTING.set((one, one.epoch))
    return await work


_OPERATORS: dict[Spec, SbatchOperator] = {}


def operator_of(one: Instance) -> Any:
    """The operator as a process has it that has parsed the DAG file anew."""
    spec = one.spec
    if one.task is None and spec not in _OPERATORS:
        options: dict[str, Any] = {name: value for name, value in (("array", spec.array), ("name", spec.name)) if value}
        _OPERATORS[spec] = made = SbatchOperator(
            task_id=spec.task_id,
            command="train",
            retries=spec.retries,
            deferrable=spec.mode != "worker",
            start_from_trigger=spec.mode == "triggerer",
            end_from_trigger=spec.mode != "resumed",
            poll_interval=spec.poll_interval,
            stream_logs=False,
            **options,
        )
        made.prepare_template()
    original = one.task or _OPERATORS[spec]
    copy = object.__new__(type(original))
    copy.__dict__.update(original.__dict__, retries=one.retries)
    return copy


@cache
def _pipeline(name: str, is_deferrable: bool) -> DAG:
    with DAG(name, schedule=None, default_args={"deferrable": is_deferrable}) as dag, SbatchPipeline("model"):
        prepare, fit, report = (
            SbatchOperator(task_id=task_id, command="train", stream_logs=False, **options)
            for task_id, options in (("prepare", {"retries": 1}), ("fit", {"array": "0-3"}), ("report", {}))
        )
        prepare >> fit >> afterany() >> report
    dag.resolve_template_files()  # type: ignore[no-untyped-call]
    return dag


def pipeline_run(airflow: Airflow, name: str, run_id: str, is_deferrable: bool) -> list[Instance]:
    """The tasks of a run of a DAG with a pipeline, in order."""
    dag = _pipeline(name, is_deferrable)
    made: list[Instance] = []
    for task_id in ("model.submit", "model.prepare", "model.fit", "model.report", "model.cancel_rest"):
        task = dag.get_task(task_id)
        spec = Spec(task_id, mode="deferred" if is_deferrable else "worker", retries=task.retries or 0)
        made.append(Instance(airflow, spec, name, run_id, task=task))
    for one in made:
        one.siblings = made
    return made


class _Log:
    """The log of a task, as a part of the story."""

    def __init__(self, judge: Judge) -> None:
        self._judge = judge

    def info(self, text: str, *values: object) -> None:
        if acting := ACTING.get(None):
            self._judge.note(f"    [{acting[0].name}] {text}", *values)

    warning = error = debug = exception = info


@contextlib.contextmanager
def provider_on(cluster: Cluster, judge: Judge) -> Iterator[None]:
    """The provider, whose connections lead to this cluster, and whose Airflow is the one that its process is of."""

    def settings(hook: SlurmHook) -> Settings:
        process = PROCESS.get()
        assert process
        # Each process has a client of its own.
        return Settings(conn_id=process.name, transport="local")

    async def async_settings(hook: SlurmHook) -> Settings:
        return settings(hook)

    def transport(settings: Settings) -> Way:
        process = PROCESS.get()
        assert process
        return Way(cluster, process)

    def states(dag_id: str, task_ids: list[str], run_ids: list[str]) -> dict[str, dict[str, str | None]]:
        airflow = ACTING.get()[0].airflow
        found: dict[str, str | None] = {}
        for one in airflow.instances:
            if one.dag_id == dag_id and one.run_id in run_ids and one.task_id in task_ids:
                found[one.task_id + (f"_{one.map_index}" if one.map_index >= 0 else "")] = one.state
        return dict.fromkeys(run_ids, found)

    def push(**said: Any) -> None:
        process = PROCESS.get()
        if process and process.is_alive:
            ACTING.get()[0].xcoms[said["key"]] = said["value"]

    def inline(function: Any) -> Any:
        async def call(*args: Any, **kwargs: Any) -> Any:
            await asyncio.sleep(0.02)
            return function(*args, **kwargs)

        return call

    original_end = SbatchTrigger.end

    async def end(trigger: SbatchTrigger, event: dict[str, Any]) -> Any:
        if deferral := ACTING.get()[0].deferral:
            deferral.told = event
        return await original_end(trigger, event)

    class Run(JobRun):
        def __init__(self, client: Any, job: Any, keys: Any, **others: Any) -> None:
            super().__init__(client, job, keys, **others)
            judge.key_used(keys[-1].text, *ACTING.get())

    log = _Log(judge)
    with contextlib.ExitStack() as stack:
        for owner, name, new in (
            (SlurmHook, "async_settings", async_settings),
            (SlurmHook, "_settings", settings),
            (slurm_hook, "open_transport", transport),
            (LoopThread, "run", lambda thread, work: await_only(work)),
            (asyncio, "run", await_only),
            (trigger_base, "sync_to_async", inline),
            (RuntimeTaskInstance, "get_task_states", staticmethod(states)),
            (BaseXCom, "set", staticmethod(push)),
            (sbatch_triggers, "JobRun", Run),
            (SbatchTrigger, "end", end),
            (SlurmTrigger, "log", log),
            *((kind, "log", log) for kind in (SbatchOperator, SubmitAheadOperator, CancelRestOperator)),
        ):
            stack.enter_context(mock.patch.object(owner, name, new))
        yield
