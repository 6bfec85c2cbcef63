"""The connections of a shift: to its targets, to the places that keep its lease, and to the cloud of its machines."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from airflow_provider_soperator.capacity.holdings import ProjectShare
from airflow_provider_soperator.capacity.kubernetes_lease import KubernetesLease
from airflow_provider_soperator.capacity.lease_store import LeaseStore
from airflow_provider_soperator.capacity.order import ShiftOrder
from airflow_provider_soperator.capacity.targets.protocol import Clients, MachineClues, Session, SessionContext
from airflow_provider_soperator.logger import Logger
from airflow_provider_soperator.nebius.api import NebiusDenied, NebiusError, NebiusMissing, NebiusUnauthenticated
from airflow_provider_soperator.nebius.capacity_blocks import CapacityBlock, read_allowances
from airflow_provider_soperator.transports.transport_errors import FAILURES

if TYPE_CHECKING:
    from nebius.sdk import SDK


class ShiftConnections:
    """Sessions and places that are opened together, and again after something has failed."""

    def __init__(self, order: ShiftOrder, clients: Clients, log: Logger) -> None:
        self._order, self._clients, self._log = order, clients, log
        self.machines = TargetMachines(lambda: clients.nebius(order.nebius_conn_id), order.block, log)
        #: What targets remember when their sessions are opened again.
        self._memory: dict[str, Any] = {}
        self._opened = AsyncExitStack()
        self.sessions: Mapping[str, Session] = {}
        #: The place that all have agreed on, or else those of the targets.
        self.stores: list[LeaseStore] = []
        self.is_agreed = False

    async def open(self) -> None:
        agreed, found = await self._open_agreed(self._opened), dict[str, Session]()
        self.is_agreed = agreed is not None
        # Also while a target is away, or lets this wait: the lease of the shift has to be renewed meanwhile.
        self.stores = [agreed] if agreed else []
        try:
            await self._open_sessions(self._opened, found)
        finally:
            self.stores = self.stores or [one for session in found.values() if (one := session.lease())]
        self.sessions = found

    async def _open_agreed(self, opened: AsyncExitStack) -> LeaseStore | None:
        place = await opened.enter_async_context(self._clients.leases(self._order.nebius_conn_id))
        return KubernetesLease(place, self._order.block, self._order.key) if place else None

    async def _open_sessions(self, opened: AsyncExitStack, found: dict[str, Session]) -> None:
        order, failures = self._order, list[Exception]()
        shift = SessionContext(
            block=order.block,
            key=order.key,
            why=order.why,
            airflow=order.airflow,
            until=order.until,
            window_ends=order.window_ends,
            memory=self._memory,
        )
        for one in order.targets:
            context = replace(shift, may_take=order.may_take(one.name), may_end=order.may_end(one.name))
            try:
                found[one.name] = await opened.enter_async_context(one.open(context, self._clients, self._log))
            except FAILURES as error:
                failures.append(error)
        if failures:
            raise failures[0]

    async def close(self) -> None:
        self.sessions, self.stores = {}, []
        # What is broken may refuse to be closed.
        with suppress(Exception):
            await self._opened.aclose()


class TargetMachines:
    """The machines under the targets of a shift, which are found by what the targets know of them."""

    def __init__(self, open_sdk: Callable[[], AbstractAsyncContextManager[SDK]], block_id: str, log: Logger) -> None:
        self._open, self._block, self._log = open_sdk, block_id, log
        self._unchecked: list[str] = []
        #: The node groups under each target, as far as they were found, and the projects of these.
        self._groups: dict[str, frozenset[str]] = {}
        self._projects: dict[str, str] = {}
        self._is_unlimited = False

    async def check(self, sessions: Mapping[str, Session], gpus: Mapping[str, int], block: CapacityBlock) -> None:
        """Raise ``CapacityMistake`` if a node group under a target could buy."""
        from airflow_provider_soperator.capacity.targets.nebius_session import GroupMachines

        self._unchecked = notes = list[str]()
        for name, session in sessions.items():
            clues, why = await session.machines(), "as it has no machine that the cloud knows"
            if clues.groups:
                # The target has checked those that it names.
                continue
            try:
                async with self._open() as sdk:
                    if groups := await self._find(sdk, name, clues):
                        found = GroupMachines(sdk, sorted(groups), self._log)
                        notes += await found.check(None, gpus[name] if clues.are_units else None, block)
                        continue
            except (NebiusDenied, NebiusMissing) as error:
                why = error.what
            notes.append(f"it is unknown if machines of {name} can be bought: their node groups are unknown, {why}")

    async def shares(self, sessions: Mapping[str, Session]) -> list[ProjectShare]:
        """The parts of the block that are all that the projects of targets may have."""
        from airflow_provider_soperator.nebius.node_groups import project_of

        if self._is_unlimited:
            return []
        try:
            async with self._open() as sdk:
                allowances = await read_allowances(sdk, self._block)
                for name in sessions if allowances else ():
                    # A target may have no machine yet by which that could be known.
                    if not self._projects.get(name):
                        groups = self._groups.get(name) or await self._find(sdk, name, await sessions[name].machines())
                        self._projects[name] = await project_of(sdk, min(groups)) if groups else ""
        except NebiusError as error:
            if error.retryable or isinstance(error, NebiusUnauthenticated):
                raise
            # Moving capacity does not need the right to read them.
            self._log.info("It is unknown how much of the block each project may have: %s", error)
            self._is_unlimited = True
            return []
        of = {one: frozenset(name for name, its in self._projects.items() if its == one) for one in allowances}
        return [ProjectShare(one, of[one], said.limit, said.usage) for one, said in allowances.items() if of[one]]

    async def notes(self, sessions: Mapping[str, Session]) -> list[str]:
        """What could not be checked, and what was bought, as lines for a plan."""
        notes = list(self._unchecked)
        if bought := await self.bought(sessions):
            notes.append(f"{bought} GPUs of the targets' machines were bought, and are not of the block")
        return notes

    async def bought(self, sessions: Mapping[str, Session]) -> int | None:
        """Count the GPUs of the targets' machines that are not of the block; None if that is unknown."""
        from airflow_provider_soperator.nebius.node_groups import bought_gpus

        groups, there = set[str](), 0
        try:
            async with self._open() as sdk:
                for name, session in sessions.items():
                    clues = await session.machines()
                    groups |= clues.beside | await self._find(sdk, name, clues)
                    there += clues.count
                bought, known = await bought_gpus(sdk, self._block, groups)
        except FAILURES as error:
            self._log.warning("It is unknown if GPUs were bought: %s", error)
            return None
        if known >= there:
            return bought
        said = "It is unknown if GPUs were bought: the targets have %s machines, and the cloud knows %s in %s"
        self._log.warning(said, there, known, ", ".join(sorted(groups)) or "no node group")
        return None

    async def _find(self, sdk: SDK, name: str, clues: MachineClues) -> frozenset[str]:
        from airflow_provider_soperator.nebius.node_groups import find_groups

        found = clues.groups or await find_groups(sdk, clues.machines, clues.neighbours, clues.nodesets)
        self._groups[name] = self._groups.get(name, frozenset()) | found
        return self._groups[name]
