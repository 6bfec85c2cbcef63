"""The contract of the transports.

``way`` is one that runs Slurm's commands and one that speaks to slurmrestd: what a request means depends on nothing
else. ``each_way`` is every transport, and ``shell_way`` each of those that run commands: for what a transport itself
has to do. ``--ways`` chooses, and is the only way to the native ones, which need a pyslurm in the sandbox.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.contract.transports import REST, WAYS, Way

ALL = tuple(WAYS)
#: One for each form in which a request is made and answered: words and tables, or JSON.
FORMS = ("local", "rest")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--ways", default="", help=f"transports to test, with commas: native, {', '.join(ALL)}")


def pytest_configure(config: pytest.Config) -> None:
    if _native(config):
        from tests.contract.native import NATIVE

        WAYS.update(NATIVE)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    return True if collection_path.name == "test_native_way.py" and not _native(config) else None


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    asked = _asked(metafunc.config)
    # A module may have a fixture of this name that is its own.
    if "way" in metafunc.fixturenames and not hasattr(metafunc.module, "way"):
        metafunc.parametrize("way", asked or FORMS, indirect=True)
    if "each_way" in metafunc.fixturenames:
        metafunc.parametrize("each_way", asked or ALL, indirect=True)
    if "shell_way" in metafunc.fixturenames:
        metafunc.parametrize("shell_way", [name for name in asked or ALL if name not in REST], indirect=True)


@pytest.fixture
def way(request: pytest.FixtureRequest, connect: Callable[[str], Way]) -> Way:
    """One way to the sandbox for each form of requests; tests that use it run over both."""
    return connect(request.param)


@pytest.fixture
def each_way(request: pytest.FixtureRequest, connect: Callable[[str], Way]) -> Way:
    """One way to the sandbox after another; tests that use it run over every transport."""
    return connect(request.param)


@pytest.fixture
def shell_way(request: pytest.FixtureRequest, connect: Callable[[str], Way]) -> Way:
    """The same for the ways that run commands."""
    return connect(request.param)


def _asked(config: pytest.Config) -> tuple[str, ...]:
    # Where other folders are tested too, pytest does not know this option.
    asked: str = config.getoption("--ways", default="")
    return tuple(asked.split(",")) if asked else ()


def _native(config: pytest.Config) -> bool:
    return any(name.startswith("native") for name in _asked(config))
