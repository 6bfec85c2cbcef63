"""A Slurm in memory, with the habits that make jobs hard to follow, as commands on its login node show it.

It answers in the formats of Slurm's commands, which the provider's requests read. Of what a real one does it leaves
out all that no task of Airflow's can notice: nodes, priorities, and files.
"""

from __future__ import annotations

import asyncio
import base64
import random
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Protocol

from async_timeout import timeout

from airflow_provider_soperator.slurm.cluster_records import RateLimit
from airflow_provider_soperator.slurm.files import ReadPieces, RemoveFiles, UnpackFiles
from airflow_provider_soperator.slurm.job import BatchJob
from airflow_provider_soperator.slurm.job_ids import JobId, array_indices, array_text
from airflow_provider_soperator.slurm.requests import (
    Accounting,
    CancelJobs,
    CommandOutput,
    JobDetail,
    ListJobs,
    Request,
    ShowConfig,
    UpdateJob,
)
from airflow_provider_soperator.slurm.requests.accounting import name_in_accounting
from airflow_provider_soperator.slurm.requests.submission import (
    HELD,
    CancelWithdrawn,
    SubmitOnce,
    Together,
    Withdraw,
    dependency_of,
)
from airflow_provider_soperator.slurm.sbatch_arguments import asked_for
from airflow_provider_soperator.slurm.submission_keys import SubmissionKey, key_of
from airflow_provider_soperator.transports.transport_errors import CommandTimedOut, ConnectionLost, Unreachable
from tests.simulation.clock import START, Process, outside

#: The user of all Airflows, and another one.
OURS, THEIRS = "airflow", "mallory"

