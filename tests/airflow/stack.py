"""A whole Airflow for tests: API server, scheduler, triggerer and DAG processor, on one machine and one sandbox.

with Stack(folder, connections) as stack:
    run = stack.add_dag("train", SOURCE).trigger()
    run.wait("fit", "success")
    print(run.log("fit"))
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import httpx

from tests.airflow.processes import Component, run

T = TypeVar("T")

#: Each imports Airflow for seconds, so they are started side by side.
COMPONENTS = ("api-server", "scheduler", "triggerer", "dag-processor")
#: States in which a task has come to rest.
ENDS = frozenset({"success", "failed", "skipped", "upstream_failed", "removed"})

_HEAD = """\
from datetime import datetime, timedelta
from pathlib import Path

from airflow.sdk import DAG, task
from airflow.providers.standard.operators.bash import BashOperator

from airflow_provider_soperator.operators.sbatch import SbatchOperator

"""

#: What tasks are forked with, so that not each of them imports it for seconds.
_PRELOADED = """\
import airflow.providers.standard.operators.bash
import airflow_provider_soperator.operators.sbatch
import airflow_provider_soperator.operators.waiting
import airflow_provider_soperator.triggers.sbatch
"""


class Stack:
    """Airflow's processes around one database, with everything in one folder."""

    def __init__(self, folder: Path, connections: Mapping[str, str], parallelism: int = 16) -> None:
        self.folder = folder
        self.dags = folder / "dags"
        port, worker_logs, triggerer_logs = free_ports(3)
        self._url = f"http://127.0.0.1:{port}"
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW_")},
            **connections,
            "AIRFLOW_HOME": str(folder),
            "NO_PROXY": "127.0.0.1",
            "AIRFLOW__CORE__DAGS_FOLDER": str(self.dags),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
            "AIRFLOW__CORE__PARALLELISM": str(parallelism),
            "AIRFLOW__CORE__MAX_ACTIVE_TASKS_PER_DAG": "1000",
            "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
            "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{self._url}/execution/",
            "AIRFLOW__API__PORT": str(port),
            "AIRFLOW__API__HOST": "127.0.0.1",
            "AIRFLOW__API__WORKERS": "1",
            "AIRFLOW__API__SECRET_KEY": "of-a-test",
            "AIRFLOW__API_AUTH__JWT_SECRET": "of-a-test-that-is-at-least-64-bytes-long-as-the-algorithm-asks-for",
            "AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT": str(worker_logs),
            "AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT": str(triggerer_logs),
            # A new file is seen, and a dead process missed, in seconds where Airflow takes minutes.
            "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "1",
            "AIRFLOW__DAG_PROCESSOR__BUNDLE_REFRESH_CHECK_INTERVAL": "1",
            "AIRFLOW__WORKERS__MIN_HEARTBEAT_INTERVAL": "2",
            "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_SEC": "2",
            "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "30",
            "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "5",
            "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "10",
            "AIRFLOW__SCHEDULER__SCHEDULER_HEALTH_CHECK_THRESHOLD": "30",
            "AIRFLOW__TRIGGERER__JOB_HEARTBEAT_SEC": "1",
            "AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "15",
        }
        self.components = {name: Component(name, self.environment, folder) for name in COMPONENTS}
        self.api = httpx.Client(base_url=f"{self._url}/api/v2", timeout=30, trust_env=False)

    def __enter__(self) -> Stack:
        self.dags.mkdir(parents=True)
        (folder := self.folder / "config").mkdir()
        (folder / "airflow_local_settings.py").write_text(_PRELOADED)
        try:
            run(self.environment, "db", "migrate")
            self.start_all()
            token = httpx.get(f"{self._url}/auth/token", trust_env=False).json()["access_token"]
            self.api.headers["Authorization"] = f"Bearer {token}"
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for name in reversed(COMPONENTS):
            with contextlib.suppress(AssertionError):
                self.components[name].end(signal.SIGKILL)
        self.api.close()

    def start_all(self) -> None:
        """Start whatever is not running, and wait until all of it is well."""
        for component in self.components.values():
            if not component.is_running:
                component.start()
        self.wait("all of Airflow is healthy", self._is_healthy, 120)

    def _is_healthy(self) -> bool:
        for component in self.components.values():
            assert component.is_running, f"{component.name} has ended\n{component.last_lines()}"
        try:
            health = self.api.get("/monitor/health").json()
        except httpx.TransportError:
            return False
        return all(health[part]["status"] == "healthy" for part in ("scheduler", "triggerer", "dag_processor"))

    def add_dag(self, dag_id: str, body: str, *, files: Mapping[str, str] | None = None, dag_options: str = "") -> Dag:
        """A DAG of tasks that ``body`` makes, with files beside it, once Airflow knows it."""
        for name, text in (files or {}).items():
            (self.dags / name).write_text(text)
        # An indented body would be a sign of something left out.
        inner = "\n".join(f"    {line}" if line else "" for line in body.strip("\n").splitlines())
        # What the DAG processor reads is a whole file.
        partial = self.folder / f"{dag_id}.part"
        partial.write_text(f"{_HEAD}\nwith DAG({dag_id!r}, schedule=None, {dag_options}) as dag:\n{inner}\n")
        partial.rename(self.dags / f"{dag_id}.py")
        self.wait(f"Airflow has the DAG {dag_id}", lambda: self._has(dag_id), 60)
        return Dag(self, dag_id)

    def _has(self, dag_id: str) -> bool:
        errors = self.call("GET", "/importErrors")["import_errors"]
        wrong = [error["stack_trace"] for error in errors if error["filename"].endswith(f"{dag_id}.py")]
        assert not wrong, wrong[0]
        return self.api.get(f"/dags/{dag_id}").status_code == 200

    def call(self, method: str, path: str, **options: Any) -> Any:
        answer = self.api.request(method, path, **options)
        tries = 1
        # SQLite has one writer at a time, and whoever has waited for too long is turned away.
        while answer.status_code == 500 and "Database error" in answer.text and tries < 10:
            time.sleep(0.5)
            answer = self.api.request(method, path, **options)
            tries += 1
        assert answer.is_success, f"{method} {path}: {answer.status_code} {answer.text}"
        return answer.json()

    def wait(self, what: str, condition: Callable[[], T | None], timeout: float = 60) -> T:
        """Wait until a condition is true and return what it gave; fail in words if it never is."""
        deadline = time.monotonic() + timeout
        while not (outcome := condition()):
            assert time.monotonic() < deadline, f"after {timeout} s still not: {what}\n{self._seen()}"
            # Each look costs Airflow, or Slurm, some work; tests wait side by side.
            time.sleep(0.5)
        return outcome

    def _seen(self) -> str:
        return "\n".join(component.last_lines() for component in self.components.values())


