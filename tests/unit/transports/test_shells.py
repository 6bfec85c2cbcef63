"""How commands share the shells of one connection, and what becomes of them when there can be few, or none answers."""

from __future__ import annotations

import asyncio
import errno
import re
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any

import paramiko
import pytest

from airflow_provider_soperator.slurm.job import BatchJob
from airflow_provider_soperator.slurm.requests import Command, CommandOutput, ListJobs
from airflow_provider_soperator.slurm.requests.submission import SubmitOnce
from airflow_provider_soperator.slurm.submission_keys import SubmissionKey
from airflow_provider_soperator.transports.shell import HANDSHAKE, MAX_SHELLS, REFUSED_FOR, Pipe
from airflow_provider_soperator.transports.shell_transport import ShellTransport
from airflow_provider_soperator.transports.transport_errors import (
    CommandTimedOut,
    ConnectionLost,
    ConnectRefused,
    TransportError,
    Unreachable,
)
from tests.unit.test_shared import pass_by
from tests.unit.transports.test_shell import Run

JOB = BatchJob(command="true", name=SubmissionKey.derive("dag", "run", "task", -1, 1).name("job"))
LONG = SubmitOnce(jobs=(JOB,)).command()
SHORT = ListJobs().command()


@dataclass
class LoginNode:
    """An sshd whose sessions are answered when the test says so."""

    max_sessions: int = 10
    #: Sessions that were opened or refused, and the programs that have run, over all connections.
    opened: int = 0
    refused: int = 0
    ran: list[str] = field(default_factory=list)
    #: Connections that were begun, and closed; none comes about in the dark.
    dialled: int = 0
    closed: int = 0
    is_dark: bool = False
    is_down: bool = False
    #: How many login shells get through their start-up files, and which programs come to their end.
    starts: int = 1000
    held: set[str] = field(default_factory=set)
    #: The exit status of all programs.
    status: int = 0
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def let(self, *, starts: int = 1000, held: set[str] | None = None) -> None:
        self.starts, self.held = starts, held or set()
        self.changed.set()
        self.changed = asyncio.Event()


class Session:
    def __init__(self, node: LoginNode, connection: Connection) -> None:
        self._node, self._connection = node, connection
        self._said: list[tuple[str, bytes]] = []
        self._program = ""
        self._number = node.opened

    async def send(self, data: bytes) -> None:
        mark = re.findall(rb"mark-[0-9a-f]{32}", data)[0]
        self._program = "" if data.startswith(b"exec bash") else re.findall(r"\bexec (\w+)", data.decode())[0]
        status = b" 0\n" if not self._program else b" %d\n" % self._node.status
        self._said = [("stdout", b"\n" + mark + status), ("stderr", b"\n" + mark + b" 0\n")]
        if self._program:
            self._node.ran.append(self._program)

    async def receive(self) -> tuple[str, bytes] | None:
        await asyncio.sleep(0)
        while self._program in self._node.held if self._program else self._number > self._node.starts:
            await self._node.changed.wait()
        return self._said.pop() if self._connection.is_open else None

    async def close(self) -> None:
        self._connection.sessions.discard(self)


class Connection:
    def __init__(self) -> None:
        self.sessions: set[Session] = set()
        self.is_open = True


class Transport(ShellTransport[Connection]):
    def __init__(self, node: LoginNode) -> None:
        super().__init__()
        self._node = node

    async def _open(self) -> Connection:
        self._node.dialled += 1
        while self._node.is_dark:
            await self._node.changed.wait()
        if self._node.is_down:
            raise Unreachable("no answer")
        return Connection()

    async def _open_pipe(self, connection: Connection) -> Pipe:
        await asyncio.sleep(0)
        if len(connection.sessions) >= self._node.max_sessions:
            self._node.refused += 1
            raise ConnectRefused("no further session")
        self._node.opened += 1
        session = Session(self._node, connection)
        connection.sessions.add(session)
        return session

    async def _hang_up(self, connection: Connection) -> None:
        connection.is_open = False
        self._node.closed += 1
        self._node.let(starts=self._node.starts, held=self._node.held)


def start(transport: Transport, *commands: Command) -> list[asyncio.Task[CommandOutput]]:
    return [asyncio.ensure_future(transport.ask(Run(command))) for command in commands]


async def settle() -> None:
    for _ in range(100):
        await asyncio.sleep(0)


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(scenario)


# ------------------------------------------------------------------------------------ as many as sshd allows


@pytest.mark.parametrize(("allowed", "used"), [(1, 1), (2, 2), (3, 3), (10, MAX_SHELLS)])
def test_commands_share_as_many_sessions_as_there_may_be(allowed: int, used: int) -> None:
    async def scenario() -> None:
        node = LoginNode(allowed, held={"sleep"})
        asked = start(Transport(node), *[Command(("sleep",))] * 12)
        await settle()
        assert len(node.ran) == used
        node.let()
        await asyncio.gather(*asked)
        assert (len(node.ran), node.opened, node.closed) == (12, used, 0)
        assert node.refused == (1 if allowed < MAX_SHELLS else 0)

    run(scenario())


