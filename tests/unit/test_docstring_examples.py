"""The examples in docstrings run, and print what they say."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

import airflow_provider_soperator

FOLDER = Path(*airflow_provider_soperator.__path__)
WITH_EXAMPLES = [
    ".".join(file.relative_to(FOLDER.parent).with_suffix("").parts).removesuffix(".__init__")
    for file in sorted(FOLDER.rglob("*.py"))
    if ">>>" in file.read_text()
]


@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_examples_in_docstrings_run(name: str) -> None:
    failed, tried = doctest.testmod(importlib.import_module(name))
    assert tried
    assert not failed
