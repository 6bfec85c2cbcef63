"""docs/sandbox-faithful.md: each test that it names is there, and each line that a sandbox changes is in it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sandbox.cloud.slurm_overrides import overrides
from sandbox.settings import SUITES, Settings

TESTS = Path(__file__).parent.parent
PAGE = (TESTS.parent / "docs/sandbox-faithful.md").read_text()


def test_what_holds_a_claim_is_there() -> None:
    named = set(re.findall(r"`(test_\w+)`", PAGE))
    there = {
        name
        for folder in ("sandbox", "integration")
        for file in (TESTS / folder).glob("test_*.py")
        for name in re.findall(r"^def (test_\w+)", file.read_text(), re.MULTILINE)
    }
    assert named
    assert named - there == set()


def test_what_claims_to_be_as_real_names_a_test() -> None:
    claims = [line for line in PAGE.splitlines() if line.startswith("| ") and "as real" in line.split("|")[2]]
    assert len(claims) > 10
    assert [claim for claim in claims if "`test_" not in claim] == []


@pytest.mark.parametrize("slurm", [*SUITES])
def test_each_line_that_is_changed_is_told(slurm: str) -> None:
    told = set(re.findall(r"`(\w+)", PAGE[PAGE.index("## What slurm.conf") :]))
    assert {one.key for one in overrides(Settings(slurm=slurm, port_base=30000))} - told == set()
