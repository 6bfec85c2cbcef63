"""What the ways of handing nodes over have in common: how much is handed over, and the work that is in the way."""

from __future__ import annotations

import random
from dataclasses import dataclass

NODES = 8
GPUS = 8
#: Nodes that are handed over.
MOVED = 4
#: Seconds between two looks of whoever hands them over, be it a script or a shift.
POLL = 1.0
_SEED = 6


@dataclass(frozen=True)
class Job:
    """One that takes a whole node."""

    #: As Slurm is told: whole minutes.
    limit: int
    #: How long it really takes.
    seconds: float


@dataclass(frozen=True)
class Shape:
    """How long all of it takes."""

    #: Limits of jobs, in minutes, each as likely as it is often here.
    limits: tuple[int, ...] = (1, 1, 2, 3, 4)
    #: Seconds ahead of which the handover is known, for those that can make use of it.
    lead: float = 240.0
    #: So many that some wait at any time.
    jobs: int = 200
    #: Seconds that a machine takes to boot.
    boot: float = 1.0

    def queue(self) -> list[Job]:
        """The same each time."""
        dice = random.Random(_SEED)
        limits = [dice.choice(self.limits) for _ in range(self.jobs)]
        return [Job(limit, round(60 * limit * dice.uniform(0.4, 0.95), 1)) for limit in limits]


FULL = Shape()
QUICK = Shape(limits=(1, 1, 2), lead=120.0)
#: Nearer to real machines, at which looks a second apart weigh little.
SLOW_BOOTS = Shape(boot=90.0)
