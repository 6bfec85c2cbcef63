"""Wait for nodes to be in a state that is said in people's words."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseSensorOperator, PokeReturnValue, conf
from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_soperator.hooks.slurm import SlurmHook
from airflow_provider_soperator.operators.node_lists import check_nodes, names_of
from airflow_provider_soperator.slurm.node_conditions import MISTAKES, NodesInState, check_how, word
from airflow_provider_soperator.slurm.requests import ListNodes
from airflow_provider_soperator.values import is_template

if TYPE_CHECKING:
    from airflow.sdk.definitions.context import Context


class NodeStateSensor(BaseSensorOperator):
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
        slurm_conn_id: str = SlurmHook.default_conn_name,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
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
        self.deferrable = deferrable

    def execute(self, context: Context) -> Any:
        if not self.deferrable:
            return super().execute(context)
        from airflow_provider_soperator.triggers.nodes import NodeStateTrigger

        trigger = NodeStateTrigger(self.slurm_conn_id, self._watched().write(), self.poke_interval)
        self.defer(trigger=trigger, method_name="execute_complete", timeout=timedelta(seconds=self.timeout))

    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:
        if "mistake" in event:
            raise AirflowFailException(event["mistake"])
        return event

    def poke(self, context: Context) -> PokeReturnValue:
        watched = self._watched()
        with SlurmHook(self.slurm_conn_id).client() as slurm:
            nodes = slurm.ask(ListNodes())
        try:
            found = watched.look(nodes)
        except MISTAKES as error:
            raise AirflowFailException(str(error)) from None
        self.log.info("%d of %d nodes: %s", len(found["nodes"]), found["of"], watched.state)
        return PokeReturnValue(found.pop("is_reached"), found)

    def _watched(self) -> NodesInState:
        try:
            how = int(self.how) if str(self.how).isdecimal() else self.how
            check_how(how)
            nodes, state = names_of(self.nodes), word(self.state)
        except ValueError as error:
            raise AirflowFailException(str(error)) from None
        return NodesInState(state=state, nodes=nodes, partition=self.partition or "", how=how)
