"""Task that steers the shift that is at work on a block."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_soperator.errors import CapacityMistake
from airflow_provider_soperator.operators.work import StrictOperator, task_name
from airflow_provider_soperator.values import check_choice

if TYPE_CHECKING:
    from airflow_provider_soperator.capacity.steering import SteeringCommand

#: What a shift can be told while it runs.
ACTIONS = ("stop", "force", "leave_out", "extend")


class SteerShiftOperator(StrictOperator):
    """Tell the shift that is at work on a block what to do from now on, and end at once.

        SteerShiftOperator(task_id="spare", block="capacityblockgroup-e00example", action="leave_out", nodes="worker-3")

    The shift heeds it at its next poll, and logs it with the name of the user who has triggered the run. The next shift
    does not know of it. The task fails if no shift of this Airflow is at work on the block.

    :param block: id of the capacity block
    :param action: ``"stop"``: stop where it is, but nodes that were told to power down still do, and the next run of
        its schedule powers them up again; ``"force"``: end the jobs that are still in the way, as with
        ``mode="force"``; ``"leave_out"``: leave ``nodes`` as they are; ``"extend"``: put off its end by ``extend_by``;
        empty: nothing
    :param nodes: with ``action="leave_out"``: the nodes, as a hostlist
    :param extend_by: with ``action="extend"``: a time, as ``30m``, ``1h``, or a ``timedelta``
    """

    template_fields: Sequence[str] = ("block", "action", "nodes", "extend_by")
    ui_color = "#fde8c8"

    def __init__(
        self,
        *,
        block: str,
        action: str | None,
        nodes: str | None = None,
        extend_by: timedelta | str = "1h",
        **kwargs: Any,
    ) -> None:
        # What is asked at the same time would overwrite what was asked before.
        super().__init__(**{"max_active_tis_per_dag": 1} | kwargs)
        check_choice("action", action, (None, "", *ACTIONS))
        self.block, self.action, self.nodes, self.extend_by = block, action, nodes, extend_by

    def execute(self, context: Context) -> str | None:
        from airflow_provider_soperator.capacity.steering import ShiftAtWork, no_shift
        from airflow_provider_soperator.triggers.shift import is_under_way

        if not self.action or self.action == "None":
            return None
        try:
            command = self._command(context)
            shift = ShiftAtWork.find(self.block)
            if shift is None or shift.ended or not is_under_way(shift.task):
                raise no_shift(self.block, shift)
            shift.give(command)
        except (CapacityMistake, ValueError) as error:
            raise AirflowFailException(str(error)) from None
        self.log.info("Told task %s: %s", shift.task, command)
        return str(command)

    def _command(self, context: Context) -> SteeringCommand:
        from airflow_provider_soperator.capacity.calendar import seconds
        from airflow_provider_soperator.capacity.steering import SteeringCommand
        from airflow_provider_soperator.slurm import hostlist

        check_choice("action", self.action, ACTIONS)
        nodes = "" if self.nodes in (None, "None") else str(self.nodes)
        if (self.action == "leave_out") is not bool(nodes):
            said = "leave_out needs nodes" if not nodes else f"nodes are for leave_out, got action {self.action!r}"
            raise CapacityMistake(said, 'such as action="leave_out" and nodes="worker-[3-5]"')
        return SteeringCommand(
            action=self.action,  # type: ignore[arg-type]
            at=datetime.now(timezone.utc),
            by=context["dag_run"].triggering_user_name or "",
            task=task_name(context["ti"]),
            nodes=tuple(hostlist.expand(nodes)) if nodes else (),
            extend_by=timedelta(seconds=seconds(self.extend_by)) if self.action == "extend" else timedelta(0),
        )
