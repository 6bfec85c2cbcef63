"""Airflow's REST API, for what a task cannot do otherwise: a task can only read connections."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseHook

from airflow_provider_soperator.hooks.connections import http_address, installed, known
from airflow_provider_soperator.transports.transport_errors import ConnectFailed, ConnectRefused

if TYPE_CHECKING:
    import httpx

_PATIENCE = 30.0


class AirflowApiHook(BaseHook):
    """The API server behind a connection of type ``http``.

    Its host is the server's address, as people open it in a browser. With a login, a token is fetched for that user;
    without one, the password is a token. The user may add, change and delete connections.
    """

    conn_name_attr = "api_conn_id"

    def __init__(self, api_conn_id: str) -> None:
        super().__init__()
        self.api_conn_id = api_conn_id

    def put_connection(self, body: Mapping[str, Any]) -> bool:
        """Add a connection, or change the one that has its id, whose other fields stay; whether it was added."""
        conn_id, extra = body["connection_id"], body["extra"]
        with self._client() as client:
            answer = client.post("/api/v2/connections", json=_said(body, extra))
            if answer.status_code != 409:
                _check(answer, f"add the connection {conn_id}")
                return True
            # Ways to a Kubernetes API exclude each other.
            if body["conn_type"] != "kubernetes":
                # The API hides secrets, and what is equal to one, in what it answers.
                extra = {**self.get_connection(conn_id).extra_dejson, **extra}
            answer = client.patch(f"/api/v2/connections/{conn_id}", json=_said(body, extra))
            _check(answer, f"change the connection {conn_id}")
        return False

    def delete_connection(self, conn_id: str) -> bool:
        """Delete a connection; whether it was there."""
        with self._client() as client:
            answer = client.delete(f"/api/v2/connections/{conn_id}")
            if answer.status_code == 404:
                return False
            _check(answer, f"delete the connection {conn_id}")
        return True

    def check(self) -> None:
        """Raise if the API does not answer, or does not let this user see connections."""
        with self._client() as client:
            _check(client.get("/api/v2/connections", params={"limit": 1}), "list connections")

    @contextmanager
    def _client(self) -> Iterator[httpx.Client]:
        with installed("rest"):
            import httpx
        with known(self.api_conn_id):
            connection = self.get_connection(self.api_conn_id)
        url = http_address(connection)
        try:
            with httpx.Client(base_url=url, timeout=_PATIENCE) as client:
                token = self._token(client, connection.login, connection.password)
                client.headers["Authorization"] = f"Bearer {token}"
                yield client
        except (httpx.TransportError, httpx.InvalidURL) as error:
            failure = ConnectFailed if isinstance(error, httpx.InvalidURL) else ConnectRefused
            raise failure(
                f"Airflow's API server at {url} does not answer ({error or type(error).__name__})",
                f"correct the host of the connection {self.api_conn_id}",
            ) from error

    def _token(self, client: httpx.Client, login: str | None, password: str | None) -> str:
        if password and not login:
            return password
        if login:
            answer = client.post("/auth/token", json={"username": login, "password": password or ""})
        else:
            # An Airflow without logins.
            answer = client.get("/auth/token")
        _check(answer, "get a token")
        return str(answer.json()["access_token"])


def _said(body: Mapping[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
    return {**body, "extra": json.dumps({name: value for name, value in extra.items() if value is not None})}


def _check(answer: httpx.Response, what: str) -> None:
    if answer.is_success:
        return
    try:
        said = answer.json()["detail"]
        if isinstance(said, list):
            # Each has what was sent in it, and that has secrets.
            said = "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in said)
    except (ValueError, KeyError, TypeError):
        said = answer.text.strip()[:200]
    words = f"Airflow's API did not {what} ({answer.status_code}: {said})"
    if answer.status_code in (401, 403):
        raise ConnectFailed(words, "give the API's connection a user who may edit connections, or a new token")
    if answer.status_code >= 500 or answer.status_code == 429:
        raise ConnectRefused(words, "see whether the API server is well")
    raise ConnectFailed(words, "see what it says")
