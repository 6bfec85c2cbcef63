"""Packages that think and do not act: their examples run, and importing them brings in nothing that acts."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import subprocess
import sys

import pytest

ROOT = "airflow_provider_soperator"
#: Modules by package, less those that open connections or make Airflow's tasks.
PURE = {
    "slurm": (),
    "soperator": (),
    "health": (),
    "provisioning": (),
    "capacity": ("beginning", "targets"),
    "pipelines": ("edges", "member", "rendering", "shell", "stages", "states", "tasks", "wiring"),
}
ACTS = {
    "airflow", "asyncssh", "grpc", "httpx", "kubernetes", "kubernetes_asyncio", "nebius", "paramiko", "pyslurm", "yaml",
}  # fmt: skip
#: Those that wait bring asyncio in, and with it these.
ALSO = {"ClusterShell", "socket", "subprocess"}
WAITING = ("capacity", "pipelines")


def modules(package: str) -> list[str]:
    name = f"{ROOT}.{package}"
    return [one.name for one in pkgutil.walk_packages(importlib.import_module(name).__path__, f"{name}.")]


@pytest.mark.parametrize("name", [name for package in PURE for name in modules(package)])
def test_examples_in_docstrings_run(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0


@pytest.mark.parametrize("package", PURE)
def test_importing_it_brings_in_nothing_that_acts(package: str) -> None:
    acts = ACTS if package in WAITING else ACTS | ALSO
    impure = tuple(f"{ROOT}.{package}.{one}" for one in PURE[package])
    program = f"""
import importlib, sys
for name in {[name for name in modules(package) if not name.startswith(impure)]}:
    importlib.import_module(name)
    found = {acts} & sys.modules.keys()
    assert not found, (name, found)
"""
    subprocess.run([sys.executable, "-c", program], check=True)
