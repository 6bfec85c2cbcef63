"""Wait for a job that another task, a person or a script has submitted, or for a queue to be long, short or empty."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseSensorOperator, PokeReturnValue, conf

from airflow_provider_soperator.client.queue import Lasting, QueueFilter, within
from airflow_provider_soperator.hooks.slurm import SlurmHook
from airflow_provider_soperator.slurm.job_failures import failure
from airflow_provider_soperator.slurm.job_ids import JobId
from airflow_provider_soperator.slurm.job_records import JobStatus
from airflow_provider_soperator.slurm.job_report import report_of, status_of
from airflow_provider_soperator.slurm.states import JobState

if TYPE_CHECKING:
    from airflow.sdk.definitions.context import Context


class SlurmJobSensor(BaseSensorOperator):
    """Wait until a job has succeeded, or is in one of some states.

        SlurmJobSensor(task_id="preprocessed", job_id="{{ params.job }}")

    A job that ends in another way fails the sensor, with what Slurm says of it. Returns what ``SbatchOperator`` does.
    """

    template_fields: Sequence[str] = ("slurm_conn_id", "job_id")
    ui_color = "#d9f2e6"

    def __init__(
        self,
        *,
        job_id: str,
        states: Sequence[str] = (),
        slurm_conn_id: str = SlurmHook.default_conn_name,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        unknown = [state for state in states if JobState.parse(state).base is None]
        if unknown:
            raise ValueError(f"states: Slurm has no {', '.join(unknown)}")
        self.job_id = job_id
        self.states = tuple(states)
        self.slurm_conn_id = slurm_conn_id
        self.deferrable = deferrable

    def execute(self, context: Context) -> Any:
        if not self.deferrable:
            return super().execute(context)
        from airflow_provider_soperator.triggers.jobs import SlurmJobTrigger

        trigger = SlurmJobTrigger(self.slurm_conn_id, str(self.job_id), list(self.states), self.poke_interval)
        self.defer(trigger=trigger, method_name="execute_complete", timeout=timedelta(seconds=self.timeout))

    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:
        return self._checked(status_of(event), event)

    def poke(self, context: Context) -> PokeReturnValue:
        with SlurmHook(self.slurm_conn_id).client() as slurm:
            status = slurm.status(JobId.parse(self.job_id))
        if not status.is_over and not self._is_wanted(status):
            return PokeReturnValue(False)
        return PokeReturnValue(True, self._checked(status, report_of(status)))

    def _checked(self, status: JobStatus, report: dict[str, Any]) -> dict[str, Any]:
        if not self._is_wanted(status) and (error := failure(status)):
            raise error
        return report

    def _is_wanted(self, status: JobStatus) -> bool:
        return status.state.base in {JobState.parse(state).base for state in self.states}


class SlurmQueueSensor(BaseSensorOperator):
    """Wait until the jobs that fit are at most, or at least, so many, and have been so for a while.

        SlurmQueueSensor(task_id="drained", jobs={"partition": "main"}, at_most=0)

    ``jobs`` has the conditions of a ``QueueFilter``: states, partition, user, account, qos, name, reason, waited.
    Returns their number and how many are in which state.
    """

    template_fields: Sequence[str] = ("slurm_conn_id", "jobs")
    ui_color = "#d9f2e6"

    def __init__(
        self,
        *,
        jobs: Mapping[str, Any] | None = None,
        at_most: int | None = None,
        at_least: int | None = None,
        lasting: timedelta = timedelta(0),
        slurm_conn_id: str = SlurmHook.default_conn_name,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if at_most is None and at_least is None:
            raise ValueError("say how many jobs there are to be: at_most, at_least, or both")
        if lasting and not deferrable and self.mode == "reschedule":
            raise ValueError("lasting: in mode='reschedule' no look knows of the one before; use deferrable=True")
        QueueFilter(**jobs or {})
        self.jobs = dict(jobs or {})
        self.at_most, self.at_least = at_most, at_least
        self.lasting = lasting
        self.slurm_conn_id = slurm_conn_id
        self.deferrable = deferrable
        self._episode = Lasting(lasting)

    def execute(self, context: Context) -> Any:
        if not self.deferrable:
            return super().execute(context)
        from airflow_provider_soperator.triggers.jobs import SlurmQueueTrigger

        waited = self.jobs.get("waited")
        trigger = SlurmQueueTrigger(
            self.slurm_conn_id,
            self.jobs | {"waited": waited.total_seconds() if waited else None},
            self.at_most,
            self.at_least,
            self.lasting.total_seconds(),
            self.poke_interval,
        )
        self.defer(trigger=trigger, method_name="execute_complete", timeout=timedelta(seconds=self.timeout))

    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:
        return event

    def poke(self, context: Context) -> PokeReturnValue:
        wanted = QueueFilter(**self.jobs)
        with SlurmHook(self.slurm_conn_id).client() as slurm:
            jobs = slurm.ask(wanted.request())
        now = datetime.now(timezone.utc)
        found = wanted.tally(jobs, now)
        fits = within(found["count"], self.at_most, self.at_least)
        if not self._episode.look(fits, now):
            return PokeReturnValue(False)
        return PokeReturnValue(True, found)
