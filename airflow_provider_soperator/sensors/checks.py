"""Wait for the newest run of one of Soperator's active checks."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseSensorOperator, PokeReturnValue, conf
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from airflow_provider_soperator.soperator.active_checks import CheckAwaited, CheckHasFailed
from airflow_provider_soperator.values import is_on, is_template, moment_of

if TYPE_CHECKING:
    from airflow.sdk.definitions.context import Context


class ActiveCheckSensor(BaseSensorOperator):
    """Wait until the newest run of an active check has ended well, whoever has begun it.

        ActiveCheckSensor(task_id="is_fit", check="gpu-checks", since="{{ data_interval_start }}")

    ``state``: until it is ``complete``, has ``failed``, or has ``ended`` in whatever way. Runs that began before
    ``since`` do not count. With ``fail_fast`` a run that ends otherwise fails the task; without it the next is waited
    for. Returns the ``check``, its ``job``, ``state`` and ``failed_jobs``.
    """

    template_fields: Sequence[str] = ("check", "state", "since", "fail_fast", "kubernetes_conn_id", "namespace")
    ui_color = "#f7d9e3"

    def __init__(
        self,
        *,
        check: str,
        state: str = "complete",
        since: datetime | str | None = None,
        fail_fast: bool | str = False,
        kubernetes_conn_id: str = "kubernetes_default",
        namespace: str = "soperator",
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.check, self.state, self.since, self.fail_fast = check, state, since, fail_fast
        self.kubernetes_conn_id, self.namespace = kubernetes_conn_id, namespace
        self.deferrable = deferrable
        if not any(map(is_template, (check, state, since))):
            self._awaited()

    def execute(self, context: Context) -> Any:
        try:
            awaited = self._awaited()
        except ValueError as error:
            raise AirflowFailException(str(error)) from None
        if not self.deferrable:
            return super().execute(context)
        from airflow_provider_soperator.triggers.checks import ActiveCheckTrigger

        trigger = ActiveCheckTrigger(self.kubernetes_conn_id, self.namespace, awaited.write(), self.poke_interval)
        self.defer(trigger=trigger, method_name="execute_complete", timeout=timedelta(seconds=self.timeout))

    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:
        if "mistake" in event:
            raise AirflowFailException(event["mistake"])
        if "failed" in event or "lost" in event:
            raise AirflowException(event.get("failed") or event["lost"])
        return event["result"]

    def poke(self, context: Context) -> PokeReturnValue:
        from airflow_provider_soperator.triggers.rounds import FAILURES, is_final

        try:
            found = asyncio.run(self._look())
        except FAILURES as error:
            if not is_final(error):
                raise
            raise AirflowFailException(str(error)) from None
        except CheckHasFailed as error:
            raise AirflowException(str(error)) from None
        self.log.info("%s", found["words"])
        return PokeReturnValue(found.pop("is_reached"), found)

    async def _look(self) -> dict[str, Any]:
        from airflow_provider_soperator.triggers.check_runs import ways

        async with ways(self.kubernetes_conn_id, self.namespace, "") as opened:
            check = await opened.checks.find(self.check)
            return self._awaited().look(check, await opened.checks.runs(), datetime.now(timezone.utc))

    def _awaited(self) -> CheckAwaited:
        return CheckAwaited(
            check=self.check, state=self.state, since=moment_of("since", self.since), fail_fast=is_on(self.fail_fast)
        )
