"""A whole Airflow for tests: API server, scheduler, triggerer and DAG processor, on one machine and one sandbox.

with Stack(folder, connections, database) as stack:
    run = stack.add_dag("train", SOURCE).trigger()
    run.wait("fit", "success")
    print(run.log("fit"))
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import socket
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy
from airflow.models.taskinstance import TaskInstance
from sqlalchemy.orm import Session

from sandbox.airflow.api import ENDS, AirflowApi, DagRun
from sandbox.airflow.home import COMPONENTS, AirflowHome, without_airflow
from sandbox.settings import AirflowPorts
from tests.airflow.processes import Component

T = TypeVar("T")

_HEAD = """\
from datetime import datetime, timedelta
from pathlib import Path

from airflow.sdk import DAG, task
from airflow.providers.standard.operators.bash import BashOperator

from airflow_provider_soperator.operators.sbatch import SbatchOperator

"""


#: The niceness of the scheduler, its database and the API server. A scheduler that gets no turn on a busy machine
#: reads late that tasks were deferred, and Airflow then fails those that have gone on (apache/airflow #72716;
#: triggers/base.py waits for it).
FIRST = -10
#: Seconds that something has to come about, when all early runs want to be served: less than a test has in all.
PATIENCE = 1200
#: Seconds that processes and tasks may be silent for. On a busy machine each is silent for a minute at times, and
#: Airflow would run its tasks a second time. What a test kills is missed at once: Stack.end, Run.miss.
SILENCE = "3600"
#: Seconds that a task waits for an answer of the API server, on nodes, too.
CALL = "300"
#: Tasks that are queued or run at a time. Airflow 3.3's LocalExecutor takes any number of them into a pipe, and has the
#: whole scheduler wait when that is full, which it is with some 50: until a task ends, again and again.
QUEUED = 40
#: What all processes begin with, those on nodes, too.
_SETTINGS = """
import os
import signal
import sys

from airflow_provider_soperator.client import batcher

# The scheduler forks the workers, which are to be as nice as others.
os.register_at_fork(after_in_child=lambda: os.setpriority(os.PRIO_PROCESS, 0, 0))

# Seconds that a job which is over waits for what accounting has of it.
batcher.RECORDS_WITHIN = 60

if "scheduler" in sys.argv:
    from airflow.sdk.execution_time.supervisor import WatchedSubprocess

    # In Airflow 3.3 a worker gives a task that is to end so many seconds, and kills it then: a job is to go in them.
    if WatchedSubprocess.kill.__defaults__ == (signal.SIGINT, 5.0, False):
        WatchedSubprocess.kill.__defaults__ = (signal.SIGINT, 120.0, False)
        look = WatchedSubprocess._service_subprocess

        def look_often(self, max_wait_time, *more, **options):
            # A worker that does not hear of the end of its task would sleep until all of these seconds are over.
            return look(self, min(max_wait_time, 2), *more, **options)

        WatchedSubprocess._service_subprocess = look_often
