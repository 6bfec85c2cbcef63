"""Requests about jobs in the queue."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial

from airflow_provider_soperator.slurm import errors, notations
from airflow_provider_soperator.slurm.job_ids import JobId
from airflow_provider_soperator.slurm.job_records import Job
from airflow_provider_soperator.slurm.notations import EPOCHS, ExitCode
from airflow_provider_soperator.slurm.requests import commands
from airflow_provider_soperator.slurm.requests.commands import Command, CommandOutput, JobQuery, Order, Request
from airflow_provider_soperator.slurm.states import JobState

#: With more ids or names than this, all jobs are listed and filtered here.
MOST_LISTED = 1000
#: Bytes of one word of a command line; Linux takes no more than 128 KiB.
LONGEST_WORD = 128_000
#: Jobs in one other command, well below any limit on a command line.
BATCH = 1000

_STATE = re.compile(r"[A-Za-z_]+")
_SIGNAL = re.compile(r"(SIG)?[A-Z][A-Z0-9+]*|[0-9]{1,2}")
_FIELD = re.compile(r"[A-Za-z]+")

#: The columns have the names that 22.05 and 26.05 share.
_COLUMNS: commands.Columns = {
    "id": ("JobArrayId", commands.job_id),
    "raw_id": ("JobId", notations.number),
    "name": ("Name", str),
    "user": ("UserName", str),
    "account": ("Account", notations.clean),
    "partition": ("Partition", str),
    "qos": ("QOS", notations.clean),
    "state": ("State", JobState.parse),
    # As slurmrestd and scontrol write it.
    "reason": ("Reason", lambda text: notations.clean(text).replace(" ", "_")),
    "nodelist": ("NodeList", notations.clean),
    "batch_host": ("BatchHost", notations.clean),
    "submitted": ("SubmitTime", notations.parse_time),
    "eligible": ("EligibleTime", notations.parse_time),
    "started": ("StartTime", notations.parse_time),
    "ends": ("EndTime", notations.parse_time),
    "time_limit": ("TimeLimit", notations.parse_duration),
    "time_used": ("TimeUsed", notations.parse_duration),
    "priority": ("PriorityLong", notations.number_or_none),
    "restarts": ("RestartCnt", notations.number),
    "may_requeue": ("Requeue", lambda text: text != "0"),
    "exit_code": ("exit_code", ExitCode.parse),
    "dependency": ("Dependency", notations.clean),
    "reservation": ("Reservation", notations.clean),
    "tres": ("tres-alloc", notations.clean),
    "comment": ("Comment", notations.clean),
    "workdir": ("WorkDir", notations.clean),
    "stdout": ("StdOut", notations.clean),
    "admin_comment": ("admin_comment", notations.clean),
}


@dataclass(frozen=True, kw_only=True)
class ListJobs(JobQuery[Job]):
    """List the jobs in the queue that fit every given condition, in one request.

    Jobs that have left the queue are not in the answer. Pending elements of an array are one entry, which is in the
    answer if any of them was asked for.
    """

    #: Endings of names.
    name_suffixes: tuple[str, ...] = ()
    states: tuple[str, ...] = ()
    partition: str = ""
    table: commands.Table = field(default_factory=partial(commands.table_of, _COLUMNS), compare=False, repr=False)

    def command(self) -> Command:
        argv = ["squeue", "--all", f"--states={','.join(_each(_STATE, 'a state', self.states)) or 'all'}"]
        if self.mine:
            argv.append("--me")
        if self.user:
            argv.append(f"--user={commands.plain_word('a user', self.user)}")
        if self.partition:
            argv.append(f"--partition={commands.plain_word('a partition', self.partition)}")
        if self.ids == ():
            raise errors.InvalidRequest("no job is given")
        wholes = tuple(dict.fromkeys(job.whole for job in self.ids or ()))
        if wholes and len(wholes) <= MOST_LISTED:
            argv.append(f"--jobs={','.join(map(str, wholes))}")
        # Names that squeue would split or alter are only filtered here.
        word = f"--name={','.join(self.names)}"
        fits = len(self.names) <= MOST_LISTED and len(word) <= LONGEST_WORD
        if self.names and fits and all(map(commands.SAFE_NAME.fullmatch, self.names)):
            argv.append(word)
        return Command((*argv, *self.table.format_words()), environment={**EPOCHS, "SLURM_BITSTR_LEN": "0"})

    def read(self, answer: CommandOutput) -> tuple[Job, ...]:
        try:
            self.check(answer)
        except errors.UnknownJob:
            # squeue's error for a single job that has left the queue; for several there is none.
            return ()
        jobs = (Job(**commands.read_job_row(_COLUMNS, row)) for row in self.table.rows(answer.stdout))
        return tuple(job for job in jobs if self.admits(job))

    def admits(self, job: Job) -> bool:
        if not super().admits(job):
            return False
        return not self.name_suffixes or any(job.name[-length:] in some for length, some in self._suffixes.items())

    @cached_property
    def _suffixes(self) -> dict[int, set[str]]:
        """The endings by their lengths: thousands of jobs are compared with as many keys."""
        found: dict[int, set[str]] = {}
        for suffix in self.name_suffixes:
            found.setdefault(len(suffix), set()).add(suffix)
        return found


@dataclass(frozen=True)
class JobDetail(Request[str]):
    """Get slurmctld's full record of a job, as text for people: over slurmrestd as JSON."""

    job: JobId

    def command(self) -> Command:
        return Command(("scontrol", "show", "job", self.job.argument), max_output=4 * commands.MEGABYTE)

    def read(self, answer: CommandOutput) -> str:
        return self.check(answer).text


