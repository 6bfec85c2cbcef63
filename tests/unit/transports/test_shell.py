"""What goes to a long-lived shell, and how what comes back is cut into answers."""

from __future__ import annotations

import asyncio
import errno
import itertools
import subprocess
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_soperator.slurm.requests import Command, CommandOutput, Request
from airflow_provider_soperator.transports.local import LocalTransport
from airflow_provider_soperator.transports.shell import Exchange, Shells, encode, new_mark
from airflow_provider_soperator.transports.transport_errors import (
    CommandTimedOut,
    ConnectionLost,
    ConnectRefused,
    OutputTooLarge,
)

MARK = "mark-00ff"


@dataclass(frozen=True)
class Run(Request[CommandOutput]):
    """A command as it is."""

    line: Command

    def command(self) -> Command:
        return self.line

    def read(self, answer: CommandOutput) -> CommandOutput:
        return answer


def exchange(max_output: int = 10_000, timeout: float = 60) -> Exchange:
    return Exchange(MARK, Command(("squeue",), max_output=max_output, timeout=timeout))


@given(out=st.binary(max_size=300), err=st.binary(max_size=300), cuts=st.lists(st.integers(0, 700), max_size=20))
def test_any_output_cut_anywhere_is_put_together(out: bytes, err: bytes, cuts: list[int]) -> None:
    one = exchange()
    for stream, data in (("stdout", out + f"\n{MARK} 3\n".encode()), ("stderr", err + f"\n{MARK} 0\n".encode())):
        edges = sorted({0, len(data), *(min(cut, len(data)) for cut in cuts)})
        for start, end in itertools.pairwise(edges):
            assert not (stream == "stdout" and one.complete)
            one.feed(stream, data[start:end])
    assert one.complete
    result = one.result(elapsed=0.1)
    assert (result.status, result.stdout, result.stderr) == (3, out, err)


def test_a_mark_that_is_cut_in_two_is_seen() -> None:
    one = exchange()
    one.feed("stderr", f"\n{MARK} 0\n".encode())
    for byte in f"text\n{MARK} 12\n".encode():
        assert not one.complete
        one.feed("stdout", bytes([byte]))
    assert one.result(0).status == 12


def test_too_much_output_is_refused_while_it_comes() -> None:
    one = exchange(max_output=100)
    one.feed("stdout", b"x" * 60)
    with pytest.raises(OutputTooLarge, match="squeue printed more than 100 bytes"):
        one.feed("stderr", b"y" * 60)


@pytest.mark.parametrize("status", [1, 137, 143])
def test_a_failure_is_a_time_out_only_after_the_time(status: int) -> None:
    one = ended(status)
    assert one.result(elapsed=1).status == status
    with pytest.raises(CommandTimedOut, match="squeue did not answer within 5 s"):
        one.result(elapsed=5.01)


def test_what_succeeds_at_the_last_moment_has_succeeded() -> None:
    assert ended(0).result(elapsed=5.01).status == 0


def ended(status: int) -> Exchange:
    one = exchange(timeout=5)
    one.feed("stdout", f"\n{MARK} {status}\n".encode())
    one.feed("stderr", f"\n{MARK} 0\n".encode())
    return one


@pytest.mark.parametrize("name", ["A B", "1A", "", "A=B", "A;touch /tmp/x"])
def test_what_cannot_name_a_variable_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="environment variable"):
        encode(Command(("true",), environment={name: "x"}), MARK)


def test_a_nul_byte_is_refused() -> None:
    with pytest.raises(ValueError, match="NUL"):
        encode(Command(("echo", "a\0b")), MARK)


def test_marks_cannot_be_guessed() -> None:
    assert len({new_mark() for _ in range(100)}) == 100


async def answered(command: Command, shell: tuple[str, ...] = ("/bin/sh",)) -> CommandOutput:
    transport = LocalTransport(shell)
    try:
        return await transport.ask(Run(command))
    finally:
        await transport.close()


