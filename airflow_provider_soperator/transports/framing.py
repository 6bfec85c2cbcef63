"""Many commands over one long-lived shell: how each is sent, and how its output is told from what comes after it.

The shell reads commands from its standard input. After each it prints a mark on both of its output streams, made of
a number that nobody can guess, so that a command may print any bytes at all. Pure: bytes in, bytes out.
"""

from __future__ import annotations

import base64
import re
import secrets
import shlex
from dataclasses import dataclass, field

from airflow_provider_soperator.slurm.requests import Command, CommandOutput
from airflow_provider_soperator.transports.errors import CommandTimedOut, OutputTooLarge

#: What is started at the other end. Not the login shell: its start-up files cost more than most commands.
SHELL = "exec /bin/sh"

#: Seconds a command has to end by itself once its time is over.
GRACE = 2

#: Statuses with which `timeout` says that it had to end a command, by SIGTERM or by SIGKILL.
_TIMED_OUT = (124, 137)

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def new_mark() -> str:
    return f"mark-{secrets.token_hex(16)}"


def handshake(mark: str) -> bytes:
    """The first thing that a shell is told; all that it prints before the mark is somebody's greeting."""
    return f"{_marks(mark, '0')}\n".encode()


def encode(command: Command, mark: str) -> bytes:
    """The bytes that make the shell run a command, feed it its standard input, and print the marks.

    >>> encode(Command(("squeue", "--name", "it's")), "m").decode().splitlines()[0].split(";")[0]
    "timeout -k 2 60 squeue --name 'it'\\"'\\"'s' </dev/null"
    """
    words = [_word(word) for word in command.argv]
    settings = [f"{_name(name)}={_word(value)}" for name, value in command.environment.items()]
    limit = ["timeout", "-k", str(GRACE), f"{command.timeout:g}"]
    line = " ".join([*settings, *limit, *words])
    if not command.stdin:
        return f"{line} </dev/null; {_marks(mark, '$?')}\n".encode()
    # Base64, as no shell passes on every byte; a quoted here-document, as nothing in it is expanded.
    body = base64.encodebytes(command.stdin).decode()
    return f"base64 -d <<'{mark}' | {line}; {_marks(mark, '$?')}\n{body}{mark}\n".encode()


def _marks(mark: str, status: str) -> str:
    return f"printf '\\n{mark} %d\\n' {status}; printf '\\n{mark} 0\\n' >&2"


def _word(word: str) -> str:
    if "\0" in word:
        raise ValueError("a command cannot be given a NUL byte")
    return shlex.quote(word)


def _name(name: str) -> str:
    if not _VARIABLE.fullmatch(name):
        raise ValueError(f"{name!r} cannot name an environment variable")
    return name


class _Stream:
    """One output stream, up to its mark."""

    def __init__(self, mark: str) -> None:
        self._start = f"\n{mark} ".encode()
        self._data = bytearray()
        self._searched = 0
        self.length: int | None = None
        self.status = 0

    def feed(self, data: bytes) -> None:
        self._data += data
        if self.length is not None:
            return
        found = self._data.find(self._start, self._searched)
        if found < 0:
            # The mark may be cut in two by the end of what has come so far.
            self._searched = max(0, len(self._data) - len(self._start))
            return
        self._searched = found
        end = self._data.find(b"\n", found + len(self._start))
        if end >= 0:
            self.length = found
            self.status = int(self._data[found + len(self._start) : end])

    def __len__(self) -> int:
        return len(self._data)

    def output(self) -> bytes:
        return bytes(self._data[: self.length])


@dataclass
class Exchange:
    """One command under way: takes the bytes of both streams as they come, and knows when it is over."""

    mark: str
    command: Command
    _streams: dict[str, _Stream] = field(init=False)

    def __post_init__(self) -> None:
        self._streams = {"stdout": _Stream(self.mark), "stderr": _Stream(self.mark)}

    def feed(self, stream: str, data: bytes) -> None:
        self._streams[stream].feed(data)
        received = sum(map(len, self._streams.values()))
        if received > self.command.max_output:
            raise OutputTooLarge(self.command.argv[0], self.command.max_output)

    @property
    def complete(self) -> bool:
        return all(stream.length is not None for stream in self._streams.values())

    def result(self, elapsed: float) -> CommandOutput:
        out, err = self._streams["stdout"], self._streams["stderr"]
        if out.status in _TIMED_OUT and elapsed >= self.command.timeout:
            raise CommandTimedOut(self.command.argv[0], self.command.timeout)
        return CommandOutput(out.status, out.output(), err.output())
