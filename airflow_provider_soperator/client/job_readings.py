"""What is read of jobs beside their states, for all in one request: output as lines for a log, and accounting."""

from __future__ import annotations

import asyncio
import codecs
import re
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from async_timeout import timeout

from airflow_provider_soperator.client.batcher import Pace
from airflow_provider_soperator.client.poller import GATHERING
from airflow_provider_soperator.errors import ClusterError
from airflow_provider_soperator.slurm.files import Piece, ReadPieces
from airflow_provider_soperator.slurm.job_ids import JobId
from airflow_provider_soperator.slurm.job_records import AccountingJob, Job, JobStatus
from airflow_provider_soperator.slurm.requests import Accounting, Request
from airflow_provider_soperator.slurm.requests.accounting import MOST_IDS, name_in_accounting
from airflow_provider_soperator.slurm.states import JobBase
from airflow_provider_soperator.transports.transport_errors import NotSupported

#: Sends a request.
Ask = Callable[[Request[Any]], Awaitable[Any]]

#: Seconds between two reads.
INTERVAL = 3.0
#: Files in one request.
MOST_FILES = 500
#: Bytes per read, of one file and of all.
MOST_OF_ONE = 256 << 10
MOST_OF_ALL = 8 << 20


class Tail:
    """A file that is followed from its start; ``heard`` is set when there are new bytes."""

    def __init__(self, tails: Tails, path: str, heard: asyncio.Event) -> None:
        self.path, self.offset = path, 0
        #: Why the file cannot be read, if it never can be.
        self.trouble = ""
        #: Bytes that were there at the last read and have not been read.
        self.left = 0
        self._tails, self._heard = tails, heard
        self._unread = bytearray()

    def take(self) -> bytes:
        """New bytes, if there are any."""
        data = bytes(self._unread)
        self._unread.clear()
        return data

    async def rest(self, most: int) -> bytes:
        """Read to the end of the file, up to ``most`` bytes."""
        self.close()
        while len(self._unread) < most:
            before = self.offset
            await self._tails.look([self], min(MOST_OF_ONE, most - len(self._unread)))
            if self.offset == before:
                break
        return self.take()

    def close(self) -> None:
        """Stop following."""
        self._tails.remove(self)

    def feed(self, data: bytes, size: int) -> None:
        if size < self.offset:
            # A requeued job truncates its file.
            self.offset = 0
        if data:
            self._unread += data
            self.offset += len(data)
            self._heard.set()
        self.left = max(0, size - self.offset)


