"""The Nebius connection against the double of the API: all that may be in it, and what Test says of mistakes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.log import redact
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from grpc import StatusCode
from nebius.aio.token.options import OPTION_REPORT_ERROR

from airflow_provider_soperator.errors import ConnectionMistake
from airflow_provider_soperator.hooks.nebius import NebiusHook
from airflow_provider_soperator.nebius import api
from airflow_provider_soperator.nebius.api import NebiusMissing, NebiusUnauthenticated, NebiusUnreachable
from sandbox.cloud.faults import ApiFault
from sandbox.nebius.errors import ApiError
from sandbox.nebius.rpc import EXCHANGE
from tests.integration.test_connection_check import listening
from tests.sandbox.nebius_world import BLOCK, TOKEN, World, world

Connect = Callable[..., NebiusHook]
ACCOUNT = {"account_id": "serviceaccount-e00robot", "public_key_id": "publickey-e00robot"}
OK = "Nebius API at 127.0.0.1:{port}, as service account {name} of project-e00sandbox."


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with world(tmp_path_factory.mktemp("world") / "ledger.jsonl") as made:
        yield made


@pytest.fixture
def connect(here: World, monkeypatch: pytest.MonkeyPatch) -> Iterator[Connect]:
    """A hook of a connection to the double, with other fields than the right ones where they are given."""

    def connect(
        password: str | None = None, host: str = here.server.host, port: int | None = None, **extra: Any
    ) -> Any:
        said = {"conn_type": "nebius", "host": host, "port": port or here.server.port, "password": password}
        monkeypatch.setenv("AIRFLOW_CONN_NEBIUS_TEST", json.dumps({**said, "extra": {"insecure": True, **extra}}))
        return NebiusHook("nebius_test")

    monkeypatch.delenv("NEBIUS_IAM_TOKEN", raising=False)
    yield connect
    here.faults.clear()
    here.block.usage_known, here.block.reconciling, here.block.next_change = True, False, None


def made_key() -> str:
    key = generate_private_key(65537, 2048)
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()


@pytest.fixture(scope="module")
def pem() -> str:
    return made_key()


@pytest.fixture(scope="module")
def document(pem: str) -> dict[str, Any]:
    """A service account's credentials as Nebius makes them."""
    ids = {"iss": ACCOUNT["account_id"], "sub": ACCOUNT["account_id"], "kid": ACCOUNT["public_key_id"]}
    return {"subject-credentials": {"type": "JWT", "alg": "RS256", "private-key": pem, **ids}}


def works(hook: NebiusHook, here: World, name: str) -> None:
    assert hook.test_connection() == (True, OK.format(port=here.server.port, name=name))


# Credentials


def test_a_token(here: World, connect: Connect) -> None:
    works(connect(TOKEN), here, "sandbox")


