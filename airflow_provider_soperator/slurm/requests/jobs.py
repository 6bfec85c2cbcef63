"""Requests about jobs in the queue."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from airflow_provider_soperator.slurm.errors import (
    InvalidRequest,
    NotPermitted,
    SlurmError,
    UnknownJob,
    UnreadableAnswer,
)
from airflow_provider_soperator.slurm.job_ids import JobId, JobIdSet
from airflow_provider_soperator.slurm.job_records import Job
from airflow_provider_soperator.slurm.notations import EPOCHS, ExitCode, parse_duration, parse_time
from airflow_provider_soperator.slurm.requests.commands import (
    MEGABYTE,
    Command,
    CommandOutput,
    Request,
    Table,
    clean,
    number,
    plain_word,
)
from airflow_provider_soperator.slurm.states import JobState

if TYPE_CHECKING:
    from airflow_provider_soperator.slurm.job import BatchJob

#: With more ids or names than this, all jobs are listed and filtered here.
MOST_LISTED = 1000
#: Jobs in one other command, well below any limit on a command line.
BATCH = 1000

_SAFE_NAME = re.compile(r"[A-Za-z0-9._:@+-]+")
_STATE = re.compile(r"[A-Za-z_]+")
_SIGNAL = re.compile(r"(SIG)?[A-Z][A-Z0-9+]*|[0-9]{1,2}")
_FIELD = re.compile(r"[A-Za-z]+")

#: Under the names that 22.05 and 26.05 share.
_COLUMNS = (
    "JobArrayId",
    "JobId",
    "Name",
    "UserName",
    "Account",
    "Partition",
    "QOS",
    "State",
    "Reason",
    "NodeList",
    "BatchHost",
    "SubmitTime",
    "StartTime",
    "EndTime",
    "TimeLimit",
    "TimeUsed",
    "PriorityLong",
    "RestartCnt",
    "exit_code",
    "Dependency",
    "Reservation",
    "tres-alloc",
    "Comment",
    "WorkDir",
    "StdOut",
)


def queue_table() -> Table:
    return Table(_COLUMNS)


@dataclass(frozen=True)
class Submit(Request[JobId]):
    """Submit a batch job.

    >>> from airflow_provider_soperator.slurm.job import BatchJob
    >>> Submit(BatchJob(command="hostname")).command().argv[:2]
    ('sbatch', '--parsable')
    """

    job: BatchJob

    def command(self) -> Command:
        submission = self.job.submission()
        return Command(submission.argv, stdin=submission.stdin)

    def again(self) -> None:
        """Not repeatable: it would submit a second job; see ``SubmitOnce``."""

    def read(self, answer: CommandOutput) -> JobId:
        # Plugins of sbatch may print lines before the id.
        lines = self.check(answer).text.split()
        try:
            return JobId.parse(lines[-1])
        except (IndexError, ValueError):
            raise UnreadableAnswer(f"expected a job id, got {answer.text[-200:]!r}", "sbatch") from None


@dataclass(frozen=True, kw_only=True)
class ListJobs(Request[tuple[Job, ...]]):
    """List the jobs in the queue that fit every given condition, in one request.

    Jobs that have left the queue are not in the answer. Pending elements of an array are one entry, which is in the
    answer if any of them was asked for.

    >>> ListJobs(ids=(JobId(7),), mine=True).command().argv[:5]
    ('squeue', '--all', '--states=all', '--me', '--jobs=7')
    """

    ids: tuple[JobId, ...] | None = None
    #: Only jobs of the connection's own user.
    mine: bool = False
    user: str = ""
    #: Exact names.
    names: tuple[str, ...] = ()
    #: Endings of names.
    name_suffixes: tuple[str, ...] = ()
    states: tuple[str, ...] = ()
    partition: str = ""
    table: Table = field(default_factory=queue_table, compare=False, repr=False)

    def command(self) -> Command:
        argv = ["squeue", "--all", f"--states={','.join(_each(_STATE, 'a state', self.states)) or 'all'}"]
        if self.mine:
            argv.append("--me")
        if self.user:
            argv.append(f"--user={plain_word('a user', self.user)}")
        if self.partition:
            argv.append(f"--partition={plain_word('a partition', self.partition)}")
        wholes = self._wholes()
        if wholes and len(wholes) <= MOST_LISTED:
            argv.append(f"--jobs={','.join(map(str, wholes))}")
        # Names that squeue would split or alter are only filtered here.
        if self.names and len(self.names) <= MOST_LISTED and all(map(_SAFE_NAME.fullmatch, self.names)):
            argv.append(f"--name={','.join(self.names)}")
        return Command((*argv, *self.table.format_words()), environment={**EPOCHS, "SLURM_BITSTR_LEN": "0"})

    def read(self, answer: CommandOutput) -> tuple[Job, ...]:
        if answer.status:
            error = self.error(answer)
            # squeue's error for a single job that has left the queue; for several there is none.
            if isinstance(error, UnknownJob):
                return ()
            raise error
        jobs = (_job(row) for row in self.table.rows(answer.stdout))
        return tuple(job for job in jobs if self.admits(job))

    def admits(self, job: Job) -> bool:
        """True if a job fits the conditions on ids and names; those that a server may not have applied."""
        if self._wanted is not None and not self._wanted.touches(job.id):
            return False
        if self.names and job.name not in self.names:
            return False
        return not self.name_suffixes or job.name.endswith(self.name_suffixes)

    def _wholes(self) -> tuple[JobId, ...]:
        if self.ids == ():
            raise InvalidRequest("no job is given")
        return tuple(dict.fromkeys(job.whole for job in self.ids or ()))

    @cached_property
    def _wanted(self) -> JobIdSet | None:
        return None if self.ids is None else JobIdSet(self.ids)


def _job(row: tuple[str, ...]) -> Job:
    (job_id, raw, name, user, account, partition, qos, state, reason, nodes, host, submitted, started, ends) = row[:14]
    (limit, used, priority, restarts, exit_code, dependency, reservation, tres, comment, workdir, stdout) = row[14:]
    return Job(
        id=JobId.parse(job_id),
        raw_id=number(raw),
        name=name,
        user=user,
        account=clean(account),
        partition=partition,
        qos=clean(qos),
        state=JobState.parse(state),
        # As slurmrestd and scontrol write it.
        reason=clean(reason).replace(" ", "_"),
        nodelist=clean(nodes),
        batch_host=clean(host),
        submitted=parse_time(submitted),
        started=parse_time(started),
        ends=parse_time(ends),
        time_limit=parse_duration(limit),
        time_used=parse_duration(used),
        priority=int(priority) if priority.isdecimal() else None,
        restarts=number(restarts),
        exit_code=ExitCode.parse(exit_code),
        dependency=clean(dependency),
        reservation=clean(reservation),
        tres=clean(tres),
        comment=clean(comment),
        workdir=clean(workdir),
        stdout=clean(stdout),
    )


@dataclass(frozen=True)
class JobDetail(Request[str]):
    """Get slurmctld's full record of a job, as text for people."""

    job: JobId

    def command(self) -> Command:
        return Command(("scontrol", "show", "job", self.job.argument), max_output=4 * MEGABYTE)

    def read(self, answer: CommandOutput) -> str:
        return self.check(answer).text


