"""A Slurm job as an Airflow task."""

from __future__ import annotations

import dataclasses
import inspect
import re
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator, conf
from airflow.sdk.exceptions import AirflowFailException, AirflowTaskTimeout

from airflow_provider_soperator.slurm.checks import InvalidJob
from airflow_provider_soperator.slurm.job import BatchJob

if TYPE_CHECKING:
    from airflow.sdk.definitions.context import Context

    from airflow_provider_soperator.operators.outcome import Policy
    from airflow_provider_soperator.operators.waiting import Waiting
    from airflow_provider_soperator.triggers.sbatch import SbatchTrigger

#: Fields of a job that are parameters of the operator under other names.
_OWN = {"script", "script_file", "extra_args"}
_OPTIONS = tuple(field.name for field in dataclasses.fields(BatchJob) if field.name not in _OWN)
#: What people would have to quote in the name of a file.
_ODD = re.compile(r"[^A-Za-z0-9_.-]")
#: A file whose text is a template; it lies beside the DAG.
_TEMPLATES = (".sh", ".sbatch")
#: The clocks of Airflow and Slurm may differ by so much.
_CLOCKS = timedelta(hours=1)


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
    template_ext: Sequence[str] = _TEMPLATES
    template_fields_renderers = {"script": "bash", "job": "json"}  # noqa: RUF012 - as Airflow has it
    ui_color = "#d9f2e6"

    def __init__(
        self,
        *,
        script: str | None = None,
        sbatch_args: Sequence[str] = (),
        slurm_conn_id: str = "soperator_default",
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        poll_interval: float = 10.0,
        stream_logs: bool = True,
        on_finish: Policy | None = None,
        cancel_on_kill: bool = True,
        **kwargs: Any,
    ) -> None:
        options = {name: kwargs.pop(name) for name in _OPTIONS if name in kwargs}
        super().__init__(**kwargs)
        if sbatch_args:
            options["extra_args"] = list(sbatch_args)
        self.script = _text(script)
        self.job: dict[str, Any] = _no_file(options)
        self.slurm_conn_id = slurm_conn_id
        self.deferrable = deferrable
        self.poll_interval = poll_interval
        self.stream_logs = stream_logs
        self.on_finish = on_finish or {}
        self.cancel_on_kill = cancel_on_kill
        self._waiting: Waiting | None = None
        if self.on_finish:
            from airflow_provider_soperator.operators.outcome import check

            check(self.on_finish)

    # Airflow reads from the signature what default_args and expand may give.
    __init__.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            *list(inspect.signature(__init__).parameters.values())[:-1],
            *(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None) for name in _OPTIONS),
            inspect.Parameter("kwargs", inspect.Parameter.VAR_KEYWORD),
        ]
    )

    def prepare_template(self) -> None:
        """By now the text of a file has taken the place of its name."""
        self.script = _text(self.script)

    def execute(self, context: Context) -> Any:
        try:
            trigger = self._trigger(context)
        except InvalidJob as error:
            raise AirflowFailException(str(error)) from None
        if self.deferrable:
            self.defer(trigger=trigger, method_name="execute_complete")
        from airflow_provider_soperator.operators.waiting import Waiting

        self._waiting = Waiting(trigger)
        return self.execute_complete(context, self._waiting.event())

    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:
        """The job is over, or could not be run."""
        if "timed_out" in event:
            raise AirflowTaskTimeout(f"{event['timed_out']} did not end within {self.execution_timeout}: cancelled")
        if "error" in event:
            raise (AirflowFailException if event["is_final"] else RuntimeError)(event["error"])
        from airflow_provider_soperator.operators.outcome import settle
        from airflow_provider_soperator.slurm.report import read

        settle(read(event["report"]), self.on_finish)
        return event["report"]

    def on_kill(self) -> None:
        """The worker is told to end the task: the job goes with it."""
        if self._waiting:
            self._waiting.kill()

    def _trigger(self, context: Context) -> SbatchTrigger:
        # Here, and not above: whoever parses the DAG does not pay for what runs it.
        from airflow_provider_soperator.slurm.fields import plain
        from airflow_provider_soperator.triggers.sbatch import SbatchTrigger

        ti, begun = context["ti"], context["dag_run"].start_date
        replaced, keys = self._keys(ti)
        timeout = self.execution_timeout
        return SbatchTrigger(
            slurm_conn_id=self.slurm_conn_id,
            job=plain(self._job(ti)),
            keys=keys,
            replaced=replaced if self.cancel_on_kill else [],
            since=(begun - _CLOCKS).isoformat() if begun else None,
            poll_interval=self.poll_interval,
            stream_logs=self.stream_logs,
            deadline=time.time() + timeout.total_seconds() if timeout else None,
            cancel_on_kill=self.cancel_on_kill,
        )

    def _keys(self, ti: Any) -> tuple[list[str], list[str]]:
        """Those of the tries before the task was last cleared, and those since; the last is this try's."""
        from airflow_provider_soperator.slurm.keys import SubmissionKey

        index = -1 if ti.map_index is None else ti.map_index
        keys = [
            SubmissionKey.derive(ti.dag_id, ti.run_id, ti.task_id, index, number).text
            for number in range(1, ti.try_number + 1)
        ]
        # When a task is cleared, Airflow grants it as many tries as at first. They may be fewer by now in the DAG.
        before = min(max(0, ti.max_tries - (self.retries or 0)), ti.try_number - 1)
        return keys[:before], keys[before:]

    def _job(self, ti: Any) -> BatchJob:
        from airflow_provider_soperator.slurm import directives
        from airflow_provider_soperator.slurm.keys import readable_name

        job = BatchJob(script=self.script, **{name: value for name, value in self.job.items() if value is not None})
        job.check()
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


def _text(script: Any) -> Any:
    """A script that is no name of a file, kept from being taken for one; a script has more than one line."""
    return _no_file(script) if isinstance(script, str) and "\n" in script else script


def _no_file(value: Any) -> Any:
    """Keep Airflow from taking a text for the name of a template, as it does with all that end like one.

    Scripts whose last line calls another, and paths on the cluster, end so. What is added is a comment of Jinja's.
    """
    if isinstance(value, str):
        return value + "{# #}" if value.endswith(_TEMPLATES) else value
    if type(value) in (list, tuple):
        return type(value)(map(_no_file, value))
    if type(value) is dict:
        return {name: _no_file(one) for name, one in value.items()}
    return value
