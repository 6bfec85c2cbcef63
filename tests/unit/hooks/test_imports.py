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


def test_the_hook_imports_nothing_that_connects() -> None:
    airflows_own = imported_by("import airflow.sdk.bases.hook", HEAVY)
    assert imported_by("import airflow_provider_soperator.hooks.slurm", HEAVY) == airflows_own


@pytest.mark.parametrize("module", ["hooks.form", "hooks.settings", "get_provider_info"])
def test_what_every_process_of_airflow_reads_does_not_import_airflow(module: str) -> None:
    assert imported_by(f"import airflow_provider_soperator.{module}", ("airflow", *HEAVY)) == []
