"""The examples in what moves capacity run."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

from airflow_provider_soperator import capacity

ROOT = Path(capacity.__path__[0])
#: Those with examples: some of the others bring in all of Airflow.
MODULES = sorted(path.relative_to(ROOT) for path in ROOT.rglob("*.py") if ">>> " in path.read_text())


@pytest.mark.parametrize("path", MODULES, ids=str)
def test_examples_in_docstrings_run(path: Path) -> None:
    name = ".".join((capacity.__name__, *path.with_suffix("").parts))
    result = doctest.testmod(importlib.import_module(name))
    assert result.attempted
    assert not result.failed