#: Requests that change something: what has begun is carried out, whether anybody waits for it or not.
_ORDERS = (SubmitOnce, CancelJobs, UpdateJob, Withdraw, CancelWithdrawn, UnpackFiles, RemoveFiles)
_OK = CommandOutput(0, b"")
_AWAY = b"slurm_load_jobs error: Unable to contact slurm controller (connect failure)\n"
_SBATCH_AWAY = b"sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect failure)\n"
#: The reply to what slurmctld has carried out came too late.
_SBATCH_LATE = b"sbatch: error: Batch job submission failed: Socket timed out on send/recv operation\n"
_VAIN = b"sbatch: error: Batch job submission failed: Job dependency problem\n"
_NO_DBD = b"sacct: error: slurm_persist_conn_open_without_init: failed to open persistent connection to host\n"
_GONE = "scancel: error: Kill job error on job id {}: Invalid job id specified\n"
_ENDED = "scancel: error: Kill job error on job id {}: Job/step already completing or completed\n"
_NOT_OURS = "scancel: error: Kill job error on job id {}: Access/permission denied\n"
NEVER, NOT_YET = "DependencyNeverSatisfied", "Dependency"
ENDS = frozenset({"COMPLETED", "FAILED", "CANCELLED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "TIMEOUT"})


@dataclass(frozen=True)
class Bucket(RateLimit):
    """The limit as slurmctld keeps it: with the number of calls that it takes at once."""

    size: int


@dataclass(frozen=True)
class Habits:
    """What a cluster is like."""

    #: Seconds for which the queue remembers a job after its end; small where jobs are many.
    min_job_age: float = 300.0
    has_accounting: bool = True
    #: Seconds until accounting knows of a start and of an end. slurmctld sends both by an agent that may have a queue.
    start_lag: float = 1.0
    end_lag: float = 1.0
    #: slurmctld saves its state some seconds after a change: what is younger is forgotten when it is killed.
    save_lag: float = 5.0
    #: Seconds by which its clock is ahead.
    skew: float = 0.0
    rate_limit: Bucket | None = None
    #: The login is root's: accounting shows the jobs of all users, and any job can be cancelled.
    is_root: bool = False
    #: The probability of a request that its connection breaks, and of an sbatch that its reply does not come in time.
    cuts: float = 0.0
    late_replies: float = 0.0
    #: The queue prints a field as no Slurm has done so far.
    odd_rows: bool = False
    #: Seconds of an sbatch.
    slowness: float = 0.2


@dataclass(eq=False)
class Part:
    """An element of an array, or a plain job."""

    index: int | None
    state: str = "PENDING"
    reason: str = "Resources"
    started: float = 0.0
    ended: float = 0.0
    #: The exit code of one that is FAILED.
    code: int = 1
    #: What accounting knows, with the time from which on.
    history: list[tuple[float, str, float, float]] = field(default_factory=list)


@dataclass(frozen=True)
class Fate:
    """The life of a job if nobody interferes: seconds of waiting and running, and its end."""

    wait: float
    seconds: float
    end: str = "COMPLETED"


@dataclass(eq=False)
class SlurmJob:
    """A job, with all that has ever been true of it; or an element of an array of mapped tasks."""

    number: int
    name: str
    user: str
    submitted: float
    fate: Fate
    parts: list[Part]
    dependency: str = ""
    #: slurmctld was killed before it had saved the job, and knows nothing of it.
    is_forgotten: bool = False
    #: Somebody has cancelled it.
    is_cancelled: bool = False
    is_element: bool = False
    #: It waits until all that is submitted with it is there; accounting knows no job that was never eligible.
    is_held: bool = False
    #: When it was released.
    released: float = 0.0

    @property
    def id(self) -> JobId:
        return JobId(self.number, self.parts[0].index if self.is_element else None)

    @property
    def key(self) -> SubmissionKey | None:
        return key_of(self.name, self.id)

    @property
    def is_finished(self) -> bool:
        return self.is_forgotten or all(part.state in ENDS for part in self.parts)

    @property
    def has_succeeded(self) -> bool:
        return not self.is_forgotten and all(part.state == "COMPLETED" for part in self.parts)

    @property
    def ended(self) -> float:
        return max(part.ended for part in self.parts)

    def __str__(self) -> str:
        states = ", ".join(dict.fromkeys(part.state for part in self.parts))
        return f"job {self.id} {self.name!r} ({'forgotten' if self.is_forgotten else states})"


class Checks(Protocol):
    """What is held against the rules, as it happens."""

    def fate_of(self, name: str) -> Fate: ...

    def note(self, text: str, *values: object) -> None: ...

    def asked(self, request: Request[Any], process: Process, alike: int) -> None: ...

    def answered(self, request: Request[Any], process: Process, answer: Any) -> None: ...

    def submitted(self, job: SlurmJob) -> None: ...

    def cancelled(self, job: SlurmJob, process: Process) -> None: ...


class Cluster:
    """The cluster: slurmctld, slurmdbd, and the login node with the commands."""

    def __init__(self, habits: Habits, dice: random.Random, checks: Checks) -> None:
        self.habits, self._dice, self._checks = habits, dice, checks
        #: All jobs that there ever were.
        self.jobs: list[SlurmJob] = []
        self._next = 7
        self.is_up = self.is_reachable = self.is_accounting_up = True
        self._lock = asyncio.Lock()
        #: When the submissions of keys were withdrawn.
        self._withdrawn: dict[str, float] = {}
        self._tokens, self._filled_at = 0.0, 0.0
        if limit := habits.rate_limit:
            self._tokens, self._filled_at = float(limit.size), time.monotonic()

    # ------------------------------------------------------------------------------------------------------ its life

    @property
    def is_well(self) -> bool:
        return self.is_up and self.is_reachable and self.is_accounting_up

    def kill_controller(self) -> None:
        """As by SIGKILL: what it has not saved is gone, and so are the numbers that it has given out."""
        self.is_up = False
        now = time.monotonic()
        # Its state is one file, so all after that is missing.
        saved = now - self._dice.uniform(0, self.habits.save_lag)
        lost = [job for job in self.jobs if job.submitted > saved]
        if lost:
            self._next = min(job.number for job in lost)
        for job in self.jobs:
            if job.submitted <= saved < job.released and all(part.state == "PENDING" for part in job.parts):
                job.is_held = True
                self._checks.note("  slurmctld has forgotten that %s was released", job)
        for job in lost:
            job.is_forgotten = True
            for part in job.parts:
                # The agent's queue of messages to slurmdbd was not saved either.
                part.history = [known for known in part.history if known[0] <= now]
            self._checks.note("  slurmctld has forgotten %s", job)

    def submit(
        self, name: str, user: str, indices: list[int] | None = None, dependency: str = "", is_held: bool = False
    ) -> SlurmJob:
        parts = [Part(index) for index in indices] if indices else [Part(None)]
        job = SlurmJob(self._next, name, user, time.monotonic(), self._checks.fate_of(name), parts, dependency)
        job.is_held = is_held
        self._next += 1
        self._accept(job)
        return job

    def submit_elements(self, name: str, user: str, indices: list[int]) -> list[SlurmJob]:
        """An array of which each element has a life of its own."""
        now, fate_of = time.monotonic(), self._checks.fate_of
        jobs = [
            SlurmJob(self._next, name, user, now, fate_of(name), [Part(index)], is_element=True) for index in indices
        ]
        self._next += 1
        for job in jobs:
            self._accept(job)
        return jobs

    def _accept(self, job: SlurmJob) -> None:
        self.jobs.append(job)
        self._checks.note("  %s of %s is submitted", job, job.user)
        if not job.dependency and not job.is_held:
            for part in job.parts:
                self._tell_accounting(part, self.habits.start_lag)
        outside(self._live(job))

    async def _live(self, job: SlurmJob) -> None:
        await asyncio.sleep(job.fate.wait)
        while not (self.is_up and self._may_start(job)):
            if job.is_finished:
                return
            await asyncio.sleep(5)
        for part in job.parts:
            if part.state == "PENDING" and not job.is_forgotten:
                part.state, part.reason, part.started = "RUNNING", "", time.monotonic()
                self._tell_accounting(part, self.habits.start_lag)
        # One element after the other.
        for part in job.parts:
            await asyncio.sleep(job.fate.seconds / len(job.parts))
            await self._controller()
            if part.state == "RUNNING":
                # Of an array one element has the fate of the job.
                self._end(job, part, job.fate.end if part is job.parts[0] else "COMPLETED")

    async def _controller(self) -> None:
        """slurmctld learns of ends when it is back."""
        while not self.is_up:
            await asyncio.sleep(1)

    def _end(self, job: SlurmJob, part: Part, state: str) -> None:
        if job.is_forgotten:
            return
        part.state, part.ended, part.reason = state, time.monotonic(), ""
        self._tell_accounting(part, self.habits.end_lag)
        if job.is_finished:
            self._checks.note("  %s has ended", job)

    def _tell_accounting(self, part: Part, lag: float) -> None:
        known_at = time.monotonic() + self._dice.uniform(0.5, 1.0) * lag
        part.history.append((known_at, part.state, part.started, part.ended))

    def _release(self, job: SlurmJob) -> None:
        job.is_held, job.released = False, time.monotonic()
        for part in job.parts:
            self._tell_accounting(part, self.habits.start_lag)

    def _may_start(self, job: SlurmJob) -> bool:
        if job.is_held:
            return False
        for kind, number in _terms(job.dependency):
            other = self._known(number)
            if other is None:
                continue
            is_unmet = kind == "afterok" and other.is_finished and not other.has_succeeded
            if is_unmet or not other.is_finished:
                for part in job.parts:
                    part.reason = NEVER if is_unmet else NOT_YET
                return False
        return True

    def _is_vain(self, kind: str, number: int) -> bool:
        """True if a new job may not wait for this: for itself, or for the success of one that nobody knows."""
        return number == self._next or (kind in ("afterok", "afternotok") and self._known(number) is None)

    def _known(self, number: int, element: int | None = None) -> SlurmJob | None:
        """The job that slurmctld has by this number, even if it has ended long ago."""
        meant = (job for job in reversed(self.jobs) if job.number == number and not job.is_forgotten)
        return next((job for job in meant if not job.is_element or job.id.element == element), None)

    def queue(self) -> Iterator[tuple[SlurmJob, list[Part]]]:
        """The jobs in the queue, with the parts that it has not forgotten."""
        since = time.monotonic() - self.habits.min_job_age
        for job in self.jobs:
            if not job.is_forgotten:
                parts = [part for part in job.parts if part.state not in ENDS or part.ended > since]
                if parts:
                    yield job, parts

    def is_withdrawn(self, key: SubmissionKey) -> bool:
        return key.text in self._withdrawn

    # -------------------------------------------------------------------------------------------------- its commands

    async def serve(self, request: Request[Any], process: Process, alike: int = 1) -> Any:
        """Answer a request of a process, which has so many ``alike`` under way."""
        if not process.is_alive:
            raise asyncio.CancelledError
        self._checks.asked(request, process, alike)
        if not self.is_reachable:
            await asyncio.sleep(self._dice.choice((0.1, 20.0)))
            raise Unreachable("the host does not answer")
        is_cut = self._dice.random() < self.habits.cuts
        limit = request.command().timeout if isinstance(request, SubmitOnce) else 150.0
        begun = outside(self._run(request, process)) if isinstance(request, _ORDERS) else None
        work = asyncio.shield(begun) if begun else self._run(request, process)
        try:
            async with timeout(self._dice.uniform(0.0, 0.5) if is_cut else limit):
                output = await work
        except asyncio.TimeoutError:
            if is_cut:
                raise ConnectionLost("the connection broke") from None
            if begun:
                begun.cancel()
            raise CommandTimedOut(type(request).__name__, limit) from None
        if is_cut or not self.is_reachable:
            raise ConnectionLost("the connection broke")
        answer = request.read(output) if isinstance(output, CommandOutput) else output
        self._checks.answered(request, process, answer)
        return answer

    async def _run(self, request: Request[Any], process: Process) -> Any:
        await asyncio.sleep(self._dice.uniform(0.02, 0.3))
        if isinstance(request, Accounting):
            return await self._sacct(request)
        if isinstance(request, SubmitOnce):
            return await self._submit_once(request)
        if isinstance(request, ReadPieces):
            return _OK
        if isinstance(request, Withdraw):
            now = time.monotonic()
            texts = [key.text for key in request.keys]
            left = {key: when for key, when in self._withdrawn.items() if key not in texts}
            self._withdrawn = left if request.is_void else {**left, **dict.fromkeys(texts, now)}
            return _OK
        if isinstance(request, CancelWithdrawn) and (not self._withdrawn or self._lock.locked()):
            return _OK
        # squeue asks for the partitions and the federation, too.
        if not await self._reached(3 if isinstance(request, (ListJobs, CancelWithdrawn)) else 1):
            return CommandOutput(1, b"", _AWAY)
        if isinstance(request, CancelWithdrawn):
            async with self._lock:
                self._cancel_withdrawn()
            return _OK
        if isinstance(request, ListJobs):
            return self._squeue(request)
        if isinstance(request, CancelJobs):
            return self._scancel(request, process)
        if isinstance(request, ShowConfig):
            return CommandOutput(0, self._config().encode())
        if isinstance(request, UpdateJob):
            return self._update(request)
        assert isinstance(request, JobDetail), f"nobody has taught this Slurm to answer {request!r}"
        return CommandOutput(0, b"JobId=1\n   JobState=FAILED\n")

    async def _reached(self, calls: int) -> bool:
        """True once slurmctld has taken so many RPCs; commands bear its rate limit, and its absence for a while."""
        if not self.is_up:
            await asyncio.sleep(self._dice.uniform(1, 15))
        while limit := self.habits.rate_limit:
            each, now = limit.period.total_seconds() / limit.refill, time.monotonic()
            self._tokens = min(float(limit.size), self._tokens + (now - self._filled_at) / each)
            self._filled_at = now
            if self._tokens >= calls:
                self._tokens -= calls
                break
            # Commands back off and try it again, until they are ended.
            await asyncio.sleep(max(0.1, (calls - self._tokens) * each))
        return self.is_up

    def _squeue(self, request: ListJobs) -> CommandOutput:
        numbers = None if request.ids is None else {job.job for job in request.ids}
        rows: list[dict[str, str]] = []
        pending: dict[int, tuple[SlurmJob, list[Part]]] = {}
        for job, parts in self.queue():
            if numbers is not None and job.number not in numbers:
                continue
            if (request.mine and job.user != OURS) or (request.names and job.name not in request.names):
                continue
            if job.is_element and parts[0].state == "PENDING":
                pending.setdefault(job.number, (job, []))[1].extend(parts)
            else:
                rows += [self._queue_row(job, some) for some in _entries(parts)]
        rows += [self._queue_row(job, some) for job, some in pending.values()]
        if numbers and len(numbers) == 1 and not rows:
            return CommandOutput(1, b"", b"slurm_load_jobs error: Invalid job id specified\n")
        return CommandOutput(0, _table(rows, request))

    def _queue_row(self, job: SlurmJob, parts: list[Part]) -> dict[str, str]:
        part = parts[0]
        return {
            "JobArrayId": _id(job, parts),
            "JobId": str(job.number),
            "Name": job.name,
            "UserName": job.user,
            "State": part.state,
            "Reason": "JobHeldUser" if job.is_held else part.reason,
            "Comment": HELD if job.is_held else "",
            "SubmitTime": self._epoch(job.submitted),
            "EligibleTime": self._epoch(job.submitted),
            "StartTime": self._epoch(part.started),
            "EndTime": self._epoch(part.ended),
            "TimeLimit": "a fortnight" if self.habits.odd_rows else "1:00:00",
            "exit_code": f"{part.code}:0" if part.state == "FAILED" else "0:0",
            "Dependency": ",".join(
                f"{kind}:{number}({'failed' if part.reason == NEVER else 'unfulfilled'})"
                for kind, number in _terms(job.dependency)
                if part.state == "PENDING"
            ),
        }

    async def _sacct(self, request: Accounting) -> CommandOutput:
        if not self.habits.has_accounting:
            return CommandOutput(1, b"", b"Slurm accounting storage is disabled\n")
        if not self.is_accounting_up:
            await asyncio.sleep(self._dice.uniform(1, 15))
            return CommandOutput(1, b"", _NO_DBD)
        mine = request.mine or not self.habits.is_root
        since = None if request.since is None else request.since.timestamp()
        numbers = None if request.ids is None else {job.job for job in request.ids}
        names = {name_in_accounting(name) for name in request.names}
        rows = []
        for job, part, state, started, ended in self._accounted(mine, since):
            if (numbers is None or job.number in numbers) and (not names or name_in_accounting(job.name) in names):
                rows.append(self._accounting_row(job, part, state, started, ended))
        return CommandOutput(0, _table(rows, request))

    def _accounted(self, mine: bool, since: float | None) -> Iterator[tuple[SlurmJob, Part, str, float, float]]:
        now = time.monotonic()
        for job in self.jobs:
            if mine and job.user != OURS:
                continue
            for part in job.parts:
                known = [one for one in part.history if one[0] <= now]
                if not known:
                    continue
                _, state, started, ended = known[-1]
                if since is None or not ended or START + ended + self.habits.skew >= since:
                    yield job, part, state, started, ended

    def _accounting_row(self, job: SlurmJob, part: Part, state: str, started: float, ended: float) -> dict[str, str]:
        return {
            "JobID": _id(job, [part]),
            "JobIDRaw": str(job.number),
            "JobName": name_in_accounting(job.name),
            "User": job.user,
            "State": "CANCELLED by 0" if state == "CANCELLED" else state,
            "ExitCode": f"{part.code}:0" if state == "FAILED" else "0:0",
            "Submit": self._epoch(job.submitted),
            "Eligible": self._epoch(job.submitted),
            "Start": self._epoch(started),
            "End": self._epoch(ended),
        }

    def _epoch(self, when: float) -> str:
        return str(int(START + when + self.habits.skew)) if when else "Unknown"

    def _scancel(self, request: CancelJobs, process: Process) -> CommandOutput:
        said = ""
        for one in request.ids:
            job = self._known(one.job, one.element)
            queued = next((parts for other, parts in self.queue() if other is job), None)
            if job is None or queued is None:
                said += _GONE.format(one)
            elif job.user != OURS and not self.habits.is_root:
                said += _NOT_OURS.format(one)
            elif job.is_finished:
                said += _ENDED.format(one)
            else:
                parts = [part for part in queued if part.state == "PENDING" or not request.waiting]
                if parts:
                    self._checks.note("  %s is cancelled by %s", job, process.name)
                    self._checks.cancelled(job, process)
                    job.is_cancelled = True
                    outside(self._cancel(job, parts))
        return CommandOutput(1 if said else 0, b"", said.encode())

    async def _cancel(self, job: SlurmJob, parts: list[Part]) -> None:
        running = [part for part in parts if part.state == "RUNNING"]
        for part in parts:
            if part.state == "PENDING":
                self._end(job, part, "CANCELLED")
        for part in running:
            part.state = "COMPLETING"
        if running:
            # What a job has set up for SIGTERM takes its time.
            await asyncio.sleep(self._dice.uniform(0, 20))
        for part in running:
            if part.state == "COMPLETING":
                self._end(job, part, "CANCELLED")

    def _update(self, request: UpdateJob) -> CommandOutput:
        job = self._known(request.job.job)
        if job is None:
            return CommandOutput(1, b"", b"slurm_update error: Invalid job id specified\n")
        assert set(request.changes) == {"Dependency"}, request
        job.dependency = request.changes["Dependency"]
        return _OK

    def _config(self) -> str:
        said = {"SLURM_VERSION": "25.11.2", "ClusterName": "soperator"}
        said["MinJobAge"] = f"{self.habits.min_job_age:.0f} sec"
        said["AccountingStorageType"] = "accounting_storage/slurmdbd" if self.habits.has_accounting else "(null)"
        if limit := self.habits.rate_limit:
            said["SlurmctldParameters"] = (
                f"rl_enable,rl_bucket_size={limit.size},rl_refill_rate={limit.refill},"
                f"rl_refill_period={limit.period.total_seconds():.0f}"
            )
        return "".join(f"{name} = {value}\n" for name, value in said.items())

    # -------------------------------------------------------------------------- the program of a submission, in Python

    async def _submit_once(self, request: SubmitOnce) -> CommandOutput:
        """What ``submit_once.bash`` does, step by step."""
        begun = time.monotonic()
        try:
            async with timeout(120):
                await self._lock.acquire()
        except asyncio.TimeoutError:
            return CommandOutput(75, b"", b"the lock .cache/submit.lock was not free within 120 s, or cannot be used\n")
        try:
            return await self._submit(request, begun)
        finally:
            self._lock.release()

    async def _submit(self, request: SubmitOnce, program_begun: float) -> CommandOutput:
        known: dict[str, JobId] = {}
        if not await self._reached(3):
            return CommandOutput(1, b"", _AWAY)
        self._learn(known, (job for job, _ in self.queue() if job.user == OURS))
        if not request.fresh and self.habits.has_accounting:
            await asyncio.sleep(self._dice.uniform(0.05, 0.5))
            if not self.is_accounting_up:
                return CommandOutput(69, b"", _NO_DBD)
            since = None if request.since is None else request.since.timestamp()
            self._learn(known, (row[0] for row in self._accounted(mine=True, since=since)))
        begun, lines, is_refused = time.monotonic(), [], False
        submitted: list[tuple[str, str, JobId]] = []
        new: set[str] = set()
        adopted: list[tuple[str, BatchJob]] = []
        keys = request.submission_keys()
        for number, call in enumerate(request.calls):
            due: dict[int | None, tuple[str, str]] = {}
            for element, place in call.places.items():
                item, key = str(number) if element is None else f"{number}_{element}", keys[place].text
                if self._withdrawn.get(key, 0.0) > program_begun:
                    lines.append(f"{item} withdrawn -")
                    is_refused = is_refused or request.together is not None
                    continue
                self._withdrawn.pop(key, None)
                if key in known:
                    lines.append(f"{item} adopted {known[key]}")
                    adopted.append((key, call.job))
                elif request.together is None and submitted and time.monotonic() - begun >= 60:
                    lines.append(f"{item} left -")
                else:
                    due[element] = item, key
            if not due or is_refused or request.together is Together.END:
                continue
            is_first = bool(request.together) and not set(dependency_of(call.job).keys) & set(keys)
            error = await self._sbatch(call.job, [*due], known, is_first)
            if error and request.together:
                return CommandOutput(1, b"", error)
            for item, key in due.values():
                if key in known:
                    submitted.append((item, key, known[key]))
                    new.add(key)
                if error:
                    lines.append(f"{item} failed 1 {base64.b64encode(error).decode()}")
                else:
                    lines.append(f"{item} submitted {known[key]}")
        if request.together:
            there: dict[str, JobId] = {}
            self._learn(there, (job for job, _ in self.queue() if job.user == OURS))
            if not new <= there.keys():
                return CommandOutput(69, b"", b"slurmctld has forgotten jobs that it had accepted\n")
        for key, one in adopted:
            waits = dependency_of(one)
            job = self._known(known[key].job)
            if job and new.intersection(other.text for other in waits.keys):
                job.dependency = waits.resolve(lambda key: known[key.text].job)
        if request.together is Together.START:
            for job, _ in self.queue():
                if job.is_held and job.user == OURS and job.key in keys:
                    self._release(job)
        for item, key, job_id in submitted:
            line = f"{item} submitted {job_id}"
            if request.together is None and line in lines and self._withdrawn.get(key, 0.0) > program_begun:
                self._cancel_all(lambda job, job_id=job_id: job.id == job_id)
                lines[lines.index(line)] = f"{item} withdrawn -"
        self._cancel_withdrawn()
        return CommandOutput(0, "".join(f"{line}\n" for line in lines).encode())

    def _cancel_withdrawn(self) -> None:
        self._cancel_all(lambda job: job.key is not None and job.key.text in self._withdrawn)

    def _cancel_all(self, is_meant: Callable[[SlurmJob], bool]) -> None:
        """Cancel unfinished jobs of the program's user."""
        for job, parts in list(self.queue()):
            if job.user == OURS and not job.is_finished and is_meant(job):
                self._checks.note("  %s is cancelled, as it was withdrawn", job)
                job.is_cancelled = True
                outside(self._cancel(job, parts))

    def _learn(self, known: dict[str, JobId], jobs: Iterable[SlurmJob]) -> None:
        for job in jobs:
            if job.key:
                known[job.key.text] = min(job.id, known.get(job.key.text, job.id))

    async def _sbatch(self, job: BatchJob, elements: list[int | None], known: dict[str, JobId], is_held: bool) -> bytes:
        """The error, if there is one; the number of the job goes to those that are known."""
        await asyncio.sleep(self._dice.uniform(0.5, 1.5) * self.habits.slowness)
        if not await self._reached(1):
            return _SBATCH_AWAY
        array = asked_for(job).array
        indices = None if array is None else array_indices(array_text(array))
        dependency = dependency_of(job).resolve(lambda key: known[key.text].job)
        if any(self._is_vain(kind, number) for kind, number in _terms(dependency)):
            return _VAIN
        if indices_of_tasks := [element for element in elements if element is not None]:
            made = self.submit_elements(job.name or "", OURS, indices_of_tasks)
        else:
            made = [self.submit(job.name or "", OURS, indices, dependency, is_held)]
        for one in made:
            self._checks.submitted(one)
        if self._dice.random() < self.habits.late_replies:
            self._checks.note("  the reply about %s comes too late", made[0])
            return _SBATCH_LATE
        self._learn(known, made)
        return b""


def _terms(dependency: str) -> Iterator[tuple[str, int]]:
    for term in filter(None, dependency.replace("?", ",").split(",")):
        kind, *numbers = term.split(":")
        for number in numbers:
            yield kind, int(number.partition("_")[0].partition("+")[0])


def _entries(parts: list[Part]) -> Iterator[list[Part]]:
    """Rows of the queue: pending elements of an array are one."""
    if pending := [part for part in parts if part.state == "PENDING"]:
        yield pending
    for part in parts:
        if part.state != "PENDING":
            yield [part]


def _id(job: SlurmJob, parts: list[Part]) -> str:
    index = parts[0].index
    if index is None:
        return str(job.number)
    if parts[0].state == "PENDING" and len(parts) > 1:
        return f"{job.number}_[{','.join(str(part.index) for part in parts)}]"
    return f"{job.number}_{index}"


def _table(rows: list[dict[str, str]], request: ListJobs | Accounting) -> bytes:
    table = request.table
    separator = table.separator
    return "".join(
        separator.join([row.get(column, "") for column in table.columns]) + f"{separator}\n" for row in rows
    ).encode()


class Way:
    """The transport of one process to the cluster."""

    def __init__(self, cluster: Cluster, process: Process) -> None:
        self._cluster, self._process = cluster, process
        self._submissions = 0

    async def ask(self, request: Request[Any]) -> Any:
        if not isinstance(request, SubmitOnce):
            return await self._cluster.serve(request, self._process)
        self._submissions += 1
        try:
            return await self._cluster.serve(request, self._process, self._submissions)
        finally:
            self._submissions -= 1

    async def close(self) -> None: ...


#: What some sites allow: 40 calls, and then 4 a minute.
STRICT = Bucket(size=40, refill=4, period=timedelta(minutes=1))
