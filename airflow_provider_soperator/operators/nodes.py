"""Power nodes up and down, drain and undrain them, replace their machines, as tasks that end when it is done."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal

from airflow.sdk import Context

from airflow_provider_soperator.operators.reservations import CreateReservationOperator, DeleteReservationOperator
from airflow_provider_soperator.operators.work import WorkOperator, begun_before
from airflow_provider_soperator.slurm.hostlist import check_count, check_nodes, check_nodes_or_count, names_of
from airflow_provider_soperator.slurm.node_conditions import check_reason
from airflow_provider_soperator.values import (
    NAMESPACE,
    check_choice,
    check_durations,
    is_on,
    is_template,
    listed,
    moment_of,
    number_or_share,
)

if TYPE_CHECKING:
    from airflow_provider_soperator.work.machines import MachineReplacement
    from airflow_provider_soperator.work.nodes import NodeChange

__all__ = [
    "CreateReservationOperator",
    "DeleteReservationOperator",
    "DrainNodesOperator",
    "PowerDownNodesOperator",
    "PowerUpNodesOperator",
    "ReplaceNodesOperator",
    "UndrainNodesOperator",
]


class _NodesOperator(WorkOperator):
    """Changes nodes.

    :param nodes: names of nodes, as a list or as Slurm writes them
    :param drain_owner: name under which nodes are drained, and whose drains are undone; by default the DAG's id
    :param slurm_conn_id: Airflow connection to Slurm
    """

    def __init__(
        self,
        *,
        nodes: str | Sequence[str] | None = None,
        drain_owner: str | None = None,
        slurm_conn_id: str = "soperator_default",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_nodes(nodes)
        self.nodes = nodes
        self.drain_owner = drain_owner
        self.slurm_conn_id = slurm_conn_id


class _MoveNodesOperator(_NodesOperator):
    """Moves nodes to a state.

    A task that is stopped or times out leaves the nodes in progress, and its log says where they are.
    """

    @abstractmethod
    def order(self) -> dict[str, Any]:
        """The fields of the ``NodeChange`` beside the nodes and their owner."""

    def work(self, context: Context) -> NodeChange:
        from airflow_provider_soperator.work.nodes import NodeChange

        return NodeChange(
            slurm_conn_id=self.slurm_conn_id,
            nodes=names_of(self.nodes),
            owner=self.drain_owner or self.dag_id,
            dag_id=self.dag_id,
            **self.order(),
            **self.span(),
        )


class _PowerNodesOperator(_MoveNodesOperator):
    """Nodes by name, or a number of those that fit.

    :param count: number of nodes that are to be in the state at the end, including those that are already
    :param partition: with ``count``: only nodes of this partition
    :param features: with ``count``: only nodes with all of these features
    """

    def __init__(
        self,
        *,
        count: int | str | None = None,
        partition: str | None = None,
        features: Sequence[str] = (),
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_nodes_or_count(self.nodes, count)
        self.count = count
        self.partition = partition
        self.features = listed(features)

    def _chosen(self) -> dict[str, Any]:
        if self.count is None:
            # A partition may have come from default_args.
            return {}
        check_count(self.count)
        return {"count": int(self.count), "partition": self.partition or "", "features": tuple(self.features)}


class PowerUpNodesOperator(_PowerNodesOperator):
    """Power nodes up, and wait until jobs can start on them.

        PowerUpNodesOperator(task_id="up", nodes="worker-[0-3]")

    Drains of ``drain_owner`` are undone. A node that does not boot within ResumeTimeout fails the task, once the others
    are there. With ``block``, each node waits until the block has its GPUs free, and no shift has claimed them.

    Returns ``nodes``, those that were there ``already``, and how many ``seconds`` it took.

    :param block: id of the capacity block of the nodes' machines
    :param nebius_conn_id: Airflow connection to the Nebius API
    """

    template_fields: Sequence[str] = (
        "slurm_conn_id", "nodes", "count", "partition", "features", "drain_owner", "block", "nebius_conn_id",
    )  # fmt: skip

    def __init__(self, *, block: str | None = None, nebius_conn_id: str = "nebius_default", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.block, self.nebius_conn_id = block, nebius_conn_id

    def order(self) -> dict[str, Any]:
        block = {"block": self.block or "", "nebius_conn_id": self.nebius_conn_id}
        return {"action": "up", **self._chosen(), **block}


class PowerDownNodesOperator(_PowerNodesOperator):
    """Power nodes down, and wait until they are off.

        PowerDownNodesOperator(task_id="down", nodes="worker-[0-3]", mode="asap", stay_down=True)

    With ``count``, idle nodes are taken first. The machines, and so the GPUs, go some minutes later.

    :param mode: when nodes go down: once ``"idle"``, and jobs may start before; once their jobs have ended
        (``"asap"``); or at once (``"force"``: jobs are requeued or killed)
    :param stay_down: drain the nodes as well, so that no job powers them up; ``PowerUpNodesOperator`` undoes that
    :param reason: Slurm's reason of the nodes
    """

    template_fields: Sequence[str] = (
        "slurm_conn_id", "nodes", "count", "partition", "features", "drain_owner", "mode", "stay_down", "reason",
    )  # fmt: skip

    def __init__(
        self,
        *,
        mode: Literal["idle", "asap", "force"] = "asap",
        stay_down: bool | str = False,
        reason: str = "",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_choice("mode", mode, ("idle", "asap", "force"))
        self.mode = mode
        self.stay_down = stay_down
        self.reason = reason

    def order(self) -> dict[str, Any]:
        check_choice("mode", self.mode, ("idle", "asap", "force"))
        how = {"action": "down", "mode": self.mode, "reason": self.reason, **self._chosen()}
        if not is_on(self.stay_down):
            return how
        from airflow_provider_soperator.hooks.cluster_clients import installation_id

        return {**how, "stay_down": True, "airflow": installation_id()}


class DrainNodesOperator(_MoveNodesOperator):
    """Stop new jobs on nodes.

        DrainNodesOperator(task_id="drain", nodes="worker-3", reason="new driver", wait_for_jobs=True)

    A node that another owner has drained keeps its reason, and counts as done; only a drain that a health check would
    undo (``[user_problem]``) gets the reason of this one, and so stays.

    :param reason: reason of the drain in Slurm
    :param wait_for_jobs: wait until the jobs on the nodes have ended
    """

    template_fields: Sequence[str] = ("slurm_conn_id", "nodes", "drain_owner", "reason", "wait_for_jobs")

    def __init__(
        self, *, nodes: str | Sequence[str], reason: str, wait_for_jobs: bool | str = False, **kwargs: Any
    ) -> None:
        super().__init__(nodes=nodes, **kwargs)
        self.reason = reason
        self.wait_for_jobs = wait_for_jobs
        if not is_template(reason):
            check_reason(reason)

    def order(self) -> dict[str, Any]:
        return {"action": "drain", "reason": self.reason, "wait_for_jobs": is_on(self.wait_for_jobs)}


class UndrainNodesOperator(_MoveNodesOperator):
    """Let jobs start on nodes again.

        UndrainNodesOperator(task_id="undrain", nodes="worker-3")

    If others have drained some of the nodes, the task undrains the rest, and then fails and names them.

    :param any_owner: undo also drains of health checks and of people, and not only those of ``drain_owner``
    """

    template_fields: Sequence[str] = ("slurm_conn_id", "nodes", "drain_owner", "any_owner")

    def __init__(self, *, nodes: str | Sequence[str], any_owner: bool | str = False, **kwargs: Any) -> None:
        super().__init__(nodes=nodes, **kwargs)
        self.any_owner = any_owner

    def order(self) -> dict[str, Any]:
        return {"action": "undrain", "any_owner": is_on(self.any_owner)}


class ReplaceNodesOperator(_NodesOperator):
    """Have the machines under nodes replaced by Soperator, and wait until jobs can start on the new ones.

        ReplaceNodesOperator(task_id="replace", nodes="worker-3", reason="NVLink errors", max_parallel=1)

    Each node is drained for a reason that Soperator acts upon once its jobs have ended. A node that another owner has
    drained is taken if that drain asks for another machine. If the task fails or is stopped, nodes whose machines are
    still there are undrained.

    Returns ``{"worker-3": {"old": ..., "new": ..., "seconds": ...}}``; nodes that are off are not in it, as there is
    nothing to replace.

    :param reason: text after the prefix of the drain's reason
    :param max_parallel: number of nodes in progress at a time, or a share such as ``"25%"``
    :param mode: wait until jobs have ended (``"asap"``); or, a ``grace`` after the drain, requeue them and wait for
        those that cannot be requeued (``"requeue"``), or cancel these (``"force"``)
    :param grace: time that jobs have after the drain
    :param response_timeout: time limit for each of Soperator's reactions
    :param since: time at which the nodes were found ill: one whose machine is newer is not replaced once more; by
        default the start of the task, and in another try that of the DAG run
    :param any_owner: take also nodes that another owner has drained for another purpose
    :param kubernetes_conn_id: Airflow connection to Kubernetes, by which the machine of a node is looked up; by default
        that of the Soperator connection, else Slurm is asked
    :param namespace: namespace of the SlurmCluster
    """

    template_fields: Sequence[str] = (
        "slurm_conn_id", "nodes", "drain_owner", "reason", "max_parallel", "mode", "since", "any_owner",
        "kubernetes_conn_id", "namespace",
    )  # fmt: skip

    def __init__(
        self,
        *,
        nodes: str | Sequence[str],
        reason: str = "",
        max_parallel: int | str = 1,
        mode: Literal["asap", "requeue", "force"] = "asap",
        grace: timedelta = timedelta(0),
        response_timeout: timedelta = timedelta(minutes=10),
        since: datetime | str | None = None,
        any_owner: bool | str = False,
        kubernetes_conn_id: str | None = None,
        namespace: str = NAMESPACE,
        **kwargs: Any,
    ) -> None:
        super().__init__(nodes=nodes, **kwargs)
        if not is_template(max_parallel):
            number_or_share("max_parallel", max_parallel, 1)
        check_choice("mode", mode, ("asap", "requeue", "force"))
        check_durations(grace=grace, response_timeout=response_timeout)
        if not is_template(since):
            moment_of("since", since)
        self.reason, self.since = reason, since
        self.max_parallel, self.mode, self.grace = max_parallel, mode, grace
        self.response_timeout = response_timeout
        self.any_owner = any_owner
        self.kubernetes_conn_id, self.namespace = kubernetes_conn_id, namespace

    def work(self, context: Context) -> MachineReplacement:
        from airflow_provider_soperator.work.machines import MachineReplacement

        number_or_share("max_parallel", self.max_parallel, 1)
        check_choice("mode", self.mode, ("asap", "requeue", "force"))
        return MachineReplacement(
            slurm_conn_id=self.slurm_conn_id,
            nodes=names_of(self.nodes),
            owner=self.drain_owner or self.dag_id,
            reason=self.reason,
            any_owner=is_on(self.any_owner),
            max_parallel=self.max_parallel,
            mode=self.mode,
            grace=self.grace,
            response_timeout=self.response_timeout,
            kubernetes_conn_id=self.kubernetes_conn_id or None,
            namespace=self.namespace,
            **self.span(moment_of("since", self.since) or begun_before(context)),
        )
