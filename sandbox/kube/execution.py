"""Commands in pods: starts the process, joins it to the client's channels, and says how it ended."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import pty
import signal
import struct
import termios
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol

from async_timeout import timeout

from sandbox.kube import errors
from sandbox.kube.objects import Object, dig

STDIN, STDOUT, STDERR, ERROR, RESIZE = range(5)
_CHUNK = 64 * 1024


@dataclass(frozen=True)
class Stdio:
    """What a process is to be given as its standard streams."""

    stdin: int
    stdout: int
    stderr: int
    tty: bool = False

    def options(self) -> dict[str, Any]:
        """Keyword arguments for ``asyncio.create_subprocess_exec``.

        The process leads a session, so that it ends with all it started when the client goes away.
        """
        options: dict[str, Any] = {
            "stdin": self.stdin,
            "stdout": self.stdout,
            "stderr": self.stderr,
            "start_new_session": True,
        }
        if self.tty:
            # An inherited terminal does not become the controlling one by itself.
            options["preexec_fn"] = _take_terminal
        return options


def _take_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    # Whoever was started in the background of a script ignores Ctrl-C, and so would all that it starts.
    for number in (signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)


class PodRunner(Protocol):
    """Starts a command as if it were in a container of a pod.

    An ``OSError`` from it is told to the client as the container runtime would tell it.
    """

    async def spawn(self, pod: Object, container: str, argv: list[str], stdio: Stdio) -> Process: ...


class Wire(Protocol):
    """The client's end: numbered channels over one connection."""

    async def send(self, channel: int, data: bytes) -> None: ...

    async def receive(self) -> tuple[int, bytes | None] | None:
        """The next piece of a channel (None: its end), or None when the client is gone."""


@dataclass(frozen=True)
class ExecRequest:
    """One command to run, and the streams the client wants of it."""

    pod: Object
    container: str
    argv: list[str]
    stdin: bool = False
    stdout: bool = False
    stderr: bool = False
    tty: bool = False


def choose_container(pod: Object, asked: str) -> str:
    """The container to run in or to read from; a pod of several wants one named."""
    name = pod["metadata"]["name"]
    containers = [c.get("name", "") for c in dig(pod, "spec.containers") or []]
    initial = [c.get("name", "") for c in dig(pod, "spec.initContainers") or []]
    if asked:
        if asked not in containers + initial:
            raise errors.bad_request(f"container {asked} is not valid for pod {name}")
        return asked
    if len(containers) == 1:
        return str(containers[0])
    raise errors.bad_request(
        f"a container name must be specified for pod {name}, choose one of: [{' '.join(containers)}]"
    )


def require_running(pod: Object, container: str) -> None:
    """Refuse a pod in which nothing runs, as API server and kubelet do."""
    phase = dig(pod, "status.phase")
    if phase == "Pending" and not dig(pod, "spec.nodeName"):
        raise errors.bad_request(f"pod {pod['metadata']['name']} does not have a host assigned")
    if phase != "Running":
        raise errors.internal(f'unable to upgrade connection: container not found ("{container}")')


async def execute(request: ExecRequest, runner: PodRunner, wire: Wire) -> None:
    """Run a command to its end, or kill it when the client goes away."""
    try:
        running = await (_Terminal if request.tty else _Pipes).start(request, runner)
    except OSError as problem:
        missing = isinstance(problem, FileNotFoundError)
        why = "executable file not found in $PATH" if missing else problem.strerror or str(problem)
        failure = errors.internal(
            f'error executing command in container: unable to start container process: exec: "{request.argv[0]}": {why}'
        )
        await wire.send(ERROR, json.dumps(failure.status()).encode())
        return
    feeding = asyncio.ensure_future(_feed(running, wire))
    draining = asyncio.ensure_future(running.drain(wire.send))
    try:
        done, _ = await asyncio.wait({feeding, draining}, return_when=asyncio.FIRST_COMPLETED)
        if draining in done:
            draining.result()
            code = await running.process.wait()
            await wire.send(ERROR, json.dumps(exit_status(request.argv, code)).encode())
    except ConnectionError:
        # The client left while it was written to: the same as when it leaves while it is read from.
        pass
    finally:
        feeding.cancel()
        draining.cancel()
        running.close()
        await asyncio.shield(_end(running.process))


