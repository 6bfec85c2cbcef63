"""The Airflow connection to the Nebius API, and the SDK that it gives."""

from __future__ import annotations

import asyncio
import importlib
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseHook

from airflow_provider_soperator import __version__
from airflow_provider_soperator.errors import ConnectionMistake
from airflow_provider_soperator.hooks.connections import (
    at_most_one,
    filled,
    installed,
    known,
    lines_of_key,
    read_connection,
)
from airflow_provider_soperator.hooks.forms import NEBIUS
from airflow_provider_soperator.nebius.api import NebiusUnauthenticated, access_token, whoami
from airflow_provider_soperator.nebius.capacity_blocks import CapacityBlock, read_block
from airflow_provider_soperator.shared import SharedClients

if TYPE_CHECKING:
    from nebius.base.service_account.service_account import Reader, ServiceAccount
    from nebius.sdk import SDK

#: After an outage gRPC would wait for up to two minutes before it connects again.
_MOST_WAIT_TO_RECONNECT_MS = 5_000
#: The default port of the API.
_PORT = 443


@dataclass(frozen=True, kw_only=True)
class NebiusSettings:
    """A way to the Nebius API. Two connections with equal settings share an SDK."""

    conn_id: str
    #: ``HOST:PORT`` of one server for all services; if empty, each service has its own name.
    endpoint: str = ""
    #: The domain of the services' names; if empty, that of Nebius.
    domain: str = ""
    insecure: bool = False
    token: str = field(default="", repr=False)
    private_key: str = field(default="", repr=False)
    credentials_file: str = ""
    account_id: str = ""
    public_key_id: str = ""
    #: The Kubernetes connection and the namespace that keep the leases of blocks.
    lease_conn_id: str = ""
    lease_namespace: str = "default"

    @property
    def where(self) -> str:
        """The address, for messages."""
        return self.endpoint or self.domain or "api.nebius.cloud"


def read(connection: Any, extra: Mapping[str, Any]) -> NebiusSettings:
    """The settings of an Airflow connection; ``ConnectionMistake`` says what is wrong with it."""
    said = filled(connection, extra, NEBIUS)
    host = (connection.host or "").strip()
    if "/" in host:
        raise ConnectionMistake(f"the host is {host}, but is a name without http:// or a path: Nebius speaks gRPC")
    token = (connection.password or "").strip()
    key = said.get("private_key", "")
    # Users paste these credentials, which are JSON, into the extra without quoting them.
    key = json.dumps(key) if isinstance(key, dict) else str(key)
    at_most_one({"the password": token, "private_key": key, "credentials_file": said.get("credentials_file")})
    ids = {name: said.get(name, "") for name in ("account_id", "public_key_id")}
    if key and not _is_json(key) and not all(ids.values()):
        missing = " and ".join(name for name, value in ids.items() if not value)
        raise ConnectionMistake(f"a key as PEM does not say whose it is: set {missing} beside it")
    if any(ids.values()) and not (key or said.get("credentials_file")):
        raise ConnectionMistake("a service account needs its key: set private_key or credentials_file")
    address = f"{host}:{connection.port or _PORT}" if host else ""
    # Nebius has a name for each service, such as mk8s.api.nebius.cloud.
    is_domain = host.startswith("api.")
    return NebiusSettings(
        conn_id=connection.conn_id,
        endpoint="" if is_domain else address,
        domain=address if is_domain else "",
        insecure=bool(said.get("insecure")),
        token=token,
        private_key=key,
        **ids,
        **{name: said[name] for name in ("credentials_file", "lease_conn_id", "lease_namespace") if name in said},
    )


def _is_json(credentials: str) -> bool:
    """Tell credentials in JSON, which have all ids, from a key alone."""
    return credentials.lstrip().startswith("{")


_SDKS: SharedClients[NebiusSettings, SDK] = SharedClients()


