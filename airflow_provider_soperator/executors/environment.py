"""The executor's folder on the cluster, and the Python there that has Airflow: one that is given, or a venv made once.

A venv is named by the content of what is installed in it, so that a change makes another one beside it.
"""

from __future__ import annotations

import hashlib
import platform
from dataclasses import dataclass, field, replace
from importlib import metadata
from pathlib import Path

from airflow_provider_soperator.executors.task_jobs import ExecutorFolder
from airflow_provider_soperator.slurm.files import FileRequest, UnpackFiles
from airflow_provider_soperator.slurm.requests.commands import Command, CommandOutput
from airflow_provider_soperator.slurm.sbatch_arguments import by_bash

#: Seconds in which the packages can be installed.
_INSTALLATION = 3600.0


@dataclass(frozen=True)
class PrepareFolder(FileRequest[ExecutorFolder]):
    """Make the folder, and the environment if there is none; files of tasks that are older than ``keep`` days go.

    A relative ``root`` is in the folder in which the cluster's commands run.
    """

    doing = "preparing {root} for tasks"
    root: str
    python: str = ""
    packages: tuple[str, ...] = ()
    keep: int = 8
    airflow: str = field(default_factory=lambda: metadata.version("apache-airflow-core"))

    @property
    def environment(self) -> str:
        """The name of the environment, by its content."""
        version = ".".join(platform.python_version_tuple()[:2])
        return f"{version}-{hashlib.sha256(chr(10).join(self.packages).encode()).hexdigest()[:16]}"

    def command(self) -> Command:
        program = Path(__file__).with_name("environment.bash").read_text()
        words = (self.root, self.python, self.airflow, self.environment, str(self.keep))
        stdin = "".join(f"{package}\n" for package in self.packages).encode()
        return Command(by_bash(program, "environment", *words), stdin=stdin, timeout=_INSTALLATION)

    def read(self, answer: CommandOutput) -> ExecutorFolder:
        root, python = self.check(answer).text.splitlines()[-2:]
        return ExecutorFolder(root, python)


@dataclass(frozen=True)
class WithdrawLegs(UnpackFiles):
    """Unpack what keeps jobs from starting some legs; the folder is made if it is not there yet."""

    def command(self) -> Command:
        unpack, program = super().command(), 'mkdir -p -m 700 -- "$1" && shift && exec "$@"'
        return replace(unpack, argv=("sh", "-c", program, "withdraw", self.folder, *unpack.argv))


def installed_packages() -> tuple[str, ...]:
    """The packages of this process at their versions, without those that come from no index."""
    packages = [package for package in metadata.distributions() if package.name]
    local = {package.name for package in packages if package.read_text("direct_url.json")}
    found = {f"{package.name}=={package.version}" for package in packages if package.name not in local}
    return tuple(sorted(found, key=str.lower))
