"""Node groups and their machines: what is asked for, what the block can give, how long each change takes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any

from sandbox.cloud.block import CapacityBlock, CapacityExhausted


@dataclass(frozen=True)
class Fixed:
    """A group that has this many machines whether they are used or not."""

    count: int

    def __post_init__(self) -> None:
        if self.count < 0:
            raise ValueError(f"a group cannot have {self.count} machines")


@dataclass(frozen=True)
class Autoscaling:
    """A group that adds a machine for each Pod that finds no room, and removes those that stay empty."""

    minimum: int
    maximum: int

    def __post_init__(self) -> None:
        if not 0 <= self.minimum <= self.maximum:
            raise ValueError(f"a group cannot have from {self.minimum} to {self.maximum} machines")


Size = Fixed | Autoscaling


class Reservation(str, Enum):
    """Where the GPUs of a group's machines may come from."""

    #: The block, or there is no machine.
    STRICT = "strict"
    #: The block, and what it cannot give is bought at the pay-as-you-go price without a word.
    AUTO = "auto"
    #: Never the block: all is bought.
    FORBID = "forbid"


class MachineState(str, Enum):
    CREATING = "creating"
    RUNNING = "running"
    DELETING = "deleting"


@dataclass
class Machine:
    """A virtual machine; it holds its GPUs of the block from before it boots until after it is gone."""

    id: str
    group: str
    gpus: int
    state: MachineState
    #: When its state last changed.
    since: float
    #: Since when no Pod has needed it; None while one does.
    empty_since: float | None = None
    #: False for one whose GPUs are not from the block: it was bought, or has none.
    reserved: bool = True


@dataclass
class NodeGroup:
    """Machines of one shape. ``labels`` are those of their Kubernetes Nodes."""

    id: str
    name: str
    cluster: str
    gpus_per_node: int
    size: Size
    labels: dict[str, str] = field(default_factory=dict)
    project: str = "project-e00sandbox"
    reservation: Reservation = Reservation.STRICT
    #: Machines that the size and the Pods ask for now.
    target: int = 0
    #: Why the group is smaller than its target; None when nothing keeps it.
    problem: str | None = None
    problem_since: float | None = None
    #: Machines that the block has been asked for in vain, and that are still wanted.
    refused: int = 0


@dataclass(frozen=True)
class Timing:
    """How long the parts of a machine's life take, in seconds."""

    boot: float = 1.0
    #: An autoscaled machine stands empty for this long before the autoscaler removes it.
    idle: float = 8.0
    #: From the order to remove a machine until the block has its GPUs back.
    removal: float = 1.0


