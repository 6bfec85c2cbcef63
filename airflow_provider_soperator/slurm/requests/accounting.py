"""Requests to accounting: past jobs, rights of users, and fair shares."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timedelta, timezone
from functools import cached_property, partial
from typing import Any

from airflow_provider_soperator.slurm import notations
from airflow_provider_soperator.slurm.cluster_records import Association, Share, UserRights
from airflow_provider_soperator.slurm.errors import InvalidRequest, UnreadableAnswer
from airflow_provider_soperator.slurm.job_ids import JobId
from airflow_provider_soperator.slurm.job_records import AccountingJob, AccountingStep, resource
from airflow_provider_soperator.slurm.notations import EPOCHS, ExitCode
from airflow_provider_soperator.slurm.requests import commands
from airflow_provider_soperator.slurm.requests.commands import Columns, Command, CommandOutput, JobQuery, Request, Table
from airflow_provider_soperator.slurm.states import JobState

#: Ids in one query: the database uses an index, but gets them as one line of SQL.
MOST_IDS = 5000
#: Characters of slurmdbd's column for names.
NAME_LENGTH = 255

#: Names that ``sacct`` neither splits, trims nor expands, and whose characters each database can store and compare.
_QUERYABLE = re.compile(r"(?! )(?:(?![,'\"\[\]\\])[ -~À-ÿ])+(?<! )")
_EPOCH = datetime.fromtimestamp(0, timezone.utc)


def _cpu_time(text: str) -> timedelta | None:
    read = notations.parse_duration(text)
    return read if isinstance(read, timedelta) else None


#: Fields of jobs and steps. The columns have the names that 22.05 and 26.05 share; so without Restarts and StdOut.
COLUMNS: Columns = {
    "id": ("JobID", commands.job_id),
    "raw_id": ("JobIDRaw", notations.number),
    "name": ("JobName", str),
    "user": ("User", str),
    "account": ("Account", str),
    "partition": ("Partition", str),
    "qos": ("QOS", str),
    "state": ("State", JobState.parse),
    "reason": ("Reason", notations.clean),
    "exit_code": ("ExitCode", lambda text: ExitCode.parse(text or "0:0")),
    "nodelist": ("NodeList", notations.clean),
    "submitted": ("Submit", notations.parse_time),
    "eligible": ("Eligible", notations.parse_time),
    "started": ("Start", notations.parse_time),
    "ended": ("End", notations.parse_time),
    "elapsed": ("ElapsedRaw", notations.parse_seconds),
    "time_limit": ("TimelimitRaw", notations.parse_minutes),
    "tres": ("AllocTRES", str),
    "comment": ("Comment", str),
    "submit_line": ("SubmitLine", str),
    "workdir": ("WorkDir", str),
    "cpu_time": ("TotalCPU", _cpu_time),
    "max_rss": ("MaxRSS", notations.parse_bytes),
    "total_rss": ("TRESUsageInTot", lambda tres: notations.parse_bytes(resource(tres, "mem"))),
}
_OF_JOBS = {one.name for one in fields(AccountingJob)}
_OF_STEPS = {one.name for one in fields(AccountingStep)}
#: Prints lists of array elements in full.
_ENVIRONMENT = {**EPOCHS, "SLURM_BITSTR_LEN": "0"}
#: All states of a row.
_STATES = ("PD", "R", "S", "CD", "CA", "F", "TO", "NF", "PR", "BF", "DL", "OOM", "RQ", "RS", "RV")


def name_in_accounting(name: str) -> str:
    """A job's name in accounting, which is cut to its column and has no double quotes.

    >>> name_in_accounting('say "hi"')
    'say `hi`'
    """
    return name.replace('"', "`")[:NAME_LENGTH]


@dataclass(frozen=True, kw_only=True)
class Accounting(JobQuery[AccountingJob]):
    """List jobs in accounting, in any state, by id, by name, or by user and time.

    Each job, array element and part of a heterogeneous job is listed once, with its earlier runs.
    Some are missing: accounting lags some seconds; an array element that was cancelled before it started is part of
    another row, or of none; and without ids a job is found only after it has been eligible or has ended, so not while
    it is held or depends on another.
    """

    #: Jobs of all users; else, except for root, ``sacct`` lists only the user's own.
    everyone: bool = False
    #: Jobs that existed at this time or later. Without it and without ids only today's are found.
    since: datetime | None = None
    #: With ``since``: jobs that existed before this time; by default all since then.
    until: datetime | None = None
    #: Steps too.
    steps: bool = False
    table: Table = field(default_factory=partial(commands.table_of, COLUMNS), compare=False, repr=False)

    def command(self) -> Command:
        argv = (*self.selection(), "--noconvert", *self.table.parsable_words())
        if self.mine:
            # To root sacct lists the jobs of all users.
            argv = ("sh", "-c", 'exec "$0" "$@" --user="$(id -u)"', *argv)
        return Command(argv, environment=_ENVIRONMENT)

    def selection(self) -> list[str]:
        """The command without its output format, and without the connection's user."""
        argv = ["sacct", "--duplicates", *([] if self.steps else ["--allocations"])]
        if self.ids is not None:
            wholes = dict.fromkeys(str(job.whole) for job in self.ids)
            if not 0 < len(wholes) <= MOST_IDS:
                raise InvalidRequest(f"accounting takes 1 to {MOST_IDS} jobs in one query, got {len(wholes)}")
            argv.append(f"--jobs={','.join(wholes)}")
        if names := self.safe_names():
            argv.append(f"--name={','.join(names)}")
        if self.user:
            argv.append(f"--user={commands.plain_word('a user', self.user)}")
        elif self.everyone:
            argv.append("--allusers")
        if self.since:
            # Selection by state also finds jobs that ended before they were ever eligible.
            argv += [f"--starttime={notations.format_time(self.since)}", f"--endtime={self.end}"]
            argv.append(f"--state={','.join(_STATES)}")
        return argv

    @property
    def end(self) -> str:
        """Until when jobs are looked for, with ``since``, as Slurm reads times."""
        return notations.format_time(self.until) if self.until else "now+1day"

    def selections(self, most: int) -> list[list[str]]:
        """The same as several commands, each of at most so many names: a command line has its limits."""
        names = self.safe_names()
        chunks = [names[start : start + most] for start in range(0, len(names), most)] or [self.names]
        return [replace(self, names=chunk).selection() for chunk in chunks]

    def safe_names(self) -> tuple[str, ...]:
        """The names in accounting, if each can be queried; otherwise none."""
        return tuple(sorted(self._names)) if all(map(_QUERYABLE.fullmatch, self._names)) else ()

    def read(self, answer: CommandOutput) -> tuple[AccountingJob, ...]:
        runs: dict[JobId, list[dict[str, Any]]] = {}
        for row in self.table.rows(self.check(answer).stdout):
            said = commands.read_job_row(COLUMNS, row)
            job: JobId = said["id"]
            if not job.step:
                runs.setdefault(job, []).append({name: said[name] for name in said.keys() & _OF_JOBS} | {"steps": []})
            elif found := runs.get(job.without_step):
                # Steps follow the run that they belong to.
                found[-1]["steps"].append(AccountingStep(**{name: said[name] for name in said.keys() & _OF_STEPS}))
        jobs = ([AccountingJob(**said | {"steps": tuple(said["steps"])}) for said in found] for found in runs.values())
        return tuple(job for job in map(with_earlier_runs, jobs) if self.admits(job))

    @cached_property
    def _names(self) -> frozenset[str]:
        return frozenset(map(name_in_accounting, self.names))