class Tails:
    """Reads the files in a task of the loop, which ends when none is followed."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._tails: dict[int, Tail] = {}
        self._pace = Pace(shortest=INTERVAL)
        self._task: asyncio.Task[None] | None = None

    def follow(self, path: str, heard: asyncio.Event) -> Tail:
        tail = Tail(self, path, heard)
        self._tails[id(tail)] = tail
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._poll(), name="slurm-tails")
        return tail

    def remove(self, tail: Tail) -> None:
        self._tails.pop(id(tail), None)

    async def look(self, tails: list[Tail], most: int) -> None:
        """Read the new bytes of each file, up to ``most``."""
        pieces = tuple(Piece(tail.path, tail.offset, most) for tail in tails)
        for tail, asked, found in zip(tails, pieces, await self._ask(ReadPieces(pieces)), strict=True):
            # Another read of the same file may have been under way.
            if asked.offset == tail.offset:
                tail.feed(found.data, found.size or 0)

    async def _poll(self) -> None:
        try:
            while self._tails:
                await asyncio.sleep(await self._round())
        finally:
            self._task = None

    async def _round(self) -> float:
        tails, started = list(self._tails.values()), time.monotonic()
        most = min(MOST_OF_ONE, MOST_OF_ALL // len(tails))
        try:
            for start in range(0, len(tails), MOST_FILES):
                await self.look(tails[start : start + MOST_FILES], most)
        except NotSupported as error:
            for tail in tails:
                tail.trouble = str(error)
                self.remove(tail)
        except ClusterError:
            # The poller reports it to the watches of the job.
            return self._pace.after_failure()
        return self._pace.after_answer(longest=INTERVAL, effort=time.monotonic() - started)


#: Characters of a line that are shown.
LONGEST_LINE = 4000

#: Escape sequences, but for colours, which a log can show.
_ESCAPES = re.compile(r"\x1b(?:\[[0-9;?]*[@-ln-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[()*+][0-9A-Za-z]|[=>78cDEHMNOZ])")
#: Characters that do not print, but for tabs and escapes.
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1a\x1c-\x1f\x7f]")


class Console:
    """Turns bytes into whole lines for a log.

    A line that is overwritten again and again, such as a progress bar, is shown once per read, in its newest form.

    >>> console = Console()
    >>> console.feed(b"loss 0.1\\nstep 1\\rstep 2\\rstep"), console.feed(b" 3\\r"), console.end()
    (['loss 0.1', 'step 2'], ['step 3'], [])
    """

    def __init__(self) -> None:
        self._decode = codecs.getincrementaldecoder("utf-8")(errors="replace").decode
        #: The unfinished line, since its last carriage return.
        self._open = ""
        #: The text that has been shown of it; None if none.
        self._shown: str | None = None

    def feed(self, data: bytes) -> list[str]:
        *whole, self._open = (self._open + self._decode(data)).split("\n")
        lines: list[str] = []
        for line in whole:
            lines += self._show(line)
            self._shown = None
        overwritten, mark, rest = self._open.rpartition("\r")
        if mark:
            self._open = rest
            if overwritten.strip("\r"):
                lines += self._show(overwritten)
        return lines

    def end(self) -> list[str]:
        """The last line, if nothing has ended it."""
        left, self._open = self._open + self._decode(b"", True), ""
        return self._show(left) if left else []

    def _show(self, line: str) -> list[str]:
        text = _readable(line.rstrip("\r").rpartition("\r")[2])
        if self._shown is not None and text in (self._shown, ""):
            return []
        self._shown = text
        return [text]


def _readable(text: str) -> str:
    text = _UNPRINTABLE.sub("", _ESCAPES.sub("", text))
    return text if len(text) <= LONGEST_LINE else f"{text[:LONGEST_LINE]} … ({len(text) - LONGEST_LINE} more)"


#: Seconds that accounting may take: a task must not wait for one that lags far behind, or does not answer.
PATIENCE = 5.0
#: Seconds between two questions: accounting lags by a fraction of one, as a rule.
PAUSE = 0.5
#: A slow answer costs slurmdbd as much; the pause after it is this many times as long.
_OF_EFFORT = 4.0


@dataclass(eq=False)
class _Ended:
    """A job that has ended, and the records of its parts."""

    status: JobStatus
    found: dict[JobId, AccountingJob] = field(default_factory=dict)
    done: asyncio.Event = field(default_factory=asyncio.Event)

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
        if all(part.id in self.found or not part.nodelist for part in self.status.parts):
            self.done.set()

    def completed(self) -> JobStatus:
        parts = tuple(
            replace(part, state=self.found[part.id].state) if part.id in self.found and _is_unattributed(part) else part
            for part in self.status.parts
        )
        return replace(self.status, parts=parts, accounted=tuple(self.found.values()))


class JobAccounts:
    """Asks in a task of the loop, which ends when no job waits. Without accounting, or while it fails, none does."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._waiting: list[_Ended] = []
        self._pace = Pace()
        #: When the next question may be asked, and until when none is answered.
        self._due = self._silent_until = 0.0
        self._task: asyncio.Task[None] | None = None

    async def complete(self, status: JobStatus) -> JobStatus:
        """The status of a job that is over, with its records in accounting, and the users who cancelled parts of it."""
        ended = _Ended(status)
        if not ended.is_asked_for or time.monotonic() < self._silent_until:
            return status
        self._waiting.append(ended)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._poll(), name="slurm-accounts")
        try:
            async with timeout(PATIENCE):
                await ended.done.wait()
        except asyncio.TimeoutError:
            pass
        finally:
            self._waiting.remove(ended)
        return ended.completed()

    async def _poll(self) -> None:
        try:
            while self._unanswered():
                await asyncio.sleep(max(GATHERING, self._due - time.monotonic()))
                await self._round(self._unanswered())
        finally:
            self._task = None

    def _unanswered(self) -> list[_Ended]:
        return [ended for ended in self._waiting if not ended.done.is_set()]

    async def _round(self, ended: list[_Ended]) -> None:
        ids = tuple(dict.fromkeys(one.status.id.whole for one in ended))
        started = time.monotonic()
        records: dict[JobId, list[AccountingJob]] = {}
        try:
            for start in range(0, len(ids), MOST_IDS):
                for record in await self._ask(Accounting(ids=ids[start : start + MOST_IDS], steps=True)):
                    records.setdefault(record.id.whole, []).append(record)
        except ClusterError:
            # It is no part of a job's end.
            self._silent_until = time.monotonic() + self._pace.after_failure()
            for one in ended:
                one.done.set()
            return
        self._pace.after_answer()
        now = time.monotonic()
        self._due = now + max(PAUSE, _OF_EFFORT * (now - started))
        for one in ended:
            one.read(records.get(one.status.id.whole, ()))


def _is_unattributed(part: Job) -> bool:
    return part.state.base is JobBase.CANCELLED and part.state.cancelled_by is None
