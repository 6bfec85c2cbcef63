"""How a task becomes a job: what it is called, under which keys it is found again, and when its time is over.

A worker does it, or, for tasks that need none, the triggerer.
"""

from __future__ import annotations

import re
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_provider_soperator.slurm import directives
from airflow_provider_soperator.slurm.job import BatchJob, fields_of, job_of
from airflow_provider_soperator.slurm.job_description import InvalidJob
from airflow_provider_soperator.slurm.job_ids import SubmissionKey, readable_name
from airflow_provider_soperator.triggers.base import SlurmTrigger
from airflow_provider_soperator.triggers.sbatch import SbatchTrigger

if TYPE_CHECKING:
    from airflow_provider_soperator.pipelines.member import Member

#: What people would have to quote in the name of a file.
_ODD = re.compile(r"[^A-Za-z0-9_.-]")
#: The clocks of Airflow and Slurm may differ by so much.
_CLOCKS = timedelta(hours=1)


def trigger_of(
    ti: Any,
    script: str | None,
    job: Mapping[str, Any],
    *,
    keys: Sequence[SubmissionKey],
    replaced: Sequence[SubmissionKey],
    begun: datetime | None,
    timeout: timedelta | None = None,
    cancel_on_kill: bool = True,
    **others: Any,
) -> SbatchTrigger:
    """What submits the job of this try and waits for it; ``InvalidJob`` if Slurm could not be asked for it.

    ``begun`` is when the run of the DAG began.
    """
    return SbatchTrigger(
        job=fields_of(job_for(ti, script, job)),
        keys=[key.text for key in keys],
        replaced=[key.text for key in replaced] if cancel_on_kill else [],
        since=(begun - _CLOCKS).isoformat() if begun else None,
        deadline=time.time() + timeout.total_seconds() if timeout else None,
        cancel_on_kill=cancel_on_kill,
        **others,
    )


def job_for(ti: Any, script: str | None, job: Mapping[str, Any]) -> BatchJob:
    """The job of a task, called so that people see whose it is; ``InvalidJob`` if Slurm could not be asked for it."""
    return _named(_job(script, job), ti)


def key(ti: Any, number: int | None = None) -> SubmissionKey:
    """That of a task's try, or of an earlier one."""
    index = -1 if ti.map_index is None else ti.map_index
    return SubmissionKey.derive(ti.dag_id, ti.run_id, ti.task_id, index, number or ti.try_number)


def keys_of(ti: Any, retries: int, member: Member | None = None) -> tuple[list[SubmissionKey], list[SubmissionKey]]:
    """Those of the tries before the task was last cleared, and those since; the last is this try's.

    ``retries`` is what the task is granted each time that it is cleared, ``member`` its place in a pipeline.
    """
    keys = [key(ti, number) for number in range(1, ti.try_number + 1)]
    # When a task is cleared, Airflow grants it as many tries as at first. They may be fewer by now in the DAG.
    before = min(max(0, ti.max_tries - retries), ti.try_number - 1)
    replaced, own = keys[:before], keys[before:]
    return member.keys(replaced, own) if member else (replaced, own)


def _job(script: str | None, fields: Mapping[str, Any]) -> BatchJob:
    job = job_of({"script": script, **{name: value for name, value in fields.items() if value is not None}})
    job.check()
    return job


def _named(job: BatchJob, ti: Any) -> BatchJob:
    # What the script says itself is not to be covered up by what is made up here.
    said = directives.read(job.script)[0].fields if job.script else {}
    run = f"{readable_name(ti.dag_id, ti.task_id, ti.map_index)}.{ti.run_id}"
    is_array = job.array is not None or "array" in said
    file = _ODD.sub("_", run) + ("-%A_%a.out" if is_array else "-%j.out")
    return job.replace(
        name=job.name or said.get("name") or run,
        output=job.output or said.get("output") or file,
        error=job.error or said.get("error"),
    )


class SbatchStartTrigger(SlurmTrigger):
    """Starts a task without a worker. Airflow renders ``script`` and ``job`` before it runs.

    Only for the first try: the triggerer is not told how many tries a task has had since it was cleared, and so which
    jobs of earlier ones it may go on with. Later tries are handed to a worker.
    """

    def __init__(
        self,
        slurm_conn_id: str,
        script: str | None,
        job: dict[str, Any],
        poll_interval: float,
        stream_logs: bool,
        cancel_on_kill: bool,
        end_from_trigger: bool,
    ) -> None:
        super().__init__()
        self.slurm_conn_id = slurm_conn_id
        self.script = script
        self.job = job
        self.poll_interval = poll_interval
        self.stream_logs = stream_logs
        self.cancel_on_kill = cancel_on_kill
        self.end_from_trigger = end_from_trigger
        self._started: SbatchTrigger | None = None

    # Rendered here, as nobody else has; what a worker hands over is not to be rendered again.
    render_template_fields = BaseTrigger.render_template_fields

    async def run(self) -> AsyncIterator[TriggerEvent]:
        if self._try_number > 1:
            yield TriggerEvent({"start": True})  # type: ignore[no-untyped-call]
            return
        try:
            started = self._start()
        except InvalidJob as error:
            yield TriggerEvent({"error": str(error), "is_final": True})  # type: ignore[no-untyped-call]
            return
        async for event in started.run():
            yield event

    async def on_kill(self) -> None:
        if self._try_number == 1:
            await self._start().on_kill()

    @property
    def _try_number(self) -> int:
        ti: Any = self.task_instance
        return int(ti.try_number)

    def _start(self) -> SbatchTrigger:
        if self._started is None:
            ti: Any = self.task_instance
            replaced, keys = keys_of(ti, retries=ti.max_tries)
            self._started = trigger_of(
                ti,
                keys=keys,
                replaced=replaced,
                begun=ti.get_template_context()["dag_run"].start_date,
                **self.serialize()[1],
            )
            self._started.task_instance = ti
        return self._started
