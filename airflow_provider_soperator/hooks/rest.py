"""slurmrestd as a connection says it: where tokens come from, and that Airflow's logs show none of them."""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Callable
from typing import TypeVar

from airflow_provider_soperator.errors import ConnectionMistake
from airflow_provider_soperator.hooks.settings import Settings
from airflow_provider_soperator.hooks.stock import installed
from airflow_provider_soperator.slurm.requests import Request
from airflow_provider_soperator.transports.rest import (
    FetchedTokens,
    GivenToken,
    MintedTokens,
    RestTransport,
    TokenSource,
)
from airflow_provider_soperator.transports.transport import Transport

T = TypeVar("T")


def open_rest(settings: Settings, over: Callable[[], Transport]) -> Transport:
    """``over`` makes the transport by which tokens are fetched, if they have to be."""
    tokens = _own_tokens(settings) or FetchedTokens(lambda: _Briefly(over), settings.user)
    with installed("rest"):
        return RestTransport(settings.rest_url, Masked(tokens), user=settings.user)


def _own_tokens(settings: Settings) -> TokenSource | None:
    if settings.jwt_token:
        return GivenToken(settings.jwt_token)
    if settings.jwt_secret:
        try:
            key = base64.b64decode(settings.jwt_secret, validate=True)
        except binascii.Error as error:
            raise ConnectionMistake(f"jwt_secret is not in base64, as Kubernetes shows a Secret ({error})") from error
        return MintedTokens(key, settings.user)
    return None


class _Briefly:
    """A transport that is open for one question at a time: a token lasts an hour, in which it would idle."""

    def __init__(self, make: Callable[[], Transport]) -> None:
        self._make = make

    async def ask(self, request: Request[T]) -> T:
        transport = self._make()
        try:
            return await transport.ask(request)
        finally:
            await transport.close()

    async def close(self) -> None:
        pass


class Masked:
    """Tokens of another source, each told to Airflow's secrets masker before it is used.

    The masker's message to the supervisor must not block the loop.
    """

    def __init__(self, tokens: TokenSource) -> None:
        self._tokens = tokens
        self._masked = ""

    async def token(self, renew: bool) -> str:
        from airflow.sdk.log import mask_secret

        token = await self._tokens.token(renew)
        if token != self._masked:
            await asyncio.to_thread(mask_secret, token)
            self._masked = token
        return token