@given(
    words=st.lists(
        st.text(st.characters(blacklist_characters="\0", blacklist_categories=["Cs"])), min_size=1, max_size=4
    ),
    stdin=st.binary(max_size=200),
    value=st.text(st.characters(blacklist_characters="\0", blacklist_categories=["Cs"])),
)
def test_a_real_shell_reads_what_was_meant(words: list[str], stdin: bytes, value: str) -> None:
    program = 'printf "%s\\0" "$VALUE" "$@"; cat'
    command = Command(("sh", "-c", program, "sh", *words), stdin=stdin, environment={"VALUE": value})
    said = asyncio.run(answered(command))
    assert said.stdout == b"".join(word.encode() + b"\0" for word in [value, *words]) + stdin
    assert said.stderr == b""


def test_a_machine_that_can_start_no_process_may_at_the_next_try(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: Any, **kwargs: Any) -> Any:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(asyncio.BaseEventLoop, "subprocess_exec", full)
        with pytest.raises(ConnectRefused, match="Too many open files"):
            asyncio.run(answered(Command(("true",))))
    assert asyncio.run(answered(Command(("true",)))).status == 0


def test_what_start_up_files_set_for_people_restricts_no_command() -> None:
    own = ("SQUEUE_PARTITION=mine", "SACCT_FORMAT=jobid", "SCANCEL_INTERACTIVE=true", "SCONTROL_FUTURE=1")
    shell = ("env", *own, "SBATCH_ACCOUNT=ours", "/bin/sh")
    said = asyncio.run(answered(Command(("env",)), shell)).text.splitlines()
    prefixes = ("SQUEUE_", "SACCT_", "SCANCEL_", "SCONTROL_", "SBATCH_")
    assert [line for line in said if line.startswith(prefixes)] == ["SBATCH_ACCOUNT=ours"]


class Nologin:
    """A login shell that says something, or nothing, and ends; perhaps before it can be sent anything."""

    def __init__(self, said: list[tuple[str, bytes]], fault: Exception | None) -> None:
        self._said, self._fault = said, fault

    async def send(self, data: bytes) -> None:
        if self._fault:
            raise self._fault

    async def receive(self) -> tuple[str, bytes] | None:
        return self._said.pop(0) if self._said else None

    async def close(self) -> None: ...


@pytest.mark.parametrize("fault", [None, OSError("Socket is closed")])
@pytest.mark.parametrize(
    ("said", "told"),
    [([("stdout", b"No\nlogin\n"), ("stderr", b"today.\n")], r" \(No login today\.\): see"), ([], ": see")],
)
def test_the_last_words_of_a_login_shell_that_ends_are_told(
    said: list[tuple[str, bytes]], told: str, fault: Exception | None
) -> None:
    shells = Shells(AsyncMock(return_value=Nologin([*said], fault)))
    with pytest.raises(ConnectionLost, match=f"the login shell exited at once{told}"):
        asyncio.run(shells.run(Command(("true",))))


def test_a_shell_stays_where_start_up_files_end_idle_ones() -> None:
    async def scenario() -> None:
        # Some /bin/sh know no TMOUT; the watchdog is a bash.
        transport = LocalTransport(("env", "TMOUT=1", "/bin/sh"))
        try:
            watchdog = Command(("sh", "-c", 'cat "/proc/$PPID/task/"*/children'))
            before = (await transport.run(watchdog)).text.split()[0]
            await asyncio.sleep(2)
            assert (await transport.run(watchdog)).text.split()[0] == before
        finally:
            await transport.close()

    asyncio.run(scenario())


def test_of_airflows_variables_a_job_has_those_that_it_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AIRFLOW__API_AUTH__JWT_SECRET", "AIRFLOW_CONN_DB", "_AIRFLOW_PROCESS_CONTEXT", "SBATCH_ACCOUNT"):
        monkeypatch.setenv(name, "of this process")
    given = {"AIRFLOW__CORE__EXECUTOR": "SlurmExecutor"}
    said = asyncio.run(answered(Command(("env",), environment=given))).text.splitlines()
    assert [line for line in said if "AIRFLOW" in line] == ["AIRFLOW__CORE__EXECUTOR=SlurmExecutor"]
    assert "SBATCH_ACCOUNT=of this process" in said


