"""Wait for nodes to be in a state that is said in people's words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow_provider_soperator.operators.node_lists import check_nodes, names_of
from airflow_provider_soperator.sensors.watch import WatchSensor
from airflow_provider_soperator.slurm.node_conditions import check_how, word
from airflow_provider_soperator.values import is_template

if TYPE_CHECKING:
    from airflow_provider_soperator.work.nodes import NodeStateWatch


class NodeStateSensor(WatchSensor):
    """Wait until all, any, or so many of some nodes are in a state.

        NodeStateSensor(task_id="are_up", partition="main", state="usable", how=4)

    ``state`` is ``usable``, ``up``, ``off``, ``idle``, ``busy``, ``drained``, ``draining``, ``booting``, ``going off``,
    ``failed to boot``, ``down``, ``not responding`` or ``reserved``. Returns which ``nodes`` are, and ``of`` how many.
    """

    template_fields: Sequence[str] = ("slurm_conn_id", "nodes", "partition", "state", "how")
    ui_color = "#fde8c8"

    def __init__(
        self,
        *,
        state: str,
        nodes: str | Sequence[str] | None = None,
        partition: str | None = None,
        how: str | int = "all",
        slurm_conn_id: str = "soperator_default",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if nodes is None and partition is None:
            raise ValueError("say which nodes are meant: nodes, or all of a partition")
        check_nodes(nodes)
        if not is_template(state):
            word(state)
        if not is_template(how):
            check_how(how)
        self.state, self.nodes, self.partition, self.how = state, nodes, partition, how
        self.slurm_conn_id = slurm_conn_id

    def watch(self) -> NodeStateWatch:
        from airflow_provider_soperator.work.nodes import NodeStateWatch

        how: Any = int(self.how) if str(self.how).isdecimal() else self.how
        check_how(how)
        return NodeStateWatch(
            slurm_conn_id=self.slurm_conn_id,
            state=word(self.state),
            nodes=names_of(self.nodes),
            partition=self.partition or "",
            how=how,
            poll_interval=self.poke_interval,
        )
