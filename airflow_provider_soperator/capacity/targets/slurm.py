"""Nodes of a Soperator cluster, as a holder of GPUs that can be told which of them to give up."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_provider_soperator.capacity.errors import CapacityMistake

if TYPE_CHECKING:
    from airflow_provider_soperator.capacity.selection import Order
    from airflow_provider_soperator.capacity.targets.base import Clients, Purpose, Session
    from airflow_provider_soperator.capacity.targets.node_groups import Machines
    from airflow_provider_soperator.logger import Logger


@dataclass(frozen=True, kw_only=True)
class SlurmNodesTarget:
    """Ephemeral nodes of a Soperator cluster.

        SlurmNodesTarget(name="training", nodes="worker-[0-7]", gpus_per_unit=8)

    To have n of them means that all others are off and drained, in this provider's name; so no queued job powers them
    up again. Which ones go is chosen by what is lost with them: idle ones first.
    """

    name: str
    #: A Slurm hostlist.
    nodes: str
    gpus_per_unit: int = 8
    slurm_conn_id: str = "soperator_default"
    #: Busy nodes go by the ``end`` of their jobs, or by the ``work`` that would be lost.
    order: Order = "end"
    #: Nodes of one block of the network go together, as Slurm's topology has them.
    whole_blocks: bool = False
    #: The ids of the Nebius node groups that the nodes stand on. With them it is known, and not guessed, which nodes
    #: have their machines yet; and that the machines go with the nodes is checked before anything is moved.
    node_groups: tuple[str, ...] = ()
    nebius_conn_id: str = "nebius_default"
    units: str = "nodes"

    def __post_init__(self) -> None:
        if self.gpus_per_unit < 1:
            raise CapacityMistake(f"{self.name}: a node has at least one GPU, not {self.gpus_per_unit}")
        if self.order not in ("end", "work"):
            raise CapacityMistake(f"{self.name}: order={self.order!r} is neither 'end' nor 'work'")

    @asynccontextmanager
    async def open(self, purpose: Purpose, clients: Clients, log: Logger) -> AsyncIterator[Session]:
        from airflow_provider_soperator.capacity.targets.slurm_session import SlurmNodesSession
        from airflow_provider_soperator.slurm.requests import WhoAmI

        async with AsyncExitStack() as opened:
            client = await opened.enter_async_context(clients.slurm(self.slurm_conn_id))
            machines = await self._open_machines(opened, clients) if self.node_groups else None
            yield SlurmNodesSession(self, client, await client.ask(WhoAmI()), machines, purpose, log)

    async def _open_machines(self, opened: AsyncExitStack, clients: Clients) -> Machines:
        sdk = await opened.enter_async_context(clients.nebius(self.nebius_conn_id))
        from airflow_provider_soperator.capacity.targets.node_groups import Machines

        return Machines(sdk, self.node_groups)
