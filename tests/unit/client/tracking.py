"""Answers of a Slurm as values, for tests of what is made of them, and a Slurm that gives them."""

from __future__ import annotations

import asyncio
import contextlib
import selectors
import time
from collections.abc import Callable, Coroutine
from pathlib import PurePosixPath
from typing import Any, TypeVar

import pytest

from airflow_provider_soperator.slurm.cluster_records import ClusterConfig, Node
from airflow_provider_soperator.slurm.errors import AccountingDisabled, UnknownJob
from airflow_provider_soperator.slurm.files import JobFolder, ReadPieces
from airflow_provider_soperator.slurm.job_ids import JobId, array_text
from airflow_provider_soperator.slurm.job_records import AccountingJob, Job
from airflow_provider_soperator.slurm.requests import (
    Accounting,
    CancelJobs,
    JobDetail,
    ListJobs,
    ListNodes,
    ListReservations,
    Request,
    ShowConfig,
    UpdateJob,
)
from airflow_provider_soperator.slurm.requests.submission import CancelWithdrawn, SubmitOnce, Submitted, Withdraw
from airflow_provider_soperator.slurm.states import JobState
from airflow_provider_soperator.slurm.submission_keys import Keys, SubmissionKey
from tests.shared_files import carried_out

T = TypeVar("T")

#: The user of the connection.
USER = "alice"


def queued(job: str, state: str, name: str = "train", **fields: Any) -> Job:
    return Job(id=JobId.parse(job), state=JobState.parse(state), name=name, **{"user": USER, **fields})


def past(job: str, state: str, name: str = "train", submit_line: str = "") -> AccountingJob:
    return AccountingJob(id=JobId.parse(job), state=JobState.parse(state), name=name, submit_line=submit_line)


class Log:
    """What a task's log is told."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def info(self, event: str, *args: Any) -> None:
        self.lines.append(event % args)

    warning = info


class Slurm:
    """A transport to a Slurm in memory: a queue and accounting that a test fills, and the orders that were given."""

    def __init__(self, *queue: Job, accounting: list[AccountingJob] | None = None) -> None:
        self.queue = list(queue)
        #: None if the cluster keeps none.
        self.accounting = accounting
        storage = "" if accounting is None else "accounting_storage/slurmdbd"
        self.config: ClusterConfig | Exception = ClusterConfig(version="24.11.5", accounting_storage=storage)
        #: The number that the next submitted job is given.
        self.next_id = 7
        #: How often sbatch was called.
        self.calls = 0
        self.orders: list[Request[Any]] = []
        #: When the queue was asked.
        self.asked_at: list[float] = []
        #: The content of files, by path, which pieces are read of; and how often they were.
        self.files: dict[str, bytes] = {}
        self.reads = 0
        self.looks_at_nodes = 0
        self.nodes: list[Node] = []
        #: Called before each look at the queue, and before each request; what it raises is the answer.
        self.before_look: Callable[[], None] = lambda: None
        self.before: Callable[[], None] = lambda: None
        #: All requests, answered or not.
        self.asked: list[Request[Any]] = []

    def count(self, kind: type[Request[Any]]) -> int:
        """Number of requests of a kind."""
        return sum(isinstance(request, kind) for request in self.asked)

    async def ask(self, request: Request[Any]) -> Any:
        self.asked.append(request)
        self.before()
        if isinstance(request, ListJobs):
            self.before_look()
            self.asked_at.append(time.monotonic())
            there = [job for job in self.queue if not request.mine or job.user == USER]
            return tuple(job for job in there if request.admits(job))
        if isinstance(request, Accounting):
            if self.accounting is None:
                raise AccountingDisabled("Slurm accounting storage is disabled")
            return tuple(job for job in self.accounting if request.admits(job))
        if isinstance(request, ShowConfig):
            if isinstance(self.config, Exception):
                raise self.config
            return self.config
        if isinstance(request, SubmitOnce):
            return self.submit(request)
        if isinstance(request, (Withdraw, CancelWithdrawn)):
            return None
        if isinstance(request, JobFolder):
            return PurePosixPath("/root")
        if isinstance(request, ReadPieces):
            self.reads += 1
            return carried_out(request, self.files)
        if isinstance(request, JobDetail):
            raise UnknownJob("Invalid job id specified")
        if isinstance(request, ListNodes):
            self.looks_at_nodes += 1
            return tuple(node for node in self.nodes if node.name in request.names)
        if isinstance(request, ListReservations):
            return ()
        assert isinstance(request, (CancelJobs, UpdateJob)), request
        self.orders.append(request)
        return None

    async def close(self) -> None: ...

    def submit(self, request: SubmitOnce) -> tuple[Submitted, ...]:
        keys = request.submission_keys()
        wanted, known = Keys(keys), dict[SubmissionKey, JobId]()
        for job in sorted(self.queue, key=lambda job: job.id, reverse=True):
            known.update(wanted.of(job.name, job.id))
        answers: dict[int, Submitted] = {}
        for call in request.calls:
            new = {element: place for element, place in call.places.items() if keys[place] not in known}
            adopted = [place for place in call.places.values() if keys[place] in known]
            answers |= {place: Submitted(known[keys[place]], adopted=True) for place in adopted}
            answers |= {place: Submitted(JobId(self.next_id, element)) for element, place in new.items()}
            indices = [element for element in new if element is not None]
            if new:
                self.calls += 1
                entry = JobId(self.next_id, elements=array_text(indices) if indices else "")
                self.queue.append(queued(str(entry), "PENDING", name=call.job.name or ""))
                self.next_id += 1
        return tuple(answers[place] for place in range(len(keys)))


class _Skipping(selectors.DefaultSelector):
    """Nothing comes from outside, so what would be waited for is there at once."""

    now = 1000.0

    def select(self, timeout: float | None = None) -> Any:
        self.now += timeout or 0.0
        assert self.now < 1_000_000, "it never ends"
        return super().select(0)


def run_without_waiting(work: Coroutine[Any, Any, T], monkeypatch: pytest.MonkeyPatch) -> T:
    """Run a coroutine in a loop whose clock, which is the one of all modules, moves on instead of waiting."""
    selector = _Skipping()
    loop = asyncio.SelectorEventLoop(selector)
    with monkeypatch.context() as patch, contextlib.closing(loop):
        patch.setattr(time, "monotonic", lambda: selector.now)
        patch.setattr(loop, "time", lambda: selector.now)
        return loop.run_until_complete(work)