@dataclass(frozen=True, kw_only=True)
class CancelJobs(Request[None]):
    """Cancel jobs, or send them a signal. Jobs that have ended are not an error."""

    ids: tuple[JobId, ...]
    #: Empty: end them (SIGTERM, and SIGKILL after KillWait).
    signal: str = ""
    #: Only jobs and array elements that have not started.
    waiting: bool = False

    def again(self) -> CancelJobs | None:
        """Repeatable unless it sends a signal, which may act each time."""
        return None if self.signal else self

    def command(self) -> Command:
        options = [f"--signal={_each(_SIGNAL, 'a signal', (self.signal,))[0]}"] if self.signal else []
        options += ["--state=PENDING"] * self.waiting
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
class _JobOrder(Order):
    """A command of ``scontrol`` for a list of jobs."""

    ids: tuple[JobId, ...]

    @property
    @abstractmethod
    def verb(self) -> str:
        """The command's name."""

    def command(self) -> Command:
        # A comma between them: of several words scontrol takes the first alone, or none at all.
        return Command(("scontrol", self.verb, ",".join(_id_words(self.ids))))


class HoldJobs(_JobOrder):
    """Hold pending jobs."""

    verb = "hold"


class ReleaseJobs(_JobOrder):
    """Release held jobs."""

    verb = "release"


@dataclass(frozen=True)
class RequeueJobs(_JobOrder):
    """Requeue jobs that run or have ended, under the same id."""

    hold: bool = False

    def again(self) -> None:
        """Not repeatable: a requeued job may have started meanwhile."""

    @property
    def verb(self) -> str:
        return "requeuehold" if self.hold else "requeue"


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

    verb = "top"

    def error(self, answer: CommandOutput) -> errors.SlurmError:
        error = super().error(answer)
        if isinstance(error, errors.NotPermitted):
            return errors.NotPermitted(error.said, error.command, _TOP_REMEDY)
        return error


@dataclass(frozen=True)
class UpdateJob(Order):
    """Change fields of a job."""

    job: JobId
    changes: Mapping[str, str]

    def command(self) -> Command:
        names = _each(_FIELD, "a field of a job", self.changes)
        words = (f"{name}={value}" for name, value in zip(names, self.changes.values(), strict=True))
        return Command(("scontrol", "update", f"JobId={self.job.without_step.argument}", *words))


def _id_words(ids: tuple[JobId, ...]) -> tuple[str, ...]:
    if not ids:
        raise errors.InvalidRequest("no job is given")
    return tuple(job.argument for job in ids)


def _each(pattern: re.Pattern[str], what: str, words: Iterable[str]) -> list[str]:
    words = list(words)
    for word in words:
        if not pattern.fullmatch(word):
            raise errors.InvalidRequest(f"{word!r} is not {what}")
    return words


def batches(ids: Iterable[JobId]) -> list[tuple[JobId, ...]]:
    """Lists of jobs short enough for one command each.

    >>> [len(batch) for batch in batches(map(JobId, range(1, 2502)))]
    [1000, 1000, 501]
    """
    ids = tuple(ids)
    return [ids[start : start + BATCH] for start in range(0, len(ids), BATCH)]
