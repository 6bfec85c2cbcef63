"""The capacity block: nothing beyond its limit is given out, and the ledger can prove it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sandbox.cloud.block import CapacityBlock, CapacityExhausted


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    return tmp_path / "ledger.jsonl"


@pytest.fixture
def block(ledger: Path) -> CapacityBlock:
    return CapacityBlock("block", 16, ledger=ledger, now=lambda: 7.0)


def entries(ledger: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in ledger.read_text().splitlines()]


def test_claims_are_all_or_nothing(block: CapacityBlock) -> None:
    block.claim("a", 8)
    with pytest.raises(CapacityExhausted, match="8 of 16 GPUs free, 9 are needed"):
        block.claim("b", 9)
    assert block.holders == {"a": 8}
    block.claim("b", 8)
    assert (block.usage, block.free) == (16, 0)


def test_a_holder_claims_once_and_releases_all(block: CapacityBlock) -> None:
    block.claim("a", 8)
    with pytest.raises(ValueError, match="holds GPUs already"):
        block.claim("a", 1)
    block.release("a")
    block.release("a")
    assert block.usage == 0


@pytest.mark.parametrize("gpus", [0, -8])
def test_nothing_cannot_be_claimed(block: CapacityBlock, gpus: int) -> None:
    with pytest.raises(ValueError, match="cannot hold"):
        block.claim("a", gpus)


def test_every_change_is_in_the_ledger(block: CapacityBlock, ledger: Path) -> None:
    block.claim("a", 8)
    block.set_limit(4)
    block.note_payg("b", 8)
    block.release("a")
    block.release("a")
    found = [(e["entry"], e["holder"], e["gpus"], e["usage"], e["limit"]) for e in entries(ledger)]
    assert found == [
        ("claim", "a", 8, 8, 16),
        ("limit", "block", 4, 8, 4),
        ("payg", "b", 8, 8, 4),
        ("release", "a", 8, 0, 4),
    ]
    assert {e["at"] for e in entries(ledger)} == {7.0}


def test_a_limit_below_the_usage_takes_nothing_away_and_gives_nothing(block: CapacityBlock) -> None:
    block.claim("a", 8)
    block.set_limit(4)
    assert (block.usage, block.free) == (8, 0)
    with pytest.raises(CapacityExhausted):
        block.claim("b", 1)


def test_a_scheduled_limit_comes_into_force_once(ledger: Path) -> None:
    clock = [0.0]
    block = CapacityBlock("block", 16, ledger=ledger, now=lambda: clock[0])
    block.schedule_limit(5.0, 8)
    clock[0] = 4.9
    block.advance()
    assert (block.limit, block.next_change is None) == (16, False)
    clock[0] = 5.0
    block.advance()
    block.advance()
    assert (block.limit, block.next_change) == (8, None)
    assert [e["entry"] for e in entries(ledger)] == ["limit"]


def test_a_block_survives_a_restart(block: CapacityBlock) -> None:
    block.claim("a", 8)
    block.schedule_limit(9.0, 24)
    block.usage_known = False
    block.reconciling = True
    other = CapacityBlock("block", 1)
    other.load(json.loads(json.dumps(block.dump())))
    assert other.dump() == block.dump()
    assert other.holders == {"a": 8}
    assert other.next_change == block.next_change


def test_a_dump_is_a_copy(block: CapacityBlock) -> None:
    dumped = block.dump()
    block.claim("a", 8)
    assert dumped["holders"] == {}
