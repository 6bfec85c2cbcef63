"""What a Soperator connection says, read and checked before anything is opened."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_soperator.hooks.form import FIELDS, FILE_WAYS, SSH_EXTRAS, TRANSPORTS

#: Where Soperator's recipes put a SlurmCluster.
NAMESPACE = "soperator"
REST_PORT = 6820


class ConnectionMistake(ValueError):
    """A connection that cannot work as it is written; the message names the field."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """A way to a cluster. Two connections with equal settings share a client."""

    conn_id: str
    transport: str
    files_via: str = ""
    user: str = ""
    #: The connection that has the login node: another one, or this one itself.
    ssh_conn_id: str = ""
    kubernetes_conn_id: str = ""
    namespace: str = NAMESPACE
    cluster: str = ""
    rest_url: str = ""
    jwt_token: str = field(default="", repr=False)
    jwt_secret: str = field(default="", repr=False)
    #: All that the connection holds, so that a client is not shared with a changed one.
    written: str = field(default="", repr=False)

    @property
    def files_elsewhere(self) -> bool:
        """Whether files go another way than questions to Slurm."""
        return self.files_via not in ("", "none", self.transport)


def read(connection: Any) -> Settings:
    """The settings of an Airflow connection; ``ConnectionMistake`` says what is wrong with it."""
    extra = _extra(connection)
    host, port = connection.host or "", connection.port
    # As a URI, soperator://https%3A%2F%2F..., or as the form's field.
    url = extra.get("rest_url", "") or (host if host.startswith(("http://", "https://")) else "")
    has_login_node = bool(host) and url != host
    ssh = extra.get("ssh_conn_id", "") or (connection.conn_id if has_login_node else "")
    kubernetes = extra.get("kubernetes_conn_id", "")
    transport = extra.get("transport", "") or _implied(url, ssh, kubernetes)
    files_via = extra.get("files_via", "") or _files_implied(transport, ssh, kubernetes)
    _one_of("transport", transport, TRANSPORTS)
    _one_of("files_via", files_via, (*FILE_WAYS, ""))
    for way, needed, what in (
        ("ssh", ssh, "a host, or ssh_conn_id"),
        ("kubernetes", kubernetes, "kubernetes_conn_id"),
        ("rest", url, "rest_url, or an http(s) host"),
    ):
        if way in (transport, files_via) and not needed:
            name = "transport" if way == transport else "files_via"
            raise ConnectionMistake(f"{name} is {way}, but {what} is not set")
    if transport == "rest" and not (extra.get("jwt_token") or extra.get("jwt_secret") or ssh or kubernetes):
        raise ConnectionMistake(
            "slurmrestd wants a token: set jwt_secret or jwt_token, or an SSH or Kubernetes connection to fetch one by"
        )
    return Settings(
        conn_id=connection.conn_id,
        transport=transport,
        files_via=files_via,
        user=connection.login or "",
        ssh_conn_id=ssh,
        kubernetes_conn_id=kubernetes,
        namespace=extra.get("namespace", "") or NAMESPACE,
        cluster=extra.get("cluster", ""),
        rest_url=_with_port(url, port if url == host else None),
        jwt_token=extra.get("jwt_token", ""),
        jwt_secret=extra.get("jwt_secret", ""),
        written=connection.get_uri(),
    )


def _extra(connection: Any) -> dict[str, Any]:
    said: Mapping[str, Any] = connection.extra_dejson
    # Forms before Airflow 2 wrote the type into the names.
    given = {name.removeprefix("extra__soperator__"): value for name, value in said.items()}
    known = [field.name for field in FIELDS]
    for name in given.keys() - {*known, *SSH_EXTRAS}:
        # People keep notes of their own in an extra, but hardly under a name that is nearly one of these.
        if near := difflib.get_close_matches(name, known, 1, 0.8):
            raise ConnectionMistake(f"the extra has {name}, which means nothing: is it to be {near[0]}?")
    return {name: value.strip() if isinstance(value, str) else value for name, value in given.items() if value}


def _implied(url: str, ssh: str, kubernetes: str) -> str:
    for way, given in (("rest", url), ("ssh", ssh), ("kubernetes", kubernetes)):
        if given:
            return way
    raise ConnectionMistake(
        "the connection does not say how to reach the cluster: set a host, ssh_conn_id, kubernetes_conn_id or rest_url"
    )


def _files_implied(transport: str, ssh: str, kubernetes: str) -> str:
    if transport != "rest":
        return ""
    return "ssh" if ssh else "kubernetes" if kubernetes else ""


def _one_of(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ConnectionMistake(f"{name} is {value!r}, but can be {', '.join(filter(None, choices))}")


def _with_port(url: str, port: int | None) -> str:
    return f"{url.rstrip('/')}:{port}" if url and port else url.rstrip("/")
