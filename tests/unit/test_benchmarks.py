"""A run of the benchmarks goes on from one that was cut off, if that measured the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import kept
from benchmarks.kept import Kept
from benchmarks.table import Row


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "_FILE", tmp_path / "build" / "benchmarks.json")


ROW = Row("nodes", "of all", "0.17 s", "0.3 s", met=True)


def test_what_was_measured_is_kept_until_all_is_told() -> None:
    Kept(["300"]).add("nodes", [ROW])
    assert Kept(["300"]).get("nodes") == [ROW]
    assert Kept(["300"]).get("tasks") is None
    Kept(["300"]).clear()
    assert Kept(["300"]).get("nodes") is None


def test_other_options_or_other_code_measure_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    Kept(["300"]).add("nodes", [ROW])
    assert Kept(["1000"]).get("nodes") is None
    monkeypatch.setattr(kept, "_git", lambda *words: f"other {words}")
    assert Kept(["300"]).get("nodes") is None
