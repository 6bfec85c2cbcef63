"""Long-lived shells on one connection, each of which runs many commands.

A shell reads commands from its standard input. After each it prints a mark with a random number on both of its output
streams, so that a command may print any bytes. A transport opens the pipe to a new shell.
"""

from __future__ import annotations

import asyncio
import base64
import re
import secrets
import shlex
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Protocol, TypeVar

from async_timeout import timeout

from airflow_provider_soperator.slurm.errors import command_name
from airflow_provider_soperator.slurm.requests import Command, CommandOutput, Request
from airflow_provider_soperator.slurm.requests.commands import TIMEOUT
from airflow_provider_soperator.transports import read_apart
from airflow_provider_soperator.transports.transport_errors import (
    CommandTimedOut,
    ConnectionLost,
    ConnectRefused,
    OutputTooLarge,
    TransportError,
)

#: Started instead of the login shell, whose start-up files cost more than most commands.
SHELL = "exec /bin/sh"

#: Seconds between SIGTERM and SIGKILL for a command that has timed out.
GRACE = 2

# The first input of that shell. It becomes two processes: a plain shell, which runs the commands, and its child, a
# watchdog in bash, which reads each command's limit from descriptor 9, and an empty line at its end. `timeout` before
# each command would do the same with one more process each. The watchdog has no timer between commands, and ends with
# the shell.
_START = f"""\
watch() {{
    exec >/dev/null 2>&1
    # All children of the shell are the command's. $$ is the shell here, too, and $BASHPID the watchdog.
    below() {{
        local child
        for child in $(cat "/proc/$1/task/"*/children); do
            [ "$child" = "$BASHPID" ] || {{ found+=("$child"); below "$child"; }}
        done
    }}
    end() {{
        found=()
        below $$
        # Something to read: it has just ended by itself, and what was found may be the next one.
        read -r -t 0 || kill "-$1" "${{found[@]}}"
    }}
    while read -r limit; do
        [ -n "$limit" ] || continue
        read -r -t "$limit" && continue
        end TERM
        read -r -t {GRACE} && continue
        end KILL
    done
}}
exec 9> >(watch)
"""

# Start-up files may set what restricts what Slurm's commands answer or do, such as SQUEUE_PARTITION and SCANCEL_STATE,
# and after how many idle seconds a shell ends.
_NO_LIMITS = 'unset -v TMOUT "${!SQUEUE_@}" "${!SACCT_@}" "${!SINFO_@}" "${!SCANCEL_@}" "${!SCONTROL_@}"\n'

# What a login has, and jobs with it: an exec into a Pod begins in the root, and this machine where Airflow was started.
_LOGIN = """\
: "${USER:=$(id -un)}" "${LOGNAME:=$USER}"
HOME=${HOME:-~}
export HOME USER LOGNAME
builtin cd 2>/dev/null
"""

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def new_mark() -> str:
    return f"mark-{secrets.token_hex(16)}"


def handshake(mark: str) -> bytes:
    """The first input of a shell; its output before the mark is a greeting.

    Commands must wait for the mark: the first shell would swallow input for the second.
    """
    program = f"{_NO_LIMITS}{_START}{_LOGIN}{_marks(mark, '0')}\nexec /bin/sh"
    return f"exec bash --norc -c {shlex.quote(program)}\n".encode()


def encode(command: Command, mark: str) -> bytes:
    """The input that makes the shell run a command with its standard input, and print the marks.

    >>> encode(Command(("squeue", "--name", "a b"), timeout=60), "m").decode().split("; status")[0]
    "{ echo 60.000 >&9; (exec squeue --name 'a b') 9>&- </dev/null"
    """
    settings = [f"{_name(name)}={_word(value)}" for name, value in command.environment.items()]
    export = f"export {' '.join(settings)}; " if settings else ""
    # A word after `exec` is never a builtin of the shell.
    run = f"({export}exec {' '.join(map(_word, command.argv))}) 9>&-"
    before, after = f"echo {command.timeout:.3f} >&9", f"status=$?; echo >&9; {_marks(mark, '$status')}"
    # Braces make it run as a whole or not at all: if the connection breaks, the shell may get half of it.
    if not command.stdin:
        return f"{{ {before}; {run} </dev/null; {after}; }}\n".encode()
    # Base64, as shells do not pass every byte; a quoted here-document, as nothing in it is expanded.
    body = base64.encodebytes(command.stdin).decode()
    return f"{{ {before}; base64 -d <<'{mark}' 9>&- | {run}; {after}\n{body}{mark}\n}}\n".encode()


