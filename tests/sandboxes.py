"""A few sandboxes for each Slurm version, shared by all tests of a run, which leave them as they found them."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from sandbox import faults
from sandbox.lifecycle import Sandbox
from sandbox.rootfs import own_root
from sandbox.settings import SUITES, Settings
from tests import leftovers
from tests.contract.transports import WAYS, Way, connection_id
from tests.integration.cluster import Cluster, check_ledger, is_ready
from tests.lanes import lane_of
from tests.leftovers import Leftovers
from tests.patience import PATIENCE

#: Folders whose tests are about a running sandbox, and what those of them share that do not share a sandbox.
FOLDERS = {
    "airflow": "airflow",
    "contract": "sandboxes of their own",
    "integration": "sandboxes of their own",
    "ui": "browser",
}


#: Modules of ``integration`` from these names on have another sandbox, so that no lane takes as long as the whole run.
PARTS = ("test_c", "test_e", "test_k")
#: Where tests run side by side, those that take long are begun first, so that all come to their end at the same time.
LONG = (
    *("airflow", "second airflow", f"{max(SUITES)}, part 4", f"{max(SUITES)}, part 3", "sandboxes of their own"),
    *(f"shifts on {max(SUITES)}", f"{min(SUITES)}, part 4", max(SUITES), "airflow of the executor"),
    f"{max(SUITES)}, part 2",
    *(f"{min(SUITES)}, part 2", f"shifts on {min(SUITES)}", min(SUITES), f"{min(SUITES)}, part 3"),
    *("browser", "terraform", "demo"),
)


#: Seconds that what a test has ended may take to be gone, also on a busy machine.
GOING = 120
#: Of each log of a sandbox whose test has failed.
LAST_LINES = 40
#: Whether a test itself has passed: what one has left that failed, or was interrupted, says nothing.
HAS_PASSED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    report = yield
    if report.when == "call":
        item.stash[HAS_PASSED] = report.passed
    used = [one for one in getattr(item, "funcargs", {}).values() if isinstance(one, Sandbox)] if report.failed else []
    for sandbox in used:
        for log in sorted(sandbox.settings.paths.logs.glob("*.log")):
            lines = log.read_text(errors="replace").splitlines()[-LAST_LINES:]
            report.sections.append((f"{log.name} of sandbox {sandbox.settings.name}", "\n".join(lines)))
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """A lane's sandbox, Airflow and browser go with its last test: they would keep the machine busy to the end."""
    yield
    if (group := lane_of(item)) and nextitem and lane_of(nextitem) != group:
        for known in item.session._fixturemanager._arg2fixturedefs.values():
            for fixture in known:
                if fixture.scope == "session" and fixture.func.__module__.startswith("tests."):
                    fixture.finish(item._request)  # type: ignore[attr-defined]


# First, as xdist reads the marks in this same hook, and last, as pytest has an order of its own.
@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Iterator[None]:
    """Mark what needs a sandbox; where tests run side by side, those that share something follow each other."""
    if not config.getoption("--soak"):
        left_out = [item for item in items if item.get_closest_marker("soak")]
        items[:] = [item for item in items if not item.get_closest_marker("soak")]
        config.hook.pytest_deselected(items=left_out)
    for item in items:
        folder = _folder_of(item.path)
        if folder is None:
            continue
        item.add_marker(pytest.mark.sandbox)
        shared = getattr(item, "callspec", None) and item.callspec.params.get("sandbox")  # type: ignore[attr-defined]
        lane = item.get_closest_marker("lane")
        slurm = shared["slurm"] if shared and folder != "ui" else None
        if lane:
            group = f"{lane.args[0]} on {slurm}" if slurm else lane.args[0]
        else:
            # A browser costs more than a sandbox, so it is the browser that is shared.
            group = _sandbox_of(item, slurm) if slurm else FOLDERS[folder]
        item.add_marker(pytest.mark.xdist_group(group))
    yield
    items.sort(key=_turn)


@cache
def _folder_of(path: Path) -> str | None:
    """Which of the folders a module is in."""
    here = Path(__file__).parent
    return next((folder for folder in FOLDERS if here / folder in path.parents), None)


def _sandbox_of(item: pytest.Item, slurm: str) -> str:
    """Some for each Slurm: one alone would take as long as all other lanes together."""
    part = 1 + sum(item.path.name >= name for name in PARTS if item.path.parent.name == "integration")
    return slurm if part == 1 else f"{slurm}, part {part}"


