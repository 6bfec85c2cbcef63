"""Wait for nodes to be in a state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow_provider_soperator.sensors.watch import WatchSensor
from airflow_provider_soperator.slurm.hostlist import check_nodes, names_of
from airflow_provider_soperator.slurm.node_conditions import check_match, word
from airflow_provider_soperator.values import is_template
from airflow_provider_soperator.work.protocols import Watch


class NodeStateSensor(WatchSensor):
    """Wait until all, any, or a number of some nodes are in a state.

        NodeStateSensor(task_id="are_up", partition="main", target_state="usable", match=4)

    Returns the ``nodes`` in that state, and ``of`` how many.

    :param target_state: ``usable``, ``up``, ``off``, ``idle``, ``busy``, ``drained``, ``draining``, ``booting``,
        ``going off``, ``failed to boot``, ``down``, ``failing``, ``blocked``, ``not responding`` or
        ``reserved``
    :param nodes: names of nodes, as a list or as Slurm writes them
    :param partition: all nodes of this partition, instead of ``nodes``
    :param match: ``"all"``, ``"any"``, or the number of nodes that must be in the state
    :param slurm_conn_id: Airflow connection to Slurm
    """

    template_fields: Sequence[str] = ("slurm_conn_id", "nodes", "partition", "target_state", "match")

    def __init__(
        self,
        *,
        target_state: str,
        nodes: str | Sequence[str] | None = None,
        partition: str | None = None,
        match: str | int = "all",
        slurm_conn_id: str = "soperator_default",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if nodes is None and partition is None:
            raise ValueError("nodes and partition are both missing: give one of them")
        check_nodes(nodes)
        if not is_template(target_state):
            word(target_state)
        if not is_template(match):
            check_match(match)
        self.target_state, self.nodes, self.partition, self.match = target_state, nodes, partition, match
        self.slurm_conn_id = slurm_conn_id

    def watch(self) -> Watch[Any]:
        from airflow_provider_soperator.work.nodes import NodeStateWatch

        match: Any = int(self.match) if str(self.match).isdecimal() else self.match
        check_match(match)
        return NodeStateWatch(
            slurm_conn_id=self.slurm_conn_id,
            state=word(self.target_state),
            nodes=names_of(self.nodes),
            partition=self.partition or "",
            match=match,
        )