def _marks(mark: str, status: str) -> str:
    return f"printf '\\n{mark} %d\\n' {status}; printf '\\n{mark} 0\\n' >&2"


def _word(word: str) -> str:
    if "\0" in word:
        raise ValueError("a command must not contain NUL characters")
    return shlex.quote(word)


def _name(name: str) -> str:
    if not _VARIABLE.fullmatch(name):
        raise ValueError(f"{name!r} is not the name of an environment variable")
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
            # The mark may be split between two reads.
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


class Exchange:
    """A running command: takes the bytes of both streams as they come, and detects its end."""

    def __init__(self, mark: str, command: Command) -> None:
        self.mark, self.command = mark, command
        self._streams = {"stdout": _Stream(mark), "stderr": _Stream(mark)}

    def feed(self, stream: str, data: bytes) -> None:
        self._streams[stream].feed(data)
        received = sum(map(len, self._streams.values()))
        if received > self.command.max_output:
            raise OutputTooLarge(command_name(self.command.argv), self.command.max_output)

    @property
    def complete(self) -> bool:
        return all(stream.length is not None for stream in self._streams.values())

    def result(self, elapsed: float) -> CommandOutput:
        out, err = self._streams["stdout"], self._streams["stderr"]
        # A command that was terminated may end with any status; one that succeeded nevertheless has succeeded.
        if out.status and elapsed >= self.command.timeout:
            raise CommandTimedOut(command_name(self.command.argv), self.command.timeout)
        return CommandOutput(out.status, out.output(), err.output())

    def last_words(self) -> str:
        """The end of what has come so far, in brackets."""
        said = b" ".join(stream.output()[-300:] for stream in self._streams.values())
        words = " ".join(said.decode(errors="replace").split())
        return f" ({words})" if words else ""


T = TypeVar("T")

#: Shells at once on one connection. A stock sshd allows ten sessions, and others may share the connection.
MAX_SHELLS = 4

#: Seconds a new shell has to print its first mark. The start-up files of a login shell may load much from a slow disk.
HANDSHAKE = 60.0

#: Seconds beyond a command's own limit after which the connection is given up.
SLACK = 5.0

#: Seconds for which no further shell is requested after one was refused.
REFUSED_FOR = 600.0


class Pipe(Protocol):
    """The three streams of one remote shell. Callers set the time limits."""

    async def send(self, data: bytes) -> None: ...

    async def receive(self) -> tuple[str, bytes] | None:
        """Bytes of ``stdout`` or ``stderr``; None at the end."""

    async def close(self) -> None: ...


#: Remedy for a shell that does not start.
_NO_SHELL = "see whether /bin/sh and bash run there"


def _lost(exchange: Exchange) -> ConnectionLost:
    command = exchange.command
    if command is _GREETING:
        # No command was running yet, but the connection may just have broken.
        return ConnectionLost(f"the login shell exited at once{exchange.last_words()}", _NO_SHELL)
    return ConnectionLost(f"the connection broke while {command_name(command.argv)} was under way", "it is reopened")


class _Silent(ConnectionLost):
    """There is no mark, though the watchdog had to end the command by now, so the connection counts as dead."""

    def __init__(self, command: Command, seconds: float) -> None:
        super().__init__(
            f"the connection was silent for {seconds:g} s while {command_name(command.argv)} was under way",
            "it is reopened; see whether the login node or a file system there hangs",
        )


class NotSent(ConnectRefused):
    """The connection broke or expired while the command waited for a shell: another connection may run it."""


