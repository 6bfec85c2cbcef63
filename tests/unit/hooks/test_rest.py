"""Tokens for slurmrestd: none that is made or fetched can be read in a log."""

from __future__ import annotations

import asyncio
import base64
import contextlib
from dataclasses import replace

import pytest
from airflow.sdk.log import redact

from airflow_provider_soperator.errors import ConnectionMistake
from airflow_provider_soperator.hooks.rest import AsyncMasked, Masked, open_rest
from airflow_provider_soperator.hooks.settings import Settings
from airflow_provider_soperator.slurm.requests import Ping
from airflow_provider_soperator.transports.errors import ConnectFailed, TransportError
from airflow_provider_soperator.transports.local import LocalTransport
from airflow_provider_soperator.transports.tokens import MintedTokens

KEY = b"a key of the thirty-two bytes at least that HS256 is to have"
SETTINGS = Settings(conn_id="mine", transport="rest", rest_url="http://127.0.0.1:9", user="root")


class InLoop:
    """Tokens as an event loop asks for them."""

    async def token(self, renew: bool) -> str:
        return MintedTokens(KEY, "in-loop").token(renew)


def is_masked(token: str) -> bool:
    return redact(f"X-SLURM-USER-TOKEN: {token}") == "X-SLURM-USER-TOKEN: ***"


def test_each_new_token_is_masked() -> None:
    tokens = Masked(MintedTokens(KEY, "root"))
    first = tokens.token(False)
    assert is_masked(first)
    assert tokens.token(False) == first
    assert not is_masked(MintedTokens(KEY, "somebody-else").token(False))


def test_each_new_token_in_a_loop_is_masked() -> None:
    assert is_masked(asyncio.run(AsyncMasked(InLoop()).token(False)))


def test_a_key_that_is_not_in_base64_is_named() -> None:
    with pytest.raises(ConnectionMistake, match="jwt_secret is not in base64"):
        open_rest(replace(SETTINGS, jwt_secret="%"), LocalTransport)


def test_tokens_are_fetched_only_if_there_is_no_other_way() -> None:
    opened: list[LocalTransport] = []

    def over() -> LocalTransport:
        opened.append(LocalTransport(("/bin/sh", "-c", "exit 1")))
        return opened[-1]

    own = open_rest(replace(SETTINGS, jwt_secret=base64.b64encode(KEY).decode()), over)
    with contextlib.closing(own), pytest.raises(ConnectFailed, match="nobody listens"):
        own.ask(Ping())
    assert not opened
    fetched = open_rest(SETTINGS, over)
    with contextlib.closing(fetched), pytest.raises(TransportError, match="login shell ended"):
        fetched.ask(Ping())
    assert len(opened) == 1
