"""How a process ended: its exit code, or the signal that ended it."""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass

_PAIR = re.compile(r"([0-9]+)(?::([0-9]+))?")

#: A shell reports a command that died of signal n by this plus n.
SHELL_SIGNAL_BASE = 128


def signal_name(number: int) -> str:
    """The name by which people and ``scancel`` know a signal.

    >>> signal_name(9), signal_name(99)
    ('SIGKILL', 'signal 99')
    """
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


@dataclass(frozen=True)
class ExitCode:
    """What Slurm writes as ``code:signal``.

    >>> print(ExitCode.parse("0:9"))
    killed by SIGKILL
    >>> print(ExitCode.parse("137:0"))
    exit code 137 (a command in it was killed by SIGKILL)
    """

    code: int = 0
    signal: int = 0

    @classmethod
    def parse(cls, text: str | int) -> ExitCode:
        found = _PAIR.fullmatch(str(text).strip())
        if not found:
            raise ValueError(f"{text!r} is no exit code (such as 1:0 or 0:9)")
        return cls(int(found[1]), int(found[2] or 0))

    @classmethod
    def from_wait_status(cls, status: int) -> ExitCode:
        """From the number that slurmdbd and the native interface keep, as ``wait(2)`` gives it."""
        return cls((status >> 8) & 0xFF, status & 0x7F)

    @property
    def is_success(self) -> bool:
        return not self.code and not self.signal

    @property
    def killed_by(self) -> int:
        """The signal that ended the job or, as its shell tells it, a command in it; 0 if none did."""
        if self.signal:
            return self.signal
        within = self.code - SHELL_SIGNAL_BASE
        return within if 0 < within < signal.NSIG else 0

    def __str__(self) -> str:
        if self.signal:
            exited = f"exit code {self.code}, " if self.code else ""
            return f"{exited}killed by {signal_name(self.signal)}"
        if self.killed_by:
            return f"exit code {self.code} (a command in it was killed by {signal_name(self.killed_by)})"
        return f"exit code {self.code}"


ZERO = ExitCode()
