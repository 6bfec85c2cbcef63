"""The plan of a shift, for approval, with its steps and their times; and the state and the outcome of a shift."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from types import MappingProxyType
from typing import Any, Literal

from airflow_provider_soperator.capacity.allocation import counted, one_of
from airflow_provider_soperator.capacity.figures import Figures
from airflow_provider_soperator.capacity.holdings import World
from airflow_provider_soperator.capacity.lease_store import ShiftRecord
from airflow_provider_soperator.capacity.order import ShiftOrder
from airflow_provider_soperator.slurm.node_conditions import in_lines


@dataclass(frozen=True)
class TargetMove:
    """The change of one target."""

    target: str
    units: str
    now: int
    then: int
    #: What it can have at present, if that differs from ``then``; and how many of these can take work.
    possible: int
    ready: int
    #: Its units that go, with reasons, where a target can choose them.
    goes: Mapping[str, str] = field(default_factory=dict)
    #: Units that may not be touched, with reasons.
    fixed: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        has = counted(self.possible, self.units)
        said = f"keeps its {has}" if self.now == self.possible else f"goes from {self.now} to {has}"
        desired = f" ({self.then} desired)" if self.possible != self.then else ""
        ready = f", {self.ready} of them ready" if self.ready < self.possible else ""
        return f"{self.target} {said}{desired}{ready}"

    @property
    def reasons(self) -> tuple[str, ...]:
        """Lines about its units."""
        goes = in_lines({name: f"will go: {why}" for name, why in self.goes.items()})
        return goes + in_lines({name: f"is left as it is, as it {why}" for name, why in self.fixed.items()})


@dataclass(frozen=True)
class ShiftPlan:
    """The changes of all targets, and the steps to them in order."""

    moves: tuple[TargetMove, ...]
    steps: tuple[str, ...]
    #: GPUs of the block that are free now, and that no target has; None if that is unknown.
    free: int | None
    #: GPUs of the block that no target holds; None if that is unknown.
    others: int | None
    #: Jobs on the units that go, by target, if they may be ended.
    jobs: Mapping[str, Sequence[str]] = field(default_factory=dict)
    #: What others do with the block.
    notes: tuple[str, ...] = ()
    #: Units that are off now, and that a rollback may take again, by target.
    back: Mapping[str, Collection[str]] = field(default_factory=dict)
    #: Targets that buy what the block lacks.
    buys: tuple[str, ...] = ()

    def describe(self) -> dict[str, Any]:
        """JSON, with the plan as plain ``text`` and as ``markdown``."""
        return {
            "text": str(self),
            "markdown": self._text("- ", ""),
            "moves": {move.target: {"now": move.now, "then": move.then} for move in self.moves},
            "possible": {move.target: move.possible for move in self.moves},
            "nodes": {move.target: list(move.goes) for move in self.moves if move.goes},
            "back": {target: list(units) for target, units in self.back.items() if units},
            "fixed": {move.target: dict(move.fixed) for move in self.moves if move.fixed},
            "jobs": {target: list(jobs) for target, jobs in self.jobs.items()},
            "buys": list(self.buys),
            "steps": list(self.steps),
            "free_gpus": self.free,
            "gpus_of_others": self.others,
            "notes": list(self.notes),
        }

    def __str__(self) -> str:
        return self._text()

    def _text(self, mark: str = "", *between: str) -> str:
        lines: list[str] = []
        for move in self.moves:
            lines += [f"{mark}{move}", *(f"    {mark}{reason}" for reason in move.reasons)]
        if self.others:
            lines.append(f"{mark}{self.others} GPUs of the block belong to others, or to machines on their way out")
        lines += [f"{mark}{note}" for note in self.notes]
        return "\n".join([*lines, *between, *(f"{number}. {step}" for number, step in enumerate(self.steps, 1))])


@dataclass(frozen=True)
class ShiftOutcome:
    """The result of a shift that is over."""

    #: ``partial`` if a target lacks units, or has too many.
    state: Literal["done", "partial"]
    allocation: dict[str, int]
    figures: Figures
    #: What is not as desired, why, and until when.
    missing: tuple[str, ...] = ()
    #: What a person has asked for instead of what was desired: ``units`` of each target, ``by`` and ``because``.
    asked: Mapping[str, Any] | None = None

    def describe(self) -> dict[str, Any]:
        """As JSON."""
        return {**asdict(self), "missing": list(self.missing), "figures": self.figures.describe()}


def plan(
    world: World,
    order: ShiftOrder,
    goes: Mapping[str, Mapping[str, str]],
    jobs: Mapping[str, Sequence[str]] = MappingProxyType({}),
    notes: Sequence[str] = (),
    back: Mapping[str, Collection[str]] = MappingProxyType({}),
) -> ShiftPlan:
    """The plan for an order in the present world; ``goes`` has the units of each target that go, with reasons."""
    then, possible = order.desired, world.possible(order.desired)
    moves = {}
    for name, seen in world.holdings.items():
        units, ready, away = possible.units[name], possible.ready[name], goes.get(name, {})
        moves[name] = TargetMove(name, order.units(name), seen.allowed, then[name], units, ready, away, seen.reasons)
    donors = [moves[name] for name in world.donors(possible.units)]
    receivers = [moves[name] for name in world.receivers(possible.units, possible.ready)]
    lacking = {name for name, move in moves.items() if move.possible < move.then}
    buys = tuple(name for name in order.buys if order.until and name in lacking)
    steps = tuple(_steps(order, donors, receivers, buys))
    shares = (str(one) for one in world.shares if one.targets & lacking)
    return ShiftPlan((*moves.values(),), steps, world.block.free, world.others, jobs, (*notes, *shares), back, buys)


def shift_state(world: World, record: ShiftRecord, order: ShiftOrder, more: Iterable[str]) -> dict[str, Any]:
    """How far a shift has come, as JSON: the units that have moved since it began, of how many, and in words."""
    seen, ready, before = world.holdings, record.ready, record.before
    goal = before if record.undone else order.desired
    moves = {name: (goal[name] - ready.get(name, 0), one.ready - ready.get(name, 0)) for name, one in seen.items()}
    if all(more <= 0 for more, _ in moves.values()):
        had = {name: before.get(name, 0) for name in seen}
        moves = {name: (had[name] - goal[name], had[name] - max(one.held, one.allowed)) for name, one in seen.items()}
    moved, of = sum(max(0, min(one)) for one in moves.values()), sum(max(0, lacks) for lacks, _ in moves.values())
    names = " and ".join(dict.fromkeys(order.units(name) for name, (lacks, _) in moves.items() if lacks > 0))
    said = f"{moved} of {of} {names} moved" if of else "nothing to move"
    if record.undone:
        said = f"rolling back: {', '.join(f'{name} has {one.ready}' for name, one in seen.items())}"
    waits = [problem for one in seen.values() for problem in one.problems]
    text = "; ".join(filter(None, [said, *waits, *more]))
    return {"text": text, "moved": moved, "of": of, "ready": {name: one.ready for name, one in seen.items()}}


def missing_units(world: World, order: ShiftOrder, why: str = "") -> tuple[str, ...]:
    """What is not as desired, with the causes that are known; ``why`` the shift has ended, if it has not come to it."""
    lines = []
    for name, seen in world.holdings.items():
        wanted, units = order.desired[name], order.units(name)
        if (has := max(seen.held, seen.allowed)) > wanted:
            line, fixed = f"{name} still has {counted(has, units)}, not {wanted}", seen.stuck
        elif seen.ready < wanted:
            line = f"{name} has {seen.ready} of {wanted} {units} ready"
            fixed = seen.reasons if seen.broken else seen.away
        else:
            continue
        bought = []
        if seen.to_come:
            late = f"{seen.to_come} {'has' if seen.to_come == 1 else 'have'} not come"
            bought = [f"{counted(seen.bought, units)} requested beside the block, of which {late}"]
        elif seen.bought:
            bought = [f"{counted(seen.bought, units)} bought beside the block"]
        shares = [str(one) for one in world.full(name) if has < wanted]
        causes = dict.fromkeys([*bought, *seen.problems, *in_lines(fixed), *shares])
        lines.append(f"{line}: {'; '.join(causes)}" if causes else line)
    return (*lines, why) if lines and why else tuple(lines)


def present(world: World, order: ShiftOrder) -> str:
    """What targets have at present, as a sentence."""
    lines = []
    for name, seen in world.holdings.items():
        why = f" ({', '.join(seen.problems)})" if seen.problems else ""
        lines.append(f"{name} may have {counted(seen.allowed, order.units(name))}, {seen.ready} ready{why}")
    free = "an unknown number of" if world.block.free is None else world.block.free
    return f"Now {'; '.join(lines)}; {free} GPUs of the block are free"


def _steps(
    order: ShiftOrder, donors: Sequence[TargetMove], receivers: Sequence[TargetMove], buyers: Collection[str]
) -> list[str]:
    now = datetime.now(timezone.utc)
    is_late, signals_at = order.leaves_at <= now, order.release(now).signals_at
    leaves = "now" if is_late else f"at {_moment(order.leaves_at)}"
    steps = []
    if donors:
        units = _units(donors)
        if order.mode != "idle" and not is_late:
            kept_off = f"are kept off the {units} that {' and '.join(one.target for one in donors)} will release"
            steps.append(f"until {_moment(order.leaves_at)}: jobs that would run longer {kept_off}, where possible")
        steps.append(f"{leaves}: {_do(donors, 'release')} idle {units}, and busy ones as their work ends")
        if signals_at:
            forced = _moment(max(signals_at, now) + order.grace)
            steps.append(f"at {forced}: busy {units} are taken, {order.grace} after their jobs got SIG{order.signal}")
    growing = [move for move in receivers if move.possible > move.now]
    if waking := [move for move in receivers if move not in growing]:
        steps.append(f"{leaves}: {_do(waking, 'start')} the {_units(waking)} that are not ready")
    if donors and growing:
        steps.append(f"as each machine is gone and its GPUs are free in the block: {_do(growing, 'get')} one more")
    elif growing:
        steps.append(f"{leaves}: {_do(growing, 'get')} what is free in the block")
    if receivers and not is_late:
        last = one_of(_units(receivers))
        steps.append(f"by {_moment(order.wanted_at)}: {_do(receivers, 'get')} the last {last}")
    for name in buyers:
        fallback = order.buys[name]
        bought = f"{name} buys what the block lacks by then, up to {counted(fallback.max_nodes, 'nodes')}"
        steps.append(f"from {_moment(order.wanted_at + fallback.after)} on: {bought}")
    return steps or ["nothing to do"]


def _do(moves: Sequence[TargetMove], verb: str) -> str:
    """The targets as a subject, with its verb."""
    return f"{' and '.join(move.target for move in moves)} {verb if len(moves) > 1 else f'{verb}s'}"


def _units(moves: Sequence[TargetMove]) -> str:
    return " and ".join(dict.fromkeys(move.units for move in moves))


def _moment(when: datetime) -> str:
    return f"{when:%d %b %H:%M:%S %Z}"
