"""Commands and submissions over the long-lived shell, against a connection or an exec for each."""

from __future__ import annotations

import json
import shlex
import statistics
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_provider_soperator.client.sync import LOOP
from airflow_provider_soperator.slurm.job import BatchJob
from airflow_provider_soperator.slurm.requests import Command, CommandOutput, Ping, Request
from airflow_provider_soperator.slurm.requests.submission import SubmitOnce
from airflow_provider_soperator.slurm.submission_keys import SubmissionKey
from airflow_provider_soperator.transports.ssh import SshTransport
from benchmarks.table import Row
from sandbox.lifecycle import Sandbox
from sandbox.settings import Settings

if TYPE_CHECKING:
    import paramiko

JOBS = 300
ROUNDS = 3


@dataclass(frozen=True)
class Nothing(Request[None]):
    """A command that does nothing."""

    def command(self) -> Command:
        return Command(("true",))

    def read(self, answer: CommandOutput) -> None:
        assert answer.status == 0


@dataclass
class Login:
    """The login node of a running sandbox."""

    sandbox: Sandbox
    access: dict[str, Any]

    def connect(self) -> paramiko.SSHClient:
        return connected(self.access)

    async def connector(self) -> Callable[[], paramiko.SSHClient]:
        """What the transport takes: it connects in a thread."""
        return self.connect

    def clear(self) -> None:
        self.sandbox.init.run("sshd", ["scancel", "--partition=main"])


def connected(access: dict[str, Any]) -> paramiko.SSHClient:
    import paramiko

    client = paramiko.SSHClient()
    client.load_host_keys(access["known_hosts"])
    client.connect(
        access["host"],
        port=access["port"],
        username=access["user"],
        key_filename=access["key_file"],
        look_for_keys=False,
        allow_agent=False,
    )
    return client


@contextmanager
def login() -> Iterator[Login]:
    sandbox = Sandbox(Settings(name="bench-transports", workers=1, static=0))
    sandbox.up()
    try:
        # Nothing is to run: what is measured is submission.
        sandbox.init.run("slurmctld", ["scontrol", "update", "partitionname=main", "state=down"])
        yield Login(sandbox, json.loads(sandbox.paths.access.read_text())["ssh"])
    finally:
        sandbox.down()


def seconds(work: Callable[[], object]) -> float:
    started = time.monotonic()
    work()
    return time.monotonic() - started


def repeat(work: Callable[[], object], times: int) -> None:
    for _ in range(times):
        work()


def run() -> list[Row]:
    with login() as node:
        return [*commands(node), *submissions(node)]


def commands(node: Login, shell: int = 300, connections: int = 15) -> list[Row]:
    """`true`, which does nothing, so that the way there is all that counts."""
    transport = SshTransport(node.connector)
    LOOP.run(transport.ask(Nothing()))

    async def one_shell() -> None:
        for _ in range(shell):
            await transport.ask(Nothing())

    def one_connection() -> None:
        client = node.connect()
        client.exec_command("true")[1].read()
        client.close()

    ours, theirs = [], []
    for _ in range(ROUNDS):
        ours.append(seconds(lambda: LOOP.run(one_shell())) / shell)
        theirs.append(seconds(lambda: repeat(one_connection, connections)) / connections)
    LOOP.run(transport.close())
    ratio = statistics.median(theirs) / statistics.median(ours)
    figure = f"{1 / statistics.median(ours):.0f} a second, {ratio:.0f} times as many"
    against = f"{1 / statistics.median(theirs):.1f} a second, a new paramiko connection for each"
    return [Row("ssh", "commands over one long-lived shell", figure, against, ratio >= 50)]


def submissions(node: Login) -> list[Row]:
    """As many held-back jobs each way, in turn, so that a slow moment of the machine hits all of them."""
    transport = SshTransport(node.connector)
    LOOP.run(transport.ask(Ping()))
    times: dict[str, list[float]] = {"ours": [], "loop": [], "exec": [], "connection": []}
    for _ in range(ROUNDS):
        jobs = _jobs()
        times["ours"].append(seconds(lambda jobs=jobs: LOOP.run(transport.ask(SubmitOnce(jobs=jobs)))))  # type: ignore[misc]
        node.clear()
        times["loop"].append(seconds(lambda: node.sandbox.init.run("sshd", ["bash", "-c", _loop()], timeout=300)))
        node.clear()
        times["exec"].append(seconds(lambda: _exec_each(node, one_connection=True)) * JOBS / _EXECS)
        times["connection"].append(seconds(lambda: _exec_each(node, one_connection=False)) * JOBS / _EXECS)
        node.clear()
    LOOP.run(transport.close())
    ours, loop, each, connection = (statistics.median(times[way]) for way in ("ours", "loop", "exec", "connection"))
    return [
        Row(
            "submit",
            f"{JOBS} jobs, each exactly once, over SSH",
            f"{ours:.2f} s, {ours / loop:.2f} times the loop",
            f"{loop:.2f} s, a shell loop of sbatch on the login node itself",
            ours / loop <= 1.3,
        ),
        Row(
            "submit",
            f"{JOBS} jobs, each exactly once, over SSH",
            f"{ours:.2f} s, {each / ours:.0f} times as fast",
            f"{each:.1f} s, a paramiko exec for each job on one connection ({_EXECS} timed)",
        ),
        Row(
            "submit",
            f"{JOBS} jobs, each exactly once, over SSH",
            f"{ours:.2f} s, {connection / ours:.0f} times as fast",
            f"{connection:.1f} s, a paramiko connection for each job ({_EXECS} timed)",
            connection / ours >= 20,
        ),
    ]


#: One connection for each job takes so long that some have to do for all.
_EXECS = 30
_SCRIPT = "#!/bin/sh\nhostname\n"


def _jobs() -> tuple[BatchJob, ...]:
    run = uuid.uuid4().hex
    names = (SubmissionKey.derive("bench", run, "job", number, 1).name("bench") for number in range(JOBS))
    return tuple(BatchJob(name=name, script=_SCRIPT) for name in names)


def _loop() -> str:
    return (
        f"for i in $(seq {JOBS}); do sbatch --parsable --job-name=bench-$i <<<{shlex.quote(_SCRIPT)} >/dev/null; done"
    )


def _exec_each(node: Login, *, one_connection: bool) -> None:
    client = node.connect()
    for number in range(_EXECS):
        if not one_connection:
            client.close()
            client = node.connect()
        stdin, stdout, _ = client.exec_command(f"sbatch --parsable --job-name=bench-{number}")
        stdin.write(_SCRIPT)
        stdin.channel.shutdown_write()
        stdout.read()
    client.close()
