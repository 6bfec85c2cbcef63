"""``@task.sbatch``: a Python function that runs as a Slurm job, and is a task like those of ``@task``."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk import Context
from airflow.sdk.bases.decorator import DecoratedOperator, TaskDecorator, task_decorator_factory
from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_soperator.functions import call, remote
from airflow_provider_soperator.operators.sbatch import SbatchOperator
from airflow_provider_soperator.slurm.job import job_of, literal_problems
from airflow_provider_soperator.slurm.job_description import InvalidJob
from airflow_provider_soperator.slurm.sbatch_arguments import on_one_node
from airflow_provider_soperator.values import check_arguments, has_template, path_text

if TYPE_CHECKING:
    from airflow_provider_soperator.slurm.job_failures import Policy
    from airflow_provider_soperator.slurm.submission_keys import SubmissionKey
    from airflow_provider_soperator.work.protocols import End

#: Variables of Airflow's context that have Airflow's objects in them.
_OF_AIRFLOW = frozenset({"inlets", "outlets", "task", "var"})

#: What is checked as an option of sbatch is.
_LIKE = {"ranks": "ntasks", "python": "chdir", "venv": "chdir", "venv_cache_path": "chdir"}


class _SbatchDecoratedOperator(DecoratedOperator, SbatchOperator):
    """A call of a function as a job. See ``sbatch_task``."""

    custom_operator_name = "@task.sbatch"
    template_fields: Sequence[str] = (
        *DecoratedOperator.template_fields,
        *(name for name in SbatchOperator.template_fields if name not in ("script", "result")),
        *("python", "venv", "requirements", "venv_cache_path", "ranks", "srun_args"),
    )
    # An argument of the function that looks like the name of a file is one for the function.
    template_ext: Sequence[str] = ()
    template_fields_renderers = {  # noqa: RUF012 - as Airflow has it
        **DecoratedOperator.template_fields_renderers,
        **SbatchOperator.template_fields_renderers,
    }

    def __init__(
        self,
        *,
        python: str | None = None,
        venv: str | None = None,
        requirements: Sequence[str] | str | None = None,
        venv_cache_path: str | None = None,
        ranks: int | None = None,
        srun_args: Sequence[str] = (),
        on_finish: Policy | None = None,
        **kwargs: Any,
    ) -> None:
        if python and venv:
            raise ValueError("python and venv both say which interpreter is meant: give one of them")
        if requirements and venv:
            raise ValueError("requirements make an environment of their own: give its interpreter (python) and no venv")
        if kwargs.pop("result", None) is not None:
            raise ValueError("result is for SbatchOperator: this task returns what its function returns")
        for name in ("script", "command", "remote_script", "args"):
            if kwargs.pop(name, None) is not None:
                raise ValueError(f"{name} is for SbatchOperator: this task runs its function")
        # The result may come from default_args.
        super().__init__(on_finish={remote.UNFIT: "fail", **(on_finish or {})}, result=None, **kwargs)
        self.python = path_text(python)
        self.venv = path_text(venv)
        self.requirements = path_text(requirements or ())
        self.venv_cache_path = path_text(venv_cache_path)
        self.ranks = ranks
        self.srun_args = srun_args
        #: What the call has left on the cluster, once its result is here.
        self.left: Sequence[str] = ()
        # Not before Airflow has the result: if this process dies until then, the next try goes on with the same job.
        self.on_success_callback = [*self.on_success_callback, _remove]

    def _settled(self, context: Context, event: dict[str, Any]) -> Any:
        report = super()._settled(context, event)
        from airflow_provider_soperator.slurm.job_reports import status_of
        from airflow_provider_soperator.work.sbatch import REPORT

        context["ti"].xcom_push(REPORT, report)
        # A job that may fail, and has, leaves no result.
        return self._result(report) if status_of(report).succeeded else None

    def _changed(self, context: Context, earlier: Sequence[SubmissionKey]) -> dict[str, Any]:
        changed = super()._changed(context, earlier)
        # Where they are all tasks of the job, srun starts as many as it has now.
        if self.ranks and "ntasks" not in self.job:
            self.ranks = changed.get("ntasks", self.ranks)
        return changed

    def _make(self, context: Context, key: SubmissionKey) -> None:
        """Make the call the script of the job."""
        from airflow_provider_soperator.errors import LastingError
        from airflow_provider_soperator.hooks.slurm import SlurmHook

        try:
            if not SlurmHook(self.slurm_conn_id).reaches_files:
                raise call.CallError(
                    f"the result of a function comes back as a file, and the connection {self.slurm_conn_id} has no "
                    f"way to the cluster's files: name an SSH or Kubernetes connection in it (files_via)"
                )
            self._pack(context, key)
        except LastingError as error:
            raise AirflowFailException(str(error)) from None

    def _check_literals(self) -> None:
        try:
            if not has_template(self.job.get("array")):
                self._check_array()
            self._check_launch()
            # A file elsewhere may be there only where the task runs.
            if not has_template(self.requirements) and not str(self.requirements).startswith("/"):
                self._requirements()
        except call.CallError as error:
            raise InvalidJob([f"{self.task_id}: {error}"]) from None
        super()._check_literals()

    def _check_array(self) -> None:
        if self.job.get("array") is not None:
            raise call.CallError("array: all its elements would make the same call; map the task instead (expand)")

    def _check_launch(self) -> None:
        for name, like in _LIKE.items():
            value = getattr(self, name)
            said = {} if has_template(value) or value in ("", "None") else {like: value}
            if found := literal_problems(said, ["script"]):
                raise call.CallError(found[0].replace(like, name, 1))

    def _pack(self, context: Context, key: SubmissionKey) -> None:
        from airflow_provider_soperator.work.sbatch import given

        # Of a mapped task, or from a template.
        self._check_array()
        self._check_launch()
        names = ("python", "venv", "requirements", "venv_cache_path", "ranks", "srun_args")
        own = given({name: getattr(self, name) for name in names})
        if "requirements" in own:
            own["requirements"] = self._requirements()
        container = {name: value for name, value in given(self.job).items() if name in call.CONTAINER}
        launch = call.Launch(**own, container=container)
        own_job = {name: self.job[name] for name in self.job if name not in call.CONTAINER}
        self.job = {"ntasks": launch.ranks} | own_job
        self.job["nodes"] = on_one_node(job_of(given(self.job))).nodes
        args, kwargs = call.plain([*self.op_args]), call.plain({**self._from_context(context), **self.op_kwargs})
        try:
            inspect.signature(self.python_callable).bind(*args, **kwargs)
        except TypeError as error:
            raise call.CallError(
                f"the function is {error}, which Airflow's context does not have in this run (one without a logical "
                f"date has no ds): give the parameter the default None"
            ) from None
        self.script = call.script(self.python_callable, args, kwargs, name=key.text, launch=launch)

    def _requirements(self) -> str:
        """The text of a file of requirements. The order of a list does not matter."""
        if not isinstance(self.requirements, str):
            return "".join(f"{one}\n" for one in sorted(set(self.requirements)))
        try:
            return Path(self.dag.folder, self.requirements).read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise call.CallError(
                f"requirements={self.requirements!r} must be a list, or a file beside the DAG, which cannot be read: "
                f"{error}"
            ) from None

    def _said(self) -> dict[str, Any]:
        # The call has its arguments when the task runs.
        return {"ntasks": self.ranks, **self.job, "script": "#!/bin/sh\n"}

    def _from_context(self, context: Mapping[str, Any]) -> dict[str, Any]:
        """The variables of Airflow's context that the function has parameters for."""
        signature = inspect.signature(self.python_callable)
        taken = signature.bind_partial(*self.op_args).arguments
        parameters = [one for name, one in signature.parameters.items() if name not in taken]
        names = {one.name for one in parameters if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)}
        asked = {name: context[name] for name in names & context.keys() - self.op_kwargs.keys()}
        for name, value in asked.items():
            if name in _OF_AIRFLOW or call.is_airflows(value):
                raise call.CallError(
                    f"Airflow's {name} cannot go to the cluster: give the function what it needs of it as an argument"
                )
        # Airflow asks for the times of the last success when they are used.
        return {name: getattr(value, "__wrapped__", value) for name, value in asked.items()}

    def _needs_a_worker_at_the_start(self) -> str:
        # The triggerer has not got it.
        return "a function"

    def needs_a_worker_after(self, end: End) -> bool:
        # The triggerer must not unpickle foreign data.
        return True

    def _result(self, report: dict[str, Any]) -> Any:
        from airflow_provider_soperator.hooks.slurm import SlurmHook
        from airflow_provider_soperator.slurm.files import FileError
        from airflow_provider_soperator.slurm.job_ids import JobId
        from airflow_provider_soperator.slurm.submission_keys import key_of

        # That of the job, which an earlier try may have submitted, and not that of this try.
        key = key_of(report["name"], JobId.parse(report["job_id"]))
        assert key is not None, "each job that is submitted here has a key in its name"
        try:
            with SlurmHook(self.slurm_conn_id).client() as client:
                path = call.result_path(report["workdir"], key.text)
                data = client.patient(self.log).read_file(path, call.MOST_TO_RETURN)
            result = call.result(data)
        except FileError as error:
            raise call.CallError(
                f"job {report['job_id']} has succeeded, but left no result ({error}): the function must return, not "
                f"end its process, and the job's working directory be on the root that all nodes share (chdir); clear "
                f"the task to have the function called anew"
            ) from None
        except call.CallError as error:
            raise AirflowFailException(str(error)) from None
        self.left = call.paths(report["workdir"], key.text)
        return result


