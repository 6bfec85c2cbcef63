"""What judges nodes is pure: its examples run, and it knows neither Airflow nor any client."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import subprocess
import sys

import pytest

from airflow_provider_soperator import health

MODULES = [module.name for module in pkgutil.walk_packages(health.__path__, f"{health.__name__}.")]


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_run(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_importing_it_brings_in_nothing_heavy() -> None:
    heavy = ["airflow", "ClusterShell", "httpx", "kubernetes", "kubernetes_asyncio", "subprocess", "socket"]
    program = f"import sys, {', '.join(MODULES)}; print(*(name for name in {heavy} if name in sys.modules))"
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert said.stdout.split() == []
