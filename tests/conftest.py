"""What all tests share: an Airflow home of their own, and no silent skips in CI."""

from __future__ import annotations

import fcntl
import gc
import os
import shutil
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path

import hypothesis
import pytest

from tests.patience import PATIENCE

# What is imported while tests are collected stays: to go through it for garbage, again and again, takes as long as to
# collect them, and a fifth of the time of unit tests.
gc.disable()

# Airflow reads its home once, when it is first imported, which some test modules do while they are collected.
AIRFLOW_HOME = tempfile.mkdtemp(prefix=f"airflow-home-{os.getpid()}-")
os.environ |= {
    "AIRFLOW_HOME": AIRFLOW_HOME,
    # Its examples have a listener, which other Airflows hardly have.
    "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
    # The first import of a DAG has all of Airflow with it.
    "AIRFLOW__CORE__DAGBAG_IMPORT_TIMEOUT": str(PATIENCE),
}

#: Folders beside this file whose tests CI must run in full, as it must all tests marked ``sandbox``.
REQUIRED_IN_CI = {"contract", "integration", "sandbox", "ui"}

pytest_plugins = ["tests.keeper", "tests.sandboxes", "tests.order"]

# CI gets the same answer each time, so hypothesis tries the same examples there; a developer gets new ones, and a soak
# many more.
hypothesis.settings.register_profile("default", max_examples=30, deadline=None)
hypothesis.settings.register_profile("ci", max_examples=30, derandomize=True, deadline=None)
hypothesis.settings.register_profile("soak", max_examples=1000, deadline=None)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "default"))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection(session: pytest.Session) -> Iterator[object]:
    """As many processes collect at a time as there are cores: after a clone each would compile all modules, else."""
    worker = getattr(session.config, "workerinput", None)
    if worker is None:
        return (yield)
    turns = Path(tempfile.gettempdir(), f"collect-{worker['testrunuid']}")
    with turns.open("wb") as file:
        fcntl.lockf(file, fcntl.LOCK_EX, 1, int(worker["workerid"].removeprefix("gw")) % (os.cpu_count() or 1))
        collected = yield
    turns.unlink(missing_ok=True)
    return collected


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


def pytest_unconfigure() -> None:
    shutil.rmtree(AIRFLOW_HOME, ignore_errors=True)


# --------------------------------------------------------------------------------- skips are failures in CI


def in_ci() -> bool:
    return os.environ.get("CI", "").lower() not in {"", "0", "false"}


def required_in_ci(node: pytest.Item | pytest.Collector) -> bool:
    # The one exception: it cannot be installed from a registry of packages, as CI installs all else.
    if node.get_closest_marker("terraform"):
        return False
    folder = node.path.relative_to(Path(__file__).parent).parts[:1]
    return not REQUIRED_IN_CI.isdisjoint(folder) or node.get_closest_marker("sandbox") is not None


def fail_if_skipped(node: pytest.Item | pytest.Collector, report: pytest.TestReport | pytest.CollectReport) -> None:
    """Turn a skip into a failure where CI needs the test to run. An expected failure is no skip."""
    if report.skipped and not hasattr(report, "wasxfail") and in_ci() and required_in_ci(node):
        assert isinstance(report.longrepr, tuple)
        where, line, reason = report.longrepr
        report.outcome = "failed"
        report.longrepr = f"{where}:{line}: {reason}\nCI must run this test, so its skip counts as a failure."


# First among the wrappers is the outermost one: it sees what pytest's own have made of the report.
@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    fail_if_skipped(item, report)
    return report


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    fail_if_skipped(collector, report)
    return report