class Shells:
    """The shells of one connection: a command takes an idle one, or waits for one, or for a new one.

    Shells are opened one at a time, as each costs the start-up files of the login shell. If another one is refused,
    those that are open serve all commands. A long command leaves an open shell to the others.
    """

    def __init__(self, open_pipe: Callable[[], Awaitable[Pipe]]) -> None:
        self._open_pipe = open_pipe
        self._limit = MAX_SHELLS
        self._idle: list[Pipe] = []
        # All shells, and those that run long commands.
        self._open = self._long = 0
        self._opening: asyncio.Task[None] | None = None
        self._closed = self._broke = False
        # Long commands have a queue of their own. Only the first of each wait for changes, which wake all who wait.
        self._queues = (asyncio.Semaphore(MAX_SHELLS), asyncio.Semaphore(MAX_SHELLS))
        self._waiting: list[asyncio.Future[None]] = []

    async def ask(self, request: Request[T]) -> T:
        output = await self.run(request.command())
        return await read_apart(len(output.stdout), partial(request.read, output))

    async def run(self, command: Command) -> CommandOutput:
        is_long = command.timeout > TIMEOUT
        async with self._queues[is_long]:
            pipe = await self._take(is_long)
            self._long += is_long
            try:
                output = await self._exchange(pipe, command, encode, command.timeout + GRACE + SLACK)
                await self._put(pipe)
            except BaseException as error:
                self._broke |= isinstance(error, ConnectionLost)
                self._open -= 1
                await pipe.close()
                raise
            finally:
                self._long -= is_long
                self._tell()
            return output

    async def close(self) -> None:
        self._closed = True
        if self._opening:
            self._opening.cancel()
            await asyncio.wait([self._opening])
        self._tell()
        idle, self._idle = self._idle, []
        for pipe in idle:
            await pipe.close()

    async def _take(self, is_long: bool) -> Pipe:
        while not self._closed:
            if self._idle and not (is_long and self._long >= max(1, self._open - 1)):
                return self._idle.pop()
            if self._open < self._limit and not self._opening:
                self._opening = asyncio.create_task(self._add(), name="slurm-shell")
            waiter = asyncio.get_running_loop().create_future()
            self._waiting.append(waiter)
            await waiter
        raise (NotSent if self._broke else ConnectRefused)("the connection was closed", "it is reopened")

    async def _put(self, pipe: Pipe) -> None:
        if self._closed:
            await pipe.close()
        else:
            self._idle.append(pipe)

    async def _add(self) -> None:
        """Open another shell, or find out that there can be no more."""
        error: Exception | None = None
        try:
            pipe = await self._start()
            self._open += 1
            await self._put(pipe)
        except Exception as failure:
            known = isinstance(failure, TransportError)
            error = failure if known else ConnectRefused(f"no shell can be started ({failure})", "it is tried again")
            if isinstance(error, NotSent):
                self._broke = True
            elif self._open and isinstance(error, ConnectRefused):
                self._limit, error = self._open, None
                asyncio.get_running_loop().call_later(REFUSED_FOR, self._forget_refusal)
        finally:
            self._opening = None
            self._tell(error)

    def _tell(self, error: Exception | None = None) -> None:
        """Let those who wait for a shell look again. The first of them gets the error."""
        waiting, self._waiting = [one for one in self._waiting if not one.done()], []
        if error and waiting:
            waiting.pop(0).set_exception(error)
        for waiter in waiting:
            waiter.set_result(None)

    def _forget_refusal(self) -> None:
        self._limit = MAX_SHELLS

    async def _start(self) -> Pipe:
        pipe = await self._open_pipe()
        try:
            await self._exchange(pipe, _GREETING, lambda _, mark: handshake(mark), HANDSHAKE)
        except BaseException as error:
            await pipe.close()
            if isinstance(error, _Silent):
                # The connection has just opened the pipe, so it is not dead.
                raise ConnectRefused(
                    f"the login shell does not start within {HANDSHAKE:g} s", f"see its start-up files, and {_NO_SHELL}"
                ) from error
            raise
        return pipe

    @staticmethod
    async def _exchange(
        pipe: Pipe, command: Command, encoder: Callable[[Command, str], bytes], limit: float
    ) -> CommandOutput:
        exchange = Exchange(new_mark(), command)
        data, started = encoder(command, exchange.mark), time.monotonic()
        try:
            async with timeout(limit):
                try:
                    await pipe.send(data)
                except OSError:
                    # A login shell that has ended already may have said why.
                    if command is not _GREETING:
                        raise
                while not exchange.complete:
                    received = await pipe.receive()
                    if received is None:
                        raise _lost(exchange)
                    exchange.feed(*received)
        except asyncio.TimeoutError as error:
            raise _Silent(command, limit) from error
        except TransportError:
            raise
        except Exception as error:
            # Libraries have errors of their own, and a process may start no further thread.
            raise _lost(exchange) from error
        return exchange.result(time.monotonic() - started)


#: Stands for the handshake, which runs no command.
_GREETING = Command(("/bin/sh",), timeout=HANDSHAKE)
