"""DAG files are parsed all day long: what they import must not pull in what only a connection needs."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = (
    "airflow",
    "asyncssh",
    "grpc",
    "httpx",
    "jwt",
    "kubernetes",
    "kubernetes_asyncio",
    "nebius",
    "paramiko",
    "pyslurm",
)
MODULES = (
    "framing",
    "kubernetes",
    "kubernetes_errors",
    "local",
    "native",
    "protocol",
    "pyslurm_program",
    "rest",
    "rest_errors",
    "retry",
    "shell",
    "ssh",
    "tokens",
)


@pytest.mark.parametrize("module", MODULES)
def test_importing_a_transport_imports_no_client_library(module: str) -> None:
    program = (
        f"import sys, airflow_provider_soperator.transports.{module}\n"
        f"print(*(name for name in {HEAVY!r} if name in sys.modules))"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert said.stdout.split() == []
