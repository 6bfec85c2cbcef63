"""Descriptions are pure: their examples run, and they can be made without Airflow."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import subprocess
import sys

import pytest

from airflow_provider_soperator import provisioning

MODULES = [module.name for module in pkgutil.walk_packages(provisioning.__path__, f"{provisioning.__name__}.")]


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_run(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_importing_it_brings_in_nothing_heavy() -> None:
    heavy = ["airflow", "kubernetes", "nebius", "grpc", "httpx", "yaml", "asyncio", "subprocess", "socket"]
    program = f"import sys, {', '.join(MODULES)}; print(*(name for name in {heavy} if name in sys.modules))"
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert said.stdout.split() == []
