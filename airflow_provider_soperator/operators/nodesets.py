"""Give a NodeSet another number of nodes, as a task that ends when it has them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from airflow.sdk.exceptions import AirflowException, AirflowFailException

from airflow_provider_soperator.client.sync import LOOP
from airflow_provider_soperator.operators.work import WorkOperator
from airflow_provider_soperator.slurm.node_conditions import DrainReason
from airflow_provider_soperator.soperator.resize import MODES, Resize
from airflow_provider_soperator.values import NAMESPACE, is_on, is_template

if TYPE_CHECKING:
    from airflow.sdk.definitions.context import Context

    from airflow_provider_soperator.work.nodesets import NodeSetResize


class ScaleNodeSetOperator(WorkOperator):
    """Change the number of nodes of a NodeSet, and wait until they are gone, or can work.

        ScaleNodeSetOperator(task_id="shrink", nodeset="worker-cpu", replicas=4, timeout=timedelta(hours=12))

    The nodes with the highest numbers go. They are drained first. A task that fails or is stopped before the number has
    been changed undoes its drains.

    Returns ``nodeset``, ``replicas``, ``nodes``, those ``passed_over`` as they were out of service before, and how many
    ``seconds`` it took.

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
        if not is_template(mode):
            _check_mode(mode)
        if not is_template(replicas):
            _count(replicas)
        self.nodeset, self.replicas, self.mode = nodeset, replicas, mode
        self.reason, self.drain_owner, self.plan_only = reason, drain_owner, plan_only
        self.cluster, self.namespace = cluster, namespace
        self.kubernetes_conn_id, self.slurm_conn_id = kubernetes_conn_id, slurm_conn_id

    def execute(self, context: Context) -> Any:
        return self._plan() if is_on(self.plan_only) else super().execute(context)

    def work(self, context: Context) -> NodeSetResize:
        from airflow_provider_soperator.hooks.cluster_clients import ClusterConnections
        from airflow_provider_soperator.work.nodesets import NodeSetResize

        _check_mode(self.mode)
        owner = self.drain_owner or f"{self.dag_id}/{self.nodeset}"
        DrainReason(owner)
        return NodeSetResize(
            where=ClusterConnections(
                self.kubernetes_conn_id, self.namespace, self.cluster or None, self.slurm_conn_id or None
            ),
            resize=Resize(
                nodeset=self.nodeset, replicas=_count(self.replicas), mode=self.mode, owner=owner, why=self.reason
            ),
            **self.span(),
        )

    def _plan(self) -> dict[str, Any]:
        from airflow_provider_soperator.work.polling import FAILURES, is_final
        from airflow_provider_soperator.work.protocols import WorkFailed, WorkRefused

        async def plan(work: NodeSetResize) -> dict[str, Any]:
            async with work.open(self.log) as sides:
                return await work.begin(self.log).plan(sides)

        try:
            found = LOOP.run(plan(self.work(context={})))
        except ValueError as error:
            raise AirflowFailException(str(error)) from None
        except (WorkFailed, *FAILURES) as error:
            final = isinstance(error, WorkRefused) or is_final(error)
            raise (AirflowFailException if final else AirflowException)(str(error)) from error
        for name, value in found.items():
            self.log.info("%s: %s", name, value)
        return found


def _count(replicas: int | str) -> int:
    """A number of nodes, also one that a template has made."""
    try:
        count = int(replicas)
    except (TypeError, ValueError):
        raise ValueError(f"replicas must be a number, got {replicas!r}") from None
    if count < 0:
        raise ValueError(f"replicas must be >= 0, got {count}")
    return count


def _check_mode(mode: str) -> None:
    if mode not in MODES:
        raise ValueError(f"mode must be 'asap' or 'force', got {mode!r}")
