"""Brings up an Airflow beside a sandbox: its processes are the sandbox's, and end with it."""

from __future__ import annotations

import json
import shutil
import signal
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from sandbox import access, daemons
from sandbox.airflow import interpreter
from sandbox.airflow.home import COMPONENTS, AirflowHome, airflow
from sandbox.errors import SandboxError
from sandbox.lifecycle import Sandbox

if TYPE_CHECKING:
    from sandbox.airflow.api import AirflowApi

#: The example DAGs.
DAGS = Path(__file__).parents[2] / "dags"

#: Each has PIDs of its own, so that nothing it has started outlives it.
_ISOLATED = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "--"]

#: Tasks that run at once; each is a process of 130 MB. Those that wait in the triggerer do not count.
_PARALLELISM = 8


class Airflow:
    """The Airflow beside one sandbox, whether it runs or not; ``more`` are variables that are to be otherwise."""

    def __init__(self, sandbox: Sandbox, dags: Path = DAGS, more: Mapping[str, str] | None = None) -> None:
        self._sandbox = sandbox
        self._more = dict(more or {})
        self.home = AirflowHome(sandbox.paths.airflow, dags, sandbox.settings.ports.airflow)

    @cached_property
    def api(self) -> AirflowApi:
        # Most commands have nothing to ask, and its client takes as long to import as all that they need.
        from sandbox.airflow.api import AirflowApi

        return AirflowApi(self.home.url)

    @property
    def exists(self) -> bool:
        """Whether it was ever brought up."""
        return self.home.folder.exists()

    def running(self) -> dict[str, bool]:
        """Which of its components run."""
        processes = self._sandbox.init.processes() if self._sandbox.init.alive() else {}
        return {name: bool(processes.get(_process(name), {}).get("pid")) for name in COMPONENTS}

    def up(self, report: Callable[[float, str], None]) -> None:
        """Start it, or whatever of it does not run. Safe to repeat."""
        facts = access.describe(self._sandbox.settings)
        environment = self.home.environment(
            {
                "AIRFLOW__CORE__PARALLELISM": str(_PARALLELISM),
                "AIRFLOW__CORE__TEST_CONNECTION": "Enabled",
                "AIRFLOW__API__INSTANCE_NAME": f"Soperator sandbox {self._sandbox.settings.name}",
                **self._executors(),
                **self._more,
            }
        )
        report(0.0, "making Airflow's database")
        self.home.make(environment)
        for name, runs in self.running().items():
            if not runs:
                self._sandbox.init.start(_process(name), [*_ISOLATED, *airflow(name)], env=environment)
        for done, name in enumerate(COMPONENTS):
            report((done + 1) / (len(COMPONENTS) + 1), f"starting Airflow's {name}")
            self._wait_for(name)
            if name == COMPONENTS[0]:
                self.api.add_connections(facts["airflow_connections"])
        report(1.0, "ready")

    def _executors(self) -> dict[str, str]:
        """Nodes that see this Airflow can run its tasks."""
        if str(self.home.folder) not in self._sandbox.settings.visible:
            return {}
        env = {"AIRFLOW_HOME": str(self.home.folder), "AIRFLOW__CORE__DAGS_FOLDER": str(self.home.dags)}
        return {
            "AIRFLOW__CORE__EXECUTOR": "LocalExecutor,SlurmExecutor:airflow_provider_soperator.executors.SlurmExecutor",
            "AIRFLOW__SOPERATOR__EXECUTOR_PYTHON": interpreter.environment(self._sandbox.init.root()),
            "AIRFLOW__SOPERATOR__EXECUTOR_JOB": json.dumps({"env": env, "partition": "main"}),
        }

    def wait_for_dag(self, dag_id: str, since: datetime | None = None) -> None:
        """Until it has read the file of this name; ``since`` when, if what it knew before does not count."""
        deadline = time.monotonic() + daemons.PATIENCE
        while not self.api.has_dag(dag_id, f"{dag_id}.py", since):
            if time.monotonic() > deadline:
                file = self.home.dags / f"{dag_id}.py"
                raise SandboxError(
                    f"Airflow does not find {dag_id}", f"see whether {file} can be imported, and try again"
                )
            time.sleep(0.3)

    def _wait_for(self, name: str) -> None:
        daemons.wait_for(
            lambda: self.api.is_healthy(name),
            f"Airflow's {name} does not come up",
            lambda: not self.running()[name],
            self._sandbox.paths.logs / f"{_process(name)}.log",
            pause=0.3,
        )

    def remove(self) -> None:
        """End all of its processes, and forget all that it has written."""
        for name, runs in self.running().items():
            if runs:
                self._sandbox.init.signal(_process(name), signal.SIGKILL)
        # The kernel ends what they have begun, which may write to its last moment.
        while self.exists:
            shutil.rmtree(self.home.folder, ignore_errors=True)


def _process(component: str) -> str:
    return f"airflow-{component}"
