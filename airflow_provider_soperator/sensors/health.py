"""Wait until nodes are healthy, or until one is not, and for the result of an active check."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Literal

from airflow_provider_soperator.sensors.watch import WatchSensor
from airflow_provider_soperator.slurm.hostlist import check_nodes, names_of
from airflow_provider_soperator.values import NAMESPACE, check_choice, is_on, is_template, moment_of
from airflow_provider_soperator.work.protocols import Watch

_HEALTHS = ("healthy", "unhealthy", "any")
_ENDS = ("complete", "failed", "ended")


class NodeHealthSensor(WatchSensor):
    """Wait until nodes are healthy, or until one of them is not.

        NodeHealthSensor(task_id="healthy", partition="main", kubernetes_conn_id="kubernetes_default")

    Returns the findings of each node that has any: ``{"worker-3": [{"kind": "hardware_problem", ...}]}``.

    :param nodes: names of nodes, as a list or as Slurm writes them; by default all
    :param partition: only nodes of this partition
    :param target_state: ``"healthy"``: no node has a finding; ``"unhealthy"``: one has; ``"any"`` does not wait
    :param kinds: kinds of findings that count; by default all
    :param ignore_own_drains: do not count drains of this provider
    :param slurm_conn_id: Airflow connection to Slurm
    :param kubernetes_conn_id: Airflow connection to Kubernetes, for the state of Pods and machines
    :param namespace: namespace of the SlurmCluster
    :param prometheus_conn_id: Airflow connection to Prometheus, for metrics of the nodes
    :param series: labels that Prometheus' series must have, if it has several clusters
    :param node_labels: labels of the series that name the node
    :param checks: checks whose figures are compared with those of before and of the node's neighbours
    :param tolerance: share by which a figure may be worse
    """

    template_fields: Sequence[str] = (
        "slurm_conn_id", "nodes", "partition", "target_state", "kinds", "ignore_own_drains", "kubernetes_conn_id",
        "namespace", "prometheus_conn_id", "series", "node_labels", "checks",
    )  # fmt: skip

    def __init__(
        self,
        *,
        nodes: str | Sequence[str] | None = None,
        partition: str | None = None,
        target_state: str = "healthy",
        kinds: Sequence[str] = (),
        ignore_own_drains: bool | str = True,
        slurm_conn_id: str = "soperator_default",
        kubernetes_conn_id: str | None = None,
        namespace: str = NAMESPACE,
        prometheus_conn_id: str | None = None,
        series: Mapping[str, str] | None = None,
        node_labels: Sequence[str] | None = None,
        checks: Sequence[str] = (),
        tolerance: float = 0.1,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_nodes(nodes)
        check_choice("target_state", target_state, _HEALTHS)
        if not is_template(kinds) and not any(map(is_template, kinds)):
            _check_kinds(kinds)
        self.nodes, self.partition = nodes, partition
        self.target_state, self.kinds, self.ignore_own_drains = target_state, kinds, ignore_own_drains
        self.slurm_conn_id = slurm_conn_id
        self.kubernetes_conn_id, self.namespace = kubernetes_conn_id, namespace
        self.prometheus_conn_id, self.series, self.node_labels = prometheus_conn_id, series, node_labels
        self.checks, self.tolerance = checks, tolerance

    def watch(self) -> Watch[Any]:
        from airflow_provider_soperator.health.assessment import HealthQuery
        from airflow_provider_soperator.hooks.cluster_clients import HealthSources
        from airflow_provider_soperator.work.watches import HealthWatch

        check_choice("target_state", self.target_state, _HEALTHS)
        watched = HealthQuery(
            nodes=names_of(self.nodes),
            partition=self.partition or "",
            target_state=self.target_state,
            kinds=_check_kinds(self.kinds),
            ignore_own_drains=is_on(self.ignore_own_drains),
        )
        return HealthWatch(slurm_conn_id=self.slurm_conn_id, watched=watched, witnesses=HealthSources.named_by(self))


class ActiveCheckSensor(WatchSensor):
    """Wait for the newest run of an active check.

        a_day_ago = "{{ dag_run.run_after - macros.timedelta(days=1) }}"
        ActiveCheckSensor(task_id="is_fit", check="gpu-checks", since=a_day_ago)

    Returns the ``check``, its ``job``, ``state`` and ``failed_jobs``, and with ``slurm_conn_id`` the ``nodes``.

    :param check: name of the ActiveCheck
    :param target_state: ``"complete"``, ``"failed"``, or ``"ended"`` for both
    :param since: ignore runs that began before
    :param fail_fast: fail if a run ends otherwise, instead of waiting for the next
    :param kubernetes_conn_id: Airflow connection to the cluster's Kubernetes
    :param namespace: namespace of the SlurmCluster
    :param slurm_conn_id: Airflow connection to Slurm, which knows how the jobs of a run have ended
    """

    template_fields: Sequence[str] = (
        "check", "target_state", "since", "fail_fast", "kubernetes_conn_id", "namespace", "slurm_conn_id",
    )  # fmt: skip
    ui_color = "#f7d9e3"

    def __init__(
        self,
        *,
        check: str,
        target_state: Literal["complete", "failed", "ended"] = "complete",
        since: datetime | str | None = None,
        fail_fast: bool | str = False,
        kubernetes_conn_id: str = "kubernetes_default",
        namespace: str = NAMESPACE,
        slurm_conn_id: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.check, self.target_state, self.since, self.fail_fast = check, target_state, since, fail_fast
        self.kubernetes_conn_id, self.namespace, self.slurm_conn_id = kubernetes_conn_id, namespace, slurm_conn_id
        check_choice("target_state", target_state, _ENDS)
        if not is_template(since):
            moment_of("since", since)

    def watch(self) -> Watch[Any]:
        from airflow_provider_soperator.hooks.cluster_clients import ClusterConnections
        from airflow_provider_soperator.work.checks import CheckWatch

        check_choice("target_state", self.target_state, _ENDS)
        return CheckWatch(
            where=ClusterConnections(self.kubernetes_conn_id, self.namespace, slurm_conn_id=self.slurm_conn_id or None),
            check=self.check,
            state=self.target_state,
            since=moment_of("since", self.since),
            fail_fast=is_on(self.fail_fast),
        )


def _check_kinds(said: Sequence[str]) -> tuple[str, ...]:
    from airflow_provider_soperator.health.findings import kinds_of

    return tuple(kind.value for kind in kinds_of(said))
