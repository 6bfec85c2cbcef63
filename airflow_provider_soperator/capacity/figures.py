"""What a shift has taken: time by its parts, GPU-seconds that nobody could use, and work that was lost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from airflow_provider_soperator.capacity.flow import World
from airflow_provider_soperator.capacity.toll import Toll


@dataclass(frozen=True, kw_only=True)
class Figures:
    """Seconds, GPU-seconds and jobs. A part that did not happen has no time."""

    #: From the first node's leave to the last one's.
    release_seconds: float | None
    #: From then until the last unit was ready where it was wanted.
    arrive_seconds: float | None
    total_seconds: float
    #: How much later than wanted it was.
    late_seconds: float
    #: GPU-seconds that neither side could use.
    limbo_gpu_seconds: float
    jobs_ended: int
    jobs_requeued: int
    jobs_killed: int
    lost_gpu_seconds: float
    #: GPUs beside the block. Every target is held to its reservation, so there are none.
    bought_gpus: int = 0

    def describe(self) -> dict[str, Any]:
        return {name: round(value, 1) if isinstance(value, float) else value for name, value in asdict(self).items()}


class Meter:
    """Adds up what passes between two looks at the world."""

    def __init__(self, gpus: Mapping[str, int]) -> None:
        self._gpus = gpus
        self._usable: int | None = None
        self._limbo = 0.0
        self._seen: datetime | None = None

    def see(self, world: World, now: datetime) -> None:
        usable = sum((seen.ready + seen.finishing) * self._gpus[name] for name, seen in world.holdings.items())
        # What was usable at the beginning, or has become so since, could be.
        self._usable = max(usable, self._usable or 0)
        if self._seen is not None:
            self._limbo += (self._usable - usable) * (now - self._seen).total_seconds()
        self._seen = now

    def figures(self, marks: Mapping[str, float], wanted_at: datetime, tolls: Sequence[Toll]) -> Figures:
        """All of it, once the shift is over; ``marks`` say when which part was."""
        toll = sum(tolls, Toll())
        return Figures(
            release_seconds=_between(marks, "leaving", "released"),
            arrive_seconds=_between(marks, "released", "ready"),
            total_seconds=_between(marks, "began", "ready") or 0.0,
            late_seconds=max(0.0, marks["ready"] - wanted_at.timestamp()),
            limbo_gpu_seconds=self._limbo,
            jobs_ended=toll.ended,
            jobs_requeued=toll.requeued,
            jobs_killed=toll.killed,
            lost_gpu_seconds=toll.lost_gpu_seconds,
        )


def _between(marks: Mapping[str, float], start: str, end: str) -> float | None:
    return marks[end] - marks[start] if start in marks and end in marks else None