class NebiusHook(BaseHook):
    """The Nebius API behind an Airflow connection of type ``nebius``.

    All users of a connection in an event loop share an SDK.

        block = await NebiusHook("nebius_default").block("capacityblockgroup-e00example")
        print(block.free, "GPUs are free")
    """

    conn_name_attr = "nebius_conn_id"
    default_conn_name = "nebius_default"
    conn_type = NEBIUS.conn_type
    hook_name = NEBIUS.hook_name

    def __init__(self, nebius_conn_id: str = default_conn_name) -> None:
        super().__init__()
        self.nebius_conn_id = nebius_conn_id

    @asynccontextmanager
    async def async_client(self) -> AsyncIterator[SDK]:
        """The SDK for the running event loop."""
        async with _lent(await self.async_settings()) as sdk:
            yield sdk

    async def async_settings(self) -> NebiusSettings:
        """Read the connection."""
        return read(*await read_connection(self.nebius_conn_id))

    async def async_token(self) -> str:
        """An access token, which lives for some hours: the connection's own, or one for its service account's key."""
        settings = await self.async_settings()
        if settings.token:
            return settings.token
        async with _lent(settings) as sdk:
            return await access_token(sdk)

    async def block(self, block_id: str) -> CapacityBlock:
        """A capacity block as it is now."""
        async with self.async_client() as sdk:
            return await read_block(sdk, block_id)

    def test_connection(self) -> tuple[bool, str]:
        """Test the connection: whether it works, and a message."""
        from airflow_provider_soperator.hooks.check import in_words

        try:
            with known(self.nebius_conn_id):
                connection = self.get_connection(self.nebius_conn_id)
            settings = read(connection, connection.extra_dejson)
            return True, f"Nebius API at {settings.where}, as {asyncio.run(_whoami(settings))}."
        except Exception as error:
            return False, in_words(error)


@asynccontextmanager
async def _lent(settings: NebiusSettings) -> AsyncIterator[SDK]:
    with installed("nebius"):
        # The first import takes a quarter of a second, which must not block the event loop.
        await asyncio.to_thread(importlib.import_module, "nebius.sdk")
    async with _SDKS.lend(settings, open_sdk) as sdk:
        yield sdk


async def _whoami(settings: NebiusSettings) -> str:
    async with _lent(settings) as sdk:
        return await whoami(sdk)


def open_sdk(settings: NebiusSettings) -> SDK:
    """An SDK of its own, which the caller closes."""
    from nebius.aio.token.static import NoTokenInEnvError
    from nebius.base.resolver import Constant
    from nebius.sdk import SDK

    options: list[tuple[str, Any]] = [("grpc.max_reconnect_backoff_ms", _MOST_WAIT_TO_RECONNECT_MS)]
    if settings.insecure:
        options.append(("nebius.insecure", True))
    try:
        return SDK(
            resolver=Constant(settings.endpoint) if settings.endpoint else None,
            domain=settings.domain or None,
            options=options,
            credentials=_credentials(settings),
            user_agent_prefix=f"airflow-provider-soperator/{__version__}",
        )
    except NoTokenInEnvError as error:
        raise NebiusUnauthenticated(
            f"the connection {settings.conn_id} has no token, and neither has the environment ({error})",
            "set its password to a token, or private_key to a service account's credentials",
        ) from error


def _credentials(settings: NebiusSettings) -> Any:
    if settings.token:
        return settings.token
    if settings.private_key:
        return _reader(settings, lambda: settings.private_key, "private_key")
    if not settings.credentials_file:
        # The SDK would read the environment by itself.
        return None

    def content() -> str:
        try:
            return Path(settings.credentials_file).expanduser().read_text()
        except OSError as error:
            raise ConnectionMistake(f"credentials_file cannot be read on this machine: {error}") from error

    if _is_json(now := content()) or "-----BEGIN" in now:
        return _reader(settings, content, "credentials_file")
    from nebius.aio.token.file import Bearer

    return Bearer(settings.credentials_file)


def _reader(settings: NebiusSettings, said: Callable[[], str], field: str) -> Reader:
    from nebius.base.service_account.service_account import Reader

    class KeyReader(Reader):
        """Reads the key for each token, as a file may have another one by then."""

        def read(self) -> ServiceAccount:
            return _service_account(settings, said(), field)

    return KeyReader()


def _service_account(settings: NebiusSettings, said: str, field: str) -> ServiceAccount:
    from nebius.base.service_account.credentials_file import ServiceAccountCredentials, SubjectCredentials
    from nebius.base.service_account.service_account import ServiceAccount

    try:
        if _is_json(said):
            credentials = ServiceAccountCredentials.from_json(json.loads(said)).subject_credentials
        else:
            account, key_id = settings.account_id, settings.public_key_id
            credentials = SubjectCredentials("JWT", "RS256", lines_of_key(said), key_id, iss=account, sub=account)
        return ServiceAccount(credentials.parse_private_key(), credentials.kid, credentials.sub)
    except Exception as error:
        # The message of the error may contain the key.
        kind = type(error).__name__
        raise ConnectionMistake(
            f"{field} has no RSA key of a service account that could be read ({kind}): it is to be the JSON of its "
            "credentials as Nebius made it, or its key as PEM beside account_id and public_key_id"
        ) from error