def test_of_the_job_around_a_worker_no_other_job_has_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = {"SLURM_CONF": "/c", "SLURM_JWT": "token", "SBATCH_ACCOUNT": "ours"}
    around = {"SLURM_NTASKS": "1", "SLURM_MEM_PER_NODE": "4096", "SLURM_CONFIG": "", "SBATCH_MEM_BIND": "none"}
    for name, value in (kept | around).items():
        monkeypatch.setenv(name, value)
    said = asyncio.run(answered(Command(("env",), environment={"SLURM_BITSTR_LEN": "0"}))).text.splitlines()
    expected = {f"{name}={value}" for name, value in kept.items()} | {"SLURM_BITSTR_LEN=0"}
    assert {line for line in said if line.startswith(("SLURM_", "SBATCH_"))} == expected


@pytest.mark.parametrize(("word", "status"), [("printf", 0), ("exit", 127)])
def test_a_command_is_never_a_builtin_of_the_shell(word: str, status: int) -> None:
    said = asyncio.run(answered(Command((word, "--version"))))
    assert (said.status, b"coreutils" in said.stdout) == (status, status == 0)


@pytest.mark.parametrize("stdin", [b"", b"data"])
@pytest.mark.parametrize("shell", ["dash", "bash"])
def test_what_arrives_only_in_part_does_not_run(shell: str, stdin: bytes, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    line = encode(Command(("touch", str(ran)), stdin=stdin), MARK)
    for length in range(len(line)):
        whole = length == len(line) - 1  # but for the end of its line
        said = subprocess.run([shell], input=b"exec 9>/dev/null\n" + line[:length], capture_output=True, check=False)
        assert ran.exists() == whole, line[:length]
    assert MARK.encode() in said.stdout


class LastWord:
    """A shell that answers in the moment in which the task that has asked is cancelled."""

    def __init__(self) -> None:
        self.asker: asyncio.Task[CommandOutput] | None = None
        self.is_closed = False
        self._said: list[tuple[str, bytes]] = []

    async def send(self, data: bytes) -> None:
        shell = subprocess.run(["/bin/sh"], input=data, capture_output=True, check=False)
        self._said = [("stderr", shell.stderr), ("stdout", shell.stdout)]

    async def receive(self) -> tuple[str, bytes] | None:
        said = asyncio.get_running_loop().create_future()
        said.get_loop().call_soon(said.set_result, self._said.pop())
        if self.asker is not None and not self._said:
            said.get_loop().call_soon(self.asker.cancel)
        heard: tuple[str, bytes] = await said
        return heard

    async def close(self) -> None:
        self.is_closed = True


def test_who_is_cancelled_as_the_answer_comes_is_cancelled() -> None:
    async def scenario() -> None:
        shell = LastWord()

        async def open_shell() -> LastWord:
            return shell

        shells = Shells(open_shell)
        assert (await shells.run(Command(("echo", "first")))).stdout == b"first\n"
        shell.asker = asyncio.ensure_future(shells.run(Command(("echo", "second"))))
        with pytest.raises(asyncio.CancelledError):
            await shell.asker
        assert shell.is_closed

    asyncio.run(scenario())


@pytest.mark.parametrize("fault", [None, RuntimeError("can't start new thread")])
def test_a_long_answer_is_read_beside_the_loop_if_there_may_be_a_thread(
    fault: Exception | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    readers: list[threading.Thread] = []

    class Read(Run):
        def read(self, answer: CommandOutput) -> CommandOutput:
            readers.append(threading.current_thread())
            return answer

    async def scenario() -> None:
        shells = LocalTransport()
        try:
            for size in (1, 1 << 20):
                line = Command(("head", "-c", str(size), "/dev/zero"))
                assert (await shells.ask(Read(line))).stdout == bytes(size)
        finally:
            await shells.close()

    if fault:
        monkeypatch.setattr(asyncio.BaseEventLoop, "run_in_executor", Mock(side_effect=fault))
    asyncio.run(scenario())
    assert [reader is threading.main_thread() for reader in readers] == [True, fault is not None]