@dataclass(frozen=True, kw_only=True)
class CancelJobs(Request[None]):
    """Cancel jobs, or send them a signal. Jobs that have ended are not an error.

    >>> CancelJobs(ids=(JobId(7), JobId(8, element=1))).command().argv
    ('scancel', '7', '8_1')
    """

    ids: tuple[JobId, ...]
    #: Empty: end them (SIGTERM, and SIGKILL after KillWait).
    signal: str = ""
    #: Signal the batch script and its children as well as the steps.
    full: bool = False
    #: Signal the batch script only.
    batch: bool = False
    #: Only jobs and array elements that have not started.
    waiting: bool = False

    def again(self) -> CancelJobs | None:
        """Repeatable unless it sends a signal, which may act each time."""
        return None if self.signal else self

    def command(self) -> Command:
        options = [f"--signal={_each(_SIGNAL, 'a signal', (self.signal,))[0]}"] if self.signal else []
        options += ["--full"] * self.full + ["--batch"] * self.batch + ["--state=PENDING"] * self.waiting
        return Command(("scancel", *options, *_id_words(self.ids)))

    def read(self, answer: CommandOutput) -> None:
        if not answer.status:
            return
        lines = answer.stderr.decode(errors="backslashreplace").splitlines()
        left = [line for line in lines if not GONE.search(line)]
        if not left and lines:
            return
        raise self.error(CommandOutput(answer.status, answer.stdout, "\n".join(left).encode()))


