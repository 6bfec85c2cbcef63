"""Waiting for thousands of jobs: what it costs slurmctld and the process that waits, and how soon an end is known.

All wait in a process of its own over one SSH connection, as in the triggerer; the jobs are real ones, held back.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import psutil

from airflow_provider_soperator.client import submissions
from airflow_provider_soperator.client.client import AsyncSlurmClient
from airflow_provider_soperator.client.submissions import PendingSubmission
from airflow_provider_soperator.client.sync import SlurmClient
from airflow_provider_soperator.slurm.job import BatchJob
from airflow_provider_soperator.slurm.requests.commands import run_steps
from airflow_provider_soperator.slurm.requests.submission import MOST
from airflow_provider_soperator.slurm.submission_keys import SubmissionKey
from airflow_provider_soperator.transports.ssh import SshTransport
from benchmarks.sdiag import counts
from benchmarks.table import Row, spread
from benchmarks.transports import Login
from benchmarks.watchers import INTERVAL
from sandbox.lifecycle import Sandbox
from sandbox.settings import USER, Settings

FEW = 10
MANY = 5000
#: Jobs for the naive poller, and seconds for which it is measured. More jobs would take its four shells longer than
#: the interval.
NAIVE = 100
NAIVE_TIME = 2 * INTERVAL
ROUNDS = 4
#: Jobs that end while all wait.
ENDS = 40


@dataclass
class Process:
    """A process that waits."""

    popen: subprocess.Popen[str]
    usage: psutil.Process
    #: When each job's end was told.
    ended: dict[str, float] = field(default_factory=dict)
    _known: list[int] = field(default_factory=list)
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def say(self, words: Any) -> None:
        assert self.popen.stdin is not None
        self.popen.stdin.write(json.dumps(words) + "\n")
        self.popen.stdin.flush()

    def listen(self) -> None:
        assert self.popen.stdout is not None
        for line in self.popen.stdout:
            said = json.loads(line)
            with self._changed:
                if "ended" in said:
                    self.ended[said["ended"]] = said["at"]
                else:
                    self._known.append(said["known"])
                self._changed.notify_all()

    def wait_for(self, jobs: Sequence[str]) -> None:
        """Wait for more jobs; done when each is known."""
        before = len(self._known)
        self.say(jobs)
        self._until(lambda: len(self._known) > before)

    def until_ended(self, jobs: Sequence[str]) -> None:
        self._until(lambda: self.ended.keys() >= set(jobs))

    def _until(self, condition: Any) -> None:
        with self._changed:
            assert self._changed.wait_for(condition, timeout=120), "the process that waits is stuck"

    def cpu(self) -> float:
        times = self.usage.cpu_times()
        return times.user + times.system


@contextmanager
def waiting(kind: str, login: dict[str, Any]) -> Iterator[Process]:
    popen = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.watchers", kind], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    made = Process(popen, psutil.Process(popen.pid))
    threading.Thread(target=made.listen, daemon=True).start()
    try:
        made.say({**login, "user": USER})
        yield made
    finally:
        popen.kill()
        popen.wait()


@dataclass(frozen=True)
class Cost:
    """What waiting has cost in some time."""

    seconds: float
    rpcs: int
    cpu_seconds: float

    @property
    def rpcs_per_minute(self) -> float:
        return self.rpcs * 60 / self.seconds

    @property
    def cores(self) -> float:
        return self.cpu_seconds / self.seconds


class Meter:
    """Reads what those who wait have cost so far.

    They are all that their user does: whatever else happens here, root does.
    """

    def __init__(self, sandbox: Sandbox, process: Process) -> None:
        self._sandbox, self._process = sandbox, process

    def rpcs(self) -> int:
        return counts(as_root(self._sandbox, "sdiag"))[USER]

    def read(self) -> tuple[float, int, float]:
        return time.monotonic(), self.rpcs(), self._process.cpu()

    def next_round(self) -> tuple[float, int, float]:
        """The same, just after slurmctld has been asked again: so that whole rounds are measured."""
        before = self.rpcs()
        while self.rpcs() == before:
            time.sleep(0.2)
        at = time.monotonic()
        # A round is more than one question: wait for the others.
        time.sleep(1)
        count = self.rpcs()
        return at, count, self._process.cpu()


def cost(before: tuple[float, int, float], after: tuple[float, int, float]) -> Cost:
    return Cost(after[0] - before[0], after[1] - before[1], after[2] - before[2])


def over_rounds(meter: Meter, rounds: int) -> Cost:
    before = after = meter.next_round()
    for _ in range(rounds):
        after = meter.next_round()
    return cost(before, after)


def as_root(sandbox: Sandbox, *command: str) -> str:
    said = sandbox.init.run("sshd", [*command], timeout=60)
    assert said.returncode == 0, said.stderr
    return said.stdout


@contextmanager
def ending(sandbox: Sandbox, jobs: Sequence[str], seconds: float) -> Iterator[dict[str, float]]:
    """End some jobs one after the other meanwhile; when each was told to end."""
    ends: dict[str, float] = {}

    def end() -> None:
        for job in jobs:
            time.sleep(random.uniform(0, 2 * seconds / len(jobs)))
            ends[job] = time.time()
            as_root(sandbox, "scancel", job)

    thread = threading.Thread(target=end)
    thread.start()
    yield ends
    thread.join()


def submit(slurm: SlurmClient, count: int) -> list[str]:
    run = uuid.uuid4().hex
    names = (SubmissionKey.derive("bench", run, "job", number, 1).name("bench") for number in range(count))
    left = {name: BatchJob(name=name, command="true", hold=True, output="/dev/null") for name in names}
    ids = []
    while left:
        batch = {name: PendingSubmission(left[name]) for name in list(left)[:MOST]}
        for name, answer in run_steps(submissions.submit(batch), slurm.ask).items():
            ids.append(str(answer.id))
            del left[name]
    return ids


def run() -> list[Row]:
    sandbox = Sandbox(Settings(name="bench-watching", workers=1, static=0))
    sandbox.up()
    try:
        login = {**json.loads(sandbox.paths.access.read_text())["ssh"], "user": USER}
        slurm = SlurmClient(AsyncSlurmClient(SshTransport(Login(sandbox, login).connector)))
        jobs = submit(slurm, MANY)
        slurm.close()
        return [*shared(sandbox, login, jobs), *naive(sandbox, login, jobs[-NAIVE:])]
    finally:
        sandbox.down()


def shared(sandbox: Sandbox, login: dict[str, Any], jobs: list[str]) -> list[Row]:
    with waiting("shared", login) as process:
        meter = Meter(sandbox, process)
        process.wait_for(jobs[:FEW])
        few = over_rounds(meter, ROUNDS - 2)
        small = process.usage.memory_info().rss
        process.wait_for(jobs[FEW:])
        with ending(sandbox, jobs[FEW : FEW + ENDS], ROUNDS * INTERVAL) as ends:
            many = over_rounds(meter, ROUNDS)
        process.until_ended(list(ends))
        per_waiter = (process.usage.memory_info().rss - small) / (MANY - FEW)
        late = [process.ended[job] - at for job, at in ends.items()]
    interval = many.seconds / ROUNDS
    difference = abs(many.rpcs_per_minute / few.rpcs_per_minute - 1)
    return [
        Row(
            "watching",
            f"questions to slurmctld in a minute, {MANY} who wait",
            f"{many.rpcs_per_minute:.1f}",
            f"{few.rpcs_per_minute:.1f} with {FEW} who wait",
            difference <= 0.1,
        ),
        Row("watching", f"processor, {MANY} who wait", f"{many.cores:.3f} of a core", "0.25", many.cores < 0.25),
        Row("watching", "memory of one who waits", f"{per_waiter / 1024:.1f} KB"),
        Row(
            "watching",
            f"from a job's end until it is told, {ENDS} jobs",
            spread(late),
            f"{1.2 * interval:.2f} s, 1.2 times the interval",
            max(late) <= 1.2 * interval,
        ),
    ]


def naive(sandbox: Sandbox, login: dict[str, Any], jobs: list[str]) -> list[Row]:
    """Beside it, what a question for each job costs. Slurm's own side of it is in nobody's figure here."""
    with waiting("naive", login) as process:
        meter = Meter(sandbox, process)
        process.wait_for(jobs)
        before = meter.read()
        time.sleep(NAIVE_TIME)
        each = cost(before, meter.read())
    scale = MANY / NAIVE
    return [
        Row(
            "watching",
            f"a question for each of {NAIVE} jobs: questions to slurmctld in a minute",
            f"{each.rpcs_per_minute:.0f}",
            f"{each.rpcs_per_minute * scale:.0f} it would be for {MANY}",
        ),
        Row(
            "watching",
            f"a question for each of {NAIVE} jobs: processor",
            f"{each.cores:.3f} of a core",
            f"{each.cores * scale:.2f} it would be for {MANY}",
        ),
    ]