#: What usage is made of.
_USED = (
    "id", "name", "user", "state", "nodelist", "submitted", "eligible", "started", "ended", "elapsed", "time_limit",
    "tres", "cpu_time",
)  # fmt: skip
_OF_USAGE: Columns = {name: COLUMNS[name] for name in _USED}


@dataclass(frozen=True, kw_only=True)
class ListUsage(Accounting):
    """List what is needed to tell usage: each run of a job, with few fields, and the CPU time of its steps in one."""

    #: Else sacct has no CPU time of a job, which it sums up from its steps.
    steps: bool = True
    table: Table = field(default_factory=partial(commands.table_of, _OF_USAGE), compare=False, repr=False)

    def read(self, answer: CommandOutput) -> tuple[AccountingJob, ...]:
        found = []
        for row in self.table.rows(self.check(answer).stdout):
            said = commands.read_job_row(_OF_USAGE, row)
            step = AccountingStep(id=said["id"], cpu_time=said.pop("cpu_time", None))
            if not step.id.step:
                found.append(AccountingJob(**said, steps=(step,)))
        return tuple(found)


def with_earlier_runs(jobs: Iterable[AccountingJob]) -> AccountingJob:
    """The last run of a job, with the earlier ones."""
    *earlier, last = sorted(jobs, key=lambda job: job.started or job.eligible or job.submitted or _EPOCH)
    return replace(last, earlier_runs=tuple(earlier)) if earlier else last


