"""Waits in the triggerer until a cluster is ready, and tells of it as an event when one is no longer available."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime, timedelta, timezone
from typing import Any

from airflow.triggers.base import BaseEventTrigger, TriggerEvent

from airflow_provider_soperator.hooks.cluster import SoperatorClusterHook
from airflow_provider_soperator.hooks.settings import NAMESPACE
from airflow_provider_soperator.hooks.sides import Sides, Where
from airflow_provider_soperator.kubernetes.clusters import ClusterObjects
from airflow_provider_soperator.slurm.errors import SlurmError
from airflow_provider_soperator.soperator import readiness
from airflow_provider_soperator.soperator.clusters import ClusterSeen
from airflow_provider_soperator.soperator.readiness import Readiness
from airflow_provider_soperator.soperator.seen import Seen
from airflow_provider_soperator.transports.transport_errors import TransportError
from airflow_provider_soperator.triggers.base import SlurmTrigger
from airflow_provider_soperator.triggers.events import POLL_INTERVAL, Memory
from airflow_provider_soperator.triggers.rounds import FAILURES, is_final, rounds_with


async def look(
    sides: Sides, nodesets: Sequence[str], most_age: float, *, may_come: bool = False
) -> tuple[Seen, Readiness]:
    """A cluster and what it lacks; Slurm is asked once Kubernetes has nothing to say against that."""
    seen, now = await sides.kubernetes.look(), datetime.now(timezone.utc)
    found = readiness.of_all(seen, now, nodesets=nodesets, may_come=may_come)
    if not found.is_ready:
        return seen, found
    try:
        slurm = await sides.nodes(most_age)
    except (SlurmError, TransportError) as error:
        if is_final(error):
            raise
        # The login node of a new cluster comes up last.
        return seen, Readiness((f"Slurm cannot be asked: {error}",))
    return seen, readiness.of_all(seen, now, nodesets=nodesets, slurm=slurm)


class ClusterReadyTrigger(SlurmTrigger):
    """Fires with the ``result`` once a cluster is ready; with ``lost``, or with a ``mistake`` that no wait mends."""

    def __init__(
        self,
        kubernetes_conn_id: str,
        namespace: str,
        cluster: str | None,
        slurm_conn_id: str | None,
        nodesets: Sequence[str],
        poll_interval: float,
    ) -> None:
        super().__init__()
        self.kubernetes_conn_id = kubernetes_conn_id
        self.namespace = namespace
        self.cluster = cluster
        self.slurm_conn_id = slurm_conn_id
        self.nodesets = list(nodesets)
        self.poll_interval = poll_interval

    async def run(self) -> AsyncIterator[TriggerEvent]:
        where = Where(self.kubernetes_conn_id, self.namespace, self.cluster, self.slurm_conn_id)

        async def ask(sides: Sides) -> tuple[Seen, Readiness]:
            return await look(sides, self.nodesets, self.poll_interval / 2)

        told: set[str] = set()
        try:
            async for seen, found in rounds_with(where.open, ask, self.poll_interval, self.log, must_work=True):
                if found.broken:
                    yield await self.resume({"mistake": str(found)})
                    return
                if found.is_ready:
                    yield await self.resume({"result": seen.describe()})
                    return
                for line in found.waiting:
                    if line not in told:
                        self.log.info("%s", line)
                told = set(found.waiting)
        except FAILURES as error:
            yield await self.resume({"mistake" if is_final(error) else "lost": str(error)})


class ClusterUnavailableTrigger(SlurmTrigger, BaseEventTrigger):
    """Fires when a cluster has not been available for some time, and then not before it was available again.

        AssetWatcher(name="down", trigger=ClusterUnavailableTrigger(for_minutes=5))

    A cluster in maintenance is away on purpose, and one that has never been available yet is being set up: neither
    fires. The event has the ``cluster``, its ``phase``, which ``conditions`` are not met and why, and ``since`` when.
    Airflow keeps over a restart of the triggerer what has been told from 3.3 on.
    """

    def __init__(
        self,
        for_minutes: float = 0,
        cluster: str = "",
        namespace: str = NAMESPACE,
        kubernetes_conn_id: str = SoperatorClusterHook.default_conn_name,
        poll_interval: float = POLL_INTERVAL,
    ) -> None:
        super().__init__()
        self.for_minutes = for_minutes
        self.cluster = cluster
        self.namespace = namespace
        self.kubernetes_conn_id = kubernetes_conn_id
        self.poll_interval = poll_interval

    async def run(self) -> AsyncIterator[TriggerEvent]:
        memory = Memory(self)
        is_told = bool(await memory.read())
        enough = timedelta(minutes=self.for_minutes)
        first_seen: datetime | None = None
        rounds = rounds_with(self._open, ClusterObjects.cluster, self.poll_interval, self.log, must_work=False)
        async for cluster in rounds:
            # By now Airflow has stored the event of the round before.
            await memory.write(is_told)
            now = datetime.now(timezone.utc)
            first_seen = (first_seen or now) if cluster.is_away else None
            since = cluster.away_since or first_seen
            if first_seen and since and not is_told and now - since >= enough:
                yield TriggerEvent(_event(cluster, since))  # type: ignore[no-untyped-call]
                is_told = True
            is_told = is_told and not cluster.is_available

    def _open(self) -> AbstractAsyncContextManager[ClusterObjects]:
        return SoperatorClusterHook(self.kubernetes_conn_id, self.namespace).soperator(self.cluster or None)


def _event(cluster: ClusterSeen, since: datetime) -> dict[str, Any]:
    return {
        "cluster": cluster.name,
        "phase": cluster.phase,
        "conditions": {one.type: one.message or one.reason for one in cluster.missing},
        "since": since.isoformat(),
    }
