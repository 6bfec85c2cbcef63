"""What a target has of a capacity block at one moment, and how far it may be asked to give some of it up."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from airflow_provider_soperator.slurm.requests import PowerDownMode


@dataclass(frozen=True, kw_only=True)
class Holding:
    """What a target has, in its own units: nodes, machines or replicas.

    >>> Holding(allowed=3, held=1, ready=1).promised
    2
    """

    #: As many as it has been told to have, or can take by itself at any time.
    allowed: int
    #: Those whose GPUs it has taken from the block: on their way in, at work, or on their way out.
    held: int
    #: Those that can take work.
    ready: int
    #: Those that are to go, and are still at work.
    finishing: int = 0
    #: Nothing is on its way in or out.
    is_settled: bool = True
    #: What keeps it from what it is allowed, in the words of whoever does: no capacity, a quota.
    problems: tuple[str, ...] = ()

    @property
    def promised(self) -> int:
        """Those that it may still take without being told anything more."""
        return max(0, self.allowed - self.held)


@dataclass(frozen=True, kw_only=True)
class Release:
    """How far a target may go, at this moment, to get units free."""

    #: From when on they are wanted elsewhere. What would run past it is kept off them, where that is possible.
    wanted_at: datetime
    #: What may be done now; None: nothing but to prepare.
    mode: PowerDownMode | None
    #: With ``FORCE``: jobs in the way get this signal first, and then so much time.
    signal: str = "TERM"
    grace: timedelta = timedelta(0)
    #: Work that would last beyond that is to be kept off before.
    ahead: bool = True