#: Messages of commands about a job that has ended.
GONE = re.compile(r"invalid job id specified|already completing or completed|has already finished", re.IGNORECASE)


@dataclass(frozen=True)
class _JobOrder(Request[None]):
    """A command of ``scontrol`` for a list of jobs."""

    ids: tuple[JobId, ...]

    def words(self) -> tuple[str, ...]:
        raise NotImplementedError

    def command(self) -> Command:
        # A comma between them: of several words scontrol takes the first alone, or none at all.
        return Command(("scontrol", *self.words(), ",".join(_id_words(self.ids))))

    def read(self, answer: CommandOutput) -> None:
        self.check(answer)


class HoldJobs(_JobOrder):
    """Hold pending jobs."""

    def words(self) -> tuple[str, ...]:
        return ("hold",)


class ReleaseJobs(_JobOrder):
    """Release held jobs."""

    def words(self) -> tuple[str, ...]:
        return ("release",)


@dataclass(frozen=True)
class RequeueJobs(_JobOrder):
    """Requeue jobs that run or have ended, under the same id."""

    hold: bool = False

    def again(self) -> None:
        """Not repeatable: a requeued job may have started meanwhile."""

    def words(self) -> tuple[str, ...]:
        return ("requeuehold",) if self.hold else ("requeue",)


#: By default Slurm does not let users order their own jobs.
_TOP_REMEDY = (
    "users may order their jobs where SlurmctldParameters has enable_user_top; elsewhere this needs root, SlurmUser or "
    "an accounting AdminLevel of Operator"
)


class TopJobs(_JobOrder):
    """Move pending jobs before all others of their user, in the given order.

    All must be of one user, and arrays move as a whole: Slurm silently ignores jobs of another user, and rejects single
    elements.
    """

    def words(self) -> tuple[str, ...]:
        return ("top",)

    def error(self, answer: CommandOutput) -> SlurmError:
        error = super().error(answer)
        if isinstance(error, NotPermitted):
            return NotPermitted(error.said, error.command, _TOP_REMEDY)
        return error


@dataclass(frozen=True)
class UpdateJob(Request[None]):
    """Change fields of a job.

    >>> UpdateJob(JobId(7), {"TimeLimit": "1:00:00", "Comment": "a = b"}).command().argv[2:]
    ('JobId=7', 'TimeLimit=1:00:00', 'Comment=a = b')
    """

    job: JobId
    changes: Mapping[str, str]

    def command(self) -> Command:
        names = _each(_FIELD, "a field of a job", self.changes)
        words = (f"{name}={value}" for name, value in zip(names, self.changes.values(), strict=True))
        return Command(("scontrol", "update", f"JobId={self.job.without_step.argument}", *words))

    def read(self, answer: CommandOutput) -> None:
        self.check(answer)


def _id_words(ids: tuple[JobId, ...]) -> tuple[str, ...]:
    if not ids:
        raise InvalidRequest("no job is given")
    return tuple(job.argument for job in ids)


def _each(pattern: re.Pattern[str], what: str, words: Iterable[str]) -> list[str]:
    words = list(words)
    for word in words:
        if not pattern.fullmatch(word):
            raise InvalidRequest(f"{word!r} is not {what}")
    return words


def batches(ids: Iterable[JobId], most: int = BATCH) -> list[tuple[JobId, ...]]:
    """Lists of jobs short enough for one command each.

    >>> [len(batch) for batch in batches(map(JobId, range(1, 2502)))]
    [1000, 1000, 501]
    """
    ids = tuple(ids)
    return [ids[start : start + most] for start in range(0, len(ids), most)]
