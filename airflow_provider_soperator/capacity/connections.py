"""The connections of a shift: to its targets, and to the places that keep its lease."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import replace

from airflow_provider_soperator.capacity.kubernetes_lease import KubernetesLease
from airflow_provider_soperator.capacity.lease_store import LeaseStore
from airflow_provider_soperator.capacity.order import ShiftOrder
from airflow_provider_soperator.capacity.target_machines import TargetMachines
from airflow_provider_soperator.capacity.targets.protocol import Clients, Session, SessionContext
from airflow_provider_soperator.logger import Logger

#: Opens the sessions of all targets, to be closed with the stack.
SessionOpener = Callable[[AsyncExitStack], Awaitable[Mapping[str, Session]]]
#: Opens the place for leases that all who move the block have agreed on; None if they have not.
StoreOpener = Callable[[AsyncExitStack], Awaitable[LeaseStore | None]]


class ShiftConnections:
    """Sessions and places that are opened together, and again after something has failed."""

    def __init__(
        self, sessions: SessionOpener, agreed: StoreOpener | None = None, machines: TargetMachines | None = None
    ) -> None:
        self._open_sessions, self._open_agreed = sessions, agreed
        self.machines = machines or TargetMachines()
        self._opened = AsyncExitStack()
        self.sessions: Mapping[str, Session] = {}
        #: The place that all have agreed on, or else those of the targets.
        self.stores: list[LeaseStore] = []
        self.is_agreed = False

    @classmethod
    def of(cls, order: ShiftOrder, clients: Clients, log: Logger) -> ShiftConnections:
        """Those that an order names."""
        common = SessionContext(block=order.block, key=order.key, why=order.why, until=order.until)
        contexts = [
            (one, replace(common, may_take=order.may_take(one.name), may_end=order.may_end(one.name)))
            for one in order.targets
        ]

        async def sessions(opened: AsyncExitStack) -> Mapping[str, Session]:
            return {
                target.name: await opened.enter_async_context(target.open(context, clients, log))
                for target, context in contexts
            }

        async def agreed(opened: AsyncExitStack) -> LeaseStore | None:
            place = await opened.enter_async_context(clients.leases(order.nebius_conn_id))
            return KubernetesLease(place, order.block, order.key) if place else None

        machines = TargetMachines(lambda: clients.nebius(order.nebius_conn_id), order.block, log)
        return cls(sessions, agreed, machines)

    async def open(self) -> None:
        agreed = await self._open_agreed(self._opened) if self._open_agreed else None
        sessions = await self._open_sessions(self._opened)
        self.is_agreed = agreed is not None
        self.stores = [agreed] if agreed else [one for session in sessions.values() if (one := session.lease())]
        self.sessions = sessions

    async def close(self) -> None:
        self.sessions = {}
        # What is broken may refuse to be closed.
        with suppress(Exception):
            await self._opened.aclose()
