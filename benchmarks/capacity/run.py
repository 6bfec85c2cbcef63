"""Each way in turn, on a sandbox as new as the one before, under the same queue."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.capacity.shape import FULL, GPUS, MOVED, NODES, QUICK, Shape
from benchmarks.capacity.stage import Stage, Toll, stage
from benchmarks.capacity.watch import watching
from benchmarks.capacity.ways import QUICK_WAYS, WAYS, Way, power_down
from benchmarks.table import Row, spread
from sandbox.settings import EPHEMERAL_SET

#: Nodes with nothing to do that are handed over one after the other, to see what that takes at least.
_ALONE = 3
#: What is allowed of that. Whoever plans ahead does so with as much.
_ALLOWED = 1.25


@dataclass(frozen=True)
class Trial:
    """What one way has come to, in seconds and GPU-seconds."""

    limbo: float
    idled: float
    toll: Toll
    #: When each node was where it was wanted, from the moment on; before it, if negative.
    came: list[float]

    def is_as_promised(self, floor: float) -> bool:
        is_on_time = len(self.came) == MOVED and max(self.came) <= 0
        return is_on_time and not self.toll.jobs and self.limbo <= _ALLOWED * floor

    def describe(self, floor: float) -> str:
        came = f", the first at T {self.came[0]:+.1f} s, the last at T {self.came[-1]:+.1f} s" if self.came else ""
        given_up = "" if len(self.came) == MOVED else ", and given up"
        in_all = self.limbo + self.toll.gpu_seconds + self.idled
        return (
            f"in limbo: {self.limbo:.0f} GPU-s, {self.limbo / floor:.2f} times the floor\n"
            f"come: {len(self.came)} of {MOVED} nodes{came}{given_up}\n"
            f"lost: {self.toll.jobs} jobs killed, {self.toll.gpu_seconds:.0f} GPU-s of work\n"
            f"idle before T: {self.idled:.0f} GPU-s; with limbo and loss {in_all:.0f}"
        )


def run(*, quick: bool = False) -> list[Row]:
    """``quick``: two of the ways, under shorter jobs."""
    shape, ways = (QUICK, QUICK_WAYS) if quick else (FULL, WAYS)
    took = _alone()
    alone = statistics.median(took)
    floor = MOVED * GPUS * alone
    rows = [
        Row(
            "capacity", f"the floor: {MOVED} times what a node takes that is idle", f"{spread(took)}, {floor:.0f} GPU-s"
        )
    ]
    for way in ways:
        trial = _try(way, shape, _ALLOWED * alone)
        promised = f"all at T, none killed, in limbo {_ALLOWED} times the floor" if way.is_promised else ""
        met = trial.is_as_promised(floor) if way.is_promised else None
        rows.append(Row("capacity", f"{MOVED} of {NODES} nodes at T: {way.name}", trial.describe(floor), promised, met))
    return rows


def _alone() -> list[float]:
    """How long nodes take from Slurm to inference, one after the other, with nobody else there."""
    took = []
    with stage() as here:
        for number in range(_ALONE):
            started = time.monotonic()
            power_down(here, [f"{EPHEMERAL_SET}-{number}"], "asap")
            _wait("a machine has gone", lambda: here.free() >= GPUS, 60)
            here.resize(number + 1)
            _wait("a machine has come", lambda number=number: here.ready() > number, 60)  # type: ignore[misc]
            took.append(time.monotonic() - started)
    return took


def _try(way: Way, shape: Shape, transfer: float) -> Trial:
    with stage() as here:
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