def _remove(context: Mapping[str, Any]) -> None:
    """Remove the files of a call that has come back."""
    task = context["task"]
    if task.left:
        from airflow_provider_soperator.hooks.slurm import SlurmHook
        from airflow_provider_soperator.slurm.files import RemoveFiles

        with SlurmHook(task.slurm_conn_id).client() as client:
            client.ask(RemoveFiles(tuple(task.left)))


def sbatch_task(
    python_callable: Callable[..., Any] | None = None, multiple_outputs: bool | None = None, **kwargs: Any
) -> TaskDecorator:
    """Run a function as a Slurm job; as ``@task.sbatch`` in a DAG file.

        @task.sbatch(partition="main", gpus_per_node=1, requirements=["torch==2.*"])
        def train(rate: float) -> dict:
            import torch
            ...
            return {"loss": loss}

    The interpreter may have any version from Python 3.8 on. With ``container_image`` the function runs in a container
    of pyxis. Other parameters are those of ``SbatchOperator``, except its bodies, ``args``, ``result`` and
    ``array``; docs/task-sbatch.md has the details.

    :param python_callable: the function
    :param multiple_outputs: push each entry of a returned dict as an XCom of its own
    :param python: interpreter on the cluster (``python3``)
    :param venv: path of a virtual environment on the cluster, instead of ``python``
    :param requirements: packages to install into an environment that is built once and then shared, as a list or a
        requirements file beside the DAG
    :param venv_cache_path: folder of these environments on the root that all nodes share
        (``.airflow-soperator/venvs`` in the job's working directory)
    :param ranks: number of processes to start with ``srun``; the result is that of the first
    :param srun_args: further options for ``srun``
    :param on_finish: as for ``SbatchOperator``
    """
    # Of a mapped task Airflow would not ask before the run.
    check_arguments(_SbatchDecoratedOperator, kwargs.get("task_id", "(...)"), kwargs, SbatchOperator.remedy_for)
    return task_decorator_factory(
        python_callable=python_callable,
        multiple_outputs=multiple_outputs,
        decorated_operator_class=_SbatchDecoratedOperator,
        **kwargs,
    )
