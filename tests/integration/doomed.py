"""A shift in a process of its own, as a triggerer has it, which can be killed at any of its steps and at any moment.

Its process is forked from one that has imported all and begun nothing: a fork of the test's own would have half of its
gRPC, and a Python that begins with nothing would take seconds to get to its work.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext, ForkServerProcess
from typing import Any

from airflow_provider_soperator.capacity.order import ShiftOrder
from airflow_provider_soperator.client.client import AsyncSlurmClient
from airflow_provider_soperator.nebius.node_groups import NodeGroupClient
from airflow_provider_soperator.slurm.requests import (
    CancelJobs,
    CreateReservation,
    DeleteReservation,
    Drain,
    PowerDown,
    PowerUp,
    Undrain,
    UpdateReservation,
)
from tests.integration.shifts import Said, run
from tests.patience import PATIENCE

_ORDERS = (CancelJobs, CreateReservation, DeleteReservation, Drain, PowerDown, PowerUp, Undrain, UpdateReservation)
_PROCESSES: ForkServerContext = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload([__name__])


#: What orders are called here that a shift gives between two targets in the same Slurm and Nebius.
USUAL = frozenset(
    {
        "CreateReservation",
        "UpdateReservation",
        "DeleteReservation",
        "PowerDown",
        "Drain",
        "PowerUp",
        "Undrain",
        "NodeGroup",
    }
)


@dataclass(frozen=True)
class Step:
    """The order at which a process dies, and on which side of it."""

    #: When it has been carried out, and before anybody knows; else when it is about to be given.
    done: bool
    #: Other orders do not count.
    kinds: frozenset[str] = USUAL
    #: The first of those that count, or a later one.
    number: int = 1


@dataclass
class Life:
    """What is known of a process: that it has begun, and at the end what it came to, or at which order it died."""

    process: ForkServerProcess
    news: Connection
    outcome: dict[str, Any] = field(default_factory=dict)
    died_at: str = ""
    #: What it has said, and why it failed, if it did.
    failure: str = ""

    def begin(self) -> None:
        assert self.news.poll(PATIENCE), "the process does not begin"
        assert self.news.recv() == "begun"

    def end(self, timeout: float) -> bool:
        """Whether it has ended after so long."""
        self.process.join(timeout)
        if self.process.exitcode is None:
            return False
        try:
            while True:
                kind, said = self.news.recv()
                setattr(self, kind, said)
        except EOFError:
            return True

    @property
    def was_killed(self) -> bool:
        return self.process.exitcode == -signal.SIGKILL


def to_its_end(order: ShiftOrder, connections: Mapping[str, str], step: Step | None = None) -> Life:
    """A process that carries out an order, once it has ended: by itself, or at the step at which it dies."""
    with alive(order, connections, step) as life:
        life.begin()
        assert life.end(PATIENCE), "it does not end"
        return life


def check_arrived(life: Life, order: ShiftOrder) -> None:
    """That a process which nobody killed has got where it was to go, and no job has come to harm."""
    assert life.outcome, f"it failed: {life.failure}"
    assert life.outcome["state"] == "done", life.outcome["missing"]
    assert life.outcome["allocation"] == dict(order.desired)
    assert life.outcome["figures"]["jobs_requeued"] == life.outcome["figures"]["jobs_killed"] == 0


@contextmanager
def alive(order: ShiftOrder, connections: Mapping[str, str], step: Step | None = None) -> Iterator[Life]:
    """A process that carries out an order, until it is killed at the latest."""
    news, telling = _PROCESSES.Pipe(duplex=False)
    process = _PROCESSES.Process(target=_carry_out, args=(order.write(), dict(connections), step, telling))
    process.start()
    telling.close()
    try:
        with news:
            yield Life(process, news)
    finally:
        process.kill()
        process.join()


def _carry_out(said: dict[str, Any], connections: dict[str, str], step: Step | None, news: Connection) -> None:
    os.environ.update(connections)
    if step:
        _die_at(step, news)
    news.send("begun")
    heard = Said()
    try:
        outcome = asyncio.run(run(ShiftOrder.read(said), heard.log))
    except Exception as error:
        news.send(("failure", f"{heard}\n{error}"))
        raise
    news.send(("outcome", outcome.describe()))


def _die_at(step: Step, news: Connection) -> None:
    """Count what is ordered of Slurm and of Nebius, and end as a process does to which SIGKILL is sent."""
    given = 0

    def deadly(method: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def call(self: Any, *arguments: Any, **options: Any) -> Any:
            nonlocal given
            kind = type(arguments[0])
            is_order = method.__name__ == "resize" or issubclass(kind, _ORDERS)
            counts = is_order and kind.__name__ in step.kinds
            given += counts
            is_last = counts and given == step.number
            answer = None if is_last and not step.done else await method(self, *arguments, **options)
            if is_last:
                news.send(("died_at", kind.__name__))
                os.kill(os.getpid(), signal.SIGKILL)
            return answer

        return call

    AsyncSlurmClient.ask = deadly(AsyncSlurmClient.ask)  # type: ignore[method-assign, assignment]
    NodeGroupClient.resize = deadly(NodeGroupClient.resize)  # type: ignore[method-assign, assignment]
