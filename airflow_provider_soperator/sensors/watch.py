"""Sensors whose watch is a value: they look in a worker, poke by poke, or leave it to the triggerer."""

from __future__ import annotations

from abc import abstractmethod
from datetime import timedelta
from typing import Any

from airflow.sdk import BaseSensorOperator, Context, PokeReturnValue, conf
from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_soperator.values import check_arguments
from airflow_provider_soperator.work.protocols import (
    End,
    EndsAnywhere,
    Look,
    Watch,
    WorkFailed,
    exception_of,
    result_of,
)


class WatchSensor(EndsAnywhere, BaseSensorOperator):
    """Waits until its watch is reached.

    A poll without an answer is logged and repeated, poking or deferred. What waiting cannot mend fails the sensor for
    good.

    :param deferrable: wait in the triggerer, and not in an Airflow worker
    """

    ui_color = "#fde8c8"

    def __init__(
        self, *, deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False), **kwargs: Any
    ) -> None:
        check_arguments(type(self), kwargs.get("task_id"), kwargs)
        super().__init__(**kwargs)
        self.deferrable = deferrable
        self._watch: Watch[Any] | None = None
        self._told: tuple[str, ...] = ()

    @abstractmethod
    def watch(self) -> Watch[Any]:
        """The watch, of rendered fields but for its interval; ``ValueError`` for what can never be reached."""

    def execute(self, context: Context) -> Any:
        self._watch = self._checked()
        if not self.deferrable:
            return super().execute(context)
        from airflow_provider_soperator.triggers.work import WatchTrigger

        trigger = WatchTrigger(self._watch.write(), **self.endings(context.get("ti")))
        self.defer(trigger=trigger, method_name="execute_complete", timeout=timedelta(seconds=self.timeout))

    def needs_a_worker_after(self, end: End) -> bool:
        return type(self).execute_complete is not WatchSensor.execute_complete or super().needs_a_worker_after(end)

    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:
        """Go on after the watch is reached, or cannot be reached any more."""
        return result_of(event)

    def poke(self, context: Context) -> PokeReturnValue:
        from airflow_provider_soperator.client.sync import LOOP
        from airflow_provider_soperator.work.polling import FAILURES, event_of, may_pass

        watch = self._watch = self._watch or self._checked()
        try:
            look = LOOP.run(_look(watch))
        except (WorkFailed, *FAILURES) as error:
            if may_pass(error):
                self.log.warning("No answer at present, asking again: %s", error)
                return PokeReturnValue(False)
            raise exception_of(event_of(error)) from error
        self._told = look.tell(self.log, self._told)
        return PokeReturnValue(look.is_reached, look.result)

    def _checked(self) -> Watch[Any]:
        try:
            watch = self.watch()
        except ValueError as error:
            raise AirflowFailException(str(error)) from None
        watch.poll_interval = self.poke_interval
        return watch


async def _look(watch: Watch[Any]) -> Look:
    async with watch.open() as client:
        return await watch.look(client, 0)
