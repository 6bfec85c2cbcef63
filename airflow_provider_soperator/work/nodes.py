"""Changes of nodes: power up or down, drain or undrain; and the watch of their states."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from itertools import accumulate
from typing import Any, Literal

from airflow_provider_soperator.capacity.reservations import LeaveReservation, ReservationLease, power_down_name
from airflow_provider_soperator.client.client import AsyncSlurmClient
from airflow_provider_soperator.client.queue import is_ending, requeue_or_cancel
from airflow_provider_soperator.errors import ClusterError
from airflow_provider_soperator.hooks.cluster_clients import ShiftClients
from airflow_provider_soperator.logger import Logger
from airflow_provider_soperator.slurm import hostlist, node_orders
from airflow_provider_soperator.slurm.cluster_records import Node
from airflow_provider_soperator.slurm.errors import NotPermitted, SlurmError, UnknownPartition
from airflow_provider_soperator.slurm.job_records import Job
from airflow_provider_soperator.slurm.node_conditions import (
    WORDS,
    DrainReason,
    check_reason,
    chosen,
    ends_by_itself,
    in_lines,
    is_anothers,
    is_ours,
    loss_rank,
    refuse_unknown,
)
from airflow_provider_soperator.slurm.node_orders import NodeMove, drained, undrained
from airflow_provider_soperator.slurm.requests import (
    DeleteReservation,
    ListJobs,
    ListNodes,
    ListPartitions,
    PowerUp,
    Request,
    WhoAmI,
)
from airflow_provider_soperator.slurm.states import NodeFlag
from airflow_provider_soperator.transports.transport_errors import NotSupported
from airflow_provider_soperator.work.polling import SlurmAccess
from airflow_provider_soperator.work.protocols import Look, Watch, Work, WorkFailed, WorkRefused


@dataclass(kw_only=True)
class NodeChange(SlurmAccess, Work[AsyncSlurmClient]):
    """Nodes to power up or down, to drain or to undrain."""

    action: Literal["up", "down", "drain", "undrain"]
    #: Nodes by name, or a number of those that fit.
    nodes: tuple[str, ...] = ()
    count: int | None = None
    partition: str = ""
    features: tuple[str, ...] = ()
    mode: Literal["idle", "asap", "force"] = "asap"
    stay_down: bool = False
    #: Owner of the drains that are made and undone.
    owner: str
    reason: str = ""
    #: The DAG of the task, which may share its owner with others, and the id of its Airflow.
    dag_id: str = ""
    airflow: str = ""
    #: True to undo the drains of others as well.
    any_owner: bool = False
    wait_for_jobs: bool = False
    #: The block that the machines of nodes come from, if it is to have their GPUs free first.
    block: str = ""
    nebius_conn_id: str = ""

    def __post_init__(self) -> None:
        # An owner who can have no drains, and a reason that is another order, are refused before the first.
        DrainReason(self.owner, self.reason)
        check_reason(self.reason)
        self._already: tuple[str, ...] = ()
        self._static: frozenset[str] | None = None
        self._chosen: set[str] = set()
        self._user = ""
        #: Nodes that are reserved until they are off and drained, once it is known.
        self._reserved: frozenset[str] | None = None

    def decide(self, nodes: Sequence[Node]) -> NodeMove:
        """Decide on the orders for these nodes now."""
        reason = DrainReason(self.owner, self.reason)
        if self.action == "up":
            return node_orders.up(nodes, owner=self.owner, since=self.since)
        if self.action == "drain":
            return drained(nodes, reason, wait_for_jobs=self.wait_for_jobs)
        if self.action == "undrain":
            return undrained(nodes, owner=self.owner, any_owner=self.any_owner)
        if self.stay_down:
            return node_orders.kept_off(nodes, node_orders.MODES[self.mode], reason=reason)
        return node_orders.down(nodes, node_orders.MODES[self.mode], reason=str(reason) if self.reason else "")

    async def step(self, client: AsyncSlurmClient) -> dict[str, Any] | None:
        """Look, give the orders that can be given now, and log what is new; the result, once all nodes are there.

        Raises ``WorkFailed`` once nothing is left to wait for; at the first look before any order, except to undrain:
        one node that others have drained keeps no other off.
        """
        # A look as old as the interval would give an order twice.
        nodes = await client.ask_shared(ListNodes(), self.max_age)
        known = {node.name: node for node in nodes}
        if self._is_reserving and self._reserved is None:
            self._reserved, _, _ = await self._reservation(client, known).see(self.deadline)
            # Those of a try that was cut off are given up with this one.
            self.has_begun |= bool(self._reserved)
        refuse_unknown(self.nodes, known)
        first = self._static is None
        if self._static is None:
            self._static = await self._check(client, known)
        chosen = self._choose(known)
        move = self.decide(chosen)
        if self.block:
            move = await self._within_block(client, chosen, move, known)
        if move.lost and (move.is_settled or (first and self.action != "undrain")):
            raise WorkFailed("; ".join(in_lines(move.lost)) + self._remedy(move, known))
        if first:
            self._already = move.there
            self._warn(chosen, move)
        self._tell(move)
        if self._is_reserving:
            await self._reserve(frozenset(move.waiting), client, known)
        there = [f"{hostlist.fold(move.there)}: there"] if move.there else []
        self.place = "; ".join([*there, *in_lines({**move.waiting, **move.lost})])
        await give_orders(move.orders, client)
        if not move.is_over:
            return None
        if self.action == "drain":
            # At the end, as Soperator may have taken over a drain of ours meanwhile.
            theirs = [node for node in chosen if ends_by_itself(node)]
            how = {node.name: f"is drained by others ({node.reason}) and comes back by itself" for node in theirs}
            for line in in_lines(how):
                self._log.warning("%s", line)
        return {
            "nodes": hostlist.expand(hostlist.fold(move.there)),
            "already": hostlist.expand(hostlist.fold(self._already)),
            "seconds": self.seconds,
        }

    async def _within_block(
        self, client: AsyncSlurmClient, nodes: Sequence[Node], move: NodeMove, known: Mapping[str, Node]
    ) -> NodeMove:
        """The move without the nodes for which the block has too few GPUs free now."""
        off = [name for order in move.orders if isinstance(order, PowerUp) for name in order.names]
        if not off:
            return move
        here = ReservationLease(client.ask, self.block, key="", nodes=(), user="")
        block = await ShiftClients().block_beside_shifts(self.nebius_conn_id, self.block, here, self._warn_once)
        # Slurm does not know if a booting node has its machine yet.
        left = (block.free or 0) - sum(node.gpus for node in known.values() if node.is_coming_up)
        fitting = accumulate(known[name].gpus for name in off)
        late = [name for name, gpus in zip(off, fitting, strict=True) if gpus > left]
        free = "an unknown number of" if block.free is None else max(0, left)
        waits = f"waits for its GPUs: block {block.id} has {free} GPUs left"
        now = self.decide([node for node in nodes if node.name not in late])
        return replace(now, waiting={**now.waiting, **dict.fromkeys(late, waits)})

    @property
    def _is_reserving(self) -> bool:
        """True if nodes are reserved until they are off and drained. With ``idle`` other jobs may start before."""
        return self.action == "down" and self.stay_down and self.mode != "idle"

    @property
    def _reservation_name(self) -> str:
        """The same in each try, and in the next run."""
        which = (self.owner, hostlist.fold(self.nodes), self.count, self.partition, *self.features)
        return power_down_name(" ".join(map(str, which)))

    def _reservation(self, client: AsyncSlurmClient, known: Iterable[str]) -> LeaveReservation:
        # A node that has left Slurm is none of another's.
        among = {*known, *(self._reserved or ())}
        return LeaveReservation(client.ask, self._reservation_name, self._user, among, self.airflow)

    async def _reserve(self, names: frozenset[str], client: AsyncSlurmClient, known: Iterable[str]) -> None:
        """Reserve exactly these nodes: their drain ends with the power down, and a job would power them up again."""
        if names == self._reserved:
            return
        now, why = datetime.now(timezone.utc), f"{self.reason} ({self.dag_id or self.owner})".strip()
        try:
            self._user = self._user or await client.ask(WhoAmI())
            # Also if no order is given after that, as to a user who may reserve nodes, but not change them.
            self.has_begun = True
            await self._reservation(client, known).reserve(names, now, why, self.deadline)
            self._reserved = names
        except SlurmError as error:
            if error.retryable:
                raise
            said = "Nodes cannot be reserved until they are off and drained, so a job may power them up again"
            self._warn_once(f"{said}: {error}")

    async def undo(self, client: AsyncSlurmClient) -> str:
        """Give up the reservation only.

        Slurm cannot take back power orders, and nodes half way back are as bad as half way there.
        """
        if self._is_reserving:
            await client.ask(DeleteReservation(self._reservation_name))
        return "Nothing is undone: what Slurm has been told, it goes on with"

    async def _check(self, client: AsyncSlurmClient, known: Mapping[str, Node]) -> frozenset[str]:
        """Refuse impossible orders, and find the static nodes, which run in every state."""
        names = {name for node in known.values() for name in node.partitions}
        if self.partition and self.partition not in names:
            raise UnknownPartition(f"there is no partition {self.partition}, but {', '.join(sorted(names))}")
        if self.action not in ("up", "down"):
            return frozenset()
        try:
            config = await client.config()
        except NotSupported:
            # slurmrestd reports static nodes from v0.0.45 on. To power one up is harmless.
            if self.action == "down":
                raise
            return frozenset()
        partitions = await client.ask(ListPartitions()) if config.suspend_time is None else ()
        node_orders.refuse_power(self.nodes, config, partitions)
        return frozenset(node_orders.static_among(known, config))

    def _choose(self, known: Mapping[str, Node]) -> tuple[Node, ...]:
        if self.count is None:
            return tuple(known[name] for name in self.nodes)
        fitting = [
            node
            for name, node in known.items()
            if name not in (self._static or ())
            and self.partition in ("", *node.partitions)
            and set(self.features) <= set(node.features)
        ]
        ranked = [(rank, node) for node in fitting if (rank := self._rank(node)) is not None]
        if len(ranked) < self.count:
            names = f" ({hostlist.fold([node.name for _, node in ranked])})" if ranked else ""
            raise (WorkFailed if self._told else WorkRefused)(
                f"{self.count} nodes are wanted, and there are {len(ranked)} of the kind{names}: static nodes "
                "do not count, nor do those that others have drained or reserved, or that did not boot just now"
            )
        # A chosen node stays chosen through all its states, until it is lost.
        ranked.sort(key=lambda pair: (pair[1].name not in self._chosen, pair[0]))
        chosen = tuple(node for _, node in ranked[: self.count])
        self._chosen = {node.name for node in chosen}
        return chosen

    def _rank(self, node: Node) -> int | None:
        """Sort key of the choice: first nodes that have arrived or are on their way, so each try takes the same."""
        move = self.decide((node,))
        if move.lost or (self.action == "down" and self._is_kept(node)):
            return None
        if move.there:
            return 0
        if self.action == "up":
            return 1 if node.is_coming_up else 2 if move.orders else 3
        return 1 + loss_rank(node)

    def _is_kept(self, node: Node) -> bool:
        """True if others have drained, reserved or powered down the node, and may want it back."""
        if node.is_going_off:
            ordered = DrainReason.parse(node.reason)
            return ordered is not None and ordered.owner != self.owner
        is_reserved = WORDS["reserved"](node) and node.name not in (self._reserved or ())
        return is_anothers(node, self.owner) or (is_reserved and not node.is_off)

    def _tell(self, move: NodeMove) -> None:
        """Log changes: nodes that have arrived, and nodes that are waited for."""
        if arrived := [name for name in move.there if name in self._told]:
            self._log.info("%s: there", hostlist.fold(arrived))
        self._tell_nodes(move.waiting)

    def _warn(self, chosen: Sequence[Node], move: NodeMove) -> None:
        if move.there:
            self._log.info("%s: there already", hostlist.fold(move.there))
        if self.action != "down":
            return
        for node in chosen:
            if node.name in move.waiting and node.state.has(NodeFlag.DRAIN) and not is_ours(node):
                self._log.warning(
                    "%s was drained (%s), and Slurm ends that with the power down", node.name, node.reason
                )

    def _remedy(self, move: NodeMove, known: Mapping[str, Node]) -> str:
        owners = {reason.owner for name in move.lost if (reason := DrainReason.parse(known[name].reason))}
        owners -= {self.owner}
        return f". To undo drains of this provider, name their owner: {', '.join(sorted(owners))}" if owners else ""


async def jobs_on(names: Sequence[str], slurm: AsyncSlurmClient) -> list[Job]:
    """The jobs that run on any of these nodes."""
    jobs = await slurm.ask(ListJobs(states=("RUNNING", "COMPLETING", "CONFIGURING", "SUSPENDED")))
    found = [job for job in jobs if not job.state.is_pending and hostlist.intersect(job.nodelist, names)]
    return sorted(found, key=lambda job: job.raw_id)


class JobEnds:
    """Ends the jobs on nodes that go: each run of a job once, as its end may take long."""

    def __init__(self) -> None:
        self._told: set[tuple[int, int]] = set()

    async def requeue(self, names: Sequence[str], client: AsyncSlurmClient, log: Logger, *, may_cancel: bool) -> None:
        """Put the jobs back into the queue; those that cannot go there are cancelled if it ``may_cancel``."""
        for job in await jobs_on(names, client):
            if is_ending(job) or (job.raw_id, job.restarts) in self._told:
                continue
            becomes = await requeue_or_cancel(job, client.ask, may_cancel=may_cancel)
            log.warning("The node of job %s (%s of %s) goes, so it %s", job.id, job.name, job.user, becomes)
            # Not before: a connection that breaks meanwhile must not keep the job from being cancelled.
            self._told.add((job.raw_id, job.restarts))


async def give_orders(orders: Iterable[Request[Any]], client: AsyncSlurmClient) -> None:
    """Give orders to nodes; a refusal names the user who may not."""
    try:
        for order in orders:
            await client.ask(order)
    except NotPermitted as error:
        user = "the user of the connection"
        with suppress(ClusterError):
            user = await client.ask(WhoAmI())
        raise NotPermitted(f"{user} may not change nodes ({error.said})", error.command) from error


@dataclass(kw_only=True)
class NodeStateWatch(SlurmAccess, Watch[AsyncSlurmClient]):
    """A watch of some nodes until all, any or a number of them are in a state."""

    state: str
    nodes: tuple[str, ...] = ()
    partition: str = ""
    match: Literal["all", "any"] | int = "all"

    async def look(self, client: AsyncSlurmClient, max_age: float) -> Look:
        nodes = await client.ask_shared(ListNodes(), max_age)
        meant = chosen(nodes, self.nodes, self.partition)
        found = [node.name for node in meant if WORDS[self.state](node)]
        least = {"all": len(meant), "any": 1}.get(str(self.match)) or int(self.match)
        if least > len(meant):
            raise WorkRefused(f"match={self.match}: there are {len(meant)} nodes only")
        says = f"{len(found)} of {len(meant)} nodes: {self.state}"
        return Look(len(found) >= least, {"nodes": found, "of": len(meant)}, (says,))
