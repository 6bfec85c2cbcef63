"""The folder and the environment of an Airflow that has one machine to itself and answers on the loopback only."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
import secrets
import sqlite3
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from sandbox.airflow.tables import Tables
from sandbox.errors import SandboxError
from sandbox.private import write_private
from sandbox.settings import LOOPBACK, AirflowPorts

#: Each imports Airflow for seconds, so they are started side by side.
COMPONENTS = ("api-server", "scheduler", "triggerer", "dag-processor")

#: What the scheduler and the DAG processor import, so that tasks and readers of DAG files are forked with it, and none
#: of them imports it for seconds. Not all of it has to be installed.
_PRELOADED = """\
import contextlib
import importlib
import sys

if not {"scheduler", "dag-processor"}.isdisjoint(sys.argv):
    for name in (
        "airflow.sdk.execution_time.supervisor",
        "airflow.sdk.execution_time.task_runner",
        "airflow.providers.ssh.hooks.ssh",
        "airflow.providers.standard.decorators.python",
        "airflow.providers.standard.operators.bash",
        "airflow.sdk.definitions.decorators.setup_teardown",
        "airflow_provider_soperator.operators.capacity",
        "airflow_provider_soperator.operators.pipeline",
        "airflow_provider_soperator.operators.sbatch",
        "airflow_provider_soperator.operators.work",
        "airflow_provider_soperator.triggers.shift",
        "airflow_provider_soperator.triggers.sbatch",
        "paramiko",
        "kubernetes_asyncio.client",
        "nebius.sdk",
        "airflow_provider_soperator.capacity.targets.nebius_session",
    ):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
"""

#: What each Python begins with. Airflow's make objects by the hundred thousand, of which few are garbage: to go through
#: them again and again is a quarter of the work of a start, and a tenth of what comes afterwards.
_CUSTOMIZED = """\
import gc

gc.set_threshold(50_000, 20, 50)
"""


@dataclass(frozen=True)
class AirflowHome:
    """One folder with all that an Airflow keeps, its database too."""

    folder: Path
    dags: Path
    ports: AirflowPorts

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self.ports.api}"

    def environment(self, more: Mapping[str, str]) -> dict[str, str]:
        """The variables of each of its processes; ``more`` are connections, and what is to be otherwise."""
        secret = self._secret()
        return {
            "AIRFLOW_HOME": str(self.folder),
            "NO_PROXY": LOOPBACK,
            "PYTHONPATH": os.pathsep.join(filter(None, (str(self._python), os.environ.get("PYTHONPATH")))),
            "AIRFLOW__CORE__DAGS_FOLDER": str(self.dags),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
            # SQLite has one writer at a time. Whoever waits for longer fails; while it waits, it looks dead to others.
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{self.folder}/airflow.db?timeout=20",
            "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
            # No login: nobody outside this machine can reach it.
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
            "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{self.url}/execution/",
            "AIRFLOW__API__BASE_URL": self.url,
            "AIRFLOW__API__PORT": str(self.ports.api),
            "AIRFLOW__API__HOST": LOOPBACK,
            "AIRFLOW__API__WORKERS": "1",
            # The components know each other by these.
            "AIRFLOW__API__SECRET_KEY": secret,
            "AIRFLOW__API_AUTH__JWT_SECRET": secret,
            "AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT": str(self.ports.worker_logs),
            "AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT": str(self.ports.triggerer_logs),
            # Triggers wait for as long as these say before a task goes on (triggers/base.py): jobs here last seconds.
            "AIRFLOW__WORKERS__MIN_HEARTBEAT_INTERVAL": "1",
            "AIRFLOW__SCHEDULER__SCHEDULER_HEARTBEAT_SEC": "3",
            # Where there is much to do the API server answers late, and a task fails whose call is given up.
            "AIRFLOW__WORKERS__EXECUTION_API_TIMEOUT": "60",
            # Nothing else could take over what one of its processes does. One that is silent on a busy machine is slow.
            "AIRFLOW__SCHEDULER__SCHEDULER_HEALTH_CHECK_THRESHOLD": "120",
            "AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "120",
            "AIRFLOW__TRIGGERER__RUNNER_HEALTH_CHECK_THRESHOLD": "120",
            # A new file is seen in seconds where Airflow takes minutes.
            "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "1",
            "AIRFLOW__DAG_PROCESSOR__BUNDLE_REFRESH_CHECK_INTERVAL": "1",
            **more,
        }

    @property
    def _python(self) -> Path:
        """What its Pythons find before all else."""
        return self.folder / "python"

    def _secret(self) -> str:
        """The same for all processes, also for one that is started again."""
        file = self.folder / "secret"
        if not file.exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            write_private(file, secrets.token_hex(64).encode())
        return file.read_text()

    def _write_settings(self) -> None:
        """What commands of a person find who names no more than this home, among it the same DAGs."""
        key = base64.urlsafe_b64encode(hashlib.sha256(self._secret().encode()).digest()).decode()
        said = f"[core]\ndags_folder = {self.dags}\nload_examples = False\nfernet_key = {key}\n"
        settings = self.folder / "airflow.cfg"
        if not settings.exists() or settings.read_text() != said:
            write_private(settings, said.encode())

    def make(self, environment: dict[str, str]) -> None:
        """The folder and the database, or what has to change of them for this version of Airflow."""
        self._write_settings()
        installed = version("apache-airflow-core")
        stamp = self.folder / "database-version"
        if stamp.exists() and stamp.read_text() == installed:
            return
        (self.folder / "config").mkdir(exist_ok=True)
        self._python.mkdir(exist_ok=True)
        (self._python / "sitecustomize.py").write_text(_CUSTOMIZED)
        (self.folder / "config/airflow_local_settings.py").write_text(_PRELOADED)
        if stamp.exists():
            self._migrate(environment)
        else:
            # One whose making was interrupted.
            for file in self.folder.glob("airflow.db*"):
                file.unlink()
            tables = Tables(installed, environment["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"])
            tables.make(lambda: self._migrate(environment))
        if (file := self.folder / "airflow.db").exists():
            # With it, whoever reads does not keep others from writing.
            with contextlib.closing(sqlite3.connect(file)) as database:
                database.execute("PRAGMA journal_mode=WAL")
        stamp.write_text(installed)

    def _migrate(self, environment: dict[str, str]) -> None:
        log = self.folder / "migration.log"
        with log.open("wb") as output:
            said = subprocess.run(
                airflow("db", "migrate"),
                env=without_airflow() | environment,
                stdout=output,
                stderr=output,
                check=False,
            )
        if said.returncode:
            # The folder may be gone before anybody reads the log.
            last = log.read_text(errors="replace").splitlines()[-1:]
            raise SandboxError(f"`airflow db migrate` failed ({''.join(last)})", "run `make venv`, and try again")


def airflow(*words: str) -> list[str]:
    """A command of Airflow's, in this Python."""
    return [sys.executable, "-m", "airflow", *words]


def without_airflow(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """An environment less what its user has set for an Airflow of theirs."""
    return {name: value for name, value in environment.items() if not name.startswith("AIRFLOW_")}
