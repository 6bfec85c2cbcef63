"""Requests as commands, the tables that these print, and work that takes several requests.

Each table has a separator of its own that cannot have been put into a job's name, and it follows every field, the last
of a row too. So fields may hold any byte: line breaks, the separators of others, text in no encoding at all.
"""

from __future__ import annotations

import secrets
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, NoReturn, TypeVar

from airflow_provider_soperator.slurm.errors import InvalidRequest, SlurmError, UnreadableAnswer, from_output

T = TypeVar("T")

#: Slurm's commands give up by themselves after MessageTimeout (Soperator: 60 s) and a few tries.
TIMEOUT = 150.0
MEGABYTE = 1 << 20


@dataclass(frozen=True)
class Command:
    """A program to run on the cluster: words, not a line for a shell.

    >>> Command(("squeue", "--me")).environment
    {}
    """

    argv: tuple[str, ...]
    stdin: bytes = field(default=b"", repr=False)
    #: Variables to set besides those that are there.
    environment: Mapping[str, str] = field(default_factory=dict)
    #: Seconds after which it is ended.
    timeout: float = TIMEOUT
    #: Bytes that it may print, on both streams.
    max_output: int = 256 * MEGABYTE


@dataclass(frozen=True)
class CommandOutput:
    """The output of a program, and the status it ended with."""

    status: int
    stdout: bytes = field(repr=False)
    stderr: bytes = field(default=b"", repr=False)

    @property
    def text(self) -> str:
        return self.stdout.decode(errors="backslashreplace")


class Request(Generic[T]):
    """One question to Slurm.

    Transports that run commands use ``command`` and ``read``; others answer the same kinds of request in their own way,
    so a request holds data. Whatever Slurm refuses, ``read`` raises as a ``SlurmError``.
    """

    @abstractmethod
    def command(self) -> Command:
        """The command that asks it. ``InvalidRequest`` if no command can."""

    @abstractmethod
    def read(self, answer: CommandOutput) -> T:
        """Read the command's answer."""

    def again(self) -> Request[T] | None:
        """The request to repeat when the outcome of the first try is unknown; None if doing it twice would do harm."""
        return self

    def check(self, answer: CommandOutput) -> CommandOutput:
        """The answer, if the command did what it was to do."""
        if answer.status:
            self.fail(answer)
        return answer

    def fail(self, answer: CommandOutput) -> NoReturn:
        raise self.error(answer)

    def error(self, answer: CommandOutput) -> SlurmError:
        return from_output(self.command().argv, answer.status, answer.stdout, answer.stderr)


def clean(text: str) -> str:
    """A field, without Slurm's words for nothing.

    >>> clean("(null)"), clean("None assigned"), clean("nonesuch")
    ('', '', 'nonesuch')
    """
    return "" if text.lower() in _NOTHING else text


_NOTHING = {"(null)", "n/a", "none", "none assigned", "null"}


def number(text: str) -> int:
    """A whole number; 0 where Slurm has none."""
    return int(text) if text.isdecimal() else 0


def listed(text: str) -> tuple[str, ...]:
    """A list with commas in it."""
    return tuple(filter(None, clean(text).split(",")))


def plain_word(what: str, text: str) -> str:
    """A name that cannot be taken for anything else on a command line or in ``key=value``; refused otherwise."""
    if not text or text.startswith("-") or any(letter in text for letter in ", =\"'\\") or not text.isprintable():
        raise InvalidRequest(f"{text!r} cannot be {what}: Slurm's commands cannot quote its characters")
    return text


def free_text(what: str, text: str, most: int = 1024) -> str:
    """A text for people, as one line: slurmctld keeps it as it is, but others read it line by line."""
    if not text.isprintable():
        raise InvalidRequest(f"{what} {text!r} has line breaks or other non-printable characters")
    if len(text.encode()) > most:
        raise InvalidRequest(f"{what} has {len(text.encode())} bytes; at most {most} are kept")
    return text


def quoted(what: str, text: str) -> str:
    """A text for a field in which ``scontrol`` takes off a quotation mark at either end, but none within."""
    return f'"{free_text(what, text)}"'


def new_separator() -> str:
    """Short, as it is printed as often as there are fields; 48 random bits, as it is guessed at most once."""
    # The first letter must be no digit: squeue would read it as part of a column's width.
    return f"~{secrets.token_urlsafe(6)}"


@dataclass(frozen=True)
class Table:
    """Columns to ask a command for, and how to read what it prints.

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
        """The fields of each row; bytes that are no UTF-8 come as ``\\xff``."""
        fields = printed.decode(errors="backslashreplace").split(self.separator)
        width = len(self.columns)
        end = fields.pop()
        if len(fields) % width or end != ("\n" if fields else ""):
            raise UnreadableAnswer(f"a table of {width} columns ends in the middle of a row, near {end[-200:]!r}")
        for start in range(0, len(fields), width):
            first = fields[start]
            if start:
                # What ends the row before.
                if not first.startswith("\n"):
                    raise UnreadableAnswer(f"a table of {width} columns has a row that does not end: {first[:200]!r}")
                first = first[1:]
            yield (first, *fields[start + 1 : start + width])


#: Yields requests, is sent what each was answered, and returns a ``T``.
Steps = Generator[Request[Any], Any, T]


def run_steps(steps: Steps[T], ask: Callable[[Request[Any]], Any]) -> T:
    """Take the steps, one question after the other."""
    try:
        request = next(steps)
        while True:
            try:
                answer = ask(request)
            except Exception as error:
                request = steps.throw(error)
            else:
                request = steps.send(answer)
    except StopIteration as end:
        result: T = end.value
        return result


async def run_steps_async(steps: Steps[T], ask: Callable[[Request[Any]], Awaitable[Any]]) -> T:
    """The same for an event loop."""
    try:
        request = next(steps)
        while True:
            try:
                answer = await ask(request)
            except Exception as error:
                request = steps.throw(error)
            else:
                request = steps.send(answer)
    except StopIteration as end:
        result: T = end.value
        return result
