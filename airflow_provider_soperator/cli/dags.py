"""The commands ``plan``, ``lint`` and ``import``: DAG files, and the jobs that they would submit."""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import json
import re
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from functools import partial
from itertools import chain
from pathlib import Path
from pprint import pformat
from typing import TYPE_CHECKING, Any

from airflow.sdk.definitions.mappedoperator import MappedOperator

from airflow_provider_soperator.cli.rehearsal import Unknown, bags, cause_of, in_order, rehearsed, the_dag
from airflow_provider_soperator.cli.terminal import command, show, tell, told
from airflow_provider_soperator.errors import name_remedy
from airflow_provider_soperator.executors.task_jobs import ExecutorFolder, JobDefaults, QueuedTask
from airflow_provider_soperator.hooks.check import if_supported
from airflow_provider_soperator.hooks.slurm import SlurmHook
from airflow_provider_soperator.pipelines.chains.reading import script_of, task_parameters
from airflow_provider_soperator.pipelines.stages import option
from airflow_provider_soperator.slurm import directives
from airflow_provider_soperator.slurm.errors import AccountingDisabled
from airflow_provider_soperator.slurm.job import BatchJob
from airflow_provider_soperator.slurm.job_description import INTERNAL, InvalidJob
from airflow_provider_soperator.slurm.requests import ListPartitions, ListReservations, ShowConfig, ShowRights, WhoAmI
from airflow_provider_soperator.slurm.requests.commands import run_steps_async
from airflow_provider_soperator.values import COMMENT, has_template, is_template, path_pairs

if TYPE_CHECKING:
    from airflow.sdk import DAG

#: The payload of a function's call, which says nothing to people.
_PAYLOAD = re.compile(r"(<<'END'\n)(.*?)(?=^END$)", re.DOTALL | re.MULTILINE)
_ANY_NUMBER = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def _has_job(task: Any) -> bool:
    """True for a task that submits a job; mapped ones, too."""
    return getattr(getattr(task, "operator_class", type(task)), "is_slurm_job", False)


# plan


@command
def plan(args: Namespace) -> None:
    """Show which jobs a DAG would submit, without a run."""
    dag, conf = the_dag(args.dag), _conf(args.conf or "{}")
    if args.task and not dag.has_task(args.task):
        raise LookupError(f"DAG {dag.dag_id} has no task {args.task}: {name_remedy(args.task, dag.task_ids)}")
    # The tasks of one run.
    context_of = partial(rehearsed, dag, conf=conf, now=datetime.now(timezone.utc))
    rows = [row for row in _blocks(dag, context_of) if args.task in (None, *row["tasks"])]
    if not rows:
        what = f"task {args.task}" if args.task else f"DAG {dag.dag_id}"
        raise LookupError(f"{what} submits no job itself: name another task, of SbatchOperator or @task.sbatch")
    show(args, rows, "\n".join(f"# {', '.join(row['tasks'])}{row['after']}\n{row['shell']}" for row in rows))
    sys.exit(any(row["shell"].startswith((_UNTOLD, _REFUSED)) for row in rows))


def _conf(text: str) -> Mapping[str, Any]:
    with suppress(ValueError):
        if isinstance(conf := json.loads(text), dict):
            return conf
    raise ValueError(f"--conf is no object in JSON: {text}")


#: The beginning of what stands in the place of jobs that cannot be told.
_UNTOLD, _REFUSED = "# not known without a run: ", "# cannot be submitted: "
#: What an error names that comes of results of other tasks; Airflow itself asks for those of mapped ones.
_OF_RESULTS = (Unknown.__name__, "SUPERVISOR_COMMS")


def _blocks(dag: DAG, context_of: Callable[[Any], Any]) -> Iterator[dict[str, Any]]:
    """What is submitted together: the stages of a pipeline, or the job of a task alone."""
    from airflow_provider_soperator.pipelines.group import pipeline_of
    from airflow_provider_soperator.pipelines.submit import SubmitAheadOperator

    for task in in_order(dag):
        if isinstance(task, SubmitAheadOperator):
            yield _block(dag, task, task.segment.stages, context_of)
        elif _has_job(task) and not pipeline_of(task):
            yield _block(dag, task, [task.task_id], context_of)


