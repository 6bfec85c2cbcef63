"""Steering: the commands for the shift that is at work on a block, and the order that follows from it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Literal, Protocol

from airflow_provider_soperator.capacity.holdings import World
from airflow_provider_soperator.capacity.lease_store import ShiftRecord
from airflow_provider_soperator.capacity.order import ShiftOrder, patience
from airflow_provider_soperator.errors import CapacityMistake, name_remedy
from airflow_provider_soperator.slurm import hostlist
from airflow_provider_soperator.values import Plain, keep, kept

#: What a shift can be told while it runs.
SteeringAction = Literal["stop", "force", "leave_out", "extend"]


@dataclass(frozen=True, kw_only=True)
class SteeringCommand(Plain):
    """What a person asks of a shift."""

    action: SteeringAction
    at: datetime
    by: str = ""
    #: The task that has told it, which may be tried again.
    task: str = ""
    #: With ``leave_out``: nodes; with ``extend``: the time by which its end is put off.
    nodes: tuple[str, ...] = ()
    extend_by: timedelta = timedelta(0)

    def __str__(self) -> str:
        what = {
            "stop": "to stop the shift where it is",
            "force": "to end the jobs that are still in the way",
            "leave_out": f"to leave out {hostlist.fold(self.nodes)}",
            "extend": f"to extend the shift by {self.extend_by}",
        }[self.action]
        return f"{self.by or 'a run by hand'} has asked {what} ({self.at:%d %b %H:%M:%S %Z})"


class ShiftSteering(Protocol):
    """The link from a shift at work to those who steer it."""

    async def commands(self, record: ShiftRecord) -> Sequence[SteeringCommand]:
        """What was asked so far of the shift with this record."""

    async def show(self, state: Mapping[str, Any]) -> None:
        """Show how far the shift has come; called when that has changed."""


def steered(order: ShiftOrder, commands: Iterable[SteeringCommand]) -> ShiftOrder:
    """The order after all that was asked."""
    for command in commands:
        if command.action == "force":
            early = command.at + order.grace - order.wanted_at
            late = order.force_after if order.mode == "force" else early
            transfer = max(order.transfer, order.wanted_at - command.at)
            order = replace(order, mode="force", transfer=transfer, force_after=min(early, late))
        elif command.action == "extend":
            by, limit = command.extend_by, patience(order.timeouts, has_window=order.may_wait)
            if order.approved and (end := order.approved.get("end")):
                end = (datetime.fromisoformat(end) + by).isoformat()
                order = replace(order, approved={**order.approved, "end": end})
            timeouts = replace(order.timeouts, release=limit and limit + by)
            order = replace(order, stops_at=order.stops_at and order.stops_at + by, timeouts=timeouts)
    return order


def left_out(commands: Iterable[SteeringCommand]) -> dict[str, str]:
    """The nodes that are to be left as they are, with reasons."""
    why = "is left out, as {} asked"
    return {node: why.format(one.by or "a run by hand") for one in commands for node in one.nodes}


def asked(commands: Iterable[SteeringCommand], order: ShiftOrder, world: World) -> dict[str, Any] | None:
    """What commands ask for instead of what an order desires, if that makes a difference."""
    kept = {node for seen in world.holdings.values() for node in seen.stuck}
    # A stop says more than what was left out before it.
    for command in sorted(commands, key=lambda one: one.action != "stop"):
        if command.action == "stop":
            units = world.allowed
        elif kept & {*command.nodes}:
            units = world.goal(order.desired).units
        else:
            continue
        if units != dict(order.desired):
            return {"units": units, "by": command.by, "because": str(command), "now": command.at.isoformat()}
    return None


@dataclass(frozen=True, kw_only=True)
class ShiftAtWork(Plain):
    """The shift that holds a block, in two Airflow Variables: what it is, which it writes, and what is asked of it."""

    #: The same for each process of a shift, and another one if its task begins afresh.
    id: str
    key: str
    block: str
    task: str
    #: The nodes of each target that can choose among them, as hostlists.
    nodes: Mapping[str, str] = field(default_factory=dict)
    #: When it ends at the latest, before anything was asked of it.
    ends_at: datetime | None = None
    #: The next handover of its schedule.
    handover: datetime | None = None
    #: False if a person has approved it without the end of any job.
    may_end_jobs: bool = True
    #: How it has ended, and when; empty while it is at work.
    ended: str = ""

    @classmethod
    def begin(cls, order: ShiftOrder, record: ShiftRecord, handover: datetime | None) -> ShiftAtWork:
        """Write down that a shift has the block."""
        known = cls.find(order.block)
        if known and known.key == order.key and not known.ended:
            return known
        begun = cls(
            # What was asked of it before is found again also if Airflow could not be asked which shift this is.
            id=f"{record.key}-{record.marks.get('began', 0):.0f}",
            key=order.key,
            block=order.block,
            task=order.task,
            nodes={one.name: one.nodes for one in order.targets if hasattr(one, "nodes")},
            ends_at=order.ends_at,
            handover=handover,
            may_end_jobs=not order.approved or any(order.approved.get("jobs", {}).values()),
        )
        keep(_shift(order.block), begun.write())
        return begun

    @classmethod
    def find(cls, block: str) -> ShiftAtWork | None:
        """The shift that has or had the block last; None if none is known."""
        said = kept(_shift(block), None)
        return cls.read(said) if said else None

    def end(self, how: str, now: datetime) -> None:
        """Write down that it is over, unless another one has the block by now."""
        known = self.find(self.block)
        if known and known.id == self.id and not known.ended:
            keep(_shift(self.block), replace(known, ended=f"{now:%d %b %Y %H:%M:%S %Z}: {how}").write())

    def commands(self) -> tuple[SteeringCommand, ...]:
        """What was asked of this shift, and not of one before it."""
        said: dict[str, Any] = kept(_steering(self.block), {})
        return tuple(map(SteeringCommand.read, said["commands"])) if said.get("shift") == self.id else ()

    def ends_after(self, commands: Iterable[SteeringCommand]) -> datetime | None:
        """When it ends at the latest, after all that was asked of it."""
        return self.ends_at and self.ends_at + sum((one.extend_by for one in commands), timedelta(0))

    def give(self, command: SteeringCommand) -> None:
        """Add a command, which the shift heeds at its next poll, unless its task has given it."""
        given = self.commands()
        if command.task and command.task in (one.task for one in given):
            return
        self._check(command, given)
        keep(_steering(self.block), {"shift": self.id, "commands": [one.write() for one in (*given, command)]})

    def _check(self, command: SteeringCommand, given: Iterable[SteeringCommand]) -> None:
        """Refuse what the shift could not carry out."""
        known = [node for nodes in self.nodes.values() for node in hostlist.expand(nodes)]
        for node in command.nodes:
            if node not in known:
                raise CapacityMistake(f"no node {node} can be left out", name_remedy(node, known))
        if command.action == "force" and not self.may_end_jobs:
            said = "this shift was approved without the end of any job"
            raise CapacityMistake(said, 'let a plan with mode="force" be approved')
        end = self.ends_after((*given, command)) if command.action == "extend" else None
        if end and self.handover and end > self.handover:
            when = f"at {end:%d %b %H:%M %Z}, after the next handover at {self.handover:%d %b %H:%M %Z}"
            remedy = "extend it by less, or override the schedule: trigger the DAG with sizes and until"
            raise CapacityMistake(f"the shift would end {when}", remedy)


def no_shift(block: str, last: ShiftAtWork | None) -> CapacityMistake:
    """The error for a command that no shift would hear."""
    said = "none is known"
    if last:
        said = f"the last one, task {last.task}, "
        said += f"ended on {last.ended}" if last.ended else "is no longer running"
    return CapacityMistake(f"no shift of this Airflow is at work on block {block}; {said}")


def _shift(block: str) -> str:
    return f"soperator_shift_{block}"


def _steering(block: str) -> str:
    return f"soperator_steering_{block}"