"""


#: True from Airflow 3.4 on, which has loops, and keeps earlier tries of a task beside it.
HAS_REGIONS = hasattr(TaskInstance, "region_id")


class Stack:
    """Airflow's processes around one database, with everything in one folder."""

    def __init__(self, folder: Path, connections: Mapping[str, str], database: str) -> None:
        self.folder = folder
        self.dags = folder / "dags"
        self._home = AirflowHome(folder, self.dags, AirflowPorts(*free_ports(3)))
        mine = {
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": database,
            # Tasks that start all at once get in each other's way. Some at a time are through as soon.
            "AIRFLOW__CORE__PARALLELISM": "8",
            "AIRFLOW__CORE__MAX_ACTIVE_TASKS_PER_DAG": "1000",
            # What has not changed is not read again: with a DAG for each test that would keep a core busy.
            "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "3600",
            # One each second would be a third of what the API server has to do.
            "AIRFLOW__WORKERS__MIN_HEARTBEAT_INTERVAL": "2",
            # What is dead is looked for in seconds where Airflow takes minutes.
            "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_SEC": "2",
            "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": SILENCE,
            "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "5",
            # Airflow 3.4 may take as long to see that a task has ended which it has told to.
            "AIRFLOW__CORE__KILLED_TASK_CLEANUP_TIME": "5",
            "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "10",
            "AIRFLOW__SCHEDULER__SCHEDULER_HEALTH_CHECK_THRESHOLD": SILENCE,
            "AIRFLOW__TRIGGERER__JOB_HEARTBEAT_SEC": "1",
            "AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": SILENCE,
            "AIRFLOW__TRIGGERER__RUNNER_HEALTH_CHECK_THRESHOLD": SILENCE,
            # Nor is a file or a call given up that takes its time.
            "AIRFLOW__CORE__DAGBAG_IMPORT_TIMEOUT": "300",
            "AIRFLOW__DAG_PROCESSOR__DAG_FILE_PROCESSOR_TIMEOUT": "300",
            "AIRFLOW__WORKERS__EXECUTION_API_TIMEOUT": CALL,
            **connections,
        }
        self.environment = without_airflow() | self._home.environment(mine)
        self.components = {
            name: Component(name, self.environment, folder, FIRST if name in ("scheduler", "api-server") else 0)
            for name in COMPONENTS
        }
        self._database = sqlalchemy.create_engine(database)
        self.api = AirflowApi(self._home.url, timeout=PATIENCE)
        self.call = self.api.call

    def __enter__(self) -> Stack:
        self.dags.mkdir(parents=True)
        try:
            self._home.make(self.environment)
            self.change("UPDATE slot_pool SET slots = :slots", slots=QUEUED)
            with (self.folder / "config/airflow_local_settings.py").open("a") as settings:
                settings.write(_SETTINGS)
            self.start_all()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for name in reversed(COMPONENTS):
            with contextlib.suppress(AssertionError):
                self.components[name].end(signal.SIGKILL)
        self.api.close()
        self._database.dispose()

    def start_all(self) -> None:
        """Start whatever is not running, and wait until all of it is well."""
        for component in self.components.values():
            if not component.is_running:
                component.start()
        self.wait("all of Airflow is healthy", self._is_healthy)

    def end(self, name: str, how: signal.Signals = signal.SIGTERM, *, with_children: bool = True) -> None:
        """End one of the processes, and have Airflow miss it."""
        self.components[name].end(how, with_children=with_children)
        self.miss(name)

    def miss(self, name: str) -> None:
        """Have Airflow take a process for dead, until it is heard of again."""
        kind = f"{name.title().replace('-', '')}Job"
        old = "UPDATE job SET latest_heartbeat = latest_heartbeat - interval '1 day' WHERE job_type = :kind"
        self.change(old, kind=kind)

    def _is_healthy(self) -> bool:
        for component in self.components.values():
            assert component.is_running, f"{component.name} has ended\n{component.last_lines()}"
        return all(map(self.api.is_healthy, COMPONENTS))

    def add_dag(
        self,
        dag_id: str,
        body: str,
        *,
        files: Mapping[str, str] | None = None,
        dag_options: str = "",
        head: str = "",
        schedule: str = "None",
    ) -> Dag:
        """A DAG of tasks that ``body`` makes, with files beside it, once Airflow knows it."""
        for name, text in (files or {}).items():
            (self.dags / name).write_text(text)
        # An indented body would be a sign of something left out.
        inner = "\n".join(f"    {line}" if line else "" for line in body.strip("\n").splitlines())
        made = f"with DAG({dag_id!r}, schedule={schedule}, {dag_options}) as dag:"
        return self.add_source(dag_id, f"{_HEAD}{head}\n{made}\n{inner}\n")

    def add_source(self, dag_id: str, source: str) -> Dag:
        """The DAG that a Python source makes."""
        # What the DAG processor reads is a whole file.
        partial = self.folder / f"{dag_id}.part"
        partial.write_text(source)
        partial.rename(self.dags / f"{dag_id}.py")
        self.wait(f"Airflow has the DAG {dag_id}", lambda: self.api.has_dag(dag_id, f"{dag_id}.py"))
        return Dag(self, dag_id)

    def add_file(self, file: Path) -> Dag:
        """The DAG of a file, which has its name, and the folder beside it for its scripts, if there is one."""
        if file.with_suffix("").exists():
            shutil.copytree(file.with_suffix(""), self.dags / file.stem)
        shutil.copy(file, self.dags)
        self.wait(f"Airflow has the DAG {file.stem}", lambda: self.api.has_dag(file.stem, file.name))
        return Dag(self, file.stem)

    def wait(
        self, what: str, condition: Callable[[], T | None], timeout: float = PATIENCE, *, is_cheap: bool = False
    ) -> T:
        """Wait until a condition is true and return what it gave; fail in words if it never is."""
        began = time.monotonic()
        while not (outcome := condition()):
            waited = time.monotonic() - began
            assert waited < timeout, f"after {timeout} s still not: {what}\n{self._seen()}"
            # Most looks cost Airflow, or Slurm, some work: after a long wait they are rarer.
            time.sleep(0.25 if is_cheap else min(max(0.5, waited / 8), 3))
        return outcome

    def states(self, run: Run) -> dict[tuple[str, int], tuple[str, int]]:
        """The state and the try of each task of a run, by its name and its map index, as the database has them.

        Tests wait for these more often than for all else, and the API server would be busy with their questions.
        """
        columns = (TaskInstance.task_id, _map_index(), TaskInstance.state, TaskInstance.try_number)
        asked = sqlalchemy.select(*columns).where(TaskInstance.dag_id == run.dag_id, TaskInstance.run_id == run.run_id)
        # Airflow 3.4 keeps earlier tries in the same table: its own sessions leave them out.
        with Session(self._database) as session:
            rows = session.execute(asked).all()
        return {(task_id, index): (state, tries) for task_id, index, state, tries in rows}

    def ask(self, statement: str, **values: Any) -> Sequence[Any]:
        """What Airflow has in its database."""
        with self._database.connect() as connection:
            return connection.execute(sqlalchemy.text(statement), values).all()

    def change(self, statement: str, **values: Any) -> None:
        """Change what Airflow has in its database, where nothing else moves its clock."""
        with self._database.begin() as connection:
            connection.execute(sqlalchemy.text(statement), values)

    def asset(self, name: str) -> int:
        """The id of an asset."""
        [asset] = self.call("GET", "/assets", params={"name_pattern": name})["assets"]
        return int(asset["id"])

    def memories(self, asset: str) -> list[Any]:
        """What the watchers of an asset go on with after a restart."""
        entries = self.call("GET", f"/assets/{self.asset(asset)}/state-store")["asset_state_store"]
        return [entry["value"] for entry in entries]

    def _seen(self) -> str:
        return "\n".join(component.last_lines() for component in self.components.values())


