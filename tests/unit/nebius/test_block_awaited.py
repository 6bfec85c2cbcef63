"""Whether a capacity block is as somebody waits for it."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from airflow_provider_soperator.errors import CapacityMistake
from airflow_provider_soperator.nebius.capacity_blocks import BlockAwaited, CapacityBlock, block_fields

NOW = datetime(2026, 11, 21, 12, tzinfo=timezone.utc)
HOUR = timedelta(hours=1)


def block(**changed: Any) -> CapacityBlock:
    return CapacityBlock(**{"id": "block", "limit": 64, "usage": 40, **changed})


@pytest.mark.parametrize(
    ("awaited", "seen", "lacks"),
    [
        (BlockAwaited(), block(), ""),
        (BlockAwaited(), block(usage=None), ""),
        (BlockAwaited(), block(state="allocating"), "it is allocating, expected active"),
        (BlockAwaited(target_state=None), block(state="allocating"), ""),
        (BlockAwaited(target_state="inactive"), block(state="inactive"), ""),
        (BlockAwaited(min_free_gpus=24), block(), ""),
        (BlockAwaited(min_free_gpus=25), block(), "24 of its 64 GPUs are free, expected 25"),
        (BlockAwaited(min_free_gpus=1), block(usage=None), "the number of free GPUs is unknown at present"),
        (BlockAwaited(min_free_gpus=1), block(limit=32), "0 of its 32 GPUs are free, expected 1"),
        (BlockAwaited(stable_for=HOUR), block(), ""),
        (BlockAwaited(stable_for=HOUR), block(next_change_at=NOW + HOUR, next_change_to=0), ""),
        (
            BlockAwaited(stable_for=2 * HOUR),
            block(next_change_at=NOW + HOUR, next_change_to=32),
            "its limit falls from 64 to 32 GPUs at 2026-11-21 13:00 UTC",
        ),
        (BlockAwaited(stable_for=2 * HOUR), block(next_change_at=NOW + HOUR, next_change_to=128), ""),
        (BlockAwaited(), block(next_change_at=NOW + HOUR, next_change_to=0), ""),
    ],
)
def test_what_it_lacks(awaited: BlockAwaited, seen: CapacityBlock, lacks: str) -> None:
    assert awaited.lacks(seen, NOW) == lacks


def test_a_state_or_number_that_can_never_be_is_refused() -> None:
    with pytest.raises(CapacityMistake, match="unknown target_state 'free': use one of allocating, active"):
        BlockAwaited(target_state="free")
    with pytest.raises(CapacityMistake, match="min_free_gpus must be >= 1, got 0"):
        BlockAwaited(min_free_gpus=0)


def test_it_is_told_in_json() -> None:
    said = json.loads(json.dumps(block_fields(block(next_change_at=NOW, next_change_to=8))))
    assert (said["free"], said["next_change_at"]) == (24, "2026-11-21T12:00:00+00:00")