def _block(dag: DAG, task: Any, stages: Sequence[str], context_of: Callable[[Any], Any]) -> dict[str, Any]:
    from airflow.sdk.exceptions import AirflowFailException

    from airflow_provider_soperator.pipelines.chains.writing import as_shell

    after = sorted(task.upstream_task_ids)
    row = {"tasks": list(stages), "after": f", after {', '.join(after)}" if after else ""}
    try:
        jobs = _jobs(dag, task, stages, context_of(task))
    except Exception as error:
        is_of_results = any(name in str(error) for name in _OF_RESULTS)
        whole = "a field is the result of another task" if is_of_results else told(error)
        is_mistake = isinstance(error, (ValueError, AirflowFailException)) and Unknown.BEGINNING not in whole
        return {**row, "shell": f"{_REFUSED if is_mistake and not is_of_results else _UNTOLD}{whole}\n"}
    return {**row, "shell": as_shell(jobs).partition("\n\n")[2] if jobs else "# nothing: it is mapped over nothing\n"}


def _jobs(dag: DAG, task: Any, stages: Sequence[str], context: Any) -> dict[str, BatchJob]:
    from airflow_provider_soperator.pipelines import plan as plans
    from airflow_provider_soperator.pipelines.submit import RenderedStages, SubmitAheadOperator

    rendered = RenderedStages(dag, stages, context, uploads=False)
    if isinstance(task, SubmitAheadOperator):
        inside = {*stages}

        def states(name: str) -> plans.States:
            # The stages before those of this submission have succeeded by then.
            return dict.fromkeys(rendered.states(name, {}), None if name in inside else "success")

        planned = plans.plan(task.graph, task.segment, states, lambda stage, index: None).submitted
    else:
        indices = [index for index, state in rendered.states(task.task_id, {}).items() if state is None]
        planned = [plans.PlannedJob(task.task_id, index) for index in indices]
    return {str(one): _readable(rendered.render(one)) for one in planned}


def _readable(job: BatchJob) -> BatchJob:
    if job.script is None:
        return job
    return job.replace(script=_PAYLOAD.sub(lambda found: f"{found[1]}({len(found[2])} bytes)\n", job.script))


# lint


@command
def lint(args: Namespace) -> None:
    """Check DAG files; ends with status 1 if there is a problem."""
    from airflow.configuration import conf

    # So that the line of the DAG file is among those of an error.
    conf.set("core", "dagbag_import_error_traceback_depth", "50")
    first = conf.get("core", "executor", fallback="").partition(",")[0]
    rows: list[tuple[str, str, str, str]] = []
    tasks: list[tuple[DAG, Any]] = []
    on_nodes: list[tuple[DAG, Any]] = []
    for bag in bags(args.dags):
        rows += [(file, "", "", _where(file, why)) for file, why in bag.import_errors.items()]
        for dag in bag.dags.values():
            tasks += [(dag, task) for task in in_order(dag) if _has_job(task)]
            on_nodes += [(dag, task) for task in dag.tasks if "SlurmExecutor" in (task.executor or first)]
    for look in (_files, _literals):
        rows += [row for dag, task in tasks for row in _rows(dag, task, look(dag, task))]
    rows += [row for dag, task in on_nodes for row in _rows(dag, task, _rejected(task))]
    default = SlurmHook.default_conn_name
    there = [(dag, it) for dag, it in tasks if (option(it, "slurm_conn_id") or default) == args.conn_id]
    if args.conn_id:
        known = asyncio.run(_names(args.conn_id))
        rows += [row for dag, it in there for row in _rows(dag, it, _strange(it, known))]
    # Of a mapped task both may tell of the files.
    rows = [*dict.fromkeys(rows)]
    for_cluster = f", {len(there)} of them against {args.conn_id}" if args.conn_id else ""
    tell(f"{len(tasks) + len(on_nodes)} tasks with jobs checked{for_cluster}: {len(rows)} problems")
    if rows or args.output != "table":
        named = [dict(zip(("file", "dag", "task", "problem"), row, strict=True)) for row in rows]
        show(args, named, "\n".join(": ".join(filter(None, row)) for row in rows))
    sys.exit(bool(rows))


