"""What the doctor looks at for SlurmExecutor: options, Airflow on the nodes, and the way from there to its API."""

from __future__ import annotations

import asyncio
import hashlib
import json
from argparse import Namespace
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

from async_timeout import timeout
from packaging.utils import canonicalize_name

from airflow_provider_soperator.cli.verdicts import Verdict, judged
from airflow_provider_soperator.executors import SlurmExecutor
from airflow_provider_soperator.executors.books import News, NewsKind
from airflow_provider_soperator.executors.environment import installed_packages, lent, local_packages
from airflow_provider_soperator.executors.options import ExecutorOptions
from airflow_provider_soperator.executors.task_jobs import SHARE
from airflow_provider_soperator.slurm.files import FileRequest
from airflow_provider_soperator.slurm.requests import Ping
from airflow_provider_soperator.slurm.requests.commands import Command, CommandOutput

#: Seconds in which an environment can be made, and then a job can run.
_ENVIRONMENT, _JOB = 3600.0, 300.0
_NAMED = "SlurmExecutor:airflow_provider_soperator.executors.SlurmExecutor"
_BUNDLES = "set [core] dags_folder or [dag_processor] dag_bundle_config_list by variables in env of executor_job"

# Of bundles that are folders it tells which are not there. The provider need not be installed. Of several copies of a
# package Python imports the first.
_LOOK = """
import hashlib, json, os
from importlib import metadata
from airflow.configuration import conf
from airflow.dag_processing.bundles.manager import DagBundlesManager
from packaging.utils import canonicalize_name
bundles = {one.name: str(one.path) if type(one).__name__ == "LocalDagBundle" else "/"
           for one in DagBundlesManager().get_all_dag_bundles()}
packages = {canonicalize_name(one.name): one.version for one in reversed([*metadata.distributions()]) if one.name}
missing = {name: "" if os.path.isdir(path) else path for name, path in bundles.items()}
secret = hashlib.sha256(conf.get("api_auth", "jwt_secret", fallback="").encode()).hexdigest()
print(json.dumps({"packages": packages, "bundles": missing, "secret": secret}))
"""


@dataclass(frozen=True)
class LookAtAirflow(FileRequest[dict[str, Any]]):
    """Ask the Python of the nodes, which the login node has, too, for its packages and DAG bundles."""

    doing = "asking {python} for its DAG bundles"
    python: str
    env: Mapping[str, str]

    def command(self) -> Command:
        return Command((self.python, "-c", _LOOK), environment=self.env)

    def read(self, answer: CommandOutput) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.check(answer).text.splitlines()[-1])
        return found


async def executor_checks(args: Namespace) -> list[Verdict]:
    """All that tasks need on nodes, as far as it can be seen."""
    return await judged("executor", _executor({"partition": args.partition} if args.partition else {}), _ENVIRONMENT)


async def _executor(asked: Mapping[str, str]) -> AsyncIterator[Verdict]:
    from airflow.executors.executor_loader import ExecutorLoader

    executor = SlurmExecutor()
    names = ExecutorLoader.get_executor_names(validate_teams=False)
    executor.name = next((name for name in names if name.module_path.startswith("airflow_provider_soperator.")), None)
    if not executor.name:
        yield Verdict("executor", "[core] executor has no SlurmExecutor", f"add {_NAMED}", "wrong")
        return
    try:
        executor.start()
    except ValueError as error:
        option, _, remedy = str(error).partition(": ")
        yield Verdict("executor", f"{option} cannot be used", remedy, "wrong")
        return
    # Tasks wait for a cluster that is away; who asks is told.
    async with lent(ExecutorOptions.read(executor.conf).conn_id) as client:
        await client.ask_now(Ping())
    keeper = executor.keeper
    try:
        client, folder = await keeper.connection.prepared()
        yield Verdict("executor", f"{folder.python} has this Airflow; files of tasks are in {folder.root}")
        there = await client.ask(LookAtAirflow(folder.python, keeper.env))
        for verdict in (*_packages(there["packages"]), *_bundles(there["bundles"]), *_secrets(there["secret"])):
            yield verdict
        yield _way_back(await trial(executor, asked, _JOB), keeper.env["AIRFLOW__CORE__EXECUTION_API_SERVER_URL"])
    finally:
        await keeper.close()


