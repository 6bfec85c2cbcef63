"""Slurm's notations of durations, times and exit codes in what its commands print and take, and ssh's of keys."""

from __future__ import annotations

import base64
import re
import signal
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from enum import Enum

#: Environment that makes Slurm's commands print seconds since 1970, independent of time zones.
EPOCHS = {"SLURM_TIME_FORMAT": "%s"}

_DURATION = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)(?:\.(\d+))?")
_NO_TIME = {"", "0", "unknown", "n/a", "none", "(null)", "invalid", "infinite", "now"}


class NoDuration(Enum):
    """A word that Slurm prints instead of a duration."""

    UNLIMITED = "UNLIMITED"
    #: As long as the partition allows.
    PARTITION_LIMIT = "Partition_Limit"
    UNKNOWN = "UNKNOWN"


_WORDS = {
    **dict.fromkeys(("unlimited", "infinite"), NoDuration.UNLIMITED),
    **dict.fromkeys(("partition_limit", "not_set"), NoDuration.PARTITION_LIMIT),
    **dict.fromkeys(("", "none", "invalid", "unknown", "n/a", "(null)"), NoDuration.UNKNOWN),
}

Duration = timedelta | NoDuration


def parse_duration(text: str) -> Duration:
    """Read a duration in the output of commands: ``[days-][hours:]minutes:seconds``, or a word."""
    text = text.strip()
    word = _WORDS.get(text.lower())
    if word:
        return word
    found = _DURATION.fullmatch(text)
    if not found:
        raise ValueError(f"{text!r} is not a duration in Slurm's notation")
    days, hours, minutes, seconds, fraction = found.groups(default="0")
    return timedelta(
        days=int(days),
        hours=int(hours),
        minutes=int(minutes),
        seconds=int(seconds),
        microseconds=int(fraction.ljust(6, "0")[:6]),
    )


def parse_minutes(text: str) -> Duration:
    """Read a duration that a command prints as a number of minutes, or as a word."""
    text = text.strip()
    return timedelta(minutes=int(text)) if text.isdecimal() else parse_duration(text)


def parse_seconds(text: str) -> timedelta | None:
    """Read a duration that a command prints as a number of seconds; None where it has none."""
    text = text.strip()
    return timedelta(seconds=int(text)) if text.isdecimal() else None


def duration_in_words(seconds: float) -> str:
    """A duration with its two largest units.

    >>> duration_in_words(59), duration_in_words(93780)
    ('59 s', '1 d 2 h')
    """
    left = max(0, int(seconds))
    said: list[str] = []
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60), ("s", 1)):
        number, left = divmod(left, size)
        if number or (unit == "s" and not said):
            said.append(f"{number} {unit}")
        elif said:
            break
    return " ".join(said[:2])


_BYTES = re.compile(r"([0-9.]+)([KMGTPE]?)")


def parse_bytes(text: str) -> int | None:
    """Read an amount of memory that a command prints; None where it has none.

    >>> parse_bytes("2048K"), parse_bytes("")
    (2097152, None)
    """
    found = _BYTES.fullmatch(text)
    return int(float(found[1]) * 1024 ** " KMGTPE".index(found[2] or " ")) if found else None


def parse_time(text: str) -> datetime | None:
    """Read a time that a command prints as seconds since 1970; None if Slurm has none (yet).

    >>> parse_time("1795255263").isoformat(), parse_time("N/A")
    ('2026-11-21T10:01:03+00:00', None)
    """
    text = text.strip()
    if text.lower() in _NO_TIME:
        return None
    if not text.isdecimal():
        raise ValueError(f"{text!r} is not a time in Slurm's notation")
    return datetime.fromtimestamp(int(text), timezone.utc)


def format_time(when: datetime) -> str:
    """Write a time for any Slurm command, independent of its host's time zone.

    >>> format_time(datetime(2026, 11, 21, 10, tzinfo=timezone.utc))
    'uts1795255200'
    """
    if when.tzinfo is None:
        raise ValueError(f"{when.isoformat()} has no time zone; add one, such as +01:00")
    return f"uts{int(when.timestamp())}"


