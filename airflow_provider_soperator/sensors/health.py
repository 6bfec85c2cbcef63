"""Wait until nodes are healthy, or until one is not, and for what an active check finds."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseSensorOperator, PokeReturnValue, conf
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from airflow_provider_soperator.hooks.settings import NAMESPACE
from airflow_provider_soperator.hooks.slurm import SlurmHook
from airflow_provider_soperator.operators.node_lists import check_nodes, names_of
from airflow_provider_soperator.sensors.checks import ActiveCheckSensor
from airflow_provider_soperator.slurm.node_conditions import in_lines
from airflow_provider_soperator.slurm.requests import ListNodes
from airflow_provider_soperator.values import is_on, is_template

if TYPE_CHECKING:
    from airflow.sdk.definitions.context import Context

    from airflow_provider_soperator.health.assessment import Watched
    from airflow_provider_soperator.hooks.health import Witnesses

__all__ = ["ActiveCheckSensor", "NodeHealthSensor"]


class NodeHealthSensor(BaseSensorOperator):
    """Wait until nothing is wrong with some nodes, or until something is with one of them.

        NodeHealthSensor(task_id="healthy", partition="main", kubernetes_conn_id="kubernetes_default")

    ``wait_for`` is ``"healthy"``, ``"unhealthy"``, or ``"now"`` for a look that waits for nothing. Slurm is asked;
    Kubernetes and Prometheus are, where their connections are given. ``kinds`` of findings count, or all. Returns the
    findings of each node that has any: ``{"worker-3": [{"kind": "hardware_problem", ...}]}``.
    """

    template_fields: Sequence[str] = (
        "slurm_conn_id", "nodes", "partition", "wait_for", "kinds", "ignore_own_drains", "kubernetes_conn_id",
        "namespace", "prometheus_conn_id", "series", "node_labels",
    )  # fmt: skip
    ui_color = "#fde8c8"

    def __init__(
        self,
        *,
        nodes: str | Sequence[str] | None = None,
        partition: str | None = None,
        wait_for: str = "healthy",
        kinds: Sequence[str] = (),
        ignore_own_drains: bool | str = True,
        slurm_conn_id: str = SlurmHook.default_conn_name,
        kubernetes_conn_id: str | None = None,
        namespace: str = NAMESPACE,
        prometheus_conn_id: str | None = None,
        series: Mapping[str, str] | None = None,
        node_labels: Sequence[str] | None = None,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_nodes(nodes)
        if not is_template(wait_for):
            _check_wait_for(wait_for)
        if not is_template(kinds) and not any(map(is_template, kinds)):
            _check_kinds(kinds)
        self.nodes, self.partition = nodes, partition
        self.wait_for, self.kinds, self.ignore_own_drains = wait_for, kinds, ignore_own_drains
        self.slurm_conn_id = slurm_conn_id
        self.kubernetes_conn_id, self.namespace = kubernetes_conn_id, namespace
        self.prometheus_conn_id, self.series, self.node_labels = prometheus_conn_id, series, node_labels
        self.deferrable = deferrable

    def execute(self, context: Context) -> Any:
        if not self.deferrable:
            return super().execute(context)
        from airflow_provider_soperator.triggers.health import NodeHealthTrigger

        trigger = NodeHealthTrigger(
            self.slurm_conn_id, self._watched().write(), self._witnesses().write(), self.poke_interval
        )
        self.defer(trigger=trigger, method_name="execute_complete", timeout=timedelta(seconds=self.timeout))

    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:
        if "mistake" in event:
            raise AirflowFailException(event["mistake"])
        if "lost" in event:
            raise AirflowException(event["lost"])
        return event["unhealthy"]

    def poke(self, context: Context) -> PokeReturnValue:
        from airflow_provider_soperator.health.assessment import in_words, told, unclear
        from airflow_provider_soperator.triggers.rounds import FAILURES, is_final

        watched = self._watched()
        try:
            with SlurmHook(self.slurm_conn_id).client() as slurm:
                nodes = slurm.ask(ListNodes())
            seen = asyncio.run(self._witnesses().ask())
            unhealthy = watched.unhealthy(nodes, seen)
        except FAILURES as error:
            raise (AirflowFailException if is_final(error) else AirflowException)(str(error)) from error
        if warning := unclear(nodes, seen):
            self.log.warning("%s", warning)
        for line in in_lines(in_words(unhealthy)) or ["nothing is wrong"]:
            self.log.info("%s", line)
        return PokeReturnValue(watched.is_reached(unhealthy), told(unhealthy))

    def _watched(self) -> Watched:
        from airflow_provider_soperator.health.assessment import Watched

        try:
            nodes = names_of(self.nodes)
            _check_wait_for(self.wait_for)
            kinds = _check_kinds(self.kinds)
        except ValueError as error:
            raise AirflowFailException(str(error)) from None
        return Watched(
            nodes=nodes,
            partition=self.partition or "",
            wait_for=self.wait_for,
            kinds=kinds,
            ignore_own_drains=is_on(self.ignore_own_drains),
        )

    def _witnesses(self) -> Witnesses:
        from airflow_provider_soperator.health.metrics import NODE_LABELS
        from airflow_provider_soperator.hooks.health import Witnesses

        return Witnesses(
            kubernetes_conn_id=self.kubernetes_conn_id or None,
            namespace=self.namespace,
            prometheus_conn_id=self.prometheus_conn_id or None,
            series=dict(self.series or {}),
            node_labels=tuple(self.node_labels or NODE_LABELS),
        )


def _check_wait_for(said: str) -> None:
    if said not in ("healthy", "unhealthy", "now"):
        raise ValueError(f"wait_for={said!r} is none of 'healthy', 'unhealthy' and 'now'")


def _check_kinds(said: Sequence[str]) -> tuple[str, ...]:
    from airflow_provider_soperator.health.findings import kinds_of

    return tuple(kind.value for kind in kinds_of(said))