def test_a_refusal_is_forgotten_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        node = LoginNode(1, held={"sleep"})
        transport = Transport(node)
        asked = start(transport, *[Command(("sleep",), timeout=2 * REFUSED_FOR)] * 2)
        await settle()
        assert (node.opened, node.refused) == (1, 1)
        node.max_sessions = 10
        asked += start(transport, Command(("true",)))
        await settle()
        assert node.ran == ["sleep"]
        await pass_by(REFUSED_FOR + 1, monkeypatch)
        await asyncio.gather(*start(transport, Command(("true",))))
        node.let()
        await asyncio.gather(*asked)
        assert node.closed == 0

    run(scenario())


def test_a_connection_without_any_session_is_replaced() -> None:
    async def scenario() -> None:
        node = LoginNode(0)
        transport = Transport(node)
        failed = await asyncio.gather(*start(transport, *[SHORT] * 6), return_exceptions=True)
        assert [type(error) for error in failed] == [ConnectRefused] * 6
        assert node.closed >= 1
        node.max_sessions = 1
        await asyncio.gather(*start(transport, *[SHORT] * 6))
        assert node.ran == ["squeue"] * 6

    run(scenario())


# --------------------------------------------------------------------------------- long commands and short ones


@pytest.mark.parametrize("allowed", [2, 3, 4, 10])
def test_a_short_question_does_not_wait_for_long_commands(allowed: int) -> None:
    async def scenario() -> None:
        node = LoginNode(allowed, held={"bash"})
        transport = Transport(node)
        long = start(transport, *[LONG] * 10)
        await settle()
        assert node.ran == ["bash"] * min(allowed - 1, MAX_SHELLS - 1)
        short = start(transport, *[SHORT] * 20)
        await settle()
        assert all(task.done() for task in short)
        node.let()
        await asyncio.gather(*long, *short)
        assert node.closed == 0

    run(scenario())


def test_a_long_command_runs_where_there_can_be_only_one_shell() -> None:
    async def scenario() -> None:
        node = LoginNode(1)
        await asyncio.gather(*start(Transport(node), *[LONG, SHORT] * 5))
        assert (len(node.ran), node.opened) == (10, 1)

    run(scenario())


# ----------------------------------------------------------------------------------------- silent connections


def test_a_connection_that_has_gone_silent_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        node = LoginNode(held={"squeue", "sacct"})
        transport = Transport(node)
        silent = start(transport, SHORT, Command(("sacct",), timeout=9999), *[Command(("sacct",), timeout=9999)] * 9)
        await settle()
        await pass_by(SHORT.timeout + 60, monkeypatch)
        node.let()
        # What is under way on it can be asked anew. What waits for it goes on with the next.
        ends = await asyncio.gather(*silent, return_exceptions=True)
        assert all(isinstance(end, CommandOutput) for end in ends[MAX_SHELLS:])
        assert all(isinstance(end, ConnectionLost) for end in ends[:MAX_SHELLS])
        assert node.closed == 1
        await asyncio.gather(*start(transport, SHORT))

    run(scenario())


def test_a_command_that_was_ended_at_its_limit_leaves_the_connection_as_it_is() -> None:
    async def scenario() -> None:
        node = LoginNode(held={"squeue"}, status=143)
        transport = Transport(node)
        [late] = start(transport, Command(("squeue",), timeout=0))
        await settle()
        node.let()
        with pytest.raises(CommandTimedOut):
            await late
        assert node.closed == 0

    run(scenario())


