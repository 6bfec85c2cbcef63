"""What is read from Soperator's objects is pure: its examples run, and it can be thought about without Airflow."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import subprocess
import sys

import pytest

from airflow_provider_soperator import soperator

MODULES = [module.name for module in pkgutil.walk_packages(soperator.__path__, f"{soperator.__name__}.")]


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_run(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_importing_it_brings_in_neither_airflow_nor_a_client() -> None:
    heavy = ["airflow", "ClusterShell", "asyncssh", "paramiko", "kubernetes", "kubernetes_asyncio", "grpc", "socket"]
    program = f"import sys, {', '.join(MODULES)}; print(*(name for name in {heavy} if name in sys.modules))"
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert said.stdout.split() == []