def _turn(item: pytest.Item) -> int:
    group = lane_of(item)
    return LONG.index(group) if group in LONG else len(LONG)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slurm-root", metavar="DIR", help="test on the Slurm in this root only; see docs/native.md")
    parser.addoption("--each-slurm", action="store_true", help="run every test of a sandbox on each Slurm version")
    parser.addoption("--soak", action="store_true", help="run the tests that are marked so, too")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "sandbox" in metafunc.fixturenames:
        root = metafunc.config.getoption("--slurm-root")
        chosen = [own_root(root)] if root else [{"slurm": version} for version in versions(metafunc)]
        ids = [f"slurm-{one['slurm']}" for one in chosen]
        metafunc.parametrize("sandbox", chosen, indirect=True, scope="session", ids=ids)


def versions(metafunc: pytest.Metafunc) -> list[str]:
    """Slurm versions that a test runs on: one, unless what it proves differs between them."""
    chosen = {"each_slurm": [*SUITES], "oldest_slurm": [min(SUITES)], "newest_slurm": [max(SUITES)]}
    if metafunc.config.getoption("--each-slurm"):
        return chosen["each_slurm"]
    # The closest mark counts, so that a test may differ from its module.
    marks = (chosen[mark.name] for mark in metafunc.definition.iter_markers() if mark.name in chosen)
    return next(marks, chosen["newest_slurm"])


@contextmanager
def kept_up(settings: Settings) -> Iterator[Sandbox]:
    """A sandbox for many tests, whose ledger is proved to be in order at their end."""
    made = Sandbox(settings)
    try:
        made.up()
        yield made
        check_ledger(Cluster(made).ledger())
    finally:
        made.down()


@pytest.fixture(scope="session")
def sandbox(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    """A sandbox of one Slurm version; tests that use it run on each."""
    if os.geteuid() != 0 or not Path("/etc/debian_version").exists():
        pytest.skip("a sandbox needs root on Debian")
    slurm: dict[str, str] = request.param
    # Its own name: a sandbox that the developer has running stays out of it.
    name = f"test-{slurm['slurm'].replace('.', '')}-{os.getpid()}"
    settings = Settings(name=name, **slurm, workers=4, suspend_timeout=1, checks="off")
    # What never boots is given up before a test has waited for that as long as it waits.
    with kept_up(replace(settings, resume_timeout=PATIENCE // 2, vm_boot=0.5, vm_lag=3, vm_removal=0.5)) as made:
        yield made


@pytest.fixture
def cluster(request: pytest.FixtureRequest, sandbox: Sandbox) -> Iterator[Cluster]:
    """The sandbox with worker-0 on, worker-1 to worker-3 off, nothing queued, nothing broken.

    Machines of an earlier test may still hold their GPUs for a moment; ``cluster.settle`` waits until they do not.
    """
    with owned(request, Cluster(sandbox)) as cluster:
        yield cluster


@contextmanager
def owned(
    request: pytest.FixtureRequest, cluster: Cluster, restore: Callable[[Leftovers], None] | None = None
) -> Iterator[Cluster]:
    """A cluster for one test, which is brought back to its beginning; what the test should have removed fails it."""
    before = _daemons(cluster.sandbox)
    yield cluster
    if cluster.is_broken or _daemons(cluster.sandbox) != before:
        _heal(cluster)
    # What the test is about may be left for this to remove, if it says so.
    kinds = {kind for mark in request.node.iter_markers("leaves") for kind in mark.args}
    has_passed = request.node.stash.get(HAS_PASSED, False)
    deadline = time.monotonic() + GOING
    while True:
        left = leftovers.look(cluster.sandbox)
        wrong = left.without(jobs=cluster.jobs, drained=cluster.drained, kinds=kinds)
        # What is being removed may still be seen.
        if not wrong or not has_passed or time.monotonic() > deadline:
            break
        time.sleep(0.3)
    (restore or cluster.restore)(left)
    cluster.close()
    if wrong and has_passed:
        pytest.fail(f"this is left of the test: {wrong}", pytrace=False)


def _heal(cluster: Cluster) -> None:
    """Start what a test has killed, and clear its faults."""
    cluster.sandbox.up()
    faults.bring(cluster.sandbox, "clear", argparse.Namespace())
    pods = ("controller-0", "login-0")
    cluster.wait("Kubernetes knows that all run", lambda: all(is_ready(cluster.pod(name)) for name in pods))


def _daemons(sandbox: Sandbox) -> dict[str, int | None]:
    """The processes that a test should find; those of workers come and go with their nodes."""
    return {name: one["pid"] for name, one in sandbox.init.processes().items() if not name.startswith("worker-")}


@pytest.fixture
def connect(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Way]]:
    """Opens ways to the sandbox by their names, and closes them at the end."""
    uri = cluster.access["airflow_connections"]["AIRFLOW_CONN_SSH_DEFAULT"]
    monkeypatch.setenv(f"AIRFLOW_CONN_{connection_id(cluster).upper()}", uri)
    opened: list[Way] = []

    def connect(name: str) -> Way:
        opened.append(WAYS[name](cluster))
        return opened[-1]

    yield connect
    for way in opened:
        way.close()
