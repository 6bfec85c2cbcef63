"""The protocol of targets: holders of GPUs of a capacity block.

A target is a value in a DAG file: it describes a holder, and opens no connection. A session is a target at work, in an
event loop. Every method of a session is one idempotent step: it observes, does what is possible now, and returns; it
is called again and again, by this process or by the next one.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import astuple, dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from airflow_provider_soperator.errors import CapacityMistake
from airflow_provider_soperator.transports.transport_errors import TransportError, is_forbidden

if TYPE_CHECKING:
    from datetime import datetime

    from kubernetes_asyncio.client import ApiClient
    from nebius.sdk import SDK

    from airflow_provider_soperator.capacity.holdings import Holding, Release
    from airflow_provider_soperator.capacity.lease_store import LeaseStore
    from airflow_provider_soperator.client.client import AsyncSlurmClient
    from airflow_provider_soperator.nebius.capacity_blocks import CapacityBlock
    from airflow_provider_soperator.soperator.objects import Objects


class Clients(Protocol):
    """Clients for connections, by their ids."""

    def slurm(self, conn_id: str) -> AbstractAsyncContextManager[AsyncSlurmClient]: ...

    def nebius(self, conn_id: str) -> AbstractAsyncContextManager[SDK]: ...

    def kubernetes(self, conn_id: str) -> AbstractAsyncContextManager[ApiClient]: ...

    def leases(self, conn_id: str) -> AbstractAsyncContextManager[Objects | None]:
        """The namespace for leases that all users of a Nebius connection have agreed on; None if they have not."""
        ...

    async def block(self, conn_id: str, block: str) -> CapacityBlock:
        """The present state of a capacity block."""
        ...

    async def metric(self, conn_id: str, query: str) -> float | None:
        """The sum of the series of a query; None if it has none, or none that is a number."""
        ...


@dataclass(frozen=True, kw_only=True)
class SessionContext:
    """The shift that a session is opened for."""

    #: The capacity block whose GPUs are moved.
    block: str
    #: Identifies the shift over all tries of its task.
    key: str
    #: Shown at drained nodes and resized groups.
    why: str = ""
    #: The id of its Airflow.
    airflow: str = ""
    #: The end of the window that the capacity is moved for, if it is known.
    until: datetime | None = None
    #: The end of the window that pays for what is bought, if that is not ``until``.
    window_ends: datetime | None = None
    #: The units that may go, and the jobs that may be ended, if a person has approved them; None: any.
    may_take: frozenset[str] | None = None
    may_end: frozenset[str] | None = None
    #: What targets remember when their sessions are opened again.
    memory: dict[str, Any] = field(default_factory=dict, compare=False)


@dataclass(frozen=True, kw_only=True)
class MachineClues:
    """What a target knows of the machines under its units."""

    #: Ids of their node groups, if the target names and checks them.
    groups: frozenset[str] = frozenset()
    #: Ids of node groups whose nodes it buys.
    beside: frozenset[str] = frozenset()
    #: Ids of machines: its own, and others of the same Kubernetes cluster.
    machines: frozenset[str] = frozenset()
    neighbours: tuple[str, ...] = ()
    #: NodeSets of Soperator that its units are of.
    nodesets: frozenset[str] = frozenset()
    #: The number of its machines at present, known or not, at the least.
    count: int = 1
    #: Each of its units is a machine.
    are_units: bool = False


@dataclass(frozen=True)
class JobLosses:
    """Jobs on nodes that a shift took, counted by their end.

    >>> JobLosses(ended=2) + JobLosses(killed=1, lost_gpu_seconds=80.0)
    JobLosses(ended=2, requeued=0, killed=1, lost_gpu_seconds=80.0)
    """

    #: Ended by themselves.
    ended: int = 0
    #: Back in the queue.
    requeued: int = 0
    killed: int = 0
    #: GPU-seconds of work of the requeued and killed jobs.
    lost_gpu_seconds: float = 0.0

    def __add__(self, other: JobLosses) -> JobLosses:
        return JobLosses(*map(operator.add, astuple(self), astuple(other)))


class Session(Protocol):
    """A target at work. Optional methods default to no-ops."""

    async def check(self, units: int, block: CapacityBlock) -> None:
        """Raise ``CapacityMistake`` if it could never have ``units`` units of this block. Changes nothing."""

    async def look(self) -> Holding:
        """Read the present holding."""

    async def explain(self, to: int, release: Release) -> Mapping[str, str]:
        """The units that would go to shrink to ``to`` within the limits of ``release``, each with the reason."""
        return {}

    async def notes(self, to: int) -> tuple[str, ...]:
        """What a person should know before it goes to ``to`` units."""
        return ()

    async def jobs(self, units: Collection[str]) -> tuple[str, ...]:
        """The ids of the jobs on these units."""
        return ()

    async def shrink(self, to: int, release: Release) -> None:
        """Take a step towards at most ``to`` units, within the limits of ``release``."""

    async def relax(self) -> None:
        """Take back what was told ahead of a release: as of now, no unit is to go."""
        return

    async def grow(self, to: int) -> None:
        """Take a step towards at least ``to`` units; the block has the GPUs free."""

    async def allow(self, to: int) -> None:
        """Restore the permission for ``to`` units that the target takes by itself; they were not at work before."""
        await self.grow(to)

    async def buy(self, lacks: int, keeps: int, now: datetime, until: datetime | None) -> bool:
        """Buy units that the block lacks, and let bought ones go that ``keeps`` does not need; True if it has."""
        return True

    async def finish(self) -> bool | None:
        """Clean up what existed only for the shift, at its success or failure; False if it is to be called again."""

    async def losses(self) -> JobLosses:
        """Count the jobs on units that this session has taken."""
        return JobLosses()

    async def machines(self) -> MachineClues:
        """Tell what is known of the machines under it."""
        return MachineClues()

    async def forget(self, key: str) -> None:
        """Clean up what a shift has left that has ended, or what has the name of this one, if another has the block."""
        return

    def leave_out(self, units: Mapping[str, str]) -> None:
        """Leave these units as they are from now on, for the reasons given; those that go already may go."""
        return

    @property
    def jobs_in_the_way(self) -> tuple[dict[str, Any], ...]:
        """The jobs that will be ended if they have not ended by then, as of the last step: JSON objects."""
        return ()

    def lease(self) -> LeaseStore | None:
        """The place for the lease of the block, for shifts that have agreed on none; None if this is no such place."""
        return None


def refuse_unnamed(block: CapacityBlock, whose: str) -> None:
    """Raise ``CapacityMistake`` if the block of the machines of ``whose`` is not known."""
    if not block.id:
        raise CapacityMistake(f"{whose}: the capacity block of its machines is unknown", "set block= to the block's id")


@contextmanager
def refuse_forbidden(whose: str) -> Iterator[None]:
    """Raise ``CapacityMistake`` if an account lacks a right, which no retry mends."""
    try:
        yield
    except TransportError as error:
        if is_forbidden(error):
            raise CapacityMistake(f"{whose}: {error.what}", error.remedy) from error
        raise
