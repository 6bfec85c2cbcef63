"""Fields of extras, also as users paste them; connections by id; and imports that need an extra of this package."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from airflow_provider_soperator.errors import AirflowAway, ConnectionMistake, nearest
from airflow_provider_soperator.slurm.notations import parts_of_key
from airflow_provider_soperator.values import asked_again

if TYPE_CHECKING:
    from airflow.sdk import Connection

    from airflow_provider_soperator.transports.transport_errors import TransportError

#: The text of a form where nothing is chosen.
_NOT_CHOSEN = "follows from what else is set"
#: The type of a public key, and what begins with its data, whose first three bytes are zero.
_PUBLIC_KEY = re.compile(r"(?:(\S+)\s+)?\b(AAAA.*)")
_IPV6 = re.compile(r"^[0-9a-f]*(:[0-9a-f.]*){2,}(?=/|$)", re.IGNORECASE)
_PRIVATE_KEY = re.compile(r"\s*-----BEGIN ([A-Z ]+)-----([A-Za-z0-9+/=\s\\]+)-----END \1-----\s*")


@dataclass(frozen=True)
class Field:
    """A field of an extra. Airflow masks secrets by their names, see its ``sensitive_var_conn_names``."""

    name: str
    label: str
    help: str
    choices: Mapping[str, str] = field(default_factory=dict)
    is_secret: bool = False
    is_flag: bool = False
    #: Another field, only one of which may be set.
    excludes: str = ""


@dataclass(frozen=True, kw_only=True)
class ConnectionForm:
    """Airflow's form for a type of connections."""

    conn_type: str
    hook_class: str
    hook_name: str
    fields: tuple[Field, ...]
    #: Labels of the fields that all connections have, and which of them are hidden.
    behaviour: Mapping[str, Any]
    #: What is set elsewhere: the beginnings of its names, and where.
    elsewhere: Mapping[str, str] = field(default_factory=dict)

    def described(self) -> dict[str, Any]:
        """The entry of ``connection-types`` in the provider's description."""
        return {
            "connection-type": self.conn_type,
            "hook-class-name": self.hook_class,
            "hook-name": self.hook_name,
            "conn-fields": {field.name: _described(field) for field in self.fields},
            "ui-field-behaviour": {name.replace("_", "-"): value for name, value in self.behaviour.items()},
        }


def _described(field: Field) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": ["boolean" if field.is_flag else "string", "null"]}
    if field.choices:
        schema["enum"] = [None, *field.choices]
        schema["values_display"] = {"null": _NOT_CHOSEN, **field.choices}
    if field.is_secret:
        schema["format"] = "password"
    return {"label": field.label, "description": field.help, "schema": schema}


def filled(
    connection: Any, extra: Mapping[str, Any], form: ConnectionForm, others: Iterable[str] = ()
) -> dict[str, Any]:
    """The fields that are set, checked: a form sends all of them, empty ones as null or as an empty text."""
    if connection.conn_type not in (None, "", form.conn_type):
        # Its host and password are for another server.
        raise ConnectionMistake(f"{connection.conn_id} is of type {connection.conn_type}: name a {form.conn_type} one")
    ours = {field.name: field for field in form.fields}
    for name in extra.keys() - {*ours, *others}:
        for beginning, where in form.elsewhere.items():
            if name.lower().removeprefix("ssh_").removeprefix("host_").startswith(beginning):
                raise ConnectionMistake(f"unknown extra field {name}: {where}")
        # Users keep notes of their own in an extra, but hardly under a name so close to a field's.
        if near := nearest(name, ours, likeness=0.75):
            raise ConnectionMistake(f"unknown extra field {name}: did you mean {near!r}?")
    said = {name: value.strip() if isinstance(value, str) else value for name, value in extra.items()}
    # In a URI a flag is a text.
    is_off = {name for name in said if name in ours and ours[name].is_flag and str(said[name]).lower() != "true"}
    kept = {name: value for name, value in said.items() if value and name not in is_off}
    for one in form.fields:
        if one.excludes:
            at_most_one({one.excludes: kept.get(one.excludes), one.name: kept.get(one.name)})
        if one.choices and kept.get(one.name, "") not in ("", *one.choices):
            raise ConnectionMistake(f"{one.name} is {kept[one.name]!r}, but can be {', '.join(one.choices)}")
    return kept


def at_most_one(said: Mapping[str, object]) -> None:
    """Refuse fields that exclude each other."""
    both = [name for name, value in said.items() if value]
    if len(both) > 1:
        raise ConnectionMistake(f"{' and '.join(both)} are both set, and only one of them can count: remove the other")


def straightened(extra: Mapping[str, Any]) -> dict[str, Any]:
    r"""Mend an extra as users paste it, for the stock SSH hook.

    It stumbles over fields that are there but blank, and over a host key with its host, as ssh-keyscan prints it, or
    without a part. A private key loses its line ends in a form's password field, and has them as backslash and n in an
    environment file.

    >>> straightened({"host_key": "login ssh-test AAAABHRlc3QAAAABeA==", "private_key": "", "conn_timeout": 5})
    {'host_key': 'ssh-test AAAABHRlc3QAAAABeA==', 'conn_timeout': 5}
    >>> straightened({"private_key": r"-----BEGIN KEY-----\nabc\n-----END KEY-----"})["private_key"]
    '-----BEGIN KEY-----\nabc\n-----END KEY-----\n'
    """
    kept = {name: value for name, value in extra.items() if value not in ("", None)}
    if "host_key" in kept:
        kept["host_key"] = _host_key(kept["host_key"])
    if "private_key" in kept:
        kept["private_key"] = lines_of_key(kept["private_key"])
    return kept


