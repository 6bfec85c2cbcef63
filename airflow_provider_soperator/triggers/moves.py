"""Moves of nodes: who is meant, what is refused before anything is touched, and each round until all are there."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from airflow_provider_soperator.client.client import AsyncSlurmClient
from airflow_provider_soperator.logger import Logger
from airflow_provider_soperator.slurm import hostlist, node_conditions, node_orders
from airflow_provider_soperator.slurm.cluster_records import Node
from airflow_provider_soperator.slurm.errors import NotPermitted, SlurmError, UnknownPartition
from airflow_provider_soperator.slurm.node_conditions import (
    DrainReason,
    in_lines,
    is_anothers,
    is_coming_up,
    is_ours,
    loss_rank,
)
from airflow_provider_soperator.slurm.node_orders import NodeMove, drained, undrained
from airflow_provider_soperator.slurm.requests import ListNodes, WhoAmI
from airflow_provider_soperator.slurm.states import NodeFlag
from airflow_provider_soperator.transports.transport_errors import NotSupported, TransportError

Deed = Literal["up", "down", "drain", "undrain"]


class NodesLost(Exception):
    """Nodes will not get where they shall be, and why."""


class TooFewNodes(NodesLost):
    """There are not so many nodes of the kind."""


@dataclass(frozen=True, kw_only=True)
class Wish:
    """Which nodes shall be where. Its fields are what JSON can carry."""

    deed: Deed
    #: By name, or so many of those that fit.
    nodes: tuple[str, ...] = ()
    count: int | None = None
    partition: str = ""
    features: tuple[str, ...] = ()
    mode: str = "asap"
    stay_down: bool = False
    #: Whose drains these are, or whose may be undone.
    owner: str
    why: str = ""
    #: Undo the drains of others, too.
    force: bool = False
    wait_for_jobs: bool = False

    @classmethod
    def read(cls, written: Mapping[str, Any]) -> Wish:
        """From its fields, as JSON gives them back."""
        lists = {name: tuple(written.get(name, ())) for name in ("nodes", "features")}
        return cls(**{**written, **lists})

    def write(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @property
    def is_about_power(self) -> bool:
        return self.deed in ("up", "down")

    def decide(self, nodes: Sequence[Node], since: datetime) -> NodeMove:
        """What is to be done for these nodes now."""
        reason = DrainReason(self.owner, self.why)
        if self.deed == "up":
            return node_orders.up(nodes, owner=self.owner, since=since)
        if self.deed == "drain":
            return drained(nodes, reason, wait_for_jobs=self.wait_for_jobs)
        if self.deed == "undrain":
            return undrained(nodes, owner=self.owner, force=self.force)
        if self.stay_down:
            return node_orders.kept_off(nodes, node_orders.MODES[self.mode], reason=reason)
        return node_orders.down(nodes, node_orders.MODES[self.mode], reason=str(reason) if self.why else "")


@dataclass
class Journey:
    """One wish on its way. Another process that is given the same wish goes on from what it finds."""

    wish: Wish
    #: What has failed to boot before that is tried again.
    since: datetime
    log: Logger
    #: The last that was seen.
    move: NodeMove = field(default_factory=NodeMove)
    already: tuple[str, ...] = ()
    _static: frozenset[str] | None = None
    _told: dict[str, str] = field(default_factory=dict)
    _chosen: set[str] = field(default_factory=set)
    _began: float = field(default_factory=time.monotonic)

    async def step(self, client: AsyncSlurmClient, most_age: float) -> dict[str, Any] | None:
        """Look, order what can be ordered now, and tell what is new; the result, once all are there.

        ``most_age``: seconds that the look may be old; less than lie between two steps, or an order is given twice.
        Raises ``NodesLost`` once nothing is left to wait for, and at the first look before anything is ordered.
        """
        known = {node.name: node for node in await client.ask_shared(ListNodes(), most_age)}
        node_conditions.refuse_unknown(self.wish.nodes, known)
        first = self._static is None
        if self._static is None:
            self._static = await self._check(client, known)
        chosen = self._choose(known)
        move = self.wish.decide(chosen, self.since)
        if move.lost and (first or move.is_settled):
            raise NodesLost(_in_words(move.lost) + self._remedy(move, known))
        if first:
            self.already = move.there
            self._warn(chosen, move)
        self._tell(move)
        for order in move.orders:
            try:
                await client.ask(order)
            except NotPermitted as error:
                raise await whose(client, error) from error
        self.move = move
        if not move.is_over:
            return None
        return {
            "nodes": hostlist.expand(hostlist.fold(move.there)),
            "already": hostlist.expand(hostlist.fold(self.already)),
            "seconds": round(time.monotonic() - self._began, 1),
        }

    @property
    def place(self) -> str:
        """Where the nodes are, and why those that are not there are not."""
        there = [f"{hostlist.fold(self.move.there)}: there"] if self.move.there else []
        elsewhere = {**self.move.waiting, **self.move.lost}
        return "; ".join([*there, *([_in_words(elsewhere)] if elsewhere else [])]) or "nothing has been done"

    async def _check(self, client: AsyncSlurmClient, known: Mapping[str, Node]) -> frozenset[str]:
        """Refuse what could never be, and find out which nodes run whatever Slurm says."""
        partitions = {name for node in known.values() for name in node.partitions}
        if self.wish.partition and self.wish.partition not in partitions:
            raise UnknownPartition(f"there is no partition {self.wish.partition}, but {', '.join(sorted(partitions))}")
        if not self.wish.is_about_power:
            return frozenset()
        try:
            config = await client.config()
        except NotSupported:
            # slurmrestd tells of static nodes from v0.0.45 on. To power one up does no harm.
            if self.wish.deed == "down":
                raise
            return frozenset()
        node_orders.refuse_power(self.wish.nodes, config)
        return frozenset(node_orders.static_among(known, config))

    def _choose(self, known: Mapping[str, Node]) -> tuple[Node, ...]:
        if self.wish.count is None:
            return tuple(known[name] for name in self.wish.nodes)
        ranked = [(rank, node) for node in self._fitting(known) if (rank := self._rank(node)) is not None]
        if len(ranked) < self.wish.count:
            names = f" ({hostlist.fold([node.name for _, node in ranked])})" if ranked else ""
            raise (NodesLost if self._told else TooFewNodes)(
                f"{self.wish.count} nodes are wanted, and there are {len(ranked)} of the kind{names}: static nodes do "
                "not count, nor do those that others have drained, or that did not boot just now"
            )
        # One that was chosen stays so, whatever it goes through, until it is lost.
        ranked.sort(key=lambda pair: (pair[1].name not in self._chosen, pair[0]))
        chosen = tuple(node for _, node in ranked[: self.wish.count])
        self._chosen = {node.name for node in chosen}
        return chosen

    def _fitting(self, known: Mapping[str, Node]) -> list[Node]:
        return [
            node
            for node in known.values()
            if node.name not in (self._static or ())
            and self.wish.partition in ("", *node.partitions)
            and set(self.wish.features) <= set(node.features)
        ]

    def _rank(self, node: Node) -> int | None:
        """The least is taken first: those that are there or on their way, so that every try takes the same."""
        move = self.wish.decide((node,), self.since)
        if move.lost:
            return None
        if move.there:
            return 0
        if self.wish.deed == "up":
            return 1 if is_coming_up(node) else 2 if move.orders else 3
        return None if is_anothers(node, self.wish.owner) else 1 + loss_rank(node)

    def _tell(self, move: NodeMove) -> None:
        """What is waited for, once, and who has arrived."""
        new = {name: text for name, text in move.waiting.items() if self._told.get(name) != text}
        if new:
            self.log.info("%s", _in_words(new))
        arrived = [name for name in move.there if name in self._told]
        if arrived:
            self.log.info("%s: there", hostlist.fold(arrived))
        self._told = {**move.waiting}

    def _warn(self, chosen: Sequence[Node], move: NodeMove) -> None:
        if move.there:
            self.log.info("%s: there already", hostlist.fold(move.there))
        if self.wish.deed != "down":
            return
        for node in chosen:
            if node.name in move.waiting and node.state.has(NodeFlag.DRAIN) and not is_ours(node):
                self.log.warning("%s was drained (%s), and Slurm ends that with the power down", node.name, node.reason)

    def _remedy(self, move: NodeMove, known: Mapping[str, Node]) -> str:
        owners = {reason.owner for name in move.lost if (reason := DrainReason.parse(known[name].reason))}
        owners -= {self.wish.owner}
        return f". To undo drains of this provider, name their owner: {', '.join(sorted(owners))}" if owners else ""


def _in_words(texts: Mapping[str, str]) -> str:
    return "; ".join(in_lines(texts))


async def whose(client: AsyncSlurmClient, error: NotPermitted) -> NotPermitted:
    """The same refusal, with the name of the user whom it is about."""
    user = "the user of the connection"
    with suppress(SlurmError, TransportError):
        user = await client.ask(WhoAmI())
    return NotPermitted(f"{user} may not change nodes ({error.said})", error.command)