# One slurmdbd may serve several clusters, and sacctmgr has no word for its own.
_IN_THIS_CLUSTER = """\
cluster=$(timeout 10 scontrol show config 2>/dev/null | sed -n 's/^ClusterName *= *//p')
exec "$0" "$@" ${cluster:+"cluster=$cluster"}
"""


@dataclass(frozen=True)
class ShowRights(Request[UserRights]):
    """Ask for a user's rights in this cluster; in all that accounting knows while slurmctld does not answer."""

    user: str

    def command(self) -> Command:
        user = commands.plain_word("a user", self.user)
        columns = "format=User,AdminLevel,DefaultAccount,Account,Partition,QOS"
        argv = ("sacctmgr", "--noheader", "--parsable2", "show", "user", user, "withassoc", columns)
        return Command(("sh", "-c", _IN_THIS_CLUSTER, *argv))

    def read(self, answer: CommandOutput) -> UserRights:
        rows = [line.split("|") for line in self.check(answer).text.splitlines() if line.count("|") == 5]
        if not rows:
            return UserRights(user=self.user, is_known=False)
        return UserRights(
            user=self.user,
            admin_level=rows[0][1],
            default_account=rows[0][2],
            associations=tuple(Association(row[3], row[4], notations.listed(row[5])) for row in rows if row[3]),
        )


def _fraction(text: str) -> float | None:
    return None if not text else math.inf if text == "inf" else float(text)


#: The columns have the names that 22.05 and 26.05 share.
_SHARE_COLUMNS: Columns = {
    # Indented by a blank for each account above it.
    "account": ("Account", str.strip),
    "user": ("User", str),
    "partition": ("Partition", str),
    # Not a number for those that share with their parent.
    "shares": ("RawShares", notations.number_or_none),
    "normal_shares": ("NormShares", _fraction),
    "usage": ("RawUsage", notations.number),
    "normal_usage": ("NormUsage", _fraction),
    "effective_usage": ("EffectvUsage", _fraction),
    "fair_share": ("FairShare", _fraction),
    "level": ("LevelFS", _fraction),
}


@dataclass(frozen=True)
class ListShares(Request[tuple[Share, ...]]):
    """List the shares of all accounts and users, sorted by name; none without accounting."""

    def command(self) -> Command:
        columns = ",".join(commands.table_of(_SHARE_COLUMNS).columns)
        return Command(("sshare", "--all", "--parsable2", "--noheader", f"--format={columns}"))

    def read(self, answer: CommandOutput) -> tuple[Share, ...]:
        return by_name(map(_share, self.check(answer).text.splitlines()))


def by_name(shares: Iterable[Share]) -> tuple[Share, ...]:
    """Sort by name: ``sshare`` prints a tree, slurmrestd any order."""
    return tuple(sorted(shares, key=lambda share: (share.account, share.user, share.partition)))


def _share(line: str) -> Share:
    row = line.split("|")
    if len(row) < len(_SHARE_COLUMNS):
        raise UnreadableAnswer(f"expected {len(_SHARE_COLUMNS)} columns, got {line[:200]!r}", "sshare")
    said = {name: read(text) for (name, (_, read)), text in zip(_SHARE_COLUMNS.items(), row, strict=False)}
    share = Share(**said)
    return share if share.user else replace(share, fair_share=None)