def _host_key(said: str) -> str:
    # A line of ssh-keyscan or of known_hosts has the host before them, a line of a .pub file a comment behind them.
    if found := _PUBLIC_KEY.search(said):
        kind, rest = found.groups(default="")
        for blank in re.finditer(r"\s|$", rest):
            # Each + that a URI has as it is has become a blank.
            # Of a cut key, paramiko makes up the parts that are missing; the first part is its type.
            if len(parts_of_key(key := rest[: blank.start()].replace(" ", "+"))) > 1:
                return f"{kind} {key}".strip()
    raise ConnectionMistake("missing key data")


def lines_of_key(said: str) -> str:
    """A private key, with line ends that it may have lost on its way."""
    found = _PRIVATE_KEY.fullmatch(said)
    if not found:
        return said
    body = re.sub(r"\s|\\n", "", found[2])
    lines = [body[at : at + 70] for at in range(0, len(body), 70)]
    return "\n".join([f"-----BEGIN {found[1]}-----", *lines, f"-----END {found[1]}-----", ""])


async def read_connection(conn_id: str) -> tuple[Connection, dict[str, Any]]:
    """A connection and its extra, without blocking the event loop. Airflow masks the secrets of both in logs."""
    from airflow.providers.common.compat.connection import get_async_connection, get_async_extra_dejson
    from airflow.providers.common.compat.sdk import AirflowNotFoundException, BaseHook
    from asgiref.sync import sync_to_async

    async with known_in_loop(conn_id):
        try:
            connection = await get_async_connection(conn_id)
        except AirflowNotFoundException:
            # Airflow may have been away for a moment, and dag.test() has no other way.
            connection = await sync_to_async(BaseHook.get_connection)(conn_id)
    return connection, await get_async_extra_dejson(connection)


def http_address(connection: Any) -> str:
    """The address of a server of HTTP, where the host of the connection may be a whole one, with a path.

    >>> from types import SimpleNamespace as Connection
    >>> http_address(Connection(conn_type="http", schema=None, host="https://example.com/prom/", port=9090))
    'https://example.com:9090/prom'
    >>> http_address(Connection(conn_type="https", schema=None, host="example.com", port=None))
    'https://example.com'
    """
    # Of an address of IPv6 in a URI, Airflow has no brackets.
    host = _IPV6.sub(r"[\g<0>]", (connection.host or "").strip().rstrip("/"))
    # A connection that is written as the address https://... is of that type to Airflow.
    scheme = connection.schema or ("https" if connection.conn_type == "https" else "http")
    try:
        url = urlsplit(host if "://" in host else f"{scheme}://{host}")
    except ValueError:
        # Its message may have a password in it.
        raise ConnectionMistake(
            f"the host of the connection {connection.conn_id} is no address: write http://HOST:PORT, with an address "
            "of IPv6 in brackets"
        ) from None
    is_complete = not connection.port or re.search(r":\d+$", url.netloc)
    return (url if is_complete else url._replace(netloc=f"{url.netloc}:{connection.port}")).geturl()


@contextmanager
def known(conn_id: str) -> Iterator[None]:
    """Context in which a connection is read; raises ``UnknownEndpoint`` if there is none with the id."""
    from airflow.providers.common.compat.sdk import AirflowNotFoundException

    try:
        yield
    except AirflowNotFoundException as error:
        raise _not_told(conn_id) from error


@asynccontextmanager
async def known_in_loop(conn_id: str) -> AsyncIterator[None]:
    """The same in an event loop."""
    from airflow.providers.common.compat.sdk import AirflowNotFoundException
    from asgiref.sync import sync_to_async

    try:
        yield
    except AirflowNotFoundException as error:
        raise await sync_to_async(_not_told)(conn_id) from error


def _not_told(conn_id: str) -> TransportError:
    from airflow.sdk.execution_time.comms import GetConnection
    from airflow.sdk.execution_time.supervisor import ensure_secrets_backend_loaded

    from airflow_provider_soperator.transports.transport_errors import UnknownEndpoint, Unreachable

    try:
        for backend in ensure_secrets_backend_loaded():
            # Airflow passes over what they raise. The words of others may have a password in them.
            if type(backend).__name__ == "MetastoreBackend" and (found := backend.get_connection(conn_id)):
                found.get_uri()
    except Exception as error:
        why = f"{type(error).__name__}: {error}".splitlines()[0].removesuffix(": ")
        remedy = "see whether Airflow's database answers, and whether [core] fernet_key is Airflow's"
        return Unreachable(f"the connection {conn_id} cannot be read ({why})", remedy)
    try:
        if asked_again(GetConnection(conn_id=conn_id)) is None:
            return UnknownEndpoint(f"there is no connection {conn_id}", "add it, or name another one")
        why = "Airflow's API was away for a moment"
    except AirflowAway as away:
        why = str(away)
    return Unreachable(f"the connection {conn_id} is not known at present: {why}", "see whether the API server is up")


@contextmanager
def installed(extra: str) -> Iterator[None]:
    """Context for imports that need an extra of this package."""
    try:
        yield
    except ImportError as error:
        from airflow_provider_soperator.transports.transport_errors import ConnectFailed

        remedy = f"`pip install 'airflow-provider-soperator[{extra}]'`"
        raise ConnectFailed(f"the packages for {extra} are not installed ({error})", remedy) from error
