"""Shells in pods: what is closed with them, and what replaces a client whose token has expired."""

from __future__ import annotations

import asyncio
import os
import pwd
from typing import Any
from unittest.mock import AsyncMock

import aiohttp
import pytest
from kubernetes_asyncio.client import ApiClient, ApiException, Configuration
from kubernetes_asyncio.stream import WsApiClient

from airflow_provider_soperator.slurm.requests import Command
from airflow_provider_soperator.transports import kubernetes, local
from airflow_provider_soperator.transports.kubernetes import LOGIN, KubernetesTransport, _WebSocketPipe
from airflow_provider_soperator.transports.shell import Pipe
from airflow_provider_soperator.transports.transport_errors import ConnectFailed, kubernetes_errors
from tests.unit.transports.test_shell import Run


class Socket:
    """A websocket to an API server that no longer answers."""

    async def receive(self) -> Any:
        await asyncio.Event().wait()

    async def close(self) -> None:
        await asyncio.Event().wait()


def test_a_client_is_closed_also_by_a_task_that_is_cancelled_as_it_closes_its_shell() -> None:
    async def main() -> None:
        client: Any = WsApiClient(Configuration())
        pipe = _WebSocketPipe(Socket(), client, "login-0", LOGIN)  # type: ignore[arg-type]
        closing = asyncio.ensure_future(pipe.close())
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        assert client.rest_client.pool_manager.closed

    asyncio.run(main())


def test_a_shell_has_the_variables_of_a_login_and_not_those_of_its_container(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("KUBERNETES_SERVICE_HOST", "LOGIN_SVC_PORT", "OF_THE_IMAGE"):
        monkeypatch.setenv(name, "10.0.0.1")
    in_jail = LOGIN.shell[LOGIN.shell.index("/mnt/jail") + 1 :]

    async def main() -> dict[str, str]:
        shell = Tokens()
        shell.words = in_jail
        said = await shell.ask(Run(Command(("env",))))
        await shell.close()
        return dict(line.split("=", 1) for line in said.stdout.decode().splitlines())

    found = asyncio.run(main())
    assert {*found} - {"PWD", "OLDPWD", "SHLVL", "_"} == {"HOME", "USER", "LOGNAME", "PATH"}
    assert found["PATH"].endswith(":/usr/sbin:/usr/bin:/sbin:/bin")
    assert found["HOME"] == pwd.getpwuid(os.getuid()).pw_dir


class Tokens(KubernetesTransport):
    """Shells of this machine, for clients whose token is accepted."""

    def __init__(self) -> None:
        super().__init__(self._client, "soperator")
        self.clients: list[Any] = []
        self.expired: list[Any] = []
        self.words: tuple[str, ...] = local.SHELL

    async def _client(self) -> Any:
        self.clients.append(AsyncMock())
        return self.clients[-1]

    async def _exec(self, connection: Any) -> Pipe:
        with kubernetes_errors("exec"):
            if connection in self.expired:
                raise ApiException(401, "Unauthorized")
        return await local._open_pipe(self.words)


def test_a_token_that_expires_between_shells_fails_no_request() -> None:
    async def main() -> None:
        tokens = Tokens()
        slow = Run(Command(("sleep", "0.5")))
        await tokens.ask(slow)
        tokens.expired += tokens.clients
        assert [said.status for said in await asyncio.gather(*(tokens.ask(slow) for _ in range(4)))] == [0] * 4
        assert len(tokens.clients) == 2
        await tokens.close()

    asyncio.run(main())


def test_a_token_that_was_never_accepted_is_told() -> None:
    async def main() -> None:
        tokens = Tokens()
        await tokens._connected()
        tokens.expired += tokens.clients
        with pytest.raises(ConnectFailed, match="refused the token") as told:
            await tokens.ask(Run(Command(("true",))))
        assert (told.value.retryable, len(tokens.clients)) == (False, 1)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("said", "environment", "proxy"),
    [
        (
            {"proxy": "http://proxy:3128", "proxy_headers": {"a": "b"}, "tls_server_name": "kube"},
            {},
            "http://proxy:3128",
        ),
        ({}, {"HTTPS_PROXY": "http://other:3128", "HTTP_PROXY": "http://none"}, "http://other:3128"),
        ({"proxy": "http://proxy:3128"}, {"HTTPS_PROXY": "http://other:3128"}, "http://proxy:3128"),
        ({}, {"HTTPS_PROXY": "http://other:3128", "NO_PROXY": "10.0.0.1"}, None),
        ({}, {}, None),
    ],
)
def test_a_shell_takes_the_way_of_other_requests(
    said: dict[str, Any], environment: dict[str, str], proxy: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "https_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    asked: list[dict[str, Any]] = []

    async def find(*said: Any) -> Any:
        return "login-0"

    async def request(session: Any, method: str, url: str, **said: Any) -> Any:
        asked.append(said)
        raise aiohttp.ClientConnectionError

    monkeypatch.setattr(kubernetes, "find_pod", find)
    monkeypatch.setattr(aiohttp.ClientSession, "_request", request)

    async def main() -> None:
        configuration = Configuration(host="https://10.0.0.1:443")
        vars(configuration).update(said)
        async with ApiClient(configuration) as client:
            with pytest.raises(ConnectFailed):
                await KubernetesTransport(AsyncMock(), "soperator")._exec(client)

    asyncio.run(main())
    assert [(one["proxy"], one["proxy_headers"], one["server_hostname"]) for one in asked] == [
        (proxy, said.get("proxy_headers"), said.get("tls_server_name"))
    ]
