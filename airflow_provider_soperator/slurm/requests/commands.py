"""Requests as commands, the tables that they print, and work that takes several requests.

Each table has a random separator, which follows every field, even the last of a row. So fields may have any bytes:
line breaks, other separators, text in any encoding.
"""

from __future__ import annotations

import re
import secrets
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, Generic, TypeVar

from airflow_provider_soperator.slurm.errors import InvalidRequest, SlurmError, UnreadableAnswer, from_output
from airflow_provider_soperator.slurm.job_ids import JobId, JobIdSet
from airflow_provider_soperator.slurm.job_records import JobRecord

J = TypeVar("J", bound=JobRecord)
R = TypeVar("R")
T = TypeVar("T")

#: Slurm's commands give up by themselves after MessageTimeout (Soperator: 60 s) and a few tries.
TIMEOUT = 150.0
MEGABYTE = 1 << 20
#: Names that ``squeue`` and ``sacct`` neither split nor alter.
SAFE_NAME = re.compile(r"[A-Za-z0-9._:@+-]+")
#: Bytes of a reason or a comment.
_MOST_TEXT = 1024


@dataclass(frozen=True)
class Command:
    """A program to run on the cluster, as words, not a line for a shell."""

    argv: tuple[str, ...]
    stdin: bytes = field(default=b"", repr=False)
    #: Additional variables.
    environment: Mapping[str, str] = field(default_factory=dict)
    #: Seconds after which it is killed.
    timeout: float = TIMEOUT
    #: Limit on the bytes of both output streams.
    max_output: int = 256 * MEGABYTE


@dataclass(frozen=True)
class CommandOutput:
    """The output of a program, and its exit status."""

    status: int
    stdout: bytes = field(repr=False)
    stderr: bytes = field(default=b"", repr=False)

    @property
    def text(self) -> str:
        return self.stdout.decode(errors="backslashreplace")


class Request(Generic[T]):
    """A request to Slurm.

    Transports that run commands use ``command`` and ``read``; others answer the same requests in their own way, so a
    request is data. ``read`` raises a ``SlurmError`` if Slurm has rejected it.
    """

    @abstractmethod
    def command(self) -> Command:
        """The command for it. ``InvalidRequest`` if there can be none."""

    @abstractmethod
    def read(self, answer: CommandOutput) -> T:
        """Read the command's answer."""

    def again(self) -> Request[T] | None:
        """The request to repeat when the outcome of the first try is unknown; None if a repeat would do harm."""
        return self

    def check(self, answer: CommandOutput) -> CommandOutput:
        if answer.status:
            raise self.error(answer)
        return answer

    def error(self, answer: CommandOutput) -> SlurmError:
        return from_output(self.command().argv, answer.status, answer.stdout, answer.stderr)


@dataclass(frozen=True, kw_only=True)
class JobQuery(Request[tuple[J, ...]]):
    """Jobs that fit every given condition, from the queue or from accounting."""

    ids: tuple[JobId, ...] | None = None
    #: Exact names.
    names: tuple[str, ...] = ()
    user: str = ""
    #: Only jobs of the connection's own user.
    mine: bool = False

    def admits(self, job: J) -> bool:
        """True if a job fits the conditions on ids and names; those that a server may not have applied."""
        if self._wanted is not None and not self._wanted.touches(job.id):
            return False
        return not self.names or job.name in self._names

    @cached_property
    def _names(self) -> frozenset[str]:
        return frozenset(self.names)

    @cached_property
    def _wanted(self) -> JobIdSet | None:
        return None if self.ids is None else JobIdSet(self.ids)


class Order(Request[None]):
    """A request that changes something, and has no answer but success."""

    def read(self, answer: CommandOutput) -> None:
        self.check(answer)


def plain_word(what: str, text: str) -> str:
    """The name, if it is unambiguous on a command line and in ``key=value``; else ``InvalidRequest``."""
    if not text or text.startswith("-") or any(letter in text for letter in ", =\"'\\") or not text.isprintable():
        raise InvalidRequest(f"{text!r} cannot be {what}: Slurm's commands cannot quote its characters")
    return text


def free_text(what: str, text: str) -> str:
    """The text, if it is one printable line: slurmctld keeps any, but other programs read it line by line."""
    if not text.isprintable():
        raise InvalidRequest(f"{what} {text!r} has line breaks or other non-printable characters")
    if len(text.encode()) > _MOST_TEXT:
        raise InvalidRequest(f"{what} has {len(text.encode())} bytes; at most {_MOST_TEXT} are kept")
    return text


def new_separator() -> str:
    """A random separator: short, as it follows every field, but with 48 random bits."""
    # It must not begin with a digit: squeue would read that as part of a column's width.
    return f"~{secrets.token_urlsafe(6)}"


