"""The protocol of all that can hold GPUs of a capacity block.

A target is a value that a DAG file makes: it says what there is to be moved, and opens nothing. A session is a target
at work, in an event loop. Every method of a session is one idempotent step: it looks, does what can be done now, and
returns; whoever moves capacity calls it again and again, in this process or in the next one.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from airflow_provider_soperator.capacity.errors import CapacityMistake

if TYPE_CHECKING:
    from kubernetes_asyncio.client import ApiClient
    from nebius.sdk import SDK

    from airflow_provider_soperator.capacity.holding import Holding, Release
    from airflow_provider_soperator.capacity.lease import Lease
    from airflow_provider_soperator.capacity.toll import Toll
    from airflow_provider_soperator.client.client import AsyncSlurmClient
    from airflow_provider_soperator.logger import Logger
    from airflow_provider_soperator.nebius.block import BlockSeen


class Clients(Protocol):
    """Clients for connections that are given by their ids."""

    def slurm(self, conn_id: str) -> AbstractAsyncContextManager[AsyncSlurmClient]: ...

    def nebius(self, conn_id: str) -> AbstractAsyncContextManager[SDK]: ...

    def kubernetes(self, conn_id: str) -> AbstractAsyncContextManager[ApiClient]: ...

    async def block(self, conn_id: str, block: str) -> BlockSeen:
        """A capacity block, as it is now."""
        ...


@dataclass(frozen=True, kw_only=True)
class Purpose:
    """What a session is opened for."""

    #: The capacity block whose GPUs are moved.
    block: str
    #: Tells this shift from all others, over every try of its task.
    key: str
    #: For people who wonder about a drained node or a resized group.
    why: str = ""


class Session(Protocol):
    """A target at work. Whoever inherits from it need not say what it has nothing to say of."""

    async def check(self, units: int, block: BlockSeen) -> None:
        """Raise ``CapacityMistake`` if it could never have so many units of this block. Nothing is changed."""

    async def look(self) -> Holding:
        """What it has now."""

    async def explain(self, to: int) -> tuple[str, ...]:
        """Which of its units would go if it were to have so many, and why these; in lines for people."""
        return ()

    async def shrink(self, to: int, release: Release) -> None:
        """Go on towards having at most so many units, as far as ``release`` allows."""

    async def grow(self, to: int) -> None:
        """Go on towards having at least so many units; the block has free what it takes."""

    async def allow(self, to: int) -> None:
        """Let it have so many again, if it takes them by itself; it had them so, and they were not at work."""
        await self.grow(to)

    async def finish(self) -> None:
        """The shift is over, well or not: leave nothing behind that was only for its duration."""

    async def toll(self) -> Toll:
        """What it has cost those whose work was on what this session has taken."""
        from airflow_provider_soperator.capacity.toll import Toll

        return Toll()

    def lease(self) -> Lease | None:
        """Where this target lets only one shift move it at a time; None if it cannot."""
        return None


@runtime_checkable
class Target(Protocol):
    """Something that can hold GPUs of a block: a frozen dataclass whose fields JSON can carry."""

    @property
    def name(self) -> str: ...

    @property
    def gpus_per_unit(self) -> int: ...

    #: What a unit is called, in the plural: ``nodes``, ``replicas``.
    @property
    def units(self) -> str: ...

    def open(self, purpose: Purpose, clients: Clients, log: Logger) -> AbstractAsyncContextManager[Session]: ...


def refuse_unnamed(block: BlockSeen, whose: str) -> None:
    """Raise ``CapacityMistake`` if it has not been said which block the machines of ``whose`` are of."""
    if not block.id:
        raise CapacityMistake(
            f"{whose}: nobody has said which capacity block its machines are of", "say block=, with the block's id"
        )
