"""A shift in words, before it happens: what each target has and shall have, which nodes go, and what is done when."""

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
    #: Which of its units go or come, and why these; for targets that can be told which.
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

    @property
    def is_empty(self) -> bool:
        return all(move.now == move.then for move in self.moves)

    def describe(self) -> dict[str, Any]:
        """Return JSON; ``text`` is for people, and ``markdown`` for pages."""
        return {
            "text": str(self),
            "markdown": self.markdown(),
            "moves": {move.target: {"now": move.now, "then": move.then} for move in self.moves},
            "steps": list(self.steps),
            "free_gpus": self.free,
        }

    def markdown(self) -> str:
        """The same as the text, with marks that keep its lines apart on Airflow's pages."""
        lines = []
        for move in self.moves:
            lines += [f"- {move}", *(f"    - {reason}" for reason in move.reasons)]
        return "\n".join([*lines, "", *(f"{number}. {step}" for number, step in enumerate(self.steps, 1))])

    def __str__(self) -> str:
        lines = []
        for move in self.moves:
            lines += [str(move), *(f"    {reason}" for reason in move.reasons)]
        lines += [f"{number}. {step}" for number, step in enumerate(self.steps, 1)]
        return "\n".join(lines)


def plan(world: World, order: ShiftOrder, reasons: Mapping[str, Sequence[str]]) -> ShiftPlan:
    """The plan for an order in the world as it is; ``reasons`` say of each target which units go."""
    moves = tuple(
        TargetMove(name, order.units(name), seen.allowed, order.desired[name], tuple(reasons.get(name, ())))
        for name, seen in world.holdings.items()
    )
    donors = [move for move in moves if move.target in world.donors(order.desired)]
    receivers = [move for move in moves if move.target in world.receivers(order.desired)]
    return ShiftPlan(moves, tuple(_steps(order, donors, receivers)), world.block.free)


def _steps(order: ShiftOrder, donors: Sequence[TargetMove], receivers: Sequence[TargetMove]) -> list[str]:
    is_late = order.leaves_at <= datetime.now(timezone.utc)
    leaves = "now" if is_late else f"at {_moment(order.leaves_at)}"
    steps = []
    if donors:
        names = _names(donors)
        if order.mode != "idle" and not is_late:
            until = f"until {_moment(order.leaves_at)}"
            steps.append(
                f"{until}: work that would last longer is kept off what is to leave {names}, where that can be"
            )
        steps.append(f"{leaves}: {names} gives up what is idle, and the rest as its work ends")
        if order.mode == "force":
            forced = _moment(order.wanted_at + order.force_after)
            steps.append(f"at {forced}: what is left is taken, {order.grace} after its jobs got SIG{order.signal}")
    growing = [move for move in receivers if move.then > move.now]
    if waking := [move for move in receivers if move not in growing]:
        steps.append(f"{leaves}: {_names(waking)} brings up what it may have and is not ready")
    if donors and growing:
        steps.append(f"as each machine is gone and its GPUs are free in the block: {_names(growing)} gets one more")
    elif growing:
        steps.append(f"{leaves}: {_names(growing)} gets as much as is free in the block")
    if receivers and not is_late:
        steps.append(f"by {_moment(order.wanted_at)}: {_names(receivers)} is to have all of it")
    return steps or ["nothing: everything is as it shall be"]


def _names(moves: Sequence[TargetMove]) -> str:
    return " and ".join(move.target for move in moves)


def _moment(when: datetime) -> str:
    return f"{when:%d %b %H:%M:%S %Z}"
