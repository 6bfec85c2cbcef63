"""A Slurm job as an Airflow task."""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import re
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator, conf
from airflow.sdk.exceptions import AirflowFailException, AirflowTaskTimeout

from airflow_provider_soperator.clients.run import JobRun
from airflow_provider_soperator.clients.watcher import POLL_INTERVAL
from airflow_provider_soperator.hooks.slurm import SlurmHook
from airflow_provider_soperator.operators import outcome
from airflow_provider_soperator.slurm.fields import plain
from airflow_provider_soperator.slurm.job import BatchJob
from airflow_provider_soperator.slurm.keys import SubmissionKey, readable_name
from airflow_provider_soperator.slurm.report import describe, read
from airflow_provider_soperator.triggers.following import follow
from airflow_provider_soperator.triggers.sbatch import SbatchTrigger

if TYPE_CHECKING:
    from airflow.sdk.definitions.context import Context

#: Fields of a job that are parameters of the operator under other names.
_OWN = {"script", "script_file", "extra_args"}
#: What people would have to quote in the name of a file.
_ODD = re.compile(r"[^A-Za-z0-9_.-]")
_OPTIONS = tuple(field.name for field in dataclasses.fields(BatchJob) if field.name not in _OWN)


class SbatchOperator(BaseOperator):
    """Run a batch job, wait for its end, and show what it prints.

        SbatchOperator(task_id="train", script="train.sbatch", partition="main", nodes=2, gpus_per_node=8)

    The job is one of ``script`` (its text, or a file beside the DAG that ends in ``.sh`` or ``.sbatch``; both are
    templates), ``command`` and ``remote_script`` (a path on the cluster). All fields of ``BatchJob`` are parameters:
    ``nodes``, ``gpus_per_node``, ``time_limit``, ``array``, ``env``, ``container_image`` and so on; they are templates,
    too, may come from ``default_args``, and win over ``#SBATCH`` lines. ``sbatch_args`` takes any others as words.

    ``on_finish`` says what an end of the job means for the task: by Slurm's state (``"PREEMPTED"``), ``"LOST"``, or an
    exit code; one of ``"retry"``, ``"fail"`` (without another try), ``"skip"`` and ``"succeed"``.
    """

    template_fields: Sequence[str] = ("slurm_conn_id", "script", "job")
    template_ext: Sequence[str] = (".sh", ".sbatch")
    template_fields_renderers = {"script": "bash", "job": "json"}  # noqa: RUF012 - as Airflow has it
    ui_color = "#d9f2e6"

    def __init__(
        self,
        *,
        script: str | None = None,
        sbatch_args: Sequence[str] = (),
        slurm_conn_id: str = SlurmHook.default_conn_name,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        poll_interval: float = POLL_INTERVAL,
        stream_logs: bool = True,
        on_finish: outcome.Policy | None = None,
        cancel_on_kill: bool = True,
        **kwargs: Any,
    ) -> None:
        self.job: dict[str, Any] = {name: kwargs.pop(name) for name in _OPTIONS if name in kwargs}
        super().__init__(**kwargs)
        self.script = script
        if sbatch_args:
            self.job["extra_args"] = list(sbatch_args)
        self.slurm_conn_id = slurm_conn_id
        self.deferrable = deferrable
        self.poll_interval = poll_interval
        self.stream_logs = stream_logs
        self.on_finish = on_finish or {}
        self.cancel_on_kill = cancel_on_kill
        outcome.check(self.on_finish)
        self._run: JobRun | None = None

    # Airflow reads from the signature what default_args and expand may give.
    __init__.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            *list(inspect.signature(__init__).parameters.values())[:-1],
            *(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None) for name in _OPTIONS),
            inspect.Parameter("kwargs", inspect.Parameter.VAR_KEYWORD),
        ]
    )

    def execute(self, context: Context) -> Any:
        trigger = self._trigger(context)
        if self.deferrable:
            self.defer(trigger=trigger, method_name="execute_complete")
        return self._finish(asyncio.run(self._wait(trigger)))

    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:
        """The job is over, or could not be run."""
        if event.get("timed_out"):
            raise AirflowTaskTimeout(f"the job did not end within {self.execution_timeout}, and was cancelled")
        if "error" in event:
            raise (
                AirflowFailException(event["error"]) if event["kind"] == "InvalidJob" else RuntimeError(event["error"])
            )
        return self._finish(event["report"])

    def _finish(self, report: dict[str, Any]) -> dict[str, Any]:
        outcome.settle(read(report), self.on_finish)
        return report

    async def _wait(self, trigger: SbatchTrigger) -> dict[str, Any]:
        async with trigger.job_run() as self._run:
            return describe(await follow(self._run, self.log))

    def on_kill(self) -> None:
        """The worker is told to end the task: the job goes with it."""
        job = self._run.submitted.id if self._run and self._run.submitted else None
        if job and self.cancel_on_kill:
            with SlurmHook(self.slurm_conn_id).client() as slurm:
                slurm.cancel(job)

    def _trigger(self, context: Context) -> SbatchTrigger:
        ti, dag_run = context["ti"], context["dag_run"]
        index = -1 if ti.map_index is None else ti.map_index
        tries = range(max(1, ti.max_tries - (self.retries or 0) + 1), ti.try_number + 1)
        keys = [SubmissionKey.derive(ti.dag_id, ti.run_id, ti.task_id, index, number) for number in tries]
        timeout = self.execution_timeout
        return SbatchTrigger(
            slurm_conn_id=self.slurm_conn_id,
            job=plain(self._job(ti)),
            keys=[key.text for key in keys],
            since=dag_run.start_date.isoformat() if dag_run.start_date else None,
            poll_interval=self.poll_interval,
            stream_logs=self.stream_logs,
            deadline=time.time() + timeout.total_seconds() if timeout else None,
            cancel_on_kill=self.cancel_on_kill,
        )

    def _job(self, ti: Any) -> BatchJob:
        job = BatchJob(script=self.script, **{name: value for name, value in self.job.items() if value is not None})
        run = f"{readable_name(ti.dag_id, ti.task_id, ti.map_index)}.{ti.run_id}"
        file = _ODD.sub("_", run) + ("-%A_%a.out" if job.array is not None else "-%j.out")
        job = job.replace(name=job.name or run, output=job.output or file)
        job.check()
        return job
