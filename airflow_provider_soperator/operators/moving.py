"""What operators have in common that bring nodes somewhere, however long that takes."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import conf
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from airflow_provider_soperator.operators.node_lists import check_nodes
from airflow_provider_soperator.operators.waiting import WaitingOperator

if TYPE_CHECKING:
    from airflow.sdk.definitions.context import Context

    from airflow_provider_soperator.triggers.base import WorkTrigger


class NodesLate(AirflowException):
    """Nodes were not in time where they were to be."""


class NodesOperator(WaitingOperator):
    """Has something done to nodes by a trigger, in the triggerer or in the worker.

    ``drain_owner`` is whose drains these are, and whose are undone; without one it is the DAG.
    """

    ui_color = "#fde8c8"

    def __init__(
        self,
        *,
        nodes: str | Sequence[str] | None = None,
        drain_owner: str | None = None,
        timeout: timedelta = timedelta(hours=24),
        slurm_conn_id: str = "soperator_default",
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        poll_interval: float = 10.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_nodes(nodes)
        self.nodes = nodes
        self.drain_owner = drain_owner
        self.timeout = timeout
        self.slurm_conn_id = slurm_conn_id
        self.deferrable = deferrable
        self.poll_interval = poll_interval

    @abstractmethod
    def trigger(self, context: Context) -> WorkTrigger:
        """What does it; ``ValueError`` for what it could never do."""

    def execute(self, context: Context) -> Any:
        try:
            trigger = self.trigger(context)
        except ValueError as error:
            raise AirflowFailException(str(error)) from None
        return self.wait_for(trigger, context, self.resume)

    def resume(self, context: Context, event: dict[str, Any]) -> Any:
        """It is done, or it is known why it is not."""
        return result_of(event, self.timeout)


def result_of(event: dict[str, Any], timeout: timedelta) -> Any:
    """What a trigger has come to; raises why it has not."""
    if "mistake" in event:
        raise AirflowFailException(event["mistake"])
    if "late" in event:
        raise NodesLate(f"not done within {timeout}: {event['late']}")
    if "lost" in event:
        raise AirflowException(event["lost"])
    return event["result"]
