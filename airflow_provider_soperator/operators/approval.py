"""Task in which a person approves the plan of a shift, as long as an answer is of use."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, Literal

from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from airflow_provider_soperator.values import is_on

if TYPE_CHECKING:
    from airflow.sdk.definitions.context import Context

#: What is done without an answer: the shift as planned, nothing, or nothing and the task fails.
OnNoAnswer = Literal["go", "stay", "fail"]


class ApproveShiftOperator(ApprovalOperator):
    """Approval of a plan, which ends at the handover at the latest. A plan that moves nothing is not asked about.

    :param plan_task_id: id of the ``ShiftCapacityOperator`` that has planned
    :param on_no_answer: what is done without an answer: ``"go"``, ``"stay"`` or ``"fail"``
    """

    def __init__(self, *, plan_task_id: str, on_no_answer: OnNoAnswer = "fail", **kwargs: Any) -> None:
        super().__init__(defaults=self.APPROVE if on_no_answer == "go" else None, **kwargs)
        self.plan_task_id, self.on_no_answer = plan_task_id, on_no_answer

    def execute(self, context: Context) -> Any:
        plan = context["ti"].xcom_pull(task_ids=self.plan_task_id)
        if is_on(context["params"].get("plan_only")) or plan["steps"] == ["nothing to do"]:
            self.log.info("Nothing is to be moved, so nobody is asked")
            return None
        if plan["answer_by"]:
            left = datetime.fromisoformat(plan["answer_by"]) - datetime.now(timezone.utc)
            self.response_timeout = max(min(self.response_timeout or left, left), timedelta(seconds=1))
        return super().execute(context)

    def process_trigger_event_error(self, event: dict[str, Any]) -> None:
        if event["error_type"] != "timeout":
            super().process_trigger_event_error(event)
        said = "Nobody has answered in time, so this handover is skipped and all stays as it is"
        if self.on_no_answer == "stay":
            raise AirflowSkipException(said)
        # Another try would only ask again.
        raise AirflowFailException(f"{said}. To move it nevertheless, trigger the DAG")
