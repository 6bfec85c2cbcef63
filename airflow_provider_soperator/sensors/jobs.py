"""Wait for a job that another task, a person or a script has submitted, or for a queue to be long, short or empty."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow_provider_soperator.client.queue import QueueFilter
from airflow_provider_soperator.sensors.watch import WatchSensor
from airflow_provider_soperator.slurm.states import JobState

if TYPE_CHECKING:
    from airflow_provider_soperator.work.watches import JobWatch, QueueWatch


class SlurmJobSensor(WatchSensor):
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
        slurm_conn_id: str = "soperator_default",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        unknown = [state for state in states if JobState.parse(state).base is None]
        if unknown:
            raise ValueError(f"states: Slurm has no {', '.join(unknown)}")
        self.job_id = job_id
        self.states = tuple(states)
        self.slurm_conn_id = slurm_conn_id

    def watch(self) -> JobWatch:
        from airflow_provider_soperator.slurm.job_ids import JobId
        from airflow_provider_soperator.work.watches import JobWatch

        JobId.parse(self.job_id)
        return JobWatch(
            slurm_conn_id=self.slurm_conn_id,
            job_id=str(self.job_id),
            states=self.states,
            poll_interval=self.poke_interval,
        )

    def result(self, seen: Any) -> Any:
        from airflow_provider_soperator.slurm.job_failures import failure
        from airflow_provider_soperator.slurm.job_report import status_of

        status = status_of(seen)
        is_wanted = status.state.base in {JobState.parse(state).base for state in self.states}
        if not is_wanted and (error := failure(status)):
            raise error
        return seen


class SlurmQueueSensor(WatchSensor):
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
        slurm_conn_id: str = "soperator_default",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if at_most is None and at_least is None:
            raise ValueError("say how many jobs there are to be: at_most, at_least, or both")
        if lasting and not self.deferrable and self.mode == "reschedule":
            raise ValueError("lasting: in mode='reschedule' no look knows of the one before; use deferrable=True")
        QueueFilter(**jobs or {})
        self.jobs = dict(jobs or {})
        self.at_most, self.at_least = at_most, at_least
        self.lasting = lasting
        self.slurm_conn_id = slurm_conn_id

    def watch(self) -> QueueWatch:
        from airflow_provider_soperator.work.watches import QueueWatch

        return QueueWatch(
            slurm_conn_id=self.slurm_conn_id,
            jobs=QueueFilter(**self.jobs),
            at_most=self.at_most,
            at_least=self.at_least,
            lasting=self.lasting,
            poll_interval=self.poke_interval,
        )
