"""What a pipeline is made of is pure: its examples run, and it can be thought about without Airflow."""

from __future__ import annotations

import doctest
import importlib
import subprocess
import sys

import pytest

PURE = [f"airflow_provider_soperator.pipelines.{name}" for name in ("graph", "names", "plan", "ahead", "arrays")]


@pytest.mark.parametrize("name", PURE)
def test_examples(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_no_airflow() -> None:
    program = f"import sys, {', '.join(PURE)}; sys.exit('airflow' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)
