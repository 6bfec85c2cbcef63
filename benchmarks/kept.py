"""Results that a run has left behind that was cut off, for the next one to go on from."""

from __future__ import annotations

import hashlib
import json
import subprocess
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks.table import Row

_REPOSITORY = Path(__file__).parents[1]
_FILE = _REPOSITORY / "build" / "benchmarks.json"


class Kept:
    """By the name of the benchmark; only of the same code, measured with the same options."""

    def __init__(self, options: Sequence[str]) -> None:
        said = [_git("rev-parse", "HEAD"), _git("diff", "HEAD"), *options]
        self._of = hashlib.sha256("\0".join(said).encode()).hexdigest()
        self._rows: dict[str, list[Row]] = {}
        if _FILE.exists():
            found = json.loads(_FILE.read_text())
            if found["of"] == self._of:
                self._rows = {name: [Row(**row) for row in rows] for name, rows in found["rows"].items()}

    def get(self, name: str) -> list[Row] | None:
        return self._rows.get(name)

    def add(self, name: str, rows: list[Row]) -> None:
        self._rows[name] = rows
        _FILE.parent.mkdir(exist_ok=True)
        written = {name: [asdict(row) for row in rows] for name, rows in self._rows.items()}
        _FILE.write_text(json.dumps({"of": self._of, "rows": written}, indent=1))

    def clear(self) -> None:
        """All is told: the next run measures anew."""
        _FILE.unlink(missing_ok=True)


def _git(*words: str) -> str:
    said = subprocess.run(["git", *words], cwd=_REPOSITORY, capture_output=True, text=True, check=False)
    return said.stdout
