"""Each way in turn, on a sandbox as new as the one before, under the same queue."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.capacity.shape import FULL, GPUS, MOVED, NODES, QUICK, SLOW_BOOTS, Shape
from benchmarks.capacity.stage import Stage, Toll, stage
from benchmarks.capacity.watch import watching
from benchmarks.capacity.ways import AHEAD, ASAP, QUICK_WAYS, WAYS, WHOLE_LEAD, Way, power_down
from benchmarks.table import Row, spread
from sandbox.settings import EPHEMERAL_SET

#: Nodes with nothing to do that are handed over one after the other, to see what that takes at least.
_ALONE = 3
#: Of that: what whoever plans ahead does so with, and what is allowed in limbo.
_TRANSFER, _MOST_LIMBO = 1.25, 1.05
#: What is allowed of the idle time of nodes that are reserved for the whole lead.
_MOST_IDLE = 0.5


@dataclass(frozen=True)
class Trial:
    """What one way has come to, in seconds and GPU-seconds."""

    limbo: float
    idled: float
    toll: Toll
    #: When each node was where it was wanted, from the moment on; before it, if negative.
    came: list[float]

    @property
    def is_there(self) -> bool:
        return len(self.came) == MOVED

    @property
    def late(self) -> float:
        """GPU-seconds for which inference has waited after the moment."""
        return GPUS * sum(max(0.0, at) for at in self.came)

    @property
    def in_all(self) -> float:
        """GPU-seconds in which nothing of use was computed."""
        return self.limbo + self.toll.gpu_seconds + self.idled

    def is_as_promised(self, floor: float) -> bool:
        return self.is_there and not self.toll.jobs and self.limbo <= _MOST_LIMBO * floor

    def describe(self, floor: float) -> str:
        came = f", the first at T {self.came[0]:+.1f} s, the last at T {self.came[-1]:+.1f} s" if self.came else ""
        late = f", {self.late:.0f} GPU-s late" if self.is_there else ", and given up"
        return (
            f"in limbo: {self.limbo:.0f} GPU-s, {self.limbo / floor:.2f} times the floor\n"
            f"come: {len(self.came)} of {MOVED} nodes{came}{late}\n"
            f"lost: {self.toll.jobs} jobs killed, {self.toll.gpu_seconds:.0f} GPU-s of work\n"
            f"idle before T: {self.idled:.0f} GPU-s; with limbo and loss {self.in_all:.0f}"
        )


def run(*, quick: bool = False) -> list[Row]:
    """``quick``: two of the ways, under shorter jobs."""
    if quick:
        return _tried(QUICK, QUICK_WAYS)
    return _tried(FULL, WAYS) + _tried(SLOW_BOOTS, [AHEAD], alone=1)


def _tried(shape: Shape, ways: Sequence[Way], alone: int = _ALONE) -> list[Row]:
    """The rows of some ways, and of the floor under them: what so many nodes took that had nothing to do."""
    took = _alone(shape, alone)
    typical = statistics.median(took)
    floor = MOVED * GPUS * typical
    boots = f", boots of {shape.boot:.0f} s" if shape is SLOW_BOOTS else ""
    what = f"the floor: {MOVED} times what a node takes that is idle{boots}"
    rows = [Row("capacity", what, f"{spread(took)}, {floor:.0f} GPU-s")]
    tried = {}
    for way in ways:
        trial = tried[way] = _try(way, shape, _TRANSFER * typical)
        promised = f"all come, none killed, in limbo {_MOST_LIMBO} times the floor" if way.is_promised else ""
        met = trial.is_as_promised(floor) if way.is_promised else None
        rows.append(
            Row("capacity", f"{MOVED} of {NODES} nodes at T: {way.name}{boots}", trial.describe(floor), promised, met)
        )
    return [*rows, *(_compared(tried[AHEAD], tried[WHOLE_LEAD], tried[ASAP]) if ASAP in tried else [])]


def _compared(ahead: Trial, whole_lead: Trial, asap: Trial) -> list[Row]:
    """What a shift that is told ahead costs, of what others do in the same run."""
    idle, in_all = ahead.idled / whole_lead.idled, ahead.in_all / asap.in_all
    what = "a shift, told ahead: idle before T, of that with nodes reserved for the whole lead"
    both = "a shift, told ahead: idle, limbo and loss, of those of `asap` at T"
    return [
        Row("capacity", what, f"{idle:.2f}", f"at most {_MOST_IDLE}", idle <= _MOST_IDLE),
        Row("capacity", both, f"{in_all:.2f}", "below 1", in_all < 1),
    ]


def _alone(shape: Shape, nodes: int) -> list[float]:
    """How long nodes take from Slurm to inference, one after the other, with nobody else there."""
    took = []
    with stage(shape.boot) as here:
        for number in range(nodes):
            started = time.monotonic()
            power_down(here, [f"{EPHEMERAL_SET}-{number}"], "asap")
            _wait("a machine has gone", lambda: here.free() >= GPUS, 60)
            here.resize(number + 1)
            _wait("a machine has come", lambda number=number: here.ready() > number, 60 + shape.boot)  # type: ignore[misc]
            took.append(time.monotonic() - started)
    return took


def _try(way: Way, shape: Shape, transfer: float) -> Trial:
    with stage(shape.boot) as here:
        here.submit(shape.queue())
        _wait("all nodes have jobs", lambda: not any(node.is_idle for node in here.nodes()), 60)
        begin = time.time()
        wanted_at = begin + shape.lead + transfer
        with watching(here) as watch:
            way.run(here, wanted_at, transfer)
        _refuse_cheats(here)
        came = [at - wanted_at for at in map(watch.had, range(1, MOVED + 1)) if at is not None]
        return Trial(watch.limbo(), watch.idled(begin, wanted_at), here.toll(), came)


def _refuse_cheats(here: Stage) -> None:
    """A figure counts only if there was work all the time, and nothing was bought, or asked for too early."""
    assert here.waiting(), "the queue has run dry"
    assert not (wrong := here.ledger() & {"refused", "payg"}), f"the block was asked for more than it had: {wrong}"


def _wait(what: str, condition: Callable[[], bool], timeout: float) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"after {timeout} s still not: {what}"
        time.sleep(0.05)
