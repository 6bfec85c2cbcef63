"""Operators for a whole cluster: make, compare and destroy it, resize its NodeSets, run its active checks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, get_args

from airflow.sdk import Asset, AssetAlias, Context
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException

from airflow_provider_soperator.health.figures import PATTERNS, check_patterns
from airflow_provider_soperator.operators.backup import BackupJailOperator
from airflow_provider_soperator.operators.provisioning import (
    ClusterOperator,
    DestroyClusterOperator,
    ProvisionClusterOperator,
    explained,
)
from airflow_provider_soperator.operators.work import WorkOperator, begun_before, task_name
from airflow_provider_soperator.provisioning.spec import ClusterSpec, KubernetesObjects
from airflow_provider_soperator.slurm.node_conditions import DrainReason, check_reason
from airflow_provider_soperator.soperator.resize import MODES, Resize
from airflow_provider_soperator.values import NAMESPACE, check_choice, is_on, is_template, number_or_share, whole_number
from airflow_provider_soperator.work.protocols import emit

if TYPE_CHECKING:
    from airflow_provider_soperator.work.checks import CheckRun
    from airflow_provider_soperator.work.nodesets import NodeSetResize


class CompareClusterOperator(ClusterOperator):
    """Tell in what a cluster differs from its description; nothing is changed.

        CompareClusterOperator(task_id="compare", spec=research, source=recipe, outlets=[AssetAlias("research_drift")])

    It plans: with Terraform, or by a dry run of Kubernetes. What each plan of a recipe has, such as a step that runs
    each time, is no difference. If there is one, an ``AssetAlias`` among its ``outlets`` gets an event, for an asset of
    that name, with the summary and the changes.

    Returns the plan: its ``summary``, the ``changes``, and whether the cluster ``exists``.

    :param fail: fail the task if there is a difference
    """

    template_fields: Sequence[str] = ("spec", "nebius_conn_id")
    ui_color = "#e2e8f0"

    def __init__(self, *, fail: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.fail = fail
        if isinstance(self.source, KubernetesObjects):
            # A field that others have changed is theirs by that. Nothing is taken from them, as nothing is applied.
            self.source = replace(self.source, force=True)

    def execute(self, context: Context) -> dict[str, Any]:
        with explained():
            spec = ClusterSpec.read(self.spec)
            with self._open(spec, context) as provisioner:
                planned = provisioner.plan()
        found = planned.write()
        if not planned.changes:
            self.log.info("The cluster %s is as described.", spec.name)
            return found
        told = ", ".join(f"{action} {address}" for address, action in planned.changes.items())
        self.log.warning("The cluster %s differs from its description (%s): %s", spec.name, planned.summary, told)
        for alias in self.outlets:
            if isinstance(alias, AssetAlias):
                context["outlet_events"][alias].add(Asset(alias.name), found)
        if self.fail:
            context["ti"].xcom_push("plan", found)
            raise AirflowFailException(f"the cluster {spec.name} differs from its description: {planned.summary}")
        return found


class ScaleNodeSetOperator(WorkOperator):
    """Change the number of nodes of a NodeSet, and wait until they are gone, or can work.

        ScaleNodeSetOperator(task_id="shrink", nodeset="worker-cpu", replicas=4, timeout=timedelta(hours=12))

    The nodes with the highest numbers go. They are drained first. A task that fails or is stopped before the number has
    been changed undoes its drains.

    Returns ``nodeset``, ``replicas``, ``nodes``, those ``passed_over`` as they were out of service before, and how many
    ``seconds`` it took, in another try since the DAG run began.

    :param nodeset: name of the NodeSet
    :param replicas: number of nodes; of an ephemeral NodeSet, the number of node names, and those that go must be off
    :param mode: nodes go once their jobs have ended (``"asap"``), or at once (``"force"``: jobs are requeued)
    :param reason: reason of the drains
    :param drain_owner: name under which nodes are drained; by default the DAG's id with the NodeSet
    :param plan_only: log and return the plan, and change nothing
    :param cluster: name of the SlurmCluster; by default the only one in the namespace
    :param namespace: namespace of the SlurmCluster
    :param kubernetes_conn_id: Airflow connection to the cluster's Kubernetes
    :param slurm_conn_id: Airflow connection to Slurm; None drains nothing
    """

    template_fields: Sequence[str] = (
        "nodeset", "replicas", "mode", "reason", "drain_owner", "plan_only",
        "cluster", "namespace", "kubernetes_conn_id", "slurm_conn_id",
    )  # fmt: skip

    def __init__(
        self,
        *,
        nodeset: str,
        replicas: int | str,
        mode: Literal["asap", "force"] = "asap",
        reason: str = "",
        drain_owner: str | None = None,
        plan_only: bool | str = False,
        cluster: str | None = None,
        namespace: str = NAMESPACE,
        kubernetes_conn_id: str = "kubernetes_default",
        slurm_conn_id: str | None = "soperator_default",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_choice("mode", mode, MODES)
        if not is_template(replicas):
            whole_number("replicas", replicas, 0)
        self.nodeset, self.replicas, self.mode = nodeset, replicas, mode
        self.reason, self.drain_owner, self.plan_only = reason, drain_owner, plan_only
        self.cluster, self.namespace = cluster, namespace
        self.kubernetes_conn_id, self.slurm_conn_id = kubernetes_conn_id, slurm_conn_id

    def work(self, context: Context) -> NodeSetResize:
        from airflow_provider_soperator.hooks.cluster_clients import ClusterConnections
        from airflow_provider_soperator.work.nodesets import NodeSetResize

        check_choice("mode", self.mode, MODES)
        owner = self.drain_owner or f"{self.dag_id}/{self.nodeset}"
        DrainReason(owner)
        check_reason(self.reason)
        replicas = whole_number("replicas", self.replicas, 0)
        return NodeSetResize(
            where=ClusterConnections(
                self.kubernetes_conn_id, self.namespace, self.cluster or None, self.slurm_conn_id or None
            ),
            resize=Resize(nodeset=self.nodeset, replicas=replicas, mode=self.mode, owner=owner, why=self.reason),
            plan_only=is_on(self.plan_only),
            # What an earlier try has brought, and what failed it, was not out of service before.
            **self.span(begun_before(context)),
        )


OnFailure = Literal["fail", "drain", "report"]
IfRunning = Literal["wait", "join", "fail"]


class CheckFailed(AirflowException):
    """A check has failed on nodes, or could not be carried out."""


class RunActiveCheckOperator(WorkOperator):
    """Run an active check now, regardless of its schedule, and wait for its result on all nodes.

        RunActiveCheckOperator(task_id="check", check="gpu-checks", slurm_conn_id="soperator_default")

    A check that found nothing to check skips the task. A task that is stopped or times out ends its run.

    Returns the ``check``, its ``job`` in Kubernetes, when it has ``begun``, the ``state`` in Soperator's words, the
    result on each of the ``nodes``, those that are ``failing`` and that are ``drained``, the ``figures`` of each node,
    those that are ``slow``, and ``seconds``. Without ``slurm_conn_id`` there are ``failed_jobs`` instead of nodes.

    :param check: name of the ActiveCheck
    :param kubernetes_conn_id: Airflow connection to the cluster's Kubernetes
    :param namespace: namespace of the SlurmCluster
    :param slurm_conn_id: Airflow connection to Slurm, by which jobs of the check are mapped to nodes
    :param on_failure: ``"fail"`` the task and name the nodes; ``"drain"`` the nodes that fail; or ``"report"`` them
    :param if_running: while the check runs already: ``"wait"`` for its end, ``"join"`` that run, or ``"fail"``
    :param max_drained: most nodes that may be drained for faults after it, a number or a share of the nodes that are
        on; if there would be more, none is drained, and the task fails
    :param reason: reason of the drains; one that begins with a prefix of Soperator's, such as ``[node_problem]``, is
        used as it is, and Soperator acts upon it
    :param drain_owner: name under which nodes are drained; by default the DAG's id
    :param figures: names of figures, and regular expressions with a group for the number in what the check's jobs
        print, which are kept for each node and compared; by default the bus bandwidth of nccl-tests
    :param tolerance: share by which a figure may be worse than before, or than on the node's neighbours
    :param timeout: time limit of the check
    """

    template_fields: Sequence[str] = (
        "check", "kubernetes_conn_id", "namespace", "slurm_conn_id", "on_failure", "if_running", "max_drained",
        "reason", "drain_owner",
    )  # fmt: skip
    ui_color = "#f7d9e3"

    def __init__(
        self,
        *,
        check: str,
        kubernetes_conn_id: str = "kubernetes_default",
        namespace: str = NAMESPACE,
        slurm_conn_id: str | None = None,
        on_failure: OnFailure = "fail",
        if_running: IfRunning = "wait",
        max_drained: int | str = "10%",
        reason: str = "",
        drain_owner: str | None = None,
        figures: Mapping[str, str] | None = None,
        tolerance: float = 0.1,
        timeout: timedelta = timedelta(hours=2),
        **kwargs: Any,
    ) -> None:
        super().__init__(timeout=timeout, **kwargs)
        self.check = check
        self.kubernetes_conn_id, self.namespace, self.slurm_conn_id = kubernetes_conn_id, namespace, slurm_conn_id
        self.on_failure, self.if_running = on_failure, if_running
        self.max_drained, self.reason, self.drain_owner = max_drained, reason, drain_owner
        self.figures, self.tolerance = dict(PATTERNS if figures is None else figures), tolerance
        self._refuse_mistakes()

    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:
        """The check has ended, or its end is not known."""
        result = super().execute_complete(context, event)
        words = f"{result['check']}: {result.pop('words')}"
        if result["state"] == "Skipped":
            # Airflow does not log why a task is skipped.
            self.log.info("%s", words)
            raise AirflowSkipException(words)
        figures = result.get("figures")
        result["slow"] = self._keep(result["check"], figures, result.get("begun")) if figures else {}
        is_dealt_with = self.on_failure == "report" or bool(result["drained"])
        if result["state"] != "Complete" and not is_dealt_with:
            raise CheckFailed(words)
        return result

    def _keep(self, check: str, figures: dict[str, dict[str, float]], begun: str | None) -> dict[str, str]:
        """Keep the figures of a run, and set gauges; returns its slow nodes, in words."""
        from airflow_provider_soperator.health.figures import keep_figures

        for node, found in figures.items():
            emit([(f"check.{name}", value, {"place": node}) for name, value in found.items()], check=check)
        # By the time of the run, so that a try which finds it again does not keep it twice.
        slow = keep_figures(check, figures, self.tolerance, datetime.fromisoformat(begun) if begun else None)
        for node, words in slow.items():
            self.log.warning("%s is slow: %s", node, words)
        return slow

    def _refuse_mistakes(self) -> None:
        """Raise for mistakes that show when the DAG is parsed."""
        check_choice("on_failure", self.on_failure, get_args(OnFailure))
        check_choice("if_running", self.if_running, get_args(IfRunning))
        if not is_template(self.max_drained):
            number_or_share("max_drained", self.max_drained, 1)
        check_patterns(self.figures)
        if self.on_failure == "drain" and not self.slurm_conn_id:
            raise ValueError("on_failure='drain' needs slurm_conn_id: Kubernetes alone does not tell which nodes fail")
        if not is_template(self.reason):
            from airflow_provider_soperator.soperator.check_results import refuse_unread

            refuse_unread(self.reason)

    def work(self, context: Context) -> CheckRun:
        from airflow_provider_soperator.hooks.cluster_clients import ClusterConnections
        from airflow_provider_soperator.soperator.check_results import drain_reason
        from airflow_provider_soperator.work.checks import CheckRun
        from airflow_provider_soperator.work.sbatch import keys_of

        self._refuse_mistakes()
        _, keys = keys_of(context, self.retries or 0)
        why = self.reason or f"{self.check} failed"
        return CheckRun(
            where=ClusterConnections(self.kubernetes_conn_id, self.namespace, slurm_conn_id=self.slurm_conn_id or None),
            check=self.check,
            keys=tuple(key.text for key in keys),
            task=task_name(context["ti"]),
            if_running=self.if_running,
            max_drained=self.max_drained,
            figures=self.figures,
            drain_reason=drain_reason(self.drain_owner or self.dag_id, why) if self.on_failure == "drain" else "",
            **self.span(),
        )


__all__ = [
    "BackupJailOperator",
    "CompareClusterOperator",
    "DestroyClusterOperator",
    "ProvisionClusterOperator",
    "RunActiveCheckOperator",
    "ScaleNodeSetOperator",
]