def test_a_token_in_the_environment(here: World, connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEBIUS_IAM_TOKEN", TOKEN)
    works(connect(), here, "sandbox")


def test_a_key_as_it_is_and_as_a_form_makes_it(here: World, connect: Connect, pem: str) -> None:
    works(connect(private_key=pem, **ACCOUNT), here, "robot")
    works(connect(private_key="".join(pem.splitlines()), **ACCOUNT), here, "robot")


def test_credentials_in_json(here: World, connect: Connect, document: dict[str, Any]) -> None:
    works(connect(private_key=json.dumps(document)), here, "robot")
    works(connect(private_key=document), here, "robot")


def test_a_token_for_those_who_ask_by_themselves(here: World, connect: Connect, document: dict[str, Any]) -> None:
    assert asyncio.run(connect(TOKEN).async_token()) == TOKEN
    # One that was given for the key is good for whoever shows it.
    given = asyncio.run(connect(private_key=document).async_token())
    works(connect(given), here, "robot")
    with pytest.raises(NebiusUnauthenticated, match="has no token"):
        asyncio.run(connect().async_token())


def test_files(here: World, connect: Connect, document: dict[str, Any], pem: str, tmp_path: Path) -> None:
    file = tmp_path / "credentials"
    file.write_text(json.dumps(document))
    works(connect(credentials_file=str(file)), here, "robot")
    file.write_text(pem)
    works(connect(credentials_file=str(file), **ACCOUNT), here, "robot")
    file.write_text(f"{TOKEN}\n")
    works(connect(credentials_file=str(file)), here, "sandbox")


def test_a_new_key_in_a_file_is_taken_up_while_tasks_share_a_client(
    here: World, connect: Connect, document: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A triggerer that watches a block keeps its client for as long as it lives."""
    file = tmp_path / "credentials"
    file.write_text(json.dumps(document))
    hook = connect(credentials_file=str(file))
    monkeypatch.setitem(
        here.server.tokens.refused, ACCOUNT["public_key_id"], ApiError(StatusCode.UNAUTHENTICATED, "expired")
    )

    async def scenario() -> None:
        async with hook.async_client() as kept:
            with pytest.raises(NebiusUnauthenticated, match="expired"):
                await hook.block(BLOCK)
            file.unlink()
            with pytest.raises(ConnectionMistake, match=r"^credentials_file cannot be read"):
                await hook.block(BLOCK)
            file.write_text(json.dumps(document).replace(ACCOUNT["public_key_id"], "publickey-e00new"))
            assert (await hook.block(BLOCK)).limit == 32
            async with hook.async_client() as same:
                assert same is kept

    asyncio.run(scenario())


def test_secrets_are_masked_wherever_they_turn_up(connect: Connect, document: dict[str, Any]) -> None:
    token, key = "a-token-that-nobody-may-see", made_key()
    # What comes before it is that of any key, and may be a secret of another test.
    own = key.splitlines()[1]
    assert redact(f"{token} {own}") == f"{token} {own}"
    connect(token).test_connection()
    connect(
        private_key={"subject-credentials": {**document["subject-credentials"], "private-key": key}}
    ).test_connection()
    assert redact(f"a log line with {token}") == "a log line with ***"
    assert own not in redact(f"a log line with {key}")


# Mistakes


def fails(hook: NebiusHook) -> str:
    worked, said = hook.test_connection()
    assert not worked
    return said


def test_a_port_at_which_nobody_listens_is_told_of_at_once(connect: Connect) -> None:
    said = fails(connect(TOKEN, port=1))
    assert "Connection refused" in said
    assert said.endswith("Check host and port of the Nebius connection, whether it speaks TLS, and firewalls.")


def test_a_host_that_does_not_exist(connect: Connect) -> None:
    assert "nowhere.invalid" in fails(connect(TOKEN, host="nowhere.invalid"))


def test_tls_where_there_is_none(connect: Connect) -> None:
    assert "whether it speaks TLS" in fails(connect(TOKEN, insecure=False))


def test_a_server_that_says_nothing(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "_QUICK", {**api._QUICK, "timeout": 0.5})
    with listening(answers=True) as port:
        assert "Could not read own profile" in fails(connect(TOKEN, port=port))


def test_an_api_that_hangs(here: World, connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "_QUICK", {**api._QUICK, "timeout": 0.5})
    here.faults.add(ApiFault("nebius", "hang", "ProfileService/Get"))
    assert "Could not read own profile" in fails(connect(TOKEN))


def test_a_token_that_is_wrong_or_has_expired(connect: Connect) -> None:
    said = fails(connect("an-old-token"))
    assert said.startswith("Nebius refused the credentials (the bearer token is not one")
    assert "(they live for 12 hours)" in said


@pytest.mark.parametrize("code", [StatusCode.UNAUTHENTICATED, StatusCode.NOT_FOUND, StatusCode.PERMISSION_DENIED])
def test_a_key_that_is_refused_is_told_of_at_once_as_such(
    here: World, connect: Connect, document: dict[str, Any], code: StatusCode, monkeypatch: pytest.MonkeyPatch
) -> None:
    why = f"public key {ACCOUNT['public_key_id']} has expired"
    monkeypatch.setitem(here.server.tokens.refused, ACCOUNT["public_key_id"], ApiError(code, why))
    hook = connect(private_key=document)
    assert fails(hook).startswith(f"Nebius refused the key of the service account ({why}")
    for call in (hook.async_token(), hook.block(BLOCK)):
        with pytest.raises(NebiusUnauthenticated, match=why):
            asyncio.run(call)


def test_a_key_cannot_be_exchanged_for_a_while(here: World, connect: Connect, document: dict[str, Any]) -> None:
    hook = connect(private_key=document)
    here.faults.add(ApiFault("nebius", "error", EXCHANGE))
    assert asyncio.run(hook.block(BLOCK)).limit == 32
    here.faults.add(ApiFault("nebius", "error", EXCHANGE, count=None))
    for call in (hook.async_token(), hook.block(BLOCK)):
        with pytest.raises(NebiusUnreachable) as caught:
            asyncio.run(call)
        assert caught.value.retryable


def test_the_option_is_still_that_of_the_sdk() -> None:
    assert api.LIMITS["auth_options"] == api._QUICK["auth_options"] == {OPTION_REPORT_ERROR: "1"}


def test_no_credentials_at_all(connect: Connect) -> None:
    assert "The connection nebius_test has no token, and neither has the environment" in fails(connect())


def test_keys_that_are_none(connect: Connect, pem: str, tmp_path: Path) -> None:
    hidden = "-----BEGIN PRIVATE KEY-----hidden-----END PRIVATE KEY-----"
    for said in (fails(connect(private_key=hidden, **ACCOUNT)), fails(connect(private_key='{"a": "hidden"}'))):
        assert "private_key has no RSA key of a service account" in said
        assert "hidden" not in said
    assert "credentials_file cannot be read on this machine" in fails(connect(credentials_file=str(tmp_path / "none")))


def test_a_connection_that_is_not_there() -> None:
    assert fails(NebiusHook("nobody_here")) == "There is no connection nobody_here. Add it, or name another one."


# What it gives


def test_all_in_a_loop_share_one(connect: Connect) -> None:
    async def scenario() -> None:
        async with connect(TOKEN).async_client() as first, connect(TOKEN).async_client() as second:
            assert first is second
        async with connect(TOKEN).async_client() as third:
            assert third is first
        async with connect("another").async_client() as other:
            assert other is not first

    asyncio.run(scenario())


def test_a_block(here: World, connect: Connect) -> None:
    hook = connect(TOKEN)
    block = asyncio.run(hook.block(BLOCK))
    assert (block.id, block.limit, block.usage, block.free, block.state) == (BLOCK, 32, 16, 16, "active")
    assert (block.region, block.fabric, block.platform) == ("eu-north1", "fabric-2", "gpu-h100-sxm")
    assert (block.next_change_at, block.next_change_to) == (None, None)
    here.block.schedule_limit(1_900_000_000.0, 0)
    block = asyncio.run(hook.block(BLOCK))
    assert (block.next_change_at, block.next_change_to) == (datetime.fromtimestamp(1_900_000_000, timezone.utc), 0)


@pytest.mark.parametrize(("name", "value"), [("usage_known", False), ("reconciling", True)])
def test_what_nobody_knows_of_a_block_is_not_free(here: World, connect: Connect, name: str, value: bool) -> None:
    setattr(here.block, name, value)
    block = asyncio.run(connect(TOKEN).block(BLOCK))
    assert (block.usage, block.free) == (None, None)


def test_a_block_that_is_not_there(connect: Connect) -> None:
    with pytest.raises(NebiusMissing, match="there is no capacity block capacityblockgroup-e00none"):
        asyncio.run(connect(TOKEN).block("capacityblockgroup-e00none"))
    with pytest.raises(NebiusUnauthenticated):
        asyncio.run(connect("wrong").block(BLOCK))
