"""Tokens for slurmrestd, none of which can be read in a log; and proxies before it."""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
import os
import weakref
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from airflow.sdk._shared.secrets_masker import _secrets_masker
from airflow.sdk.log import redact

from airflow_provider_soperator.errors import ConnectionMistake
from airflow_provider_soperator.hooks import slurm
from airflow_provider_soperator.hooks.slurm import Settings, masked, open_rest
from airflow_provider_soperator.slurm.requests import Ping
from airflow_provider_soperator.transports import rest
from airflow_provider_soperator.transports.local import LocalTransport
from airflow_provider_soperator.transports.rest import Tokens, minted
from airflow_provider_soperator.transports.transport_errors import ConnectFailed, TransportError
from tests.forks import forked

KEY = b"a key of the thirty-two bytes at least that HS256 is to have"
SETTINGS = Settings(conn_id="mine", transport="rest", rest_url="http://127.0.0.1:9", user="root")


def is_masked(token: str) -> bool:
    return redact(f"X-SLURM-USER-TOKEN: {token}") == "X-SLURM-USER-TOKEN: ***"


def test_each_new_token_is_masked() -> None:
    tokens = Tokens(partial(masked, partial(minted, KEY, "root")))
    first = asyncio.run(tokens.token())
    assert is_masked(first)
    assert asyncio.run(tokens.token()) == first
    assert not is_masked(asyncio.run(minted(KEY, "somebody-else")))


def test_a_new_token_leaves_no_pattern_of_the_old_ones() -> None:
    """One for each token, each with all tokens before it: 28 MB after 200 of them."""
    compiled: list[weakref.ref[Any]] = []
    for number in range(3):
        asyncio.run(masked(partial(minted, KEY, f"user-{number}")))
        compiled.append(weakref.ref(_secrets_masker().replacer))
    assert [pattern() is None for pattern in compiled] == [True, True, False]


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The tokens that are fetched."""
    made: list[str] = []

    async def fetch(*_: Any) -> str:
        made.append(f"number {len(made)} of {os.getpid()}")
        return made[-1]

    monkeypatch.setattr(rest, "fetched", fetch)
    slurm._TOKENS.clear()
    yield made
    slurm._TOKENS.clear()


def token_of_client(settings: Settings = SETTINGS, refused: str = "") -> str:
    """The token of a new client, in an event loop of its own."""
    transport: Any = open_rest(settings, LocalTransport)

    async def use() -> str:
        token: str = await transport._tokens.token(refused)
        await transport.close()
        return token

    return asyncio.run(use())


def test_clients_of_one_connection_share_a_token(fetched: list[str]) -> None:
    first = token_of_client()
    assert [token_of_client(), token_of_client()] == [first] * 2
    # Another one for a connection that was changed; and for one that is refused, which others do not use any more.
    other = token_of_client(replace(SETTINGS, user="alice"))
    anew = token_of_client(refused=first)
    assert token_of_client() == anew
    assert fetched == [first, other, anew]


def test_a_forked_process_whose_masker_may_know_no_token_has_its_own(fetched: list[str], tmp_path: Path) -> None:
    ours, left = token_of_client(), tmp_path / "token"
    with forked(lambda: left.write_text(token_of_client())) as pid:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert left.read_text() == f"number 1 of {pid}"
    assert token_of_client() == ours


def test_a_key_that_is_not_in_base64_is_named() -> None:
    with pytest.raises(ConnectionMistake, match="jwt_secret is not in base64"):
        open_rest(replace(SETTINGS, jwt_secret="%"), LocalTransport)


def test_a_token_that_is_replaced_in_its_connection_is_taken_from_there(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = open_rest(replace(SETTINGS, jwt_token="of.the.start"), LocalTransport)._tokens  # type: ignore[attr-defined]
    assert asyncio.run(tokens.token()) == "of.the.start"
    monkeypatch.setenv(
        "AIRFLOW_CONN_MINE", "soperator://root@/?rest_url=http%3A%2F%2F127.0.0.1%3A9&jwt_token=a.new.one"
    )
    assert asyncio.run(tokens.token("of.the.start")) == "a.new.one"


@pytest.mark.parametrize("read_anew", [True, False])
def test_a_token_may_be_pasted_as_slurm_prints_it(monkeypatch: pytest.MonkeyPatch, read_anew: bool) -> None:
    pasted = "SLURM_JWT=a.b.c"
    tokens = open_rest(replace(SETTINGS, jwt_token=pasted), LocalTransport)._tokens  # type: ignore[attr-defined]
    if read_anew:
        monkeypatch.setenv("AIRFLOW_CONN_MINE", json.dumps({"conn_type": "soperator", "extra": {"jwt_token": pasted}}))
    assert asyncio.run(tokens.token()) == "a.b.c"


@pytest.mark.parametrize("fault", [None, ConnectFailed("no login")])
def test_requests_that_are_under_way_share_a_new_token(fault: Exception | None) -> None:
    made: list[str] = []

    async def make() -> str:
        made.append(f"number {len(made)}")
        await asyncio.sleep(0)
        if fault:
            raise fault
        return made[-1]

    async def ask() -> None:
        tokens = Tokens(make)
        first, *others = (asyncio.ensure_future(tokens.token()) for _ in range(50))
        await asyncio.sleep(0)
        first.cancel()
        assert await asyncio.gather(*others, return_exceptions=True) == [fault or "number 0"] * 49
        assert len(made) == 1
        if not fault:
            # The answer to the second one came later.
            assert [await tokens.token("number 0"), await tokens.token("number 0")] == ["number 1"] * 2

    asyncio.run(ask())


def test_tokens_are_fetched_only_if_there_is_no_other_way() -> None:
    opened: list[LocalTransport] = []

    def over() -> LocalTransport:
        opened.append(LocalTransport(("/bin/sh", "-c", "exit 1")))
        return opened[-1]

    async def ask(settings: Settings) -> None:
        transport = open_rest(settings, over)
        try:
            await transport.ask(Ping())
        finally:
            await transport.close()

    with pytest.raises(ConnectFailed, match="nothing listens"):
        asyncio.run(ask(replace(SETTINGS, jwt_secret=base64.b64encode(KEY).decode())))
    assert not opened
    with pytest.raises(TransportError, match="login shell exited"):
        asyncio.run(ask(SETTINGS))
    assert len(opened) == 1


def test_a_proxy_may_compress_answers() -> None:
    accepted: set[str] = set()

    def answer(request: httpx.Request) -> httpx.Response:
        accepted.add(request.headers["Accept-Encoding"])
        said = json.dumps({"errors": [], "pings": [{"hostname": "controller-0", "responding": True, "primary": True}]})
        return httpx.Response(200, headers={"Content-Encoding": "gzip"}, content=gzip.compress(said.encode()))

    async def ask() -> bool:
        transport: Any = open_rest(replace(SETTINGS, jwt_token="a.e30.c"), LocalTransport)
        await transport._client.aclose()
        transport._client = httpx.AsyncClient(transport=httpx.MockTransport(answer))
        try:
            await transport.ask(Ping())
        finally:
            await transport.close()
        return True

    assert asyncio.run(ask())
    assert accepted == {"identity"}