def _where(file: str, trace: str) -> str:
    lines = re.findall(rf'File "{re.escape(file)}", line (\d+)', trace)
    return f"line {lines[-1]}: {cause_of(trace)}" if lines else cause_of(trace)


def _rows(dag: DAG, task: Any, problems: Iterator[str]) -> Iterator[tuple[str, str, str, str]]:
    """The problems of a task; one that cannot be checked is a problem, and not the end of all others."""
    try:
        for problem in problems:
            yield dag.fileloc, dag.dag_id, task.task_id, problem
    except Exception as error:
        yield dag.fileloc, dag.dag_id, task.task_id, told(error)


def _files(dag: DAG, task: Any) -> Iterator[str]:
    """Files that are not beside the DAG."""
    mapped = [one.get("upload") for one in _instances(task)] if isinstance(task, MappedOperator) else []
    given = [path_pairs("upload", said) for said in (option(task, "upload"), *mapped)]
    for one, _ in chain.from_iterable(pairs for pairs in given if not is_template(pairs)):
        local = one.removesuffix(COMMENT) if isinstance(one, str) else one
        if not has_template(local) and not Path(dag.folder, local).exists():
            yield f"upload={local!r}: there is no such file or folder beside the DAG ({dag.folder})"


def _literals(_: DAG, task: Any) -> Iterator[str]:
    """What no template hides of a mapped task, whose instances Airflow makes only in a run."""
    if not isinstance(task, MappedOperator):
        return
    is_ours = task.operator_class.__module__.startswith(f"{__name__.partition('.')[0]}.")
    names = _templates(task)
    found: dict[str, None] = {}
    for given in _instances(task):
        known = {name: one for name, one in given.items() if name in names or not has_template(one)}
        try:
            task.unmap(known).resolve_template_files()
        except InvalidJob as error:
            found |= dict.fromkeys(problem.removeprefix(f"{task.task_id}: ") for problem in error.problems)
        except Exception as error:
            # A class of the user's may need what only a run knows.
            if is_ours or not has_template(given):
                found[told(error)] = None
    yield from found


def _templates(task: Any) -> set[str]:
    """The parameters that may be templates."""
    fields = {field.name for field in dataclasses.fields(BatchJob)}
    return (fields | {"sbatch_args", *task.template_fields}) - {"extra_args", "job", *INTERNAL}


def _instances(task: Any) -> Iterator[dict[str, Any]]:
    """The parameters in which the instances of a mapped task differ: each value once."""
    over = task._get_specified_expand_input().value
    if function := getattr(task, "python_callable", None):
        arguments = inspect.signature(function).parameters.values()
        needed = {one.name for one in arguments if one.default is one.empty and one.kind not in _ANY_NUMBER}
        yield {"op_kwargs": dict.fromkeys(needed - {*task.partial_kwargs["op_kwargs"]})}
    elif is_template(over):
        # Anything may be mapped.
        partly = {*task.partial_kwargs} if task._disallow_kwargs_override else set()
        yield dict.fromkeys(_templates(task) - partly, over)
    elif isinstance(over, Mapping):
        sized = {name: of.items() if isinstance(of, Mapping) else of for name, of in over.items()}
        lists = {name: [of] if is_template(of) else [*of] for name, of in sized.items()}
        if all(lists.values()):
            first = {name: of[0] for name, of in lists.items()}
            yield from ({**first, name: one} for name, of in lists.items() for one in of)
    else:
        yield from (dict(one) for one in over if isinstance(one, Mapping))


def _rejected(task: Any) -> Iterator[str]:
    """What SlurmExecutor would reject of a task's ``executor_config``."""
    asked = QueuedTask("", task.dag_id, "", task.task_id, asked=task.executor_config or {})
    _, rejected = ExecutorFolder("/", "/bin/sh").plan([asked], JobDefaults(), {})
    yield from (f"executor_config: {told(error)}" for error in rejected.values())