class Fleet:
    """All machines of all groups on one capacity block, moved forward one ``step`` at a time."""

    def __init__(
        self, block: CapacityBlock, timing: Timing | None = None, *, now: Callable[[], float] = time.time
    ) -> None:
        self.block = block
        self.timing = timing or Timing()
        self.groups: dict[str, NodeGroup] = {}
        self.machines: dict[str, Machine] = {}
        #: Machines ever bought beside the block. Zero is the promise that the provider makes.
        self.payg = 0
        #: Called at the end of every step, by those who must not miss a state that lasts for one step only.
        self.after_step: list[Callable[[], None]] = []
        #: Called when a group was given another size.
        self.on_resize: list[Callable[[], None]] = []
        self.now = now
        self._serial = 0

    def add_group(self, group: NodeGroup) -> None:
        self.groups[group.id] = group

    def resize(self, group_id: str, size: Size) -> None:
        group = self.groups[group_id]
        group.size = size
        group.problem = group.problem_since = None
        if isinstance(size, Fixed):
            group.target = size.count
        for call in self.on_resize:
            call()

    @property
    def is_moving(self) -> bool:
        """Time alone will change something: a machine boots or goes, or an autoscaler may remove one that is empty."""
        return any(
            machine.state is not MachineState.RUNNING
            or (machine.empty_since is not None and isinstance(self.groups[machine.group].size, Autoscaling))
            for machine in self.machines.values()
        )

    def machines_of(self, group_id: str) -> list[Machine]:
        return [machine for machine in self.machines.values() if machine.group == group_id]

    def settled(self, group_id: str) -> bool:
        """The group has just the machines that it should have, and none is on its way in or out."""
        machines = self.machines_of(group_id)
        return len(machines) == self.groups[group_id].target and all(
            machine.state is MachineState.RUNNING for machine in machines
        )

    def within_size(self, group_id: str) -> bool:
        """What the last resize asked for holds; an autoscaled group may go on moving between its bounds."""
        size = self.groups[group_id].size
        if isinstance(size, Fixed):
            return self.settled(group_id)
        machines = self.machines_of(group_id)
        running = sum(machine.state is MachineState.RUNNING for machine in machines)
        return size.minimum <= running and len(machines) <= size.maximum

    def step(self, pending: Mapping[str, int], busy: AbstractSet[str]) -> None:
        """Move every machine on as far as time allows.

        ``pending`` counts, for each group, the Pods that found no room; ``busy`` names the machines that Pods
        run on. Removals come first, so that what they free can be claimed in the same step.
        """
        now = self.now()
        self.block.advance()
        for machine in list(self.machines.values()):
            self._advance(machine, now, busy)
        for group in self.groups.values():
            self._shrink(group, now, pending.get(group.id, 0), busy)
        for group in self.groups.values():
            self._grow(group, now)
        for call in list(self.after_step):
            call()

    def kill(self, machine_id: str) -> None:
        """A machine that dies at once, as hardware does; its group then lacks one and replaces it."""
        machine = self.machines.pop(machine_id)
        self.block.release(machine.id)

    def _advance(self, machine: Machine, now: float, busy: AbstractSet[str]) -> None:
        waited = now - machine.since
        if machine.state is MachineState.CREATING and waited >= self.timing.boot:
            machine.state, machine.since, machine.empty_since = MachineState.RUNNING, now, now
        elif machine.state is MachineState.DELETING and waited >= self.timing.removal:
            self.kill(machine.id)
            return
        if machine.id in busy:
            machine.empty_since = None
        elif machine.empty_since is None:
            machine.empty_since = now

    def _shrink(self, group: NodeGroup, now: float, pending: int, busy: AbstractSet[str]) -> None:
        alive = self._alive(group.id)
        if isinstance(group.size, Fixed):
            # The youngest go first, whether or not Pods run on them: the real API does not say which it takes.
            group.target = group.size.count
            doomed = sorted(alive, key=lambda machine: machine.since)[group.target :]
        else:
            # An autoscaler takes empty ones before busy ones, then the youngest.
            alive = sorted(alive, key=lambda machine: (machine.id not in busy, machine.since))
            kept, doomed = alive[: group.size.maximum], alive[group.size.maximum :]
            # A machine that boots or stands empty is room for one pending Pod; only the rest asks for more.
            wanted = pending + sum(machine.id in busy for machine in alive)
            excess = max(0, len(kept) - max(group.size.minimum, wanted))
            doomed += self._idle(kept, now)[:excess]
            group.target = min(group.size.maximum, max(group.size.minimum, wanted, len(alive) - len(doomed)))
        for machine in doomed:
            machine.state, machine.since = MachineState.DELETING, now

    def _idle(self, machines: list[Machine], now: float) -> list[Machine]:
        """Those empty for long enough, the longest empty one first."""
        idle = [
            (machine.empty_since, machine)
            for machine in machines
            if machine.state is MachineState.RUNNING
            and machine.empty_since is not None
            and now - machine.empty_since >= self.timing.idle
        ]
        return [machine for _, machine in sorted(idle, key=lambda pair: pair[0])]

    def _grow(self, group: NodeGroup, now: float) -> None:
        missing = group.target - len(self._alive(group.id))
        for made in range(missing):
            self._serial += 1
            machine = Machine(
                f"computeinstance-e00sandbox{self._serial:05d}",
                group.id,
                group.gpus_per_node,
                MachineState.CREATING,
                now,
            )
            try:
                machine.reserved = self._reserve(machine, group)
            except CapacityExhausted as exhausted:
                # It hangs rather than fails, as the real one does: each step tries again, with the same id.
                self._serial -= 1
                group.problem = f"NotEnoughResources: {exhausted}"
                group.problem_since = now if group.problem_since is None else group.problem_since
                self._note_refused(group, missing - made, type(exhausted))
                return
            self.machines[machine.id] = machine
        group.problem = group.problem_since = None
        group.refused = 0

    def _note_refused(self, group: NodeGroup, machines: int, why: type[CapacityExhausted]) -> None:
        """Tell the ledger once of each machine that cannot be made, however often it is tried."""
        for _ in range(machines - group.refused):
            self.block.note_refused(group.id, group.gpus_per_node, why)
        group.refused = machines

    def _reserve(self, machine: Machine, group: NodeGroup) -> bool:
        """Find the machine's GPUs; True if it is the block that gave them."""
        if not machine.gpus:
            return False
        if group.reservation is not Reservation.FORBID:
            try:
                self.block.claim(machine.id, machine.gpus, group.project)
                return True
            except CapacityExhausted:
                if group.reservation is Reservation.STRICT:
                    raise
        self.payg += 1
        self.block.note_payg(machine.id, machine.gpus, is_declared=group.reservation is Reservation.FORBID)
        return False

    def _alive(self, group_id: str) -> list[Machine]:
        return [m for m in self.machines_of(group_id) if m.state is not MachineState.DELETING]

    def dump(self) -> dict[str, Any]:
        return {
            "machines": [asdict(machine) for machine in self.machines.values()],
            "sizes": {
                group.id: {"kind": type(group.size).__name__, **asdict(group.size)} for group in self.groups.values()
            },
            "serial": self._serial,
            "payg": self.payg,
        }

    def load(self, state: dict[str, Any]) -> None:
        self.machines = {m["id"]: Machine(**{**m, "state": MachineState(m["state"])}) for m in state["machines"]}
        kinds: dict[str, type[Fixed] | type[Autoscaling]] = {"Fixed": Fixed, "Autoscaling": Autoscaling}
        for group_id, fields in state["sizes"].items():
            if group_id in self.groups:
                numbers = {name: value for name, value in fields.items() if name != "kind"}
                self.resize(group_id, kinds[fields["kind"]](**numbers))
        self._serial = state["serial"]
        self.payg = state["payg"]
