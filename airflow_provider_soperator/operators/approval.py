"""Task in which a person approves the plan of a shift, as long as an answer is of use."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, Literal

from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from airflow_provider_soperator.values import is_on

if TYPE_CHECKING:
    from airflow_provider_soperator.capacity.schedule import CapacitySchedule

#: What is done without an answer: the shift as planned, nothing, or nothing and the task fails.
OnNoAnswer = Literal["go", "stay", "fail"]


class ApproveShiftOperator(ApprovalOperator):
    """Approval of a plan, which ends at the handover at the latest. A plan that moves nothing is not asked about.

    A plan of the schedule that is not approved is not asked about again: an override in the Airflow Variable keeps all
    as it is until the next handover. If demand wishes for it, and no approver has answered, the next run asks again.
    """

    _asks_again = False

    def __init__(
        self, *, schedule: CapacitySchedule, overrides_variable: str, on_no_answer: OnNoAnswer, **kwargs: Any
    ) -> None:
        super().__init__(defaults=self.APPROVE if on_no_answer == "go" else None, **kwargs)
        self.schedule, self.overrides_variable, self.on_no_answer = schedule, overrides_variable, on_no_answer

    def execute(self, context: Context) -> Any:
        plan = context["ti"].xcom_pull(task_ids="plan")
        stays = {target: move["now"] for target, move in plan["moves"].items()} == plan["possible"]
        # Units of its own that are not ready come back without consent, or a plan that was rejected would return.
        if is_on(context["params"].get("plan_only")) or (stays and not plan["nodes"] and not plan["buys"]):
            self.log.info("Nothing is to be moved, so no approver is asked")
            return None
        if plan["answer_by"]:
            left = datetime.fromisoformat(plan["answer_by"]) - datetime.now(timezone.utc)
            self.response_timeout = max(min(self.response_timeout or left, left), timedelta(seconds=1))
        return super().execute(context)

    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:
        from airflow_provider_soperator.capacity.reconciliation import keep_as_is

        plan = context["ti"].xcom_pull(task_ids="plan")
        self._asks_again = plan["is_demanded"]
        is_refused = not self._asks_again if "error" in event else self.REJECT in event["chosen_options"]
        if is_refused and not plan["is_requested"]:
            now, units = datetime.now(timezone.utc), {target: move["now"] for target, move in plan["moves"].items()}
            keep_as_is(self.overrides_variable, units, "", "the plan was not approved", now, self.schedule, self.log)
        return super().execute_complete(context, event)

    def process_trigger_event_error(self, event: dict[str, Any]) -> None:
        if event["error_type"] != "timeout":
            super().process_trigger_event_error(event)
        asks_again = "nothing is moved, and the next run asks about what demand is by then"
        skips = asks_again if self._asks_again else "this handover is skipped and all stays as it is"
        said = f"No approver has answered in time, so {skips}"
        if self.on_no_answer == "stay":
            raise AirflowSkipException(said)
        # Another try would only ask again.
        raise AirflowFailException(f"{said}. To move it nevertheless, trigger the DAG and fill in its form")
