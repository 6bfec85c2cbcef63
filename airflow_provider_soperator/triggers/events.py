"""What happens on a cluster as events of assets: DAGs that are scheduled on such an asset run when it happens.

Each trigger asks through the client that all of a triggerer's tasks share: any number of watchers that ask the same of
a cluster cost it one question in an interval. Airflow's own shared streams are not used for that: they are there from
3.3 on, share with watchers only, and a watcher that comes later, or lags, loses events in them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import Any, TypeVar

from airflow.triggers.base import BaseEventTrigger, TriggerEvent

from airflow_provider_soperator.client.client import AsyncSlurmClient
from airflow_provider_soperator.client.finished_jobs import FinishedJobs
from airflow_provider_soperator.client.queue import Lasting, QueueFilter
from airflow_provider_soperator.hooks.slurm import SlurmHook
from airflow_provider_soperator.slurm.job_report import report_of
from airflow_provider_soperator.slurm.requests import Request
from airflow_provider_soperator.slurm.requests.commands import run_steps_async
from airflow_provider_soperator.slurm.states import JobState
from airflow_provider_soperator.triggers.base import SlurmTrigger
from airflow_provider_soperator.triggers.rounds import rounds

#: Seconds between two looks, unless a watcher says otherwise.
POLL_INTERVAL = 30.0
#: An answer to another watcher is taken up to this part of an interval later. It is less than 1, as each looks afresh.
_AS_GOOD_AS_NEW = 0.9
T = TypeVar("T")


class SlurmEventTrigger(SlurmTrigger, BaseEventTrigger):
    """Watches a cluster for as long as there is an active DAG that is scheduled on its asset."""

    slurm_conn_id: str
    poll_interval: float

    def rounds(self, ask: Callable[[AsyncSlurmClient], Awaitable[T]]) -> AsyncIterator[T]:
        # Airflow starts a watcher that raises once more, a second later and for ever.
        return rounds(self.slurm_conn_id, ask, self.poll_interval, self.log, must_work=False)

    def shared(self, client: AsyncSlurmClient, request: Request[T]) -> Awaitable[T]:
        """What all who watch the cluster in the same interval are answered."""
        return client.ask_shared(request, self.poll_interval * _AS_GOOD_AS_NEW)


class SlurmJobFinishedTrigger(SlurmEventTrigger):
    """Fires once for each job that finishes, with the report that ``SbatchOperator`` returns of its own.

        AssetWatcher(name="trained", trigger=SlurmJobFinishedTrigger(name="train-*", states=["COMPLETED"]))

    Jobs are those that fit all of ``name`` (with ``*`` and ``?``), ``user``, ``account``, ``partition`` and ``qos``,
    and end in one of ``states``; without any of these, all. An array finishes as a whole.

    What ended while nobody watched is found in accounting. Over a restart of the triggerer nothing is lost, but what
    finished in the seconds before may be told twice: its ``job_id`` and ``ended`` are the same then. Airflow keeps a
    memory for watchers from 3.3 on; before that each start is a first one, which looks ``look_back_minutes`` back.
    """

    def __init__(
        self,
        name: str = "",
        states: Sequence[str] = (),
        user: str = "",
        account: str = "",
        partition: str = "",
        qos: str = "",
        look_back_minutes: float = 0,
        slurm_conn_id: str = SlurmHook.default_conn_name,
        poll_interval: float = POLL_INTERVAL,
    ) -> None:
        super().__init__()
        if not_ends := [state for state in states if not JobState.parse(state).is_finished]:
            raise ValueError(f"states: no job ends as {', '.join(not_ends)}")
        self.name = name
        self.states = list(states)
        self.user = user
        self.account = account
        self.partition = partition
        self.qos = qos
        self.look_back_minutes = look_back_minutes
        self.slurm_conn_id = slurm_conn_id
        self.poll_interval = poll_interval

    async def run(self) -> AsyncIterator[TriggerEvent]:
        ends = {JobState.parse(state).base for state in self.states}
        wanted = QueueFilter(
            name=self.name, user=self.user, account=self.account, partition=self.partition, qos=self.qos
        )
        finished = FinishedJobs(wanted, datetime.now(timezone.utc) - timedelta(minutes=self.look_back_minutes))
        memory = Memory(self)
        if known := await memory.read():
            finished.remember(known)
        before: dict[str, Any] | None = None
        trouble = ""
        async for news in self.rounds(lambda client: run_steps_async(finished.round(), partial(self.shared, client))):
            # By now Airflow has stored the events of the round before. Sooner they could be lost, later told again.
            if before:
                await memory.write(before)
            if finished.trouble != trouble:
                trouble = finished.trouble
                self.log.warning("While nobody watched: %s", trouble)
            for status in news:
                if not ends or status.state.base in ends:
                    yield TriggerEvent(report_of(status))  # type: ignore[no-untyped-call]
            before = finished.memory()
            if not news:
                await memory.write(before)


class SlurmQueueLongTrigger(SlurmEventTrigger):
    """Fires when more jobs than so many have been in the queue for some time, and then not before it was shorter again.

        AssetWatcher(name="stuck", trigger=SlurmQueueLongTrigger(more_than=100, for_minutes=15, states=["PENDING"]))

    The conditions are those of ``QueueFilter``; without ``states`` jobs count that wait or run. The event has their
    ``count``, how many are in which of the ``states``, and ``since`` when there are so many.
    """

    def __init__(
        self,
        more_than: int,
        for_minutes: float = 0,
        states: Sequence[str] = (),
        partition: str = "",
        user: str = "",
        account: str = "",
        qos: str = "",
        name: str = "",
        reason: str = "",
        slurm_conn_id: str = SlurmHook.default_conn_name,
        poll_interval: float = POLL_INTERVAL,
    ) -> None:
        super().__init__()
        self.more_than = more_than
        self.for_minutes = for_minutes
        self.states = list(states)
        self.partition = partition
        self.user = user
        self.account = account
        self.qos = qos
        self.name = name
        self.reason = reason
        self.slurm_conn_id = slurm_conn_id
        self.poll_interval = poll_interval

    async def run(self) -> AsyncIterator[TriggerEvent]:
        wanted = QueueFilter(
            states=tuple(self.states),
            partition=self.partition,
            user=self.user,
            account=self.account,
            qos=self.qos,
            name=self.name,
            reason=self.reason,
        )
        episode = Lasting(timedelta(minutes=self.for_minutes))
        memory = Memory(self)
        is_told = bool(await memory.read())
        async for jobs in self.rounds(lambda client: self.shared(client, wanted.request())):
            await memory.write(is_told)
            now = datetime.now(timezone.utc)
            found = wanted.tally(jobs, now)
            is_long = found["count"] > self.more_than
            if episode.look(is_long, now) and episode.since and not is_told:
                yield TriggerEvent(found | {"since": episode.since.isoformat()})  # type: ignore[no-untyped-call]
                is_told = True
            is_told = is_told and is_long


class Memory:
    """What a watcher goes on with in another process; Airflow keeps it beside the asset, from 3.3 on."""

    def __init__(self, trigger: SlurmTrigger) -> None:
        self._store = getattr(trigger, "asset_state_store", None)
        path, arguments = trigger.serialize()
        # How often it looks is not what it looks for.
        told = json.dumps([path, {**arguments, "poll_interval": None}], sort_keys=True)
        self._key = f"soperator-{hashlib.sha256(told.encode()).hexdigest()[:16]}"
        self._log = trigger.log
        self._written: Any = None

    async def read(self) -> Any:
        if self._store is None:
            return None
        try:
            self._written = await self._store.aget(self._key)
        except ValueError:
            self._log.warning("Nothing is remembered over a restart: give each asset a watcher with other arguments")
            self._store = None
        return self._written

    async def write(self, memory: Any) -> None:
        if self._store is not None and memory != self._written:
            await self._store.aset(self._key, memory)
            self._written = memory
