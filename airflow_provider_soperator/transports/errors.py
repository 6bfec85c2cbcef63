"""What can go wrong on the way to a Slurm: each with its cause and what to do about it."""

from __future__ import annotations


class TransportError(Exception):
    """A question did not reach the cluster, or its answer did not reach us.

    ``retryable`` says whether the same question can be asked again with a hope of more, ``unsettled`` whether the
    cluster may have done all the same what it was told.
    """

    retryable = False
    unsettled = False

    def __init__(self, what: str, remedy: str = "") -> None:
        super().__init__(f"{what}: {remedy}" if remedy else what)
        self.what = what
        self.remedy = remedy


class ConnectFailed(TransportError):
    """There is no connection: the host, its key, our key, or the name is wrong, or nobody is there."""


class Unreachable(ConnectFailed):
    """The other side does not answer, or nothing listens there: it may be down, or starting."""


class ConnectRefused(ConnectFailed):
    """The other side takes no more connections just now, as an sshd with too many at once does."""

    retryable = True


class ConnectionLost(TransportError):
    """The connection broke while a command was under way: it may have run, or not, or be running still."""

    retryable = True
    unsettled = True


class CommandTimedOut(TransportError):
    """A command did not end in its time, and was ended on the cluster."""

    retryable = True
    unsettled = True

    def __init__(self, command: str, seconds: float) -> None:
        super().__init__(
            f"{command} did not answer within {seconds:g} s",
            "see whether slurmctld is up and not overloaded (`scontrol ping`, `sdiag`)",
        )


class OutputTooLarge(TransportError):
    """A command printed more than it may."""

    def __init__(self, command: str, limit: int) -> None:
        super().__init__(f"{command} printed more than {limit} bytes", "ask for less at a time")


class NotSupported(TransportError):
    """A transport cannot do this at all, and says which one can."""
