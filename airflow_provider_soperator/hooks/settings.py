"""Settings of a Soperator connection, read and checked before anything is opened."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_soperator.errors import ConnectionMistake
from airflow_provider_soperator.hooks.connections import at_most_one, filled
from airflow_provider_soperator.hooks.forms import FILE_WAYS, LINKS, SOPERATOR, SSH_EXTRAS, TRANSPORTS
from airflow_provider_soperator.slurm.links import link_problem
from airflow_provider_soperator.values import NAMESPACE


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
    #: The templates of links to pages about a job, by the names of their fields.
    links: tuple[tuple[str, str], ...] = ()
    #: All that the connection holds, so that a client is not shared with a changed one.
    written: tuple[object, ...] = field(default=(), repr=False)

    @property
    def files_elsewhere(self) -> bool:
        """True if files take another way than requests to Slurm."""
        return self.files_via not in ("", "none", self.transport)

    @property
    def reaches_files(self) -> bool:
        """True if there is a way to the cluster's files."""
        return self.transport != "rest" or self.files_elsewhere


def read(connection: Any, extra: Mapping[str, Any]) -> Settings:
    """The settings of an Airflow connection; ``ConnectionMistake`` says what is wrong with it.

    The extra is an argument of its own, as threads and event loops read it in different ways.
    """
    said = filled(extra, SOPERATOR, SSH_EXTRAS)
    host = (connection.host or "").strip()
    # In a URI, soperator://http%3A%2F%2F..., or in the form's field.
    is_address = host.startswith(("http://", "https://"))
    is_login_node = bool(host) and not is_address
    at_most_one({"rest_url": said.get("rest_url"), "an http(s) host": is_address})
    at_most_one({"ssh_conn_id": said.get("ssh_conn_id"), "a login node as host": is_login_node})
    for pair in (("jwt_token", "jwt_secret"), ("key_file", "private_key"), ("host_key", "no_host_key_check")):
        at_most_one({name: said.get(name) for name in pair})
    address = f"{host.rstrip('/')}:{connection.port}" if connection.port else host
    url = said.get("rest_url") or (address if is_address else "")
    ssh = said.get("ssh_conn_id") or (connection.conn_id if is_login_node else "")
    kubernetes = said.get("kubernetes_conn_id", "")
    transport = said.get("transport") or _implied(url, ssh, kubernetes)
    files_via = said.get("files_via") or ""
    if transport == "rest" and not files_via:
        files_via = "ssh" if ssh else "kubernetes" if kubernetes else ""
    _one_of("transport", transport, TRANSPORTS)
    _one_of("files_via", files_via, ("", *FILE_WAYS))
    for way, needed, what in (
        ("ssh", ssh, "a host, or ssh_conn_id"),
        ("kubernetes", kubernetes, "kubernetes_conn_id"),
        ("rest", url, "rest_url, or an http(s) host"),
    ):
        if way in (transport, files_via) and not needed:
            name = "transport" if way == transport else "files_via"
            raise ConnectionMistake(f"{name} is {way}, which needs {what}")
    if transport == "rest" and not (said.get("jwt_token") or said.get("jwt_secret") or ssh or kubernetes):
        raise ConnectionMistake(
            "slurmrestd wants a token: set jwt_secret or jwt_token, or an SSH or Kubernetes connection to fetch one by"
        )
    if transport == "rest" and said.get("jwt_secret") and not connection.login:
        raise ConnectionMistake("a token is made for a user: set the login beside jwt_secret")
    links = tuple((name, said[name]) for name in LINKS if name in said)
    for name, template in links:
        if wrong := link_problem(template):
            raise ConnectionMistake(f"{name} {wrong}")
    return Settings(
        conn_id=connection.conn_id,
        transport=transport,
        files_via=files_via,
        user=connection.login or "",
        ssh_conn_id=ssh,
        kubernetes_conn_id=kubernetes,
        rest_url=url.rstrip("/"),
        links=links,
        written=(connection.host, connection.port, connection.login, connection.password, connection.extra),
        **{name: said[name] for name in ("namespace", "cluster", "jwt_token", "jwt_secret") if name in said},
    )


def _implied(url: str, ssh: str, kubernetes: str) -> str:
    for way, given in (("rest", url), ("ssh", ssh), ("kubernetes", kubernetes)):
        if given:
            return way
    raise ConnectionMistake(
        "the connection does not say how to reach the cluster: set a host, ssh_conn_id, kubernetes_conn_id or rest_url"
    )


def _one_of(name: str, value: str, choices: Iterable[str]) -> None:
    if value not in choices:
        raise ConnectionMistake(f"{name} is {value!r}, but can be {', '.join(filter(None, choices))}")
