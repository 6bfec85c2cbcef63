"""Wait for a job that another task, a person or a script has submitted, or for a queue to be long, short or empty."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from airflow_provider_soperator.errors import name_remedy
from airflow_provider_soperator.sensors.watch import WatchSensor
from airflow_provider_soperator.slurm.queue_filter import QueueFilter
from airflow_provider_soperator.slurm.states import JobBase, JobState
from airflow_provider_soperator.values import duration_of, listed
from airflow_provider_soperator.work.protocols import Watch


class SlurmJobSensor(WatchSensor):
    """Wait until a job has succeeded, or is in one of some states.

        SlurmJobSensor(task_id="preprocessed", job_id="{{ params.job }}")

    A job that ends differently fails the sensor, with the cause. Returns the report of ``SbatchOperator``.

    :param job_id: id of the job
    :param target_states: states of Slurm, such as ``["RUNNING"]``, that end the wait beside success
    :param slurm_conn_id: Airflow connection to Slurm
    """

    template_fields: Sequence[str] = ("slurm_conn_id", "job_id")
    ui_color = "#d9f2e6"

    def __init__(
        self, *, job_id: str, target_states: Sequence[str] = (), slurm_conn_id: str = "soperator_default", **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.target_states = tuple(listed(target_states))
        unknown = [state for state in self.target_states if JobState.parse(state).base is None]
        if unknown:
            remedy = name_remedy(unknown[0].upper(), [state.value for state in JobBase])
            raise ValueError(f"target_states: Slurm has no {', '.join(unknown)}: {remedy}")
        self.job_id = job_id
        self.slurm_conn_id = slurm_conn_id

    def watch(self) -> Watch[Any]:
        from airflow_provider_soperator.slurm.job_ids import JobId
        from airflow_provider_soperator.work.watches import JobWatch

        JobId.parse(self.job_id)
        return JobWatch(slurm_conn_id=self.slurm_conn_id, job_id=str(self.job_id), states=self.target_states)


class SlurmQueueSensor(WatchSensor):
    """Wait until the number of jobs that match a filter is within bounds, and has been so for a time.

        SlurmQueueSensor(task_id="drained", job_filter={"partition": "main"}, max_jobs=0)

    Returns their number, and the number in each state.

    :param job_filter: conditions of a ``QueueFilter``: states, partition, user, account, qos, name, reason, waited
    :param max_jobs: upper bound of their number
    :param min_jobs: lower bound of their number
    :param min_duration: time, or seconds, for which the number must be within bounds without a break
    :param slurm_conn_id: Airflow connection to Slurm
    """

    template_fields: Sequence[str] = ("slurm_conn_id", "job_filter")
    ui_color = "#d9f2e6"

    def __init__(
        self,
        *,
        job_filter: Mapping[str, Any] | None = None,
        max_jobs: int | None = None,
        min_jobs: int | None = None,
        min_duration: timedelta | float = 0,
        slurm_conn_id: str = "soperator_default",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if max_jobs is None and min_jobs is None:
            raise ValueError("max_jobs and min_jobs are both missing: give at least one")
        if min_duration and not self.deferrable and self.mode == "reschedule":
            raise ValueError("min_duration needs state between pokes, so not mode='reschedule': use deferrable=True")
        QueueFilter.of(job_filter or {})
        self.job_filter = dict(job_filter or {})
        self.max_jobs, self.min_jobs = max_jobs, min_jobs
        self.min_duration = duration_of("min_duration", min_duration)
        self.slurm_conn_id = slurm_conn_id

    def watch(self) -> Watch[Any]:
        from airflow_provider_soperator.work.watches import QueueWatch

        return QueueWatch(
            slurm_conn_id=self.slurm_conn_id,
            jobs=QueueFilter.of(self.job_filter),
            max_jobs=self.max_jobs,
            min_jobs=self.min_jobs,
            min_duration=self.min_duration,
        )
