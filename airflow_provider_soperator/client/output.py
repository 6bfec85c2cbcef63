"""The output of jobs: many growing files are read in one request, and bytes become lines for a log."""

from __future__ import annotations

import asyncio
import codecs
import re
import time
from collections.abc import Awaitable, Callable
from typing import Any

from airflow_provider_soperator.client.pace import Pace
from airflow_provider_soperator.errors import ClusterError
from airflow_provider_soperator.slurm.files import Piece, ReadPieces
from airflow_provider_soperator.slurm.requests import Request
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
    """A file that is followed from its start; ``heard`` is set when there are new bytes.

    Of a file that had a ``size`` before its job began, the start is behind that until it begins anew.
    """

    def __init__(self, tails: Tails, path: str, heard: asyncio.Event, size: int = 0) -> None:
        self.path, self.offset = path, size
        #: The job has run: if its file is as long as one of an earlier job was, it has come to that.
        self.has_run = False
        self._start = size
        #: Why the file cannot be read, if it never can be.
        self.trouble = ""
        #: Bytes that were there at the last read and have not been read; None if the file was never there.
        self.left: int | None = None
        #: The last read found the file shorter than before.
        self._is_shorter = False
        #: How often the file has begun anew, as Slurm tells or as is seen here; and that it has yet to be seen.
        self._restarts, self._is_anew = -1 if size else 0, False
        self._tails, self._heard = tails, heard
        self._unread, self._console = bytearray(), Console()
        self._is_at_line_end = True

    def lines(self) -> list[str]:
        """New lines, if there are any."""
        data = bytes(self._unread)
        self._unread.clear()
        return self._console.feed(data)

    async def rest(self, most: int) -> list[str]:
        """The lines to the end of the file, of up to ``most`` more bytes, and a note about what is not among them."""
        self.close()
        if self._is_anew and (self.has_run or not self._start):
            self._start_again()
        note, most = self.trouble, most + len(self._unread)
        try:
            while not self.trouble and len(self._unread) < most:
                before = self.offset
                await self._tails.look([self], min(MOST_OF_ONE, most - len(self._unread)), cached=False)
                if self.offset == before:
                    break
            if self.left is None:
                note = note or "there is no such file on the login node, which sees only the jail"
            elif self.left and len(self._unread) < most:
                note = note or f"{self.left} more bytes, which cannot be read"
            elif self.left:
                note = note or f"{self.left} more bytes"
        except ClusterError as error:
            # Missing output does not change how the job ended.
            note = f"the rest: {error}"
        lines = self.lines() + self._console.end()
        return [*lines, f"(Not shown of {self.path}: {note})"] if note else lines

    @property
    def start(self) -> int:
        """Where in the file that of the job begins."""
        return 0 if self._is_anew and self.has_run else self._start

    def close(self) -> None:
        """Stop following."""
        self._tails.remove(self)

    def feed(self, data: bytes, size: int, *, cached: bool = False) -> None:
        was_shorter, self._is_shorter = self._is_shorter, size < self.offset
        # One login node may still have the size that another has found grown.
        is_truncated = self._is_shorter and (was_shorter or not size or not cached)
        if is_truncated or (self._is_anew and size != self.offset):
            self._start_again()
            data = b""
        if data:
            self._unread += data
            self._is_at_line_end = data.endswith(b"\n")
            self.offset += len(data)
            self._heard.set()
        self.left = max(0, size - self.offset)

    def requeued(self, restarts: int) -> None:
        """The job runs, perhaps once more, and truncates the file, which may have grown beyond its old size by then."""
        if restarts > self._restarts:
            self._restarts, self._is_anew = restarts, self.offset > 0

    def _start_again(self) -> None:
        # What is seen here before Slurm tells it counts once.
        self._restarts += not self._is_anew
        self.offset = self._start = 0
        self._is_shorter = self._is_anew = False
        # It may have been truncated in the middle of a line.
        self._unread += b"" if self._is_at_line_end else b"\n"
        self._is_at_line_end = True


class Tails:
    """Reads the files in a task of the loop, which ends when none is followed."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._tails: dict[int, Tail] = {}
        self._pace = Pace(shortest=INTERVAL)
        self._task: asyncio.Task[None] | None = None

    def follow(self, path: str, heard: asyncio.Event, size: int = 0) -> Tail:
        tail = Tail(self, path, heard, size)
        self._tails[id(tail)] = tail
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._poll(), name="slurm-tails")
        return tail

    def remove(self, tail: Tail) -> None:
        self._tails.pop(id(tail), None)

    async def look(self, tails: list[Tail], most: int, *, cached: bool = True) -> None:
        """Read the new bytes of each file, up to ``most``."""
        pieces = tuple(Piece(tail.path, tail.offset, most) for tail in tails)
        for tail, asked, found in zip(tails, pieces, await self._ask(ReadPieces(pieces, cached)), strict=True):
            # Another read of the same file may have been under way; and a file that is not seen for once has all.
            if asked.offset == tail.offset and found.size is not None:
                tail.feed(found.data, found.size, cached=cached)

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
#: Characters of an unfinished line that are kept until its end.
_LONGEST_OPEN = 64 << 10

#: Escape sequences, but for colours, which a log can show.
_ESCAPES = re.compile(r"\x1b(?:\[[0-9;?]*[@-ln-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[()*+][0-9A-Za-z]|[=>78cDEHMNOZ])")
#: Characters that do not print, but for tabs and escapes.
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1a\x1c-\x1f\x7f]")
#: Marks of groups: Airflow's page drops an event that has one anywhere in it, or what stands before it.
_MARKS = re.compile("::(?=(?:end)?group::)")


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
        if len(self._open) > _LONGEST_OPEN:
            lines += self._show(self._open)
            self._open = ""
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
    text = _MARKS.sub(": :", _UNPRINTABLE.sub("", _ESCAPES.sub("", text)))
    return text if len(text) <= LONGEST_LINE else f"{text[:LONGEST_LINE]} … ({len(text) - LONGEST_LINE} more)"