@pytest.mark.parametrize(("kind", "does"), [(Transport, "_open_pipe"), (Session, "send"), (Session, "receive")])
@pytest.mark.parametrize(
    "fault",
    [
        paramiko.SSHException("Key-exchange timed out waiting for key negotiation"),
        RuntimeError("can't start new thread"),
        OSError(errno.EMFILE, "Too many open files"),
    ],
)
def test_whatever_a_shell_fails_with_may_pass(
    kind: type, does: str, fault: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(*args: Any) -> Any:
        raise fault

    async def scenario() -> None:
        transport = Transport(LoginNode())
        with monkeypatch.context() as patch:
            patch.setattr(kind, does, fails)
            with pytest.raises(TransportError) as raised:
                await transport.ask(Run(SHORT))
        assert raised.value.retryable
        await asyncio.gather(*start(transport, SHORT))

    run(scenario())


def test_a_command_that_cannot_be_written_is_no_fault_of_the_connection() -> None:
    async def scenario() -> None:
        node = LoginNode()
        with pytest.raises(ValueError, match="NUL"):
            await Transport(node).ask(Run(Command(("echo", "a\0b"))))
        assert node.closed == 0

    run(scenario())


@pytest.mark.parametrize("is_closed", [False, True])
def test_who_waits_for_a_shell_when_that_of_another_breaks_goes_on_with_the_next_connection(is_closed: bool) -> None:
    async def scenario() -> None:
        node = LoginNode(starts=1, held={"sleep"})
        transport = Transport(node)
        [first] = start(transport, Command(("sleep",), timeout=9999))
        await settle()
        asked = start(transport, *[SHORT] * 3)
        await settle()
        assert node.ran == ["sleep"]
        assert transport._current
        transport._current[0].is_open = False
        node.let(starts=1)
        if is_closed:
            await transport.close()
        await settle()
        node.let()
        with pytest.raises(ConnectionLost):
            await first
        ends = await asyncio.gather(*asked, return_exceptions=True)
        if is_closed:
            assert all(isinstance(end, ConnectRefused) for end in ends), ends
        else:
            assert all(isinstance(end, CommandOutput) for end in ends), ends
            assert node.ran == ["sleep", *["squeue"] * 3]

    run(scenario())


def test_all_who_wait_for_a_host_that_is_silent_share_one_attempt() -> None:
    async def scenario() -> None:
        node = LoginNode(is_dark=True, is_down=True)
        transport = Transport(node)
        first, *others = start(transport, *[SHORT] * 50)
        await settle()
        first.cancel()
        await settle()
        node.is_dark = False
        node.let()
        ends = await asyncio.gather(first, *others, return_exceptions=True)
        assert [type(end) for end in ends] == [asyncio.CancelledError] + [Unreachable] * 49
        assert node.dialled == 1
        node.is_down = False
        await asyncio.gather(*start(transport, *[SHORT] * 50))
        assert node.dialled == 2

    run(scenario())


# ---------------------------------------------------------------------------------------- slow login shells


def test_a_slow_login_shell_is_waited_for_once() -> None:
    async def scenario() -> None:
        node = LoginNode(starts=0)
        asked = start(Transport(node), *[SHORT] * 8)
        await settle()
        assert node.opened == 1
        # The others do not wait for the second one, which is slow, too.
        node.let(starts=1)
        await settle()
        assert all(task.done() for task in asked)
        assert node.opened == 2

    run(scenario())


def test_a_login_shell_that_does_not_start_costs_nothing_while_another_one_works(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario() -> None:
        node = LoginNode(starts=1, held={"sleep"})
        transport = Transport(node)
        asked = start(transport, *[Command(("sleep",), timeout=9999)] * 4)
        await settle()
        await pass_by(HANDSHAKE + 1, monkeypatch)
        await settle()
        node.let(starts=1)
        await asyncio.gather(*asked)
        assert (len(node.ran), node.closed) == (4, 0)

    run(scenario())


def test_a_login_shell_that_never_starts_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        node = LoginNode(starts=0)
        transport = Transport(node)
        asked = start(transport, *[SHORT] * 3)
        await settle()
        await pass_by(HANDSHAKE + 1, monkeypatch)
        errors = await asyncio.gather(*asked, return_exceptions=True)
        assert [type(error) for error in errors] == [ConnectRefused] * 3
        assert "login shell" in str(errors[0])
        node.let()
        await asyncio.gather(*start(transport, SHORT))

    run(scenario())


def test_who_is_cancelled_while_a_shell_starts_does_not_keep_the_others_waiting() -> None:
    async def scenario() -> None:
        node = LoginNode(starts=0)
        first, *others = start(Transport(node), *[SHORT] * 3)
        await settle()
        first.cancel()
        await settle()
        assert node.opened == 1
        node.let()
        await asyncio.gather(*others)
        with pytest.raises(asyncio.CancelledError):
            await first

    run(scenario())


def test_a_transport_that_is_closed_while_a_shell_starts_leaves_nothing_open() -> None:
    async def scenario() -> None:
        node = LoginNode(starts=0)
        transport = Transport(node)
        asked = start(transport, *[SHORT] * 6)
        await settle()
        await transport.close()
        for error in await asyncio.gather(*asked, return_exceptions=True):
            assert isinstance(error, ConnectRefused)
        assert (node.ran, node.closed) == ([], 1)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run(scenario())


def test_a_transport_that_is_closed_opens_no_connection_that_nobody_closes() -> None:
    async def scenario() -> None:
        node = LoginNode(is_dark=True)
        transport = Transport(node)
        asked = start(transport, *[SHORT] * 3)
        await settle()
        await transport.close()
        node.is_dark = False
        node.let()
        await settle()
        asked += start(transport, SHORT)
        for error in await asyncio.gather(*asked, return_exceptions=True):
            assert isinstance(error, ConnectRefused)
        assert (node.ran, node.dialled, node.closed) == ([], 1, 1)

    run(scenario())
