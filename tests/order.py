"""A pytest plugin: ``--shuffle SEED`` runs tests in another order, in which what must stay together does."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import pytest

from tests.lanes import lane_of


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--shuffle", metavar="SEED", help="shuffle modules and the tests in them, by this seed")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "in_order: tests that tell one story, which --shuffle leaves in order; for a module, or some of it"
    )


def pytest_report_header(config: pytest.Config) -> str | None:
    seed = config.getoption("--shuffle")
    return None if seed is None else f"order: --shuffle {seed}"


# Last, as pytest's own order would undo this one; where groups have an order, it is kept, as this one keeps them whole.
@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Iterator[None]:
    yield
    seed = config.getoption("--shuffle")
    if seed is not None:
        shuffle(items, seed)


def shuffle(items: list[pytest.Item], seed: str) -> None:
    """Groups stay where they are; within one, tests of a sandbox follow each other, and so do those of a module.

    Two tests have the same order with the same seed whatever else is run, so that a failure can be sought with fewer.
    """
    groups: dict[str, int] = {}
    for item in items:
        groups.setdefault(lane_of(item), len(groups))

    def turn(item: pytest.Item) -> tuple[int | bytes, ...]:
        module, name = item.nodeid.partition("::")[0], item.location[2]
        # Those of a story have the same turn, and a sort leaves them as they were.
        story = "" if item.get_closest_marker("in_order") else name
        names = (_sandbox(item), module, f"{module}::{story}")
        return groups[lane_of(item)], *(_dice(seed, name) for name in names)

    items.sort(key=turn)


def _sandbox(item: pytest.Item) -> str:
    """Which one a test is for: to go from one to the other and back would make each anew."""
    call = getattr(item, "callspec", None)
    return str(call.params.get("sandbox", "")) if call else ""


def _dice(seed: str, name: str) -> bytes:
    return hashlib.sha256(f"{seed} {name}".encode()).digest()
