"""The plan of a shift, for approval: present and desired units, the nodes that go, and the steps with their times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from airflow_provider_soperator.capacity.holdings import World
from airflow_provider_soperator.capacity.order import ShiftOrder


@dataclass(frozen=True)
class TargetMove:
    """The change of one target."""

    target: str
    units: str
    now: int
    then: int
    #: Its units that go, with reasons, where a target can choose them.
    reasons: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.now == self.then:
            return f"{self.target} keeps its {self.now} {self.units}"
        return f"{self.target} goes from {self.now} to {self.then} {self.units}"


@dataclass(frozen=True)
class ShiftPlan:
    """The changes of all targets, and the steps to them in order."""

    moves: tuple[TargetMove, ...]
    steps: tuple[str, ...]
    #: GPUs of the block that are free now; None if that is unknown.
    free: int | None
    #: What others do with the block.
    notes: tuple[str, ...] = ()

    def describe(self) -> dict[str, Any]:
        """JSON, with the plan as plain ``text`` and as ``markdown``."""
        return {
            "text": str(self),
            "markdown": self._text("- ", ""),
            "moves": {move.target: {"now": move.now, "then": move.then} for move in self.moves},
            "steps": list(self.steps),
            "free_gpus": self.free,
            "notes": list(self.notes),
        }

    def __str__(self) -> str:
        return self._text()

    def _text(self, mark: str = "", *between: str) -> str:
        lines: list[str] = []
        for move in self.moves:
            lines += [f"{mark}{move}", *(f"    {mark}{reason}" for reason in move.reasons)]
        lines += [f"{mark}{note}" for note in self.notes]
        return "\n".join([*lines, *between, *(f"{number}. {step}" for number, step in enumerate(self.steps, 1))])


def plan(world: World, order: ShiftOrder, reasons: Mapping[str, Sequence[str]], notes: Sequence[str] = ()) -> ShiftPlan:
    """The plan for an order in the present world; ``reasons`` has the units of each target that go."""
    moves = tuple(
        TargetMove(name, order.units(name), seen.allowed, order.desired[name], tuple(reasons.get(name, ())))
        for name, seen in world.holdings.items()
    )
    donors = [move for move in moves if move.target in world.donors(order.desired)]
    receivers = [move for move in moves if move.target in world.receivers(order.desired)]
    return ShiftPlan(moves, tuple(_steps(order, donors, receivers)), world.block.free, tuple(notes))


def _steps(order: ShiftOrder, donors: Sequence[TargetMove], receivers: Sequence[TargetMove]) -> list[str]:
    is_late = order.leaves_at <= datetime.now(timezone.utc)
    leaves = "now" if is_late else f"at {_moment(order.leaves_at)}"
    steps = []
    if donors:
        names = _names(donors)
        if order.mode != "idle" and not is_late:
            until = f"until {_moment(order.leaves_at)}"
            steps.append(
                f"{until}: jobs that would run longer are kept off the units that {names} will release, where possible"
            )
        steps.append(f"{leaves}: {names} {_verb(donors, 'release')} idle units, and busy ones as their work ends")
        if order.mode == "force":
            forced = _moment(order.wanted_at + order.force_after)
            steps.append(f"at {forced}: busy units are taken, {order.grace} after their jobs got SIG{order.signal}")
    growing = [move for move in receivers if move.then > move.now]
    if waking := [move for move in receivers if move not in growing]:
        steps.append(f"{leaves}: {_names(waking)} {_verb(waking, 'start')} the units that are not ready")
    if donors and growing:
        freed = "as each machine is gone and its GPUs are free in the block"
        steps.append(f"{freed}: {_names(growing)} {_verb(growing, 'get')} one more")
    elif growing:
        steps.append(f"{leaves}: {_names(growing)} {_verb(growing, 'get')} what is free in the block")
    if receivers and not is_late:
        steps.append(f"by {_moment(order.wanted_at)}: {_names(receivers)} {_verb(receivers, 'get')} the last unit")
    return steps or ["nothing to do"]


def _names(moves: Sequence[TargetMove]) -> str:
    return " and ".join(move.target for move in moves)


def _verb(moves: Sequence[TargetMove], verb: str) -> str:
    return verb if len(moves) > 1 else f"{verb}s"


def _moment(when: datetime) -> str:
    return f"{when:%d %b %H:%M:%S %Z}"