def exit_status(argv: list[str], code: int) -> Object:
    """The Status that ends an exec; killed by a signal counts as 128 and the signal, as in a shell."""
    if code == 0:
        return {"metadata": {}, "status": "Success"}
    code = code if code > 0 else 128 - code
    return {
        "metadata": {},
        "status": "Failure",
        "message": f"command terminated with non-zero exit code: error executing command [{' '.join(argv)}], "
        f"exit code {code}",
        "reason": "NonZeroExitCode",
        "details": {"causes": [{"reason": "ExitCode", "message": str(code)}]},
    }


async def _feed(running: _Pipes | _Terminal, wire: Wire) -> None:
    while (piece := await wire.receive()) is not None:
        channel, data = piece
        if channel == STDIN:
            # Not held back when the process reads slowly: then a client that leaves would go unnoticed.
            running.write(data)
        elif channel == RESIZE and data:
            running.resize(data)


async def _end(process: Process) -> None:
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            if os.getpgid(process.pid) == process.pid:
                os.killpg(process.pid, signal.SIGKILL)
            else:
                process.kill()
        # A daemon that left the session may hold the pipes for ever, and some Pythons wait for those.
        with contextlib.suppress(asyncio.TimeoutError):
            async with timeout(1):
                await process.wait()


Send = Callable[[int, bytes], Awaitable[None]]


async def _pump(reader: asyncio.StreamReader, channel: int, send: Send) -> None:
    while True:
        try:
            data = await reader.read(_CHUNK)
        except OSError:
            # Reading a terminal that nobody holds any more fails instead of ending.
            return
        if not data:
            return
        await send(channel, data)


class _Pipes:
    """A process with a pipe for each stream that the client wants."""

    def __init__(self, process: Process) -> None:
        self.process = process

    @classmethod
    async def start(cls, request: ExecRequest, runner: PodRunner) -> _Pipes:
        stdin, stdout, stderr = (
            PIPE if wanted else DEVNULL for wanted in (request.stdin, request.stdout, request.stderr)
        )
        stdio = Stdio(stdin, stdout, stderr)
        return cls(await runner.spawn(request.pod, request.container, request.argv, stdio))

    def write(self, data: bytes | None) -> None:
        if (stdin := self.process.stdin) is None or stdin.is_closing():
            return
        if data is None:
            stdin.close()
        else:
            stdin.write(data)

    def resize(self, data: bytes) -> None:
        """Only a terminal has a size."""

    async def drain(self, send: Send) -> None:
        streams = ((self.process.stdout, STDOUT), (self.process.stderr, STDERR))
        await asyncio.gather(*(_pump(reader, channel, send) for reader, channel in streams if reader))
        await self.process.wait()

    def close(self) -> None:
        if self.process.stdin is not None:
            self.process.stdin.close()


class _Terminal:
    """A process on a terminal of its own: one stream in, one out."""

    def __init__(
        self,
        process: Process,
        master: int,
        reader: asyncio.StreamReader,
        transports: list[asyncio.BaseTransport],
    ) -> None:
        self.process = process
        self._master, self._reader, self._transports = master, reader, transports

    @classmethod
    async def start(cls, request: ExecRequest, runner: PodRunner) -> _Terminal:
        loop = asyncio.get_running_loop()
        master, slave = pty.openpty()
        try:
            process = await runner.spawn(
                request.pod, request.container, request.argv, Stdio(slave, slave, slave, tty=True)
            )
        except BaseException:
            os.close(master)
            raise
        finally:
            os.close(slave)
        reader = asyncio.StreamReader()
        ends = [os.fdopen(os.dup(master), mode, buffering=0) for mode in ("rb", "wb")]
        incoming, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), ends[0])
        outgoing, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, ends[1])
        return cls(process, master, reader, [incoming, outgoing])

    def write(self, data: bytes | None) -> None:
        outgoing = self._transports[1]
        if data and isinstance(outgoing, asyncio.WriteTransport) and not outgoing.is_closing():
            outgoing.write(data)

    def resize(self, data: bytes) -> None:
        with contextlib.suppress(ValueError, KeyError, OSError, struct.error):
            size = json.loads(data)
            fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", size["Height"], size["Width"], 0, 0))

    async def drain(self, send: Send) -> None:
        await _pump(self._reader, STDOUT, send)
        await self.process.wait()

    def close(self) -> None:
        for transport in self._transports:
            transport.close()
        os.close(self._master)