async def trial(executor: SlurmExecutor, asked: Mapping[str, Any], patience: float) -> list[News]:
    """Have a node start two tasks that do not exist; returns their ends, or what was last told before these.

    Airflow refuses both, the second for its token; a server that is no Airflow's answers both alike.
    """
    from airflow.executors.workloads import ExecuteTask

    # Tasks in one job have one end.
    asked, queue = {**asked, SHARE: 1}, executor.conf.get("operators", "default_queue", fallback="default")
    tasks = []
    for index in (0, 1):
        ti = {
            **{"id": uuid4(), "dag_version_id": uuid4(), "dag_id": "doctor", "task_id": "trial", "run_id": "doctor"},
            **{"try_number": 1, "map_index": index, "pool_slots": 1, "queue": queue, "priority_weight": 1},
            **{"external_executor_id": str(uuid4()), "executor_config": asked},
        }
        said = {"token": "", "ti": ti, "dag_rel_path": "doctor.py", "bundle_info": {"name": "any"}, "log_path": None}
        tasks.append(executor.queued_task(ExecuteTask.model_validate(said)))
    tasks[1] = replace(tasks[1], workload={**tasks[1].workload, "token": "none"})
    keeper, ends, last = executor.keeper, dict[str, Any](), list[Any]()
    try:
        with suppress(asyncio.TimeoutError):
            async with timeout(patience):
                await keeper.submit(tasks)
                while len(ends) < len(tasks):
                    await asyncio.sleep(0.2)
                    news = [*executor.news()]
                    last = news[-1:] or last
                    ends |= {one.leg: one for one in news if one.is_end}
    finally:
        # Also after Ctrl-C.
        await keeper.drop([task.leg for task in tasks])
    return [ends[task.leg] for task in tasks] if len(ends) == len(tasks) else last


def _packages(there: Mapping[str, str]) -> Iterator[Verdict]:
    if absent := sorted(name for name in local_packages() if canonicalize_name(name) not in there):
        said = f"the nodes have no {', '.join(absent)}, which no index has in the version of the scheduler"
        remedy = "if DAGs import it there, set executor_python to a Python that has it, and Airflow"
        yield Verdict("packages", said, remedy, "note")
    ours = {canonicalize_name(name): version for name, version in (one.split("==") for one in installed_packages())}
    differing = [name for name, version in ours.items() if there.get(name) != version]
    if not differing:
        yield Verdict("packages", f"the nodes have all {len(ours)} packages of the scheduler")
        return
    told = ", ".join(f"{name} {there.get(name, 'is missing')}" for name in differing[:3])
    said = f"of {len(ours)} packages of the scheduler {len(differing)} are not the same on nodes: {told}"
    yield Verdict("packages", said, "install them there as far as DAGs import them", "note")


def _bundles(there: Mapping[str, str]) -> Iterator[Verdict]:
    from airflow.dag_processing.bundles.manager import DagBundlesManager

    for name in DagBundlesManager().get_all_bundle_names():  # type: ignore[no-untyped-call]
        if name not in there:
            yield Verdict("bundles", f"the nodes have no DAG bundle {name}", _BUNDLES, "wrong")
        elif missing := there[name]:
            said = f"the DAG bundle {name} is in {missing} on the nodes, where nothing is"
            yield Verdict("bundles", said, f"put the DAG files there, or {_BUNDLES}", "wrong")
        else:
            yield Verdict("bundles", f"the nodes have the DAG bundle {name}")


def _secrets(there: str) -> Iterator[Verdict]:
    from airflow.configuration import conf

    secret = conf.get("api_auth", "jwt_secret", fallback="")
    if secret and hashlib.sha256(secret.encode()).hexdigest() == there:
        said = "the nodes have the API server's jwt_secret, by which a task can act as any other"
        remedy = "let AIRFLOW_HOME in env of executor_job be a folder without Airflow's own airflow.cfg"
        yield Verdict("secrets", said, remedy, "wrong")


def _way_back(ends: list[News], url: str) -> Verdict:
    if len(ends) < 2:
        said = f"the trial job has not run within {_JOB:g} s: {''.join(one.text for one in ends) or 'no answer'}"
        return Verdict("way back", said, "repeat this when nodes are free, or with another --partition", "note")
    if ends[0].kind is not NewsKind.NOT_WANTED:
        said, _, remedy = ends[0].text.rpartition(": ")
        return Verdict("way back", said, remedy, "wrong")
    if "refused its token" not in ends[1].text:
        remedy = "correct [core] execution_api_server_url, which nodes use, too"
        return Verdict("way back", f"what answers nodes at {url} is no API server of Airflow", remedy, "wrong")
    return Verdict("way back", f"a node reaches Airflow's API server at {url}, which accepts its token")
