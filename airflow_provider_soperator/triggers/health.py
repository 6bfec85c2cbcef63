"""Nodes that become unhealthy: waited for in the triggerer, and told as events of assets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from airflow.triggers.base import TriggerEvent

from airflow_provider_soperator.client.client import AsyncSlurmClient
from airflow_provider_soperator.health.assessment import Seen, Watched, in_words, told, unclear
from airflow_provider_soperator.health.episodes import Episodes
from airflow_provider_soperator.health.findings import NodeHealth, kinds_of
from airflow_provider_soperator.hooks.health import Witnesses
from airflow_provider_soperator.hooks.settings import NAMESPACE
from airflow_provider_soperator.hooks.slurm import SlurmHook
from airflow_provider_soperator.slurm import hostlist
from airflow_provider_soperator.slurm.cluster_records import Node
from airflow_provider_soperator.slurm.errors import SlurmError
from airflow_provider_soperator.slurm.node_conditions import in_lines
from airflow_provider_soperator.slurm.requests import ListNodes
from airflow_provider_soperator.triggers.base import SlurmTrigger
from airflow_provider_soperator.triggers.events import POLL_INTERVAL, Memory, SlurmEventTrigger
from airflow_provider_soperator.triggers.rounds import FAILURES, is_final, rounds

#: What is known of all nodes at one moment.
_Look = tuple[tuple[Node, ...], Seen]


class NodeHealthTrigger(SlurmTrigger):
    """Fires with those that are ``unhealthy`` once this is as it is wanted; or with a ``mistake``, or ``lost``.

    ``watched`` and ``witnesses`` have the fields of what they are called after.
    """

    def __init__(
        self, slurm_conn_id: str, watched: dict[str, Any], witnesses: dict[str, Any], poll_interval: float
    ) -> None:
        super().__init__()
        self.slurm_conn_id = slurm_conn_id
        self.watched = watched
        self.witnesses = witnesses
        self.poll_interval = poll_interval

    async def run(self) -> AsyncIterator[TriggerEvent]:
        watched, witnesses = Watched.read(self.watched), Witnesses.read(self.witnesses)

        async def look(client: AsyncSlurmClient) -> _Look:
            return await asyncio.gather(client.ask_shared(ListNodes(), self.poll_interval / 2), witnesses.ask())

        said: tuple[str, ...] | None = None
        try:
            async for nodes, seen in rounds(self.slurm_conn_id, look, self.poll_interval, self.log, must_work=True):
                unhealthy = watched.unhealthy(nodes, seen)
                lines = in_lines(in_words(unhealthy)) or ("nothing is wrong",)
                if lines != said:
                    said = lines
                    self.log.info("%s", "\n".join(filter(None, (*lines, unclear(nodes, seen)))))
                if watched.is_reached(unhealthy):
                    yield await self.resume({"unhealthy": told(unhealthy)})
                    return
        except FAILURES as error:
            yield await self.resume({"mistake" if is_final(error) else "lost": str(error)})


class NodeUnhealthyTrigger(SlurmEventTrigger):
    """Fires once for each node that becomes unhealthy, and once more if its machine turns out to have to go.

        AssetWatcher(name="sick", trigger=NodeUnhealthyTrigger(partition="main", for_minutes=2))

    The event has the ``node`` and its ``findings``, as ``NodeHealthSensor`` returns them. It fires once something has
    been wrong for ``for_minutes``, and not again before the node was healthy. Without ``nodes`` and ``partition`` all
    nodes are watched, without ``kinds`` all that can be wrong.
    """

    def __init__(
        self,
        nodes: str = "",
        partition: str = "",
        kinds: Sequence[str] = (),
        for_minutes: float = 0,
        kubernetes_conn_id: str = "",
        namespace: str = NAMESPACE,
        prometheus_conn_id: str = "",
        series: Mapping[str, str] | None = None,
        node_labels: Sequence[str] = (),
        slurm_conn_id: str = SlurmHook.default_conn_name,
        poll_interval: float = POLL_INTERVAL,
    ) -> None:
        super().__init__()
        if nodes:
            hostlist.expand(nodes)
        self.nodes = nodes
        self.partition = partition
        self.kinds = [kind.value for kind in kinds_of(kinds)]
        self.for_minutes = for_minutes
        self.kubernetes_conn_id = kubernetes_conn_id
        self.namespace = namespace
        self.prometheus_conn_id = prometheus_conn_id
        self.series = dict(series or {})
        self.node_labels = list(node_labels)
        self.slurm_conn_id = slurm_conn_id
        self.poll_interval = poll_interval

    async def run(self) -> AsyncIterator[TriggerEvent]:
        witnesses = Witnesses.read(
            {
                "kubernetes_conn_id": self.kubernetes_conn_id or None,
                "namespace": self.namespace,
                "prometheus_conn_id": self.prometheus_conn_id or None,
                "series": self.series,
                "node_labels": self.node_labels,
            }
        )
        memory = Memory(self)
        episodes = Episodes(self.for_minutes * 60, await memory.read())
        warned = ""

        async def look(client: AsyncSlurmClient) -> _Look:
            return await asyncio.gather(self.shared(client, ListNodes()), witnesses.ask())

        async for nodes, seen in self.rounds(look):
            # By now Airflow has stored the events of the round before.
            await memory.write(episodes.told)
            unhealthy: dict[str, NodeHealth] | None = None
            try:
                unhealthy = self._watched().unhealthy(nodes, seen)
                warning = unclear(nodes, seen)
            except SlurmError as error:
                warning = str(error)
            if warning != warned:
                warned = warning
                if warning:
                    self.log.warning("%s", warning)
            if unhealthy is None:
                # The nodes may be there tomorrow, and nobody has got well by being unknown.
                continue
            for health in episodes.news(unhealthy):
                yield TriggerEvent(_payload(health))  # type: ignore[no-untyped-call]

    def _watched(self) -> Watched:
        nodes = tuple(hostlist.expand(self.nodes)) if self.nodes else ()
        return Watched(nodes=nodes, partition=self.partition, kinds=tuple(self.kinds))


def _payload(health: NodeHealth) -> dict[str, Any]:
    return {"node": health.node, "findings": told({health.node: health})[health.node]}
