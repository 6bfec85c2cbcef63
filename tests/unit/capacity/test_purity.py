"""What moves capacity is pure but for its targets: its examples run, and it can be thought about without Airflow."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import subprocess
import sys

import pytest

from airflow_provider_soperator import capacity

MODULES = [module.name for module in pkgutil.walk_packages(capacity.__path__, f"{capacity.__name__}.")]
#: These open connections.
IMPURE = tuple(f"{capacity.__name__}.{name}" for name in ("beginning", "targets"))
PURE = [name for name in MODULES if not name.startswith(IMPURE)]
HEAVY = {"airflow", "asyncssh", "paramiko", "kubernetes", "nebius", "pyslurm", "grpc", "httpx"}


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_run(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_importing_it_brings_in_neither_airflow_nor_a_client() -> None:
    program = f"""
import importlib, sys
for name in {PURE}:
    importlib.import_module(name)
    found = {HEAVY} & sys.modules.keys()
    assert not found, (name, found)
"""
    subprocess.run([sys.executable, "-c", program], check=True)
