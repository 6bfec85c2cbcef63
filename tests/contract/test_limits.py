"""Each command's limit is kept at the other end, whatever becomes of this one, and hits nothing but that command."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable

import psutil
import pytest

from airflow_provider_soperator.slurm.requests import Command
from airflow_provider_soperator.transports.local import LocalTransport
from airflow_provider_soperator.transports.shell import encode, handshake
from airflow_provider_soperator.transports.transport_errors import CommandTimedOut
from tests.contract.transports import AsyncWay, Run, Way, outcomes
from tests.forks import forked
from tests.integration.cluster import Cluster
from tests.patience import PATIENCE


def is_gone(cluster: Cluster, *pids: str) -> bool:
    return not any(cluster.try_run("test", "-d", f"/proc/{pid}").returncode == 0 for pid in pids)


# The shell at the other end keeps the limit, so it is kept in the same way over every transport.
@pytest.mark.parametrize("name", ["local", "ssh"])
def test_what_takes_too_long_is_ended_on_the_cluster(
    name: str, connect: Callable[[str], Way], cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The end of a command is not taken for silence, however long it takes.
    monkeypatch.setattr("airflow_provider_soperator.transports.shell.SLACK", PATIENCE)
    way = connect(name)
    obedient, stubborn = "exec sleep 300", "trap '' TERM; sleep 300; sleep 300"
    cases = [*enumerate([(obedient, b""), (obedient, b"stdin"), (stubborn, b""), (stubborn, b"stdin")])]
    # On a busy machine a limit may strike before its command has begun.
    for limit in (1, 5, 25):
        late = [
            Run(("sh", "-c", f"echo $$ >/root/late-{number}; {program}"), stdin=stdin, timeout=limit)
            for number, (program, stdin) in cases
        ]
        for outcome in outcomes(way, *late):
            assert isinstance(outcome, CommandTimedOut)
            assert f"within {limit} s" in str(outcome)
        pids = cluster.try_run("sh", "-c", "cat /root/late-*; rm -f /root/late-*").stdout.split()
        if len(pids) == len(late):
            break
    assert len(pids) == len(late)
    cluster.wait("the commands have ended", lambda: is_gone(cluster, *pids))
    assert way.ask(Run(("echo", "on"))).stdout == b"on\n"


def within_its_limit(way: Way, *argv: str) -> tuple[str, float]:
    """What the command says, and its limit: the shortest that does not strike on this machine."""
    for limit in (0.5, 5.0):
        with contextlib.suppress(CommandTimedOut):
            return way.ask(Run(argv, timeout=limit)).stdout.decode().strip(), limit
    return way.ask(Run(argv, timeout=50.0)).stdout.decode().strip(), 50.0


def test_a_limit_is_over_with_its_command(shell_way: Way, cluster: Cluster) -> None:
    # What it leaves behind holds the same output streams, which are not waited for.
    child, limit = within_its_limit(shell_way, "sh", "-c", "sleep 300 & echo $!")
    assert shell_way.ask(Run(("sleep", str(limit + 0.2)))).status == 0
    assert cluster.run("ps", "-o", "comm=", "-p", child) == "sleep\n"
    cluster.run("kill", child)


@pytest.mark.parametrize("name", ["ssh"])
def test_a_command_that_is_ended_takes_nothing_else_with_it(
    name: str, connect: Callable[[str], Way], cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The end of a command is not taken for silence, however long it takes.
    monkeypatch.setattr("airflow_provider_soperator.transports.shell.SLACK", PATIENCE)
    way = connect(name)
    left = way.ask(Run(("sh", "-c", "sleep 300 & echo $!"))).stdout.decode().strip()
    [late, other] = outcomes(way, Run(("sleep", "300"), timeout=0.5), Run(("sh", "-c", "sleep 1; echo on")))
    assert isinstance(late, CommandTimedOut)
    assert other == b"on\n"
    assert cluster.run("ps", "-o", "comm=", "-p", left) == "sleep\n"
    cluster.run("kill", left)


@pytest.mark.parametrize("name", ["local", "ssh", "kubernetes"])
def test_a_client_that_is_killed_leaves_nothing_behind(
    name: str, cluster: Cluster, connect: Callable[[str], Way]
) -> None:
    # The command, the shell that runs it, and what that has started besides.
    program = "echo $PPID $(ps -o pid= --ppid $PPID) >/root/left; exec sleep 300"
    cluster.run("rm", "-f", "/root/left")
    # Time enough to write on a busy machine, too.
    with forked(lambda: connect(name).ask(Run(("sh", "-c", program), timeout=15))) as client:
        cluster.wait("the command runs", lambda: cluster.try_run("test", "-s", "/root/left").returncode == 0)
        os.kill(client, signal.SIGKILL)
        pids = cluster.run("cat", "/root/left").split()
        assert len(pids) == 3
        cluster.wait("nothing is left", lambda: is_gone(cluster, *pids))


def test_a_command_that_ends_just_in_time_is_not_mistaken_for_the_next() -> None:
    rounds, ends = 60, set()
    # On a busy machine a limit strikes late, and only long commands are still there.
    for length in (0.03, 0.3, 3.0):
        shell = subprocess.Popen(["/bin/sh"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        assert shell.stdin is not None
        assert shell.stdout is not None
        shell.stdin.write(handshake("start"))
        shell.stdin.flush()
        assert [shell.stdout.readline(), shell.stdout.readline()] == [b"\n", b"start 0\n"]
        for number in range(rounds):
            # Without a moment between the two: while the limit of the one strikes, the other begins.
            limit = length * (1 + number % 20) / 6
            shell.stdin.write(encode(Command(("sleep", str(length)), timeout=limit), "close"))
            shell.stdin.write(encode(Command(("sleep", "0.01")), "next"))
        said, _ = shell.communicate(timeout=PATIENCE)
        statuses = [line.split() for line in said.decode().splitlines() if line]
        assert [status for mark, status in statuses if mark == "next"] == ["0"] * rounds
        ends |= {status for mark, status in statuses if mark == "close"}
        if ends == {"0", "143"}:
            break
    # Else none was close.
    assert ends == {"0", "143"}


def test_an_idle_shell_does_nothing() -> None:
    transport = AsyncWay(LocalTransport)
    pid, limit = within_its_limit(transport, "sh", "-c", "echo $PPID")
    shell = psutil.Process(int(pid))
    idle = [shell, *shell.children()]
    assert len(idle) == 2

    def switches() -> list[int]:
        return [process.num_ctx_switches().voluntary for process in idle]

    _wait(lambda: all(process.status() == psutil.STATUS_SLEEPING for process in idle))
    before = switches()
    # The limit of the last command passes.
    select.select([], [], [], limit + 0.5)
    assert switches() == before
    transport.close()


def _wait(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)
