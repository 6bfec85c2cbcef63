"""Requests that many tasks share: what they ask for at the same moment goes to the cluster together."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Generic, TypeVar

from async_timeout import timeout

from airflow_provider_soperator.client.output import Ask
from airflow_provider_soperator.client.pace import Pace, Patience, RetryPolicy, first_of_kind, may_pass
from airflow_provider_soperator.errors import ClusterError
from airflow_provider_soperator.logger import Logger
from airflow_provider_soperator.shared import SharedAnswers
from airflow_provider_soperator.slurm.cluster_records import ClusterConfig
from airflow_provider_soperator.slurm.job_ids import JobId
from airflow_provider_soperator.slurm.job_records import AccountingJob, Job, JobStatus
from airflow_provider_soperator.slurm.requests import Accounting
from airflow_provider_soperator.slurm.requests.accounting import MOST_IDS, name_in_accounting
from airflow_provider_soperator.slurm.states import JobBase
from airflow_provider_soperator.slurm.submission_keys import ELEMENTS

K = TypeVar("K", bound=Hashable)
I = TypeVar("I")  # noqa: E741 - an item
R = TypeVar("R")

#: Seconds that the first item waits for others.
BATCH_PAUSE = 0.05
#: Bytes of the items of a request, unless it has a single one: all of them are in memory at once, some times over.
MOST_BYTES = 16 << 20
#: Seconds for which no further job has come once all are there: a triggerer takes up new tasks once a second.
QUIET = 1.5
#: Seconds that the first waits at most.
LONGEST = 15.0


@dataclass
class _Caller(Generic[R]):
    """A task that waits for its answer."""

    answer: asyncio.Future[R]
    patience: Patience
    began: float = field(default_factory=lambda: time.monotonic())
    failures: int = 0


@dataclass
class _Entry(Generic[I, R]):
    """An item, and who waits for its answer."""

    item: I
    callers: list[_Caller[R]] = field(default_factory=list)


class Batcher(Generic[K, I, R]):
    """Collects items, sends them together, and returns each its own answer.

    One request is under way at a time; what is collected meanwhile is in the next, as is what the request did not
    reach. After a failure it is repeated for those who bear that, or whose ``policy`` has further tries. A request has
    at most ``most`` items, of which those of the same ``kind`` count once, and of a limited ``size``.
    """

    def __init__(
        self,
        send: Callable[[dict[K, I]], Awaitable[Mapping[K, R]]],
        policy: RetryPolicy,
        most: float = math.inf,
        kind: Callable[[K, I], Hashable] = lambda key, item: key,
        size: Callable[[I], int] = lambda item: 0,
    ) -> None:
        self._send, self._policy, self._most, self._kind, self._size = send, policy, most, kind, size
        self._waiting: dict[K, _Entry[I, R]] = {}
        #: The items of the request that is under way, and its end.
        self._sent: dict[K, _Entry[I, R]] = {}
        self._end: asyncio.Future[None] | None = None
        #: The last failure, while it lasts.
        self._failure: Exception | None = None
        self._task: asyncio.Task[None] | None = None

    async def get(self, key: K, item: I, log: Logger | None = None) -> R:
        """The answer to an item. With a log it waits while the cluster is away."""
        caller: _Caller[R] = _Caller(asyncio.get_running_loop().create_future(), Patience(log))
        entry = self._waiting.setdefault(key, _Entry(item))
        entry.callers.append(caller)
        if self._failure:
            caller.patience.bears(self._failure)
        if self._task is None:
            self._task = asyncio.create_task(self._send_all(), name="slurm-batch")
        try:
            return await caller.answer
        except asyncio.CancelledError:
            await self._take_back(key, entry, caller)
            raise

    async def _take_back(self, key: K, entry: _Entry[I, R], caller: _Caller[R]) -> None:
        """Forget a caller. If no other wants the answer, the item is not sent, or not again once it was sent."""
        if caller in entry.callers:
            entry.callers.remove(caller)
        if self._sent.get(key) is entry and self._end:
            # What comes of it is known after that.
            await asyncio.wait([self._end])
        if not entry.callers and self._waiting.get(key) is entry:
            del self._waiting[key]

    async def _send_all(self) -> None:
        pace = Pace()
        try:
            await asyncio.sleep(BATCH_PAUSE)
            while self._waiting:
                if await self._send_some():
                    pace = Pace()
                elif self._waiting:
                    await asyncio.sleep(pace.after_failure())
        finally:
            self._task = self._failure = None
            for caller in self._callers(self._waiting.values()):
                caller.answer.cancel()
            self._waiting.clear()

    async def _send_some(self) -> bool:
        """Send the next request; False if it has failed and is repeated after a pause."""
        self._sent = sent = self._portion()
        self._end = end = asyncio.get_running_loop().create_future()
        try:
            answers = await self._send({key: entry.item for key, entry in sent.items()})
        except Exception as failure:
            return self._fail(failure)
        else:
            self._failure = None
            for key, answer in answers.items():
                for caller in self._callers([self._waiting.pop(key)]):
                    caller.answer.set_result(answer)
            return True
        finally:
            for key, entry in sent.items():
                if not entry.callers:
                    self._waiting.pop(key, None)
            self._sent, self._end = {}, None
            end.set_result(None)

    def _portion(self) -> dict[K, _Entry[I, R]]:
        kinds: dict[Hashable, dict[K, _Entry[I, R]]] = {}
        for key, entry in self._waiting.items():
            kinds.setdefault(self._kind(key, entry.item), {})[key] = entry
        chosen, left = dict[K, _Entry[I, R]](), MOST_BYTES
        for entries in islice(kinds.values(), int(min(self._most, len(kinds)))):
            for key, entry in entries.items():
                left -= self._size(entry.item)
                if chosen and left < 0:
                    return chosen
                chosen[key] = entry
        return chosen

    def _fail(self, failure: Exception) -> bool:
        """Fail the callers of this request who do not bear it; True if they are all of them."""
        now = time.monotonic()
        self._failure = first_of_kind(self._failure, failure)
        is_passing = may_pass(failure)
        for key, entry in list(self._waiting.items()):
            for caller in self._callers([entry]):
                caller.failures += key in self._sent
                is_borne = caller.patience.bears(failure)
                has_more = is_passing and self._policy.pause(max(1, caller.failures), now - caller.began) is not None
                if key in self._sent and not is_borne and not has_more:
                    caller.answer.set_exception(failure)
                    entry.callers.remove(caller)
        return not any(entry.callers for entry in self._sent.values())

    @staticmethod
    def _callers(entries: Iterable[_Entry[I, R]]) -> list[_Caller[R]]:
        return [caller for entry in entries for caller in entry.callers if not caller.answer.done()]


@dataclass
class _Group:
    """Jobs of one kind that wait for others."""

    first: float = field(default_factory=lambda: time.monotonic())
    last: float = 0.0
    count: int = 0
    goes: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def left(self) -> float:
        """Seconds to wait for others, if no further one comes."""
        return min(self.last + QUIET, self.first + LONGEST) - time.monotonic()


class Siblings:
    """Makes each job wait until no other of its kind has come for a while, or no other can."""

    def __init__(self) -> None:
        self._groups: dict[str, _Group] = {}

    async def wait(self, kind: str) -> None:
        group = self._groups.setdefault(kind, _Group())
        group.last, group.count = time.monotonic(), group.count + 1
        try:
            while not group.goes.is_set() and group.count < ELEMENTS and group.left > 0:
                with suppress(asyncio.TimeoutError):
                    async with timeout(group.left):
                        await group.goes.wait()
        except asyncio.CancelledError:
            group.count -= 1
            if not group.count:
                self._end(kind, group)
            raise
        self._end(kind, group)

    def _end(self, kind: str, group: _Group) -> None:
        if self._groups.get(kind) is group:
            del self._groups[kind]
        group.goes.set()


#: Seconds that accounting may take: a task must not wait for one that lags far behind, or does not answer.
RECORDS_WITHIN = 5.0
#: Seconds between two questions: accounting lags by a fraction of one, as a rule.
RECORDS_PAUSE = 0.5
#: A slow answer costs slurmdbd as much; the pause after it is this many times as long.
_OF_EFFORT = 4.0


@dataclass(eq=False)
class _Ended:
    """A job that has ended, and the records of its parts."""

    status: JobStatus
    found: dict[JobId, AccountingJob] = field(default_factory=dict)
    is_done: bool = False

    @property
    def is_asked_for(self) -> bool:
        has_any = any(part.nodelist or _is_unattributed(part) for part in self.status.parts)
        return has_any and not self.status.lost

    def read(self, records: Iterable[AccountingJob]) -> None:
        by_id = {record.id: record for record in records}
        for part in self.status.parts:
            record = by_id.get(part.id)
            # The number may have been another job's before, and the last run after a requeue may not be there yet.
            if record and record.state.base is part.state.base and record.name == name_in_accounting(part.name):
                runs = tuple(run for run in record.earlier_runs if run.name == record.name)
                self.found[part.id] = replace(record, earlier_runs=runs)
        # A part without nodes has no figures, and may have no record.
        self.is_done = all(part.id in self.found or not part.nodelist for part in self.status.parts)

    def completed(self) -> JobStatus:
        parts = tuple(
            replace(part, state=self.found[part.id].state) if part.id in self.found and _is_unattributed(part) else part
            for part in self.status.parts
        )
        return replace(self.status, parts=parts, accounted=tuple(self.found.values()))


class JobAccounts:
    """Asks in rounds, each for all jobs that wait then. Without accounting, or while it fails, none waits."""

    def __init__(self, ask: Ask, config: Callable[[], Awaitable[ClusterConfig]]) -> None:
        self._ask, self._config = ask, config
        self._waiting: list[_Ended] = []
        self._rounds = SharedAnswers()
        self._pace = Pace()
        #: When the next question may be asked, and until when none is answered.
        self._due = self._silent_until = 0.0

    async def complete(self, status: JobStatus) -> JobStatus:
        """The status of a job that is over, with its records in accounting, and the users who cancelled parts of it."""
        ended = _Ended(status)
        if not ended.is_asked_for or time.monotonic() < self._silent_until:
            return status
        self._waiting.append(ended)
        try:
            async with timeout(RECORDS_WITHIN):
                while not ended.is_done:
                    await self._rounds.get(None, self._round, max_age=0)
                # It was asked for when the job began, and is asked for anew every few minutes at most.
                runs = [run for record in ended.found.values() for run in (*record.earlier_runs, record)]
                if runs and not any(run.gpus for run in runs) and not (await self._config()).counts_gpus:
                    ended.found = {part: replace(record, counts_gpus=False) for part, record in ended.found.items()}
        except Exception:
            # No failure of accounting, nor of its reading, is a part of the job's end.
            pass
        finally:
            self._waiting.remove(ended)
        return ended.completed()

    async def _round(self) -> None:
        await asyncio.sleep(max(BATCH_PAUSE, self._due - time.monotonic()))
        asked = list(self._waiting)
        ids = tuple(dict.fromkeys(one.status.id.whole for one in asked))
        started = time.monotonic()
        records: dict[JobId, list[AccountingJob]] = {}
        try:
            for start in range(0, len(ids), MOST_IDS):
                for record in await self._ask(Accounting(ids=ids[start : start + MOST_IDS], steps=True)):
                    records.setdefault(record.id.whole, []).append(record)
        except ClusterError:
            self._silent_until = time.monotonic() + self._pace.after_failure()
            raise
        self._pace.after_answer()
        now = time.monotonic()
        self._due = now + max(RECORDS_PAUSE, _OF_EFFORT * (now - started))
        for one in asked:
            one.read(records.get(one.status.id.whole, ()))


def _is_unattributed(part: Job) -> bool:
    return part.state.base is JobBase.CANCELLED and part.state.cancelled_by is None
