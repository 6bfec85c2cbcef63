"""One Kubernetes client for all who look at the same cluster at the same time, until one of them fails."""

from __future__ import annotations

import asyncio
import builtins
import json
import logging
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AsyncExitStack, aclosing
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from kubernetes_asyncio.config import kube_config

from airflow_provider_soperator.client.pace import polled
from airflow_provider_soperator.hooks import cluster
from airflow_provider_soperator.hooks.cluster import SoperatorClusterHook
from airflow_provider_soperator.soperator.objects import Objects
from airflow_provider_soperator.transports.transport_errors import TransportError
from sandbox.kube.certificates import ensure_certificates
from sandbox.kube.kubeconfig import write_kubeconfig
from tests.patience import PATIENCE


class Client:
    """A client that tells when it is closed."""

    closed = False

    async def close(self) -> None:
        self.closed = True


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Client]:
    made: list[Client] = []

    async def connect(conn_id: str) -> Client:
        made.append(Client())
        return made[-1]

    monkeypatch.setattr(cluster, "connect", connect)
    return made


async def look(error: Exception | None = None) -> Any:
    async with SoperatorClusterHook("mine").objects(max_age=1) as objects:
        if error:
            raise error
        return objects.client


def test_after_a_failure_the_next_ones_get_a_new_client(made: list[Client]) -> None:
    async def main() -> None:
        async with AsyncExitStack() as opened:
            early = await opened.enter_async_context(SoperatorClusterHook("mine").objects(max_age=1))
            assert await look() is early.client
            with pytest.raises(TransportError):
                await look(TransportError("lost"))
            late = await look()
            assert late is not early.client
            assert late is await look()
            assert not made[0].closed, "somebody still uses it"
        assert await look() is late

    asyncio.run(main())
    assert [client.closed for client in made] == [True, True]


def test_a_watcher_whose_token_has_expired_gets_a_new_client(made: list[Client]) -> None:
    asked: list[Any] = []

    async def ask(objects: Objects) -> Any:
        assert objects.client not in asked, "the client that has failed is used again"
        asked.append(objects.client)
        if len(asked) == 1:
            raise TransportError("the API refused the token")
        return objects.client

    async def main() -> None:
        answers = polled(lambda: SoperatorClusterHook("mine").objects(max_age=1), ask, 0.0, logging.getLogger(__name__))
        async with aclosing(answers):
            assert await anext(answers) is made[1]

    asyncio.run(main())


def test_threads_do_not_read_a_certificate_that_another_still_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = ensure_certificates(tmp_path / "certificates").ca_file
    path = write_kubeconfig(tmp_path / "config", server="https://127.0.0.1:1", ca_file=authority, token="")
    said = {"conn_type": "kubernetes", "extra": {"kube_config_path": str(path)}}
    monkeypatch.setenv("AIRFLOW_CONN_MINE", json.dumps(said))
    others: list[Future[None]] = []
    other_waits, sleep = Event(), asyncio.sleep

    async def sleeping(seconds: float) -> None:
        other_waits.set()
        await sleep(seconds)

    async def opened() -> None:
        async with SoperatorClusterHook("mine").async_client():
            pass

    with ThreadPoolExecutor() as threads:

        def slowly(name: str, mode: str = "r") -> Any:
            if mode == "wb":
                others.append(threads.submit(asyncio.run, opened()))
                others[0].add_done_callback(lambda _: other_waits.set())
                assert other_waits.wait(PATIENCE)
            return builtins.open(name, mode)

        monkeypatch.setattr(kube_config, "open", slowly, raising=False)
        monkeypatch.setattr(asyncio, "sleep", sleeping)
        asyncio.run(opened())
    assert [other.exception() for other in others] == [None]
