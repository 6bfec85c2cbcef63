"""What the doctor says of a block; and the rights that it asks for are those of the manifests in docs/rbac."""

from __future__ import annotations

import asyncio
from argparse import Namespace
from datetime import datetime, timezone
from pathlib import Path
from unittest.mock import AsyncMock, MagicMock

import pytest
import yaml

from airflow_provider_soperator.cli import cloud_checks, doctor
from airflow_provider_soperator.cli.cloud_checks import RIGHTS, Right, nebius_checks, rights_of_feature
from airflow_provider_soperator.nebius.capacity_blocks import CapacityBlock
from airflow_provider_soperator.transports.transport_errors import Unreachable

MANIFESTS = Path(__file__).parents[3] / "docs" / "rbac"


def granted(path: Path) -> set[Right]:
    return {
        Right(verb, resource, group, thing["metadata"].get("namespace", "*"))
        for thing in yaml.safe_load_all(path.read_text())
        for rule in thing.get("rules", ())
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def test_each_feature_has_the_rights_of_its_manifest() -> None:
    manifests = {path.stem: granted(path) for path in MANIFESTS.glob("*.yaml") if path.stem != "account"}
    assert {feature: {*rights_of_feature(feature, "soperator")} for feature in RIGHTS} == manifests


@pytest.mark.parametrize(("size", "said"), [(32, "32 from 24 Dec 06:00 UTC on"), (None, "another number from 24 Dec")])
def test_the_announced_change_of_a_block_is_told(monkeypatch: pytest.MonkeyPatch, size: int | None, said: str) -> None:
    at = datetime(2026, 12, 24, 6, tzinfo=timezone.utc)
    block = CapacityBlock(id="block-1", limit=64, usage=40, next_change_at=at, next_change_to=size)
    hook = MagicMock(async_settings=AsyncMock(return_value=MagicMock(where="here", lease_conn_id="")))
    monkeypatch.setattr(cloud_checks, "NebiusHook", lambda conn_id: hook)
    monkeypatch.setattr(cloud_checks, "whoami", AsyncMock(return_value="user ann"))
    monkeypatch.setattr(cloud_checks, "read_block", AsyncMock(return_value=block))
    _, verdict = asyncio.run(nebius_checks("n", "block-1"))
    assert f"24 of them free, {said}" in str(verdict)


@pytest.mark.parametrize(("asked", "told"), [("", []), ("nebius_default", ["wrong"])])
def test_without_a_database_only_a_nebius_connection_that_was_asked_for_is_missed(
    asked: str, told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    unread = AsyncMock(side_effect=Unreachable("the connection nebius_default cannot be read"))
    monkeypatch.setattr(doctor.NebiusHook, "async_settings", unread)
    verdicts = asyncio.run(doctor._nebius(Namespace(nebius_conn_id=asked, block="")))
    assert [one.state for one in verdicts] == told