@dataclass(frozen=True)
class Dag:
    """A DAG that Airflow knows."""

    stack: Stack
    dag_id: str

    def trigger(self, **conf: Any) -> Run:
        path = f"/dags/{self.dag_id}/dagRuns"
        made = self.stack.call("POST", path, json={"logical_date": None, "conf": conf})
        return Run(self.stack, self.dag_id, made["dag_run_id"])


@dataclass(frozen=True)
class Run:
    """A run of a DAG. A task that is mapped has an index."""

    stack: Stack
    dag_id: str
    run_id: str

    @property
    def _path(self) -> str:
        return f"/dags/{self.dag_id}/dagRuns/{self.run_id}"

    def state(self) -> str:
        return str(self.stack.call("GET", self._path)["state"])

    def tasks(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.stack.call("GET", f"{self._path}/taskInstances", params={"limit": 1000})[
            "task_instances"
        ]
        return found

    def task(self, task_id: str, index: int = -1) -> dict[str, Any]:
        path = f"{self._path}/taskInstances/{task_id}" + (f"/{index}" if index >= 0 else "")
        found: dict[str, Any] = self.stack.call("GET", path)
        return found

    def wait(
        self, task_id: str, *states: str, index: int = -1, timeout: float = 90, least_try: int = 0
    ) -> dict[str, Any]:
        """The task, once it is in one of these states; it fails as soon as the task rests in another."""

        def reached() -> dict[str, Any] | None:
            task = self.task(task_id, index)
            if task["try_number"] < least_try:
                return None
            if task["state"] in ENDS and task["state"] not in states:
                raise AssertionError(f"{task_id} is {task['state']}\n{self.log(task_id, index)}")
            return task if task["state"] in states else None

        try:
            return self.stack.wait(f"{self.dag_id}.{task_id} is {' or '.join(states)}", reached, timeout)
        except AssertionError as error:
            raise AssertionError(f"{error}\n--- the task's log\n{self.log(task_id, index)}") from None

    def wait_all(self, timeout: float = 180, ends: Collection[str] = ENDS) -> dict[str, str]:
        """The state of each task, once all have come to rest."""

        def rested() -> dict[str, str] | None:
            states = {task["task_id"]: task["state"] for task in self.tasks()}
            return states if states and set(states.values()) <= set(ends) else None

        return self.stack.wait(f"all tasks of {self.dag_id} have ended", rested, timeout)

    def log(self, task_id: str, index: int = -1, number: int | None = None) -> str:
        """The log of a task's newest try, or of another, a line for each event."""
        number = number or self.task(task_id, index)["try_number"]
        path = f"{self._path}/taskInstances/{task_id}/logs/{number}"
        params = {"map_index": index, "full_content": True}
        answer = self.stack.api.get(path, params=params, headers={"Accept": "application/json"})
        if not answer.is_success:
            return f"(no log: {answer.status_code} {answer.text})"
        return "\n".join(_line(event) for event in answer.json()["content"])

    def wait_log(self, task_id: str, text: str, index: int = -1, number: int | None = None) -> str:
        """The log, once it has this text: what is written last is seen some time after the task's state."""

        def written() -> str | None:
            log = self.log(task_id, index, number)
            return log if text in log else None

        try:
            return self.stack.wait(f"the log of {task_id} has {text!r}", written, 60)
        except AssertionError as error:
            raise AssertionError(f"{error}\n--- the task's log\n{self.log(task_id, index, number)}") from None

    def xcom(self, task_id: str, index: int = -1, key: str = "return_value") -> Any:
        path = f"{self._path}/taskInstances/{task_id}/xcomEntries/{key}"
        return self.stack.call("GET", path, params={"map_index": index, "deserialize": False, "stringify": False})[
            "value"
        ]

    def clear(self, task_id: str) -> None:
        body = {
            "dry_run": False,
            "dag_run_id": self.run_id,
            "task_ids": [task_id],
            "only_failed": False,
            "reset_dag_runs": True,
        }
        self.stack.call("POST", f"/dags/{self.dag_id}/clearTaskInstances", json=body)

    def mark(self, task_id: str, state: str) -> None:
        self.stack.call("PATCH", f"{self._path}/taskInstances/{task_id}", json={"new_state": state})


def _line(event: Any) -> str:
    if isinstance(event, str):
        return event
    detail = "".join(
        f"\n{one.get('exc_type')}: {one.get('exc_value')}" for one in event.get("error_detail") or () if one
    )
    return str(event.get("event", "")) + detail


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on just now."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
