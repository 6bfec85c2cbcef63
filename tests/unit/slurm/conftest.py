"""The machine of the programs of requests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.slurm.machine import COMMANDS, Slurm


@pytest.fixture
def slurm(tmp_path: Path) -> Slurm:
    found = Slurm(tmp_path)
    (tmp_path / "bin").mkdir()
    found.state.mkdir()
    for name in ("queue", "past", "sbatch.ids"):
        (found.state / name).touch()
    for name, body in COMMANDS.items():
        found.put(name, body)
    return found
