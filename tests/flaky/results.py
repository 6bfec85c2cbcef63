"""A pytest plugin: writes what becomes of each test, line by line, into the file that ``FLAKY_RESULTS`` names."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest


class _Writer:
    """Adds a line once a test is over, so that those before a crash of pytest are there."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._tests: dict[str, dict[str, str]] = {}

    def pytest_runtest_logstart(self, nodeid: str, location: tuple[str, int | None, str]) -> None:
        name = f"{nodeid.partition('::')[0]}::{location[2]}"
        self._write({"test": name, "outcome": "missing", "said": "it has not come to its end"})

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        name = _name(report)
        found = self._tests.setdefault(name, {"test": name, "outcome": "passed", "said": ""})
        if report.failed and found["outcome"] in ("passed", "skipped"):
            found.update(outcome="failed" if report.when == "call" else "errored", said=first_line(report))
        elif report.skipped and found["outcome"] == "passed":
            found["outcome"] = "skipped"
        # A worker of xdist's that dies has its test reported at once.
        if report.when not in ("setup", "call"):
            self._write(self._tests.pop(name))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._write({"test": report.nodeid or "collection", "outcome": "errored", "said": first_line(report)})

    def _write(self, found: dict[str, str]) -> None:
        with open(self._path, "a") as file:
            file.write(f"{json.dumps(found)}\n")


def _name(report: pytest.TestReport) -> str:
    module, _, inside = report.nodeid.partition("::")
    # xdist adds the group to the nodeid; of a test whose process has died it knows nothing else.
    known = report.when in ("setup", "call", "teardown")
    return f"{module}::{report.location[2] if known else inside.partition('@')[0]}"


def first_line(report: pytest.TestReport | pytest.CollectReport) -> str:
    crash: Any = getattr(report.longrepr, "reprcrash", None)
    text = crash.message if crash else str(report.longrepr)
    return next((line.strip() for line in text.splitlines() if line.strip()), "")


def pytest_configure(config: pytest.Config) -> None:
    # What the workers of xdist see, their controller sees, too.
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Writer(os.environ["FLAKY_RESULTS"]))
