"""A Slurm job as an Airflow task."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from airflow.sdk import BaseOperator, Context, XComArg, conf
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException, AirflowTaskTimeout

from airflow_provider_soperator.links import known_links
from airflow_provider_soperator.operators.work import WaitingOperator, task_name
from airflow_provider_soperator.pipelines.group import pipeline_of
from airflow_provider_soperator.slurm import directives, job_description, job_failures
from airflow_provider_soperator.slurm.job import BatchJob, fields_of, job_of, literal_problems
from airflow_provider_soperator.slurm.job_description import InvalidJob
from airflow_provider_soperator.slurm.job_failures import Policy, Retry, action_after, check_policy, failure, retry
from airflow_provider_soperator.slurm.job_records import JobStatus
from airflow_provider_soperator.slurm.job_reports import check_result, status_of
from airflow_provider_soperator.slurm.submission_keys import SubmissionKey, submitted_since
from airflow_provider_soperator.values import (
    COMMENT,
    SCRIPTS,
    check_interval,
    has_template,
    needs_a_worker,
    no_file,
    path_pairs,
    script_text,
    shell_for_jinja,
)
from airflow_provider_soperator.work.protocols import End, result_of

if TYPE_CHECKING:
    from airflow_provider_soperator.operators.files import JobFiles
    from airflow_provider_soperator.pipelines.member import Member
    from airflow_provider_soperator.triggers.sbatch import SbatchTrigger

__all__ = ["SbatchOperator", "retry"]

#: Fields of a job that are parameters of the operator under other names.
_OWN = {"script", "extra_args", *job_description.INTERNAL}
#: What an Airflow worker calls of a class before the job is submitted.
_AT_THE_START = ("execute", "prepare", "render_template_fields", "_make", "_trigger")
_OPTIONS = tuple(field.name for field in dataclasses.fields(BatchJob) if field.name not in _OWN)


class SbatchOperator(WaitingOperator):
    """Run a batch job, stream its output to the task log, and return a report.

        SbatchOperator(task_id="train", script="train.sbatch", partition="main", nodes=2, gpus_per_node=8)

    The job is one of ``script``, ``command`` and ``remote_script``. Options of sbatch are parameters under their own
    names, except ``time_limit`` (``--time``) and ``name`` (``--job-name``). They are templates, may come from
    ``default_args``, and override ``#SBATCH`` lines.

    :param script: text of the script, or a file beside the DAG that ends in ``.sh`` or ``.sbatch``; both are templates
    :param sbatch_args: further words for sbatch's command line, for options that are no parameters
    :param slurm_conn_id: Airflow connection to Slurm, of type ``soperator``
    :param deferrable: wait in the triggerer, and not in an Airflow worker
    :param poll_interval: seconds between two polls of the job's state
    :param stream_logs: copy the job's output to the task log while it runs
    :param on_finish: what an end of the job means for the task, by Slurm's state (``"PREEMPTED"``), ``"LOST"`` or an
        exit code: ``"retry"``, ``"fail"`` (without a retry), ``"skip"`` or ``"succeed"``; or ``retry(mem="x2")``, a
        retry with a changed job
    :param cancel_on_kill: cancel the job when the task is stopped
    :param upload: files and folders to copy to the cluster before the job, ``{local: remote}``; local paths are
        relative to the DAG's file, remote ones to the job's working directory
    :param download: files and folders to copy back after the job, ``{remote: local}``
    :param download_on: ``"success"``; or ``"always"``, to copy also what exists after a failure of the job
    :param result: return what the job has computed, and not its report, which is the XCom ``job`` then: ``"json"``, the
        last line of its output as JSON; ``"last_line"``; or ``"file:PATH"``, a file, as JSON if its name ends in
        ``.json``. Of an array a list
    :param start_from_trigger: start the task in the triggerer, if nothing in it needs an Airflow worker
    :param end_from_trigger: end a task that has waited in the triggerer there, if nothing in it needs an Airflow worker
    :param command: a line of shell, or the words of one command
    :param remote_script: path of a script on the cluster
    :param args: arguments of the script
    :param gpu_type: type of GPU that ``gpus`` and ``gpus_per_node`` mean, such as ``"h100"``
    :param array_limit: number of elements of the array that may run at a time (``%`` of ``--array``)
    :param env: environment variables of the job
    :param het: components of a heterogeneous job, as dicts of these parameters
    """

    template_fields: Sequence[str] = ("slurm_conn_id", "script", "job", "upload", "download", "result")
    template_ext: Sequence[str] = SCRIPTS
    template_fields_renderers = {"script": "bash", **dict.fromkeys(("job", "upload", "download"), "json")}  # noqa: RUF012
    operator_extra_links = property(known_links)
    #: A stage wherever it stands in a pipeline.
    is_slurm_job: ClassVar[bool] = True
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
        upload: Mapping[str, str] | None = None,
        download: Mapping[str, str] | None = None,
        download_on: Literal["success", "always"] = "success",
        result: str | None = None,
        start_from_trigger: bool = False,
        end_from_trigger: bool = True,
        **kwargs: Any,
    ) -> None:
        job = {name: kwargs.pop(name) for name in _OPTIONS if name in kwargs}
        super().__init__(**kwargs)
        if isinstance(sbatch_args, str):
            raise ValueError(f"sbatch_args must be a list of words, got {sbatch_args!r}")
        if sbatch_args:
            job["extra_args"] = sbatch_args if has_template(sbatch_args) else list(sbatch_args)
        if isinstance(job.get("array"), range):
            job["array"] = list(job["array"])
        self.script = script_text(script)
        self.job: dict[str, Any] = no_file(job)
        self.slurm_conn_id = slurm_conn_id
        self.deferrable = deferrable or start_from_trigger
        check_interval("poll_interval", poll_interval)
        self.poll_interval = poll_interval
        self.stream_logs = stream_logs
        self.on_finish = on_finish or {}
        self.cancel_on_kill = cancel_on_kill
        self.upload = path_pairs("upload", upload)
        self.download = path_pairs("download", download)
        if download_on not in ("success", "always"):
            raise ValueError(f"download_on must be 'success' or 'always', got {download_on!r}")
        self.download_on = download_on
        check_result(result)
        self.result = no_file(result)
        # Under its own name Airflow would refuse the DAG wherever a plugin listens, as its example does.
        self._ends_from_trigger = end_from_trigger
        self._starts_from_trigger = start_from_trigger
        self._member: Member | None = None
        #: By their keys, once the task runs.
        self.shown_links: dict[str, str] | None = None
        check_policy(self.on_finish)

    @classmethod
    def remedy_for(cls, name: str) -> str:
        """The parameter for an option of sbatch, or what to do without one."""
        long, _ = directives.resolve_long(name.replace("_", "-")) or ("", "")
        if option := job_description.BY_LONG.get(long):
            return f"did you mean {option.field!r}?"
        if long in job_description.REFUSED:
            return f"--{long} cannot be used: {job_description.REFUSED[long]}"
        if 0 < len(begin := [field for field in _OPTIONS if field.startswith(f"{name}_")]) < 3:
            return f"did you mean {' or '.join(map(repr, begin))}?"
        return f"pass --{long} in sbatch_args" if long else ""

    # Airflow reads from the signature what default_args and expand may give.
    __init__.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            *list(inspect.signature(__init__).parameters.values())[:-1],
            *(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None) for name in _OPTIONS),
            inspect.Parameter("kwargs", inspect.Parameter.VAR_KEYWORD),
        ]
    )

    def render_template(self, *args: Any, **kwargs: Any) -> Any:
        """To Jinja what ``no_file`` adds may be no comment: a DAG can choose other marks."""
        rendered = super().render_template(*args, **kwargs)
        return rendered.removesuffix(COMMENT) if type(rendered) is str else rendered

    def prepare_template(self) -> None:
        """By now the text of a file has taken the place of its name."""
        self._check_literals()
        self.script = script_text(self.script)
        # Airflow asks whenever it has parsed the DAG.
        if self._starts_from_trigger and not self._needs_a_worker_at_the_start():
            from airflow.triggers.base import StartTriggerArgs

            self.start_from_trigger = True
            self.start_trigger_args = StartTriggerArgs(
                trigger_cls="airflow_provider_soperator.triggers.sbatch.SbatchStartTrigger",
                trigger_kwargs={**self._asked(), **self.endings()},
                next_method="execute_complete",
            )

    def _check_literals(self) -> None:
        """Refuse, when the DAG is parsed, what no template hides."""
        said = self._said()
        hidden = {name for name, value in said.items() if has_template(value)}
        literal = {name: value for name, value in said.items() if name not in hidden and value is not None}
        found = literal_problems(literal, hidden) or job_failures.retry_problems(self.on_finish, literal, hidden)
        script = said["script"]
        if "script" not in hidden and isinstance(script, str) and not script.startswith("#!") and "\n" not in script:
            why = "a script's text begins with #!, its file ends in .sh or .sbatch"
            if script.endswith(SCRIPTS):
                why = self._why_not_read(script)
            found = [f"script={script!r}: {why}; for a path on the cluster use remote_script"]
        found += shell_for_jinja(said, self.get_template_env)
        if found:
            raise InvalidJob([f"{self.task_id}: {problem}" for problem in found])
        if self.result and hidden.isdisjoint(("array", "extra_args")):  # they would win over the script's lines
            check_result(self.result, job_of({**literal, "output": said.get("output")}))

    def _why_not_read(self, script: str) -> str:
        """Airflow only logs why it has left the name of a file."""
        try:
            self.get_template_env().get_template(script)
        except UnicodeError as error:
            return f"it is no text in UTF-8 ({error}): save it as such"
        except OSError:
            pass
        return f"there is no such file beside the DAG ({self.dag.folder})"

    def _said(self) -> dict[str, Any]:
        """The job as far as it is known when the DAG is parsed."""
        return {"script": self.script, **self.job}

    def prepare(self, context: Context, key: SubmissionKey, *, uploads: bool) -> BatchJob:
        """The job for another task to submit under this key, with its files on the cluster if it ``uploads``."""
        from airflow_provider_soperator.hooks.slurm import SlurmHook
        from airflow_provider_soperator.work.sbatch import job_for

        self._make(context, key)
        job = job_for(context["ti"], self.script, self.job)
        if uploads and (self.upload or self.download):
            self._files(context).upload(self.upload, job, downloads=self.download)
        if uploads and job.remote_script is not None:
            with SlurmHook(self.slurm_conn_id).client() as slurm:
                job = slurm.patient(self.log).with_lines(job)
        check_result(self.result, job)
        return job

    def execute(self, context: Context) -> Any:
        if self._starts_from_trigger:
            why = self._needs_a_worker_at_the_start() or "it is mapped, or this is not its first try"
            self.log.info("An Airflow worker starts this task, and not the triggerer: %s", why)
        self._member = self._as_member(context)
        if self._member:
            self._member.check()
        try:
            trigger = self._trigger(context)
        except InvalidJob as error:
            raise AirflowFailException(str(error)) from None
        # A job that was submitted ahead has its files, and may have changed them by now.
        if (self.upload or self.download) and not (self._member and self._member.is_ahead(trigger.keys)):
            self._files(context).upload(
                self.upload,
                job_of(trigger.job),
                earlier=[SubmissionKey(key) for key in trigger.keys[:-1]],
                since=submitted_since(context["dag_run"].start_date),
                downloads=self.download,
            )
        # The same that the trigger fills, also if this does not end well.
        self.shown_links = trigger.links
        return self.wait_for(trigger, context)

    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:
        """The job is over, or could not be run, or is to be started by a worker after all."""
        if "start" in event:
            from airflow_provider_soperator.work.sbatch import forget_published

            forget_published(context["ti"])
            return self.execute(context)
        member = self._member or self._as_member(context)
        with member.ending() if member else nullcontext():
            return self._settled(context, event)

    def _settled(self, context: Context, event: dict[str, Any]) -> Any:
        self.shown_links = event.get("links", {})
        if event["status"] == "timeout":
            fate = "cancelled" if self.cancel_on_kill else "left alone"
            raise AirflowTaskTimeout(f"{event['message']} did not end within {self.execution_timeout}: {fate}")
        from airflow_provider_soperator.work.sbatch import REPORT

        status = status_of(report := result_of(event))
        try:
            settle(status, self.on_finish, event.get("last_lines", ()))
        except Exception:
            if self.download and self.download_on == "always":
                self._files(context).bring_back(self.download, status)
            raise
        if self.download:
            self._files(context).bring_back(self.download, status)
        if self.result is None:
            return report
        context["ti"].xcom_push(REPORT, report)
        return event["value"] if "value" in event else self._files(context).result(self.result, status)

    def _as_member(self, context: Context) -> Member | None:
        if pipeline := pipeline_of(self):
            from airflow_provider_soperator.pipelines.member import Member

            return Member(pipeline, self, context)
        return None

    def _trigger(self, context: Context) -> SbatchTrigger:
        # Imported here, so that parsing a DAG does not pay for running it.
        from airflow_provider_soperator.triggers.sbatch import SbatchTrigger
        from airflow_provider_soperator.work.sbatch import job_for, keys_of

        replaced, keys = keys_of(context, self.retries or 0)
        if self._member:
            replaced, keys = self._member.keys(replaced, keys)
        self.job = self._changed(context, keys[:-1])
        self._make(context, keys[-1])
        asked = self._asked()
        job = job_for(context["ti"], asked.pop("script"), self.job)
        check_result(self.result, job)
        since = submitted_since(context["dag_run"].start_date)
        return SbatchTrigger(
            **asked | {"job": fields_of(self._member.waiting(job, keys) if self._member else job)},
            keys=[key.text for key in keys],
            replaced=[key.text for key in replaced] if self.cancel_on_kill else [],
            since=since.isoformat() if since else None,
            deadline=self.deadline(),
            chain=self._member.chain(job) if self._member else None,
        )

    def _changed(self, context: Context, earlier: Sequence[SubmissionKey]) -> dict[str, Any]:
        """The job, with what ``on_finish`` changes after the ends of the earlier tries."""
        if not earlier or not any(isinstance(action, Retry) for action in self.on_finish.values()):
            return self.job
        from airflow_provider_soperator.client.diagnosis import failed_nodes
        from airflow_provider_soperator.client.submissions import earlier_jobs
        from airflow_provider_soperator.hooks.slurm import SlurmHook
        from airflow_provider_soperator.slurm.requests.commands import run_steps
        from airflow_provider_soperator.work.sbatch import job_for

        fields, job = self.job, job_for(context["ti"], None, self._said())
        with SlurmHook(self.slurm_conn_id).client() as shared:
            slurm = shared.patient(self.log)
            job = slurm.with_lines(job)
            steps = earlier_jobs(job, earlier, submitted_since(context["dag_run"].start_date))
            for end in run_steps(steps, slurm.ask):
                if end is None:
                    self.log.warning("Slurm knows no job of an earlier try (any more): it changes nothing in this one")
                elif end.is_finished and isinstance(action := action_after(end, self.on_finish), Retry):
                    failed = run_steps(failed_nodes(end), slurm.ask) if action.exclude_nodes else []
                    if action.exclude_nodes and not failed:
                        self.log.warning("Slurm does not say which node of job %s has failed: none is left out", end.id)
                    new = action.changed(job, end, failed)
                    fields, job = fields | new, job.replace(**new)
                    said = ", ".join(f"{name}={value}" for name, value in new.items()) or "nothing changed"
                    self.log.info("Job %s of an earlier try was %s: this try has %s", end.id, end.state, said)
        return fields

    def _make(self, context: Context, key: SubmissionKey) -> None:
        """Make the script of the job, where that is for the one with this key alone, as it has been changed."""

    def _files(self, context: Context) -> JobFiles:
        from pathlib import Path

        from airflow_provider_soperator.operators.files import JobFiles

        return JobFiles(self.slurm_conn_id, Path(self.dag.folder), task_name(context["ti"]), self.log)

    def _asked(self) -> dict[str, Any]:
        """The arguments of the trigger, from an Airflow worker or the triggerer."""
        names = ("slurm_conn_id", "script", "job", "poll_interval", "stream_logs", "cancel_on_kill", "result")
        return {name: getattr(self, name) for name in names}

    def _needs_a_worker_at_the_start(self) -> str:
        """What in the task works in an Airflow worker only; empty for nothing."""
        from jinja2 import StrictUndefined
        from jinja2.nativetypes import NativeEnvironment

        dag, env = self.get_dag(), self.get_template_env()
        found = {
            "upload": self.upload,
            "download": self.download,
            "a pipeline": pipeline_of(self),
            "execution_timeout": self.execution_timeout,
            "pool": self.pool != BaseOperator.pool,
            "max_active_tis_per_dag": self.max_active_tis_per_dag,
            "max_active_tis_per_dagrun": self.max_active_tis_per_dagrun,
            "on_execute_callback": self.on_execute_callback,
            "pre_execute": self._pre_execute_hook or type(self).pre_execute is not BaseOperator.pre_execute,
            "its class": any(getattr(type(self), name) is not getattr(SbatchOperator, name) for name in _AT_THE_START),
            "results of other tasks": any(XComArg.iter_xcom_references([self.script, self.job, self.result])),
            "templates": needs_a_worker([self.slurm_conn_id, self.script, self.job, self.result]),
            # The triggerer has the DAG as it is stored, without functions.
            "macros or filters of the DAG": dag and (dag.user_defined_macros or dag.user_defined_filters),
            # Nor what it changes in Jinja.
            "Jinja of the DAG": (dag and dag.jinja_environment_kwargs)
            or isinstance(env, NativeEnvironment)
            or env.undefined is not StrictUndefined,
        }
        return ", ".join(name for name, is_there in found.items() if is_there)

    def needs_a_worker_after(self, end: End) -> bool:
        pipeline = pipeline_of(self)
        return bool(
            not self._ends_from_trigger
            or type(self).execute_complete is not SbatchOperator.execute_complete
            or (self.download and (end == "success" or self.download_on == "always"))
            or (end == "failed" and self.on_finish)
            or (pipeline and pipeline.graph.doomed_by(self.task_id, end))
            or super().needs_a_worker_after(end)
        )


def settle(status: JobStatus, policy: Policy, last: Sequence[str] = ()) -> None:
    """Raise what makes Airflow do as the policy says; where it says nothing, what can help by another try gets one."""
    if status.succeeded:
        return
    error = failure(status, last)
    assert error is not None, "it has not succeeded"
    action = action_after(status, policy)
    if action == "fail":
        raise AirflowFailException(str(error)) from error
    if action == "skip":
        raise AirflowSkipException(str(error)) from error
    if action != "succeed":
        raise error


def _option_docs() -> str:
    """The ``:param`` lines of sbatch's options."""
    words: dict[str, list[str]] = {}
    for option in job_description.OPTIONS:
        words.setdefault(option.field, []).append(f"``--{option.long}``")
    return "".join(f"    :param {name}: sbatch's {' or '.join(longs)}\n" for name, longs in words.items())


if SbatchOperator.__doc__:  # python -OO has none
    SbatchOperator.__doc__ = SbatchOperator.__doc__.rstrip() + "\n" + _option_docs()