@dataclass(frozen=True)
class Table:
    """Columns of a command's output, and their reader.

    >>> table = Table(("JobArrayId", "Name"), separator="~x")
    >>> table.format_words()
    ('--noheader', '--Format=JobArrayId:0~x,Name:0~x')
    >>> list(table.rows(b"1~xa|b\\nc~x\\n2~x~x\\n"))
    [('1', 'a|b\\nc'), ('2', '')]
    """

    columns: tuple[str, ...]
    separator: str = field(default_factory=new_separator, repr=False)

    def format_words(self) -> tuple[str, ...]:
        """Options for ``squeue`` and ``sinfo``. A width of 0 is the full width."""
        return ("--noheader", f"--Format={','.join(f'{column}:0{self.separator}' for column in self.columns)}")

    def parsable_words(self) -> tuple[str, ...]:
        """Options for ``sacct``."""
        return ("--noheader", "--parsable", f"--delimiter={self.separator}", f"--format={','.join(self.columns)}")

    def rows(self, printed: bytes) -> Iterator[tuple[str, ...]]:
        """The fields of each row; bytes that are not UTF-8 become ``\\xff``."""
        fields = printed.decode(errors="backslashreplace").split(self.separator)
        width = len(self.columns)
        end = fields.pop()
        if len(fields) % width or end != ("\n" if fields else ""):
            raise UnreadableAnswer(f"a table of {width} columns ends in the middle of a row, near {end[-200:]!r}")
        for start in range(0, len(fields), width):
            first = fields[start]
            if start:
                # The end of the row before.
                if not first.startswith("\n"):
                    raise UnreadableAnswer(f"a table of {width} columns has a row that does not end: {first[:200]!r}")
                first = first[1:]
            yield (first, *fields[start + 1 : start + width])


#: The fields of a record, each with its column, and the reader of that column.
Columns = Mapping[str, tuple[str, Callable[[str], Any]]]


def table_of(columns: Columns) -> Table:
    return Table(tuple(column for column, _ in columns.values()))


#: What the end of a job is judged by.
_TELLING = frozenset({"id", "state", "exit_code"})


def read_job_row(columns: Columns, row: Sequence[str]) -> dict[str, Any]:
    """The fields of a job, of which ``id`` is the first. One that cannot be read is missing.

    If its end could not be judged then, ``unreadable`` says why.

    >>> read_job_row({"id": ("JobID", job_id), "cpus": ("CPUs", int)}, ("7", "many"))
    {'id': JobId.parse('7')}
    """
    said: dict[str, Any] = {}
    wrong: list[str] = []
    for (name, (column, read)), text in zip(columns.items(), row, strict=False):
        try:
            said[name] = read(text)
        except (OSError, OverflowError, ValueError) as error:
            if name in _TELLING:
                wrong.append(f"{column}: {error}")
    if "id" not in said:
        # In every notation the job's number comes first; without it the row may be any job's.
        found = re.match("[1-9][0-9]*", row[0])
        if not found:
            raise UnreadableAnswer(f"expected a job id, got {row[0][:200]!r}")
        said["id"] = JobId(int(found[0]))
    return said | ({"unreadable": "; ".join(wrong)} if wrong else {})


def job_id(text: str) -> JobId:
    """A job id whose list of array elements, if it has one, is complete."""
    job = JobId.parse(text)
    _ = job.argument  # reads the list
    return job


#: Generator that yields requests, is sent their answers, and returns a ``T``.
Steps = Generator[Request[Any], Any, T]


def run_steps(steps: Steps[T], ask: Callable[[Request[Any]], Any]) -> T:
    """Run steps without an event loop: ``ask`` waits for each answer."""

    async def asked(request: Request[Any]) -> Any:
        return ask(request)

    try:
        run_steps_async(steps, asked).send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    raise AssertionError("the steps have awaited something")


def _resumed(steps: Generator[R, Any, Any], answers: list[Any]) -> R | StopIteration:
    """The next request, or the end, which a thread cannot raise. Steps are never sent an answer twice."""
    try:
        return steps.send(answers.pop())
    except StopIteration as end:
        return end


async def run_steps_async(
    steps: Generator[R, Any, T],
    ask: Callable[[R], Awaitable[Any]],
    read: Callable[[Any, Callable[[], R | StopIteration]], Awaitable[R | StopIteration]] | None = None,
) -> T:
    """Run steps in an event loop; with ``read``, that calls what reads an answer."""
    try:
        request = next(steps)
        while True:
            try:
                answer = await ask(request)
            except Exception as error:
                request = steps.throw(error)
            else:
                resume = partial(_resumed, steps, [answer])
                resumed = await read(answer, resume) if read else resume()
                if isinstance(resumed, StopIteration):
                    raise resumed
                request = resumed
    except StopIteration as end:
        result: T = end.value
        return result
