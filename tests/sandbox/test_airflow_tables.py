"""The tables of a new Airflow are made once for each version."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import pytest

from sandbox.airflow.tables import Tables


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOPERATOR_SANDBOX_HOME", str(tmp_path / "home"))


class Database:
    """A new one of SQLite's, whose migration leaves a table."""

    def __init__(self, file: Path) -> None:
        self.file, self.migrations = file, 0

    def fill(self, version: str, *, fails: bool = False) -> None:
        Tables(version, f"sqlite:///{self.file}?timeout=20").make(self._fail if fails else self._migrate)

    def _migrate(self) -> None:
        self.migrations += 1
        with contextlib.closing(sqlite3.connect(self.file)) as database:
            database.execute("CREATE TABLE dag (id)")

    def _fail(self) -> None:
        self._migrate()
        raise RuntimeError("interrupted")

    def tables(self) -> list[str]:
        with contextlib.closing(sqlite3.connect(self.file)) as database:
            return [name for (name,) in database.execute("SELECT name FROM sqlite_master")]


def test_others_of_the_version_copy_what_the_first_has_made(tmp_path: Path) -> None:
    first, second, newer = (Database(tmp_path / name) for name in ("first.db", "second.db", "newer.db"))
    first.fill("3.3.1")
    second.fill("3.3.1")
    newer.fill("3.4.0b2")
    assert (first.migrations, second.migrations, newer.migrations) == (1, 0, 1)
    assert first.tables() == second.tables() == ["dag"]


def test_what_was_interrupted_is_not_kept(tmp_path: Path) -> None:
    first, second = (Database(tmp_path / name) for name in ("first.db", "second.db"))
    with pytest.raises(RuntimeError):
        first.fill("3.3.1", fails=True)
    second.fill("3.3.1")
    assert (second.migrations, second.tables()) == (1, ["dag"])
