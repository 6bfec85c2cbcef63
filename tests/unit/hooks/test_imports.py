"""DAG files are parsed all day long: a hook imports what reaches a cluster only when it connects."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = (
    "asyncssh",
    "grpc",
    "httpx",
    "kubernetes",
    "kubernetes_asyncio",
    "nebius",
    "paramiko",
    "pyslurm",
    "wtforms",
)


def imported_by(program: str, names: tuple[str, ...]) -> list[str]:
    """Which of these a Python has imported after a program."""
    program += f"\nimport sys; print(*(name for name in {names!r} if name in sys.modules))"
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return said.stdout.split()


@pytest.fixture(scope="module")
def airflows_own() -> list[str]:
    return imported_by("import airflow.sdk.bases.hook", HEAVY)


@pytest.mark.parametrize(
    "module",
    [
        "operators.capacity",
        "operators.capacity_dag",
        "operators.nodes",
        "capacity.targets.slurm",
        "timetables.capacity",
    ],
)
def test_what_dag_files_import_reads_no_hostlists_either(module: str, airflows_own: list[str]) -> None:
    found = imported_by(f"import airflow_provider_soperator.{module}", ("ClusterShell", *HEAVY))
    assert set(found) <= set(airflows_own)


@pytest.mark.parametrize(
    "module", ["hooks.nebius", "hooks.slurm", "capacity.targets.nebius", "sensors.capacity", "triggers.blocks"]
)
def test_nothing_is_imported_that_connects(module: str, airflows_own: list[str]) -> None:
    assert set(imported_by(f"import airflow_provider_soperator.{module}", HEAVY)) <= set(airflows_own)


@pytest.mark.parametrize("module", ["hooks.form", "hooks.settings", "nebius.settings", "get_provider_info"])
def test_what_every_process_of_airflow_reads_does_not_import_airflow(module: str) -> None:
    assert imported_by(f"import airflow_provider_soperator.{module}", ("airflow", *HEAVY)) == []
