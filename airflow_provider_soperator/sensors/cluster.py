"""Wait until a cluster is ready for jobs."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseSensorOperator, PokeReturnValue, conf
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from airflow_provider_soperator.hooks.settings import NAMESPACE

if TYPE_CHECKING:
    from airflow.sdk.definitions.context import Context

    from airflow_provider_soperator.soperator.clusters import ClusterSnapshot
    from airflow_provider_soperator.soperator.readiness import Readiness


class ClusterReadySensor(BaseSensorOperator):
    """Wait until a SlurmCluster is available, and every node of its NodeSets that is to run has a Pod that is ready.

        ClusterReadySensor(task_id="is_ready", slurm_conn_id="soperator_default")

    With ``slurm_conn_id`` jobs must be able to start on each of these nodes, too. Without ``nodesets`` all of the
    cluster's are looked at. What no waiting mends, such as a node that somebody has drained, fails the sensor at once.
    Returns the ``cluster``, its ``version`` and its ``nodesets``.
    """

    template_fields: Sequence[str] = ("kubernetes_conn_id", "namespace", "cluster", "slurm_conn_id", "nodesets")
    ui_color = "#fde8c8"

    def __init__(
        self,
        *,
        cluster: str | None = None,
        nodesets: Sequence[str] = (),
        slurm_conn_id: str | None = None,
        namespace: str = NAMESPACE,
        kubernetes_conn_id: str = "kubernetes_default",
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.cluster = cluster
        self.nodesets = [nodesets] if isinstance(nodesets, str) else list(nodesets)
        self.slurm_conn_id = slurm_conn_id
        self.namespace, self.kubernetes_conn_id = namespace, kubernetes_conn_id
        self.deferrable = deferrable
        self._told: set[str] = set()

    def execute(self, context: Context) -> Any:
        if not self.deferrable:
            return super().execute(context)
        from airflow_provider_soperator.triggers.clusters import ClusterReadyTrigger

        trigger = ClusterReadyTrigger(
            self.kubernetes_conn_id,
            self.namespace,
            self.cluster or None,
            self.slurm_conn_id or None,
            self.nodesets,
            self.poke_interval,
        )
        self.defer(trigger=trigger, method_name="execute_complete", timeout=timedelta(seconds=self.timeout))

    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:
        if "mistake" in event:
            raise AirflowFailException(event["mistake"])
        if "lost" in event:
            raise AirflowException(event["lost"])
        return event["result"]

    def poke(self, context: Context) -> PokeReturnValue:
        from airflow_provider_soperator.triggers.rounds import FAILURES, is_final

        try:
            seen, found = asyncio.run(self._look())
        except FAILURES as error:
            raise (AirflowFailException if is_final(error) else AirflowException)(str(error)) from error
        if found.broken:
            raise AirflowFailException(str(found))
        for line in found.waiting:
            if line not in self._told:
                self.log.info("%s", line)
        self._told = set(found.waiting)
        return PokeReturnValue(found.is_ready, seen.describe())

    async def _look(self) -> tuple[ClusterSnapshot, Readiness]:
        from airflow_provider_soperator.hooks.sides import Where
        from airflow_provider_soperator.triggers.clusters import look

        where = Where(self.kubernetes_conn_id, self.namespace, self.cluster or None, self.slurm_conn_id or None)
        async with where.open() as sides:
            return await look(sides, self.nodesets, 0)
