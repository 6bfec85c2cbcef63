"""The Airflow connection to the Nebius API, and the SDK that it gives."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseHook

from airflow_provider_soperator.hooks import nebius_settings as form
from airflow_provider_soperator.hooks.nebius_settings import NebiusSettings, read
from airflow_provider_soperator.hooks.shared import SharedClients
from airflow_provider_soperator.hooks.stock import installed, known

if TYPE_CHECKING:
    from nebius.sdk import SDK

    from airflow_provider_soperator.nebius.block import BlockSeen

_SDKS: SharedClients[NebiusSettings, SDK] = SharedClients()


class NebiusHook(BaseHook):
    """The Nebius API behind an Airflow connection of type ``nebius``.

    All who use one connection in an event loop share an SDK.

        block = await NebiusHook("nebius_default").block("capacityblockgroup-e00example")
        print(block.free, "GPUs are free")
    """

    conn_name_attr = "nebius_conn_id"
    default_conn_name = "nebius_default"
    conn_type = "nebius"
    hook_name = "Nebius"

    def __init__(self, nebius_conn_id: str = default_conn_name) -> None:
        super().__init__()
        self.nebius_conn_id = nebius_conn_id

    @asynccontextmanager
    async def async_client(self) -> AsyncIterator[SDK]:
        """The SDK for the running event loop."""
        async with _lent(await self.async_settings()) as sdk:
            yield sdk

    async def async_settings(self) -> NebiusSettings:
        """What the connection says now."""
        from airflow.providers.common.compat.connection import get_async_connection, get_async_extra_dejson

        with known(self.nebius_conn_id):
            connection = await get_async_connection(self.nebius_conn_id)
        # Reading the extra tells Airflow's secrets masker what is in it.
        return read(connection, await get_async_extra_dejson(connection))

    async def async_token(self) -> str:
        """An access token, which lives for some hours: the connection's own, or one for its service account's key."""
        settings = await self.async_settings()
        if settings.token:
            return settings.token
        async with _lent(settings) as sdk:
            from airflow_provider_soperator.nebius.profile import access_token

            return await access_token(sdk)

    async def block(self, block_id: str) -> BlockSeen:
        """A capacity block as it is now."""
        async with self.async_client() as sdk:
            from airflow_provider_soperator.nebius.blocks import read_block

            return await read_block(sdk, block_id)

    def test_connection(self) -> tuple[bool, str]:
        """Whether the connection works, and what is wrong with it if it does not."""
        from airflow_provider_soperator.hooks.check import in_words

        try:
            with known(self.nebius_conn_id):
                connection = self.get_connection(self.nebius_conn_id)
            settings = read(connection, connection.extra_dejson)
            return True, f"Nebius API at {settings.where}, as {asyncio.run(_whoami(settings))}."
        except Exception as error:
            return False, in_words(error)

    @classmethod
    def get_connection_form_widgets(cls) -> dict[str, Any]:
        """For Airflow 3.1; newer ones take the form from the provider's description."""
        return form.widgets()

    @classmethod
    def get_ui_field_behaviour(cls) -> dict[str, Any]:
        """For Airflow 3.1, as above."""
        return form.behaviour()


@asynccontextmanager
async def _lent(settings: NebiusSettings) -> AsyncIterator[SDK]:
    with installed("nebius"):
        # The first import takes a quarter of a second, in which an event loop is to go on.
        opening = await asyncio.to_thread(importlib.import_module, "airflow_provider_soperator.hooks.nebius_sdk")
    async with _SDKS.lend(settings, opening.open_sdk) as sdk:
        yield sdk


async def _whoami(settings: NebiusSettings) -> str:
    async with _lent(settings) as sdk:
        from airflow_provider_soperator.nebius.profile import whoami

        return await whoami(sdk)