async def _names(conn_id: str) -> dict[str, tuple[str, set[str]]]:
    """What there is on a cluster for the user of a connection, and who has it."""
    async with SlurmHook(conn_id).async_client() as client:
        found = {
            "partition": ("the cluster", {one.name for one in await client.ask(ListPartitions())}),
            "reservation": ("the cluster", {one.name for one in await client.ask(ListReservations())}),
        }
        user = await client.ask(WhoAmI())
        try:
            rights = await client.ask(ShowRights(user))
        except AccountingDisabled:
            return found
        config = await run_steps_async(if_supported(ShowConfig()), client.ask)
    # A job has any QOS where Slurm enforces none; and of accounts then the default one.
    qos = rights.qos if config is None or config.enforces("qos") else ()
    whose = f"the user {user}"
    # root, for one, may have none, and need none.
    return found | {name: (whose, {*of}) for name, of in (("account", rights.accounts), ("qos", qos)) if of}


def _strange(task: Any, known: Mapping[str, tuple[str, set[str]]]) -> Iterator[str]:
    """Names in a task that the cluster does not know, or the user does not have."""
    job = getattr(task, "job", None) or {}
    script = option(task, "script")
    said: Mapping[str, Any] = {}
    # Lines with templates may be none that can be read.
    with suppress(directives.DirectiveError):
        said = directives.read(script)[0].fields if isinstance(script, str) and script.startswith("#!") else {}
    for name, (owner, names) in known.items():
        given = job.get(name) or option(task, name) or said.get(name)
        if isinstance(given, str) and not has_template(given):
            for one in given.split(","):
                if one not in names:
                    yield f"{name}={one!r}: {owner} has none of that name; {name_remedy(one, sorted(names))}"


# import

_DAG = '''\
"""Made from {script}.{where}"""

from airflow.sdk import DAG
from airflow_provider_soperator.operators.{module} import {operator}

with DAG({dag_id!r}, schedule=None) as dag:
    {call}
'''


@command
def import_script(args: Namespace) -> None:
    """Print a DAG file for a script."""
    path = Path(args.script)
    if not path.is_file():
        raise FileNotFoundError(f"there is no script {path}: name a shell script, or that of a job")
    text = path.read_text()
    dag_id = args.dag_id or re.sub(r"[^A-Za-z0-9_.-]", "_", path.stem)
    if not re.fullmatch(r"[\w.-]+", dag_id):
        raise ValueError(f"--dag-id is {dag_id!r}: write letters, digits, _, . and -")
    common = {} if args.conn_id == SlurmHook.default_conn_name else {"slurm_conn_id": args.conn_id}
    if directives.read(text)[0].fields or not re.search(r"\bsbatch\b", text):
        module, operator, script = "sbatch", "SbatchOperator", script_of(path.name, text)
        where = " Keep it beside that script." * (script == path.name)
        given = {"task_id": dag_id, "script": script, **common}
        call = f"SbatchOperator({', '.join(f'{name}={pformat(value, width=100)}' for name, value in given.items())})"
    else:
        module, operator = "pipeline", "SbatchPipeline"
        variables = dict(one.partition("=")[::2] for one in args.variable or ())
        stages = task_parameters(path.name, path.parent, variables, args.ignore or (), by_name=True)
        here = dict.fromkeys(said["script"] for said in stages.values() if "\n" not in said.get("script", "\n"))
        there = dict.fromkeys(said["remote_script"] for said in stages.values() if "remote_script" in said)
        where = f" Keep it beside {', '.join(here)}." * bool(here)
        where += f" On the cluster there have to be {', '.join(there)}." * bool(there)
        more = "".join(f", {name}={value!r}" for name, value in common.items())
        call = f"SbatchPipeline.of({dag_id!r}, {pformat(stages, width=110, sort_dicts=False)}{more})"
    call = call.replace("\n", "\n    ")
    names = {"script": path.name, "where": where, "module": module, "operator": operator}
    shell = _DAG.format(**names, dag_id=dag_id, call=call)
    show(args, [{"dag_id": dag_id, "file": shell}], shell.rstrip("\n"))
