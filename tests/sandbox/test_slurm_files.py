"""When the files of the Slurm are written, and when they are read again."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from sandbox.cloud.slurm import Said, Slurm
from sandbox.settings import Settings

ALL = {"slurmctld", "slurmrestd"}


class CountingSlurm(Slurm):
    """Counts how often slurmctld is told to read its files."""

    def __init__(self, root: Path) -> None:
        super().__init__(Settings(port_base=30000))
        self._root = root
        self.reconfigured = 0

    async def run(self, *argv: str, text: str = "", timeout: float = 30) -> Said:
        assert argv == ("scontrol", "reconfigure")
        self.reconfigured += 1
        return Said(0, "", "")

    def configure_now(self, running: set[str], **files: str) -> int:
        asyncio.run(self.configure(files, running))
        return self.reconfigured


@pytest.fixture
def slurm(tmp_path: Path) -> CountingSlurm:
    (tmp_path / "one").write_text("a")
    (tmp_path / "two").write_text("b")
    return CountingSlurm(tmp_path)


def test_only_a_change_is_written_and_read(slurm: CountingSlurm, tmp_path: Path) -> None:
    assert slurm.configure_now(ALL, one="a", two="b") == 0
    (tmp_path / "one").write_text("by hand")
    assert slurm.configure_now(ALL, one="a", two="b") == 0
    # As long as the objects stay as they are, nobody looks at the files.
    assert (tmp_path / "one").read_text() == "by hand"
    assert slurm.configure_now(ALL, one="a", two="c") == 1
    assert ((tmp_path / "one").read_text(), (tmp_path / "two").read_text()) == ("a", "c")
    assert slurm.configure_now(ALL, one="a", two="c") == 1


def test_without_slurmrestd_nothing_is_read(slurm: CountingSlurm, tmp_path: Path) -> None:
    assert slurm.configure_now({"slurmctld"}, one="z", two="b") == 0
    assert (tmp_path / "one").read_text() == "z"
    # It is made up for.
    assert slurm.configure_now(ALL, one="z", two="b") == 1


def test_a_slurmctld_that_starts_reads_them_by_itself(slurm: CountingSlurm) -> None:
    assert slurm.configure_now({"slurmrestd"}, one="z", two="b") == 0
    assert slurm.configure_now(ALL, one="z", two="b") == 0
