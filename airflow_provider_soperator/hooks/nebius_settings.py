"""Settings of a Nebius connection, read and checked before anything is opened, and the form of the connection.

Imports nothing heavy: Airflow reads it in each of its processes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_soperator.errors import ConnectionMistake
from airflow_provider_soperator.hooks import connections
from airflow_provider_soperator.hooks.connections import Field, at_most_one, filled

#: The default port of the API.
_PORT = 443

FIELDS = (
    Field(
        "private_key",
        "Service account's key",
        "In place of a token: the JSON of a service account's credentials, or its private key as PEM.",
        is_secret=True,
    ),
    Field(
        "credentials_file",
        "Credentials file",
        "In place of both: path of a file, the same on all workers and triggerers, with that JSON, that key, or a "
        "token that something else keeps fresh.",
    ),
    Field("account_id", "Service account", "Id of the service account, needed beside a key as PEM."),
    Field("public_key_id", "Public key", "Id of its public key, likewise."),
    Field(
        "insecure",
        "Without TLS",
        "Sends everything, the token too, as plain text. Only for a sandbox.",
        is_flag=True,
    ),
)


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

    @property
    def where(self) -> str:
        """The address, for messages."""
        return self.endpoint or self.domain or "api.nebius.cloud"


def read(connection: Any, extra: Mapping[str, Any]) -> NebiusSettings:
    """The settings of an Airflow connection; ``ConnectionMistake`` says what is wrong with it."""
    said = filled(extra, FIELDS, "nebius")
    host = (connection.host or "").strip()
    if "/" in host:
        raise ConnectionMistake(f"the host is {host}, but is a name without http:// or a path: Nebius speaks gRPC")
    token = (connection.password or "").strip()
    key = said.get("private_key", "")
    # Users paste these credentials, which are JSON, into the extra without quoting them.
    key = json.dumps(key) if isinstance(key, dict) else str(key)
    at_most_one({"the password": token, "private_key": key, "credentials_file": said.get("credentials_file")})
    ids = {name: said.get(name, "") for name in ("account_id", "public_key_id")}
    if key and not is_json(key) and not all(ids.values()):
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
        credentials_file=said.get("credentials_file", ""),
        **ids,
    )


def is_json(credentials: str) -> bool:
    """Tell credentials in JSON, which have all ids, from a key alone."""
    return credentials.lstrip().startswith("{")


def connection_type() -> dict[str, Any]:
    """The entry of ``connection-types`` in the provider's description."""
    hook = "airflow_provider_soperator.hooks.nebius.NebiusHook"
    return connections.connection_type("nebius", hook, "Nebius", FIELDS, behaviour())


def behaviour() -> dict[str, Any]:
    """Labels of the fields that all connections have."""
    return {
        "hidden_fields": ["schema", "login"],
        "relabeling": {"host": "API endpoint", "password": "Access token"},
        "placeholders": {"host": "if empty: api.nebius.cloud", "port": "443"},
    }


def widgets() -> dict[str, Any]:
    """The form fields for Airflow 3.1, which does not take them from the provider's description."""
    return connections.widgets(FIELDS)