def clean(text: str) -> str:
    """A field, empty for Slurm's words for nothing.

    >>> clean("(null)"), clean("None assigned"), clean("nonesuch")
    ('', '', 'nonesuch')
    """
    return "" if text.lower() in _NOTHING else text


_NOTHING = {"(null)", "n/a", "none", "none assigned", "null"}


def number(text: str) -> int:
    """A whole number; 0 if Slurm has none."""
    return int(text) if text.isdecimal() else 0


def number_or_none(text: str) -> int | None:
    return int(text) if text.isdecimal() else None


def listed(text: str) -> tuple[str, ...]:
    return tuple(filter(None, clean(text).split(",")))


def parts_of_key(text: str) -> list[bytes]:
    """The parts of a public key, the first of which is its type; none if it is cut or damaged.

    >>> parts_of_key("AAAAB3NzaC1yc2EAAAABeA=="), parts_of_key("AAAAB3NzaC1yc2EAAAAB")
    ([b'ssh-rsa', b'x'], [])
    """
    try:
        data = base64.b64decode(text, validate=True)
    except ValueError:
        return []
    parts, at = [], 0
    while at < len(data):
        # Before each of them is its length.
        start, at = at + 4, at + 4 + int.from_bytes(data[at : at + 4], "big")
        parts.append(data[start:at])
    return parts if at == len(data) else []


_EXIT_PAIR = re.compile(r"([0-9]+)(?::([0-9]+))?")

#: A shell's exit code for a command that was killed by signal n is this plus n.
SHELL_SIGNAL_BASE = 128


#: Why a node did not start a script, by numbers of signals that no process sends: of slurmd's errors (4014, 4016, 4020
#: and 4021 in ``slurm_errno.h``) the status of a job keeps seven bits, where that of a process has its signal.
_NOT_STARTED = {
    46: "could not confine its processes",
    48: "could not become its user",
    52: "could not run its script",
    53: "could not open its output, error or input file",
}
#: Likewise for a job that ran out of memory: ``SIG_OOM``, 253.
_OUT_OF_MEMORY = 125


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


@dataclass(frozen=True)
class ExitCode:
    """An exit code, which Slurm writes as ``code:signal``.

    >>> print(ExitCode.parse("0:9"))
    killed by SIGKILL
    >>> print(ExitCode.parse("137:0"))
    exit code 137 (a command in it was killed by SIGKILL)
    >>> print(ExitCode.parse("0:48"))
    not started, as the node could not become its user (signal 48)
    """

    code: int = 0
    signal: int = 0

    @classmethod
    def parse(cls, text: str | int) -> ExitCode:
        found = _EXIT_PAIR.fullmatch(str(text).strip())
        if not found:
            raise ValueError(f"{text!r} is not an exit code (such as 1:0 or 0:9)")
        return cls(int(found[1]), int(found[2] or 0))

    @property
    def killed_by(self) -> int:
        """The signal that killed the job or, by the shell's exit code, a command in it; 0 if none."""
        if self.signal:
            return self.signal
        within = self.code - SHELL_SIGNAL_BASE
        return within if 0 < within < signal.NSIG else 0

    @property
    def is_not_started(self) -> bool:
        """True if the node failed before the script began."""
        return not self.code and self.signal in _NOT_STARTED

    def __str__(self) -> str:
        if self.is_not_started:
            return f"not started, as the node {_NOT_STARTED[self.signal]} (signal {self.signal})"
        if self.signal == _OUT_OF_MEMORY:
            return f"out of memory (signal {self.signal})"
        if self.signal:
            exited = f"exit code {self.code}, " if self.code else ""
            return f"{exited}killed by {signal_name(self.signal)}"
        if self.killed_by:
            return f"exit code {self.code} (a command in it was killed by {signal_name(self.killed_by)})"
        return f"exit code {self.code}"


ZERO = ExitCode()
