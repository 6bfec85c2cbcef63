"""The form of every question to Slurm: as data, as a command, and as what is read from the command's answer."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Generic, NoReturn, TypeVar

from airflow_provider_soperator.slurm.errors import InvalidRequest, SlurmError, from_output

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
    """What a program has printed, and the status it ended with."""

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
        """What the command's answer means."""

    def again(self) -> Request[T] | None:
        """What to ask once it is not known what has become of the first try; None if doing it twice would do harm."""
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
        raise InvalidRequest(f"{text!r} cannot be {what}: it would need quotes that Slurm's commands do not know")
    return text


def free_text(what: str, text: str, most: int = 1024) -> str:
    """A text for people, as one line: slurmctld keeps it as it is, but others read it line by line."""
    if not text.isprintable():
        raise InvalidRequest(f"{what} {text!r} has line breaks or other characters that do not print")
    if len(text.encode()) > most:
        raise InvalidRequest(f"{what} has {len(text.encode())} bytes; more than {most} are not kept")
    return text


def quoted(what: str, text: str) -> str:
    """A text for a field in which ``scontrol`` takes off a quotation mark at either end, but none within."""
    return f'"{free_text(what, text)}"'
