"""The leases of blocks are where the Nebius connection says; without that there is no such place."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from airflow_provider_soperator.hooks.cluster import SoperatorClusterHook
from airflow_provider_soperator.hooks.cluster_clients import ShiftClients
from airflow_provider_soperator.hooks.nebius import NebiusHook, NebiusSettings


def place(monkeypatch: pytest.MonkeyPatch, **fields: str) -> Any:
    async def settings(hook: NebiusHook) -> NebiusSettings:
        return NebiusSettings(conn_id=hook.nebius_conn_id, **fields)

    @asynccontextmanager
    async def objects(hook: SoperatorClusterHook, **options: str) -> AsyncIterator[Any]:
        yield hook.kubernetes_conn_id, hook.namespace, options["rights"]

    monkeypatch.setattr(NebiusHook, "async_settings", settings)
    monkeypatch.setattr(SoperatorClusterHook, "objects", objects)

    async def look() -> Any:
        async with ShiftClients().leases("nebius_default") as found:
            return found

    return asyncio.run(look())


def test_leases_are_in_the_cluster_that_the_connection_names(monkeypatch: pytest.MonkeyPatch) -> None:
    rights = "get, create and patch on leases.coordination.k8s.io"
    assert place(monkeypatch, lease_conn_id="training") == ("training", "default", rights)
    assert place(monkeypatch, lease_conn_id="training", lease_namespace="capacity")[1] == "capacity"


def test_without_a_name_there_is_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    assert place(monkeypatch) is None