@dataclass(frozen=True)
class Dag:
    """A DAG that Airflow knows."""

    stack: Stack
    dag_id: str

    def trigger(self, **conf: Any) -> Run:
        return self._run(self.stack.api.trigger(self.dag_id, conf))

    def runs(self) -> list[Run]:
        """All that there have been, the oldest first."""
        found = self.stack.call("GET", f"/dags/{self.dag_id}/dagRuns", params={"order_by": "run_after"})["dag_runs"]
        return [self._run(run["dag_run_id"]) for run in found]

    def _run(self, run_id: str) -> Run:
        return Run(self.stack.api, self.dag_id, run_id, self.stack)


@dataclass(frozen=True)
class Run(DagRun):
    """A run that a test waits for, and changes."""

    stack: Stack

    def wait(
        self, task_id: str, *states: str, index: int = -1, timeout: float = PATIENCE, least_try: int = 0
    ) -> dict[str, Any]:
        """The task, once it is in one of these states; it fails as soon as the task rests in another."""

        def reached() -> dict[str, Any] | None:
            known = self.stack.states(self)
            assert not known or task_id in {name for name, _ in known}, f"{self.dag_id} has no task {task_id}"
            state, tries = known.get((task_id, index), ("", 0))
            if tries < least_try or state not in {*ENDS, *states}:
                return None
            task = self.task(task_id, index)
            if task["state"] in ENDS and task["state"] not in states:
                raise AssertionError(f"{task_id} is {task['state']}\n{self.log(task_id, index)}")
            return task if task["state"] in states else None

        what = f"{self.dag_id}.{task_id} is {' or '.join(states)}"
        try:
            return self.stack.wait(what, reached, timeout, is_cheap=True)
        except AssertionError as error:
            raise AssertionError(f"{error}\n--- the task's log\n{self.log(task_id, index)}") from None

    def wait_failed_for_good(self, task_id: str) -> None:
        """Wait until a task has failed that might have been tried again.

        The try that has ended so need not be the first: a busy Airflow may have failed one before.
        """
        task = self.wait(task_id, "failed")
        assert task["try_number"] <= task["max_tries"], self.log(task_id)

    def miss(self, task_id: str) -> None:
        """Have Airflow take a running task for dead, whose processes are gone."""
        before = self.stack.states(self)[task_id, -1]
        old = (
            "UPDATE task_instance SET last_heartbeat_at = last_heartbeat_at - interval '1 day'"
            " WHERE dag_id = :dag AND run_id = :run AND task_id = :task AND try_number = :number"
        )

        def is_missed() -> bool:
            # The API server may be late with a heartbeat from before.
            self.stack.change(old, dag=self.dag_id, run=self.run_id, task=task_id, number=before[1])
            return self.stack.states(self)[task_id, -1] != before

        self.stack.wait(f"Airflow misses {task_id}", is_missed)

    def age(self) -> None:
        """Have it begun an hour earlier."""
        self.stack.change(
            "UPDATE dag_run SET start_date = start_date - interval '1 hour' WHERE dag_id = :dag AND run_id = :run",
            dag=self.dag_id,
            run=self.run_id,
        )

    def wait_all(self, timeout: float = PATIENCE, ends: Collection[str] = ENDS) -> dict[str, str]:
        """The state of each task, once all have come to rest."""

        def rested() -> dict[str, str] | None:
            known = [(state, task_id) for (task_id, _), (state, _) in self.stack.states(self).items()]
            # Of a task that is mapped one that has failed counts.
            known.sort(key=lambda one: one[0] != "success")
            has_ended = known and {state for state, _ in known} <= set(ends)
            return {task_id: state for state, task_id in known} if has_ended else None

        return self.stack.wait(f"all tasks of {self.dag_id} have ended", rested, timeout, is_cheap=True)

    def wait_log(self, task_id: str, text: str, index: int = -1, number: int | None = None) -> str:
        """The log, once it has this text: what is written last is seen some time after the task's state."""

        def written() -> str | None:
            log = self.log(task_id, index, number)
            return log if text in log else None

        try:
            return self.stack.wait(f"the log of {task_id} has {text!r}", written)
        except AssertionError as error:
            raise AssertionError(f"{error}\n--- the task's log\n{self.log(task_id, index, number)}") from None

    def answer(self, task_id: str, said: str) -> dict[str, Any]:
        """Answer a task that asks somebody; what it has asked."""
        self.wait(task_id, "awaiting_input")
        # Nobody is as quick as this. Airflow fails a task that goes on before its scheduler has seen that it waits.
        seen = f"TaskInstance Finished: dag_id={self.dag_id}, task_id={task_id}, run_id={self.run_id},"
        log = self.stack.components["scheduler"].log
        self.stack.wait(f"the scheduler has seen that {task_id} waits", lambda: seen in log.read_text(errors="replace"))
        path = f"{self.path}/taskInstances/{task_id}/-1/hitlDetails"
        asked: dict[str, Any] = self.stack.call("GET", path)
        self.stack.call("PATCH", path, json={"chosen_options": [said]})
        return asked

    def clear(self, task_id: str, *, with_downstream: bool = False, only_failed: bool = False) -> None:
        body = {
            "dry_run": False,
            "dag_run_id": self.run_id,
            "task_ids": [task_id],
            "only_failed": only_failed,
            "reset_dag_runs": True,
            "include_downstream": with_downstream,
        }
        self.stack.call("POST", f"/dags/{self.dag_id}/clearTaskInstances", json=body)

    def mark(self, task_id: str, state: str) -> None:
        self.stack.call("PATCH", f"{self.path}/taskInstances/{task_id}", json={"new_state": state})

    def make_again(self) -> None:
        """Delete the run, and have another under its id."""
        self.stack.call("DELETE", self.path)
        body = {"dag_run_id": self.run_id, "logical_date": None}
        self.stack.call("POST", f"/dags/{self.dag_id}/dagRuns", json=body)

    def end(self, state: str) -> None:
        """Mark the whole run."""
        self.stack.call("PATCH", self.path, json={"state": state})


def _map_index() -> Any:
    """What a task's map index is in a query; Airflow 3.4 has the number of an iteration of a loop in its place."""
    if HAS_REGIONS:
        from airflow.models.task_coordinates import public_map_index_expression  # type: ignore[import-not-found,unused-ignore]

        return public_map_index_expression(TaskInstance)
    return TaskInstance.map_index


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on just now."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
