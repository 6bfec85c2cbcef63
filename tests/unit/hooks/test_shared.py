"""One client for all who use the same connection at the same time."""

from __future__ import annotations

import asyncio
import os
import threading
from typing import Any

import pytest

from airflow_provider_soperator.clients.client import AsyncSlurmClient, SlurmClient
from airflow_provider_soperator.hooks import shared
from airflow_provider_soperator.hooks.settings import Settings
from airflow_provider_soperator.hooks.shared import AsyncSharedClients, SharedClients
from airflow_provider_soperator.transports.local import AsyncLocalTransport, LocalTransport
from tests.forks import forked

SETTINGS = Settings(conn_id="mine", transport="local")
OTHER = Settings(conn_id="mine", transport="local", written=("another host",))


class Closed:
    """Transports of this machine that tell when they are closed."""

    def __init__(self) -> None:
        self.times = 0

    def make(self, settings: Settings) -> SlurmClient:
        return SlurmClient(_Telling(self))

    def make_async(self, settings: Settings) -> AsyncSlurmClient:
        return AsyncSlurmClient(_AsyncTelling(self))


class _Telling(LocalTransport):
    def __init__(self, closed: Closed) -> None:
        super().__init__()
        self._closed = closed

    def close(self) -> None:
        super().close()
        self._closed.times += 1


class _AsyncTelling(AsyncLocalTransport):
    def __init__(self, closed: Closed) -> None:
        super().__init__()
        self._closed = closed

    async def close(self) -> None:
        await super().close()
        self._closed.times += 1


@pytest.fixture
def closed() -> Closed:
    return Closed()


def test_those_who_use_it_at_once_share_it(closed: Closed) -> None:
    clients = SharedClients()
    with clients.lend(SETTINGS, closed.make) as first:
        with clients.lend(SETTINGS, closed.make) as second:
            assert first is second
        assert closed.times == 0
    assert closed.times == 1
    with clients.lend(SETTINGS, closed.make) as third:
        assert third is not first


def test_a_changed_connection_gets_a_client_of_its_own(closed: Closed) -> None:
    clients = SharedClients()
    with clients.lend(SETTINGS, closed.make) as first, clients.lend(OTHER, closed.make) as second:
        assert first is not second


def test_an_error_of_one_user_leaves_it_to_the_others(closed: Closed) -> None:
    clients = SharedClients()
    with clients.lend(SETTINGS, closed.make):
        with pytest.raises(ZeroDivisionError), clients.lend(SETTINGS, closed.make):
            _ = 1 / 0
        assert closed.times == 0


def test_many_threads_share_one(closed: Closed) -> None:
    clients, together, seen = SharedClients(), threading.Barrier(8), []

    def use() -> None:
        with clients.lend(SETTINGS, closed.make) as client:
            seen.append(client)
            together.wait(10)

    threads = [threading.Thread(target=use) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(map(id, seen))) == 1
    assert closed.times == 1


def test_a_forked_process_has_its_own_and_leaves_its_parents_alone(closed: Closed) -> None:
    clients = SharedClients()
    reading, writing = os.pipe()

    def child(parents: SlurmClient, leave: Any) -> None:
        with clients.lend(SETTINGS, closed.make) as mine:
            is_other = mine is not parents
        mine_closed = closed.times
        leave(None, None, None)
        os.write(writing, f"{is_other} {mine_closed} {closed.times}".encode())

    lending = clients.lend(SETTINGS, closed.make)
    parents = lending.__enter__()
    with forked(lambda: child(parents, lending.__exit__)):
        assert os.read(reading, 100) == b"True 1 1"
    assert closed.times == 0
    lending.__exit__(None, None, None)
    assert closed.times == 1
    os.close(reading)
    os.close(writing)


async def pass_by(seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let time pass in this loop, without waiting for it, and do what is due by then."""
    loop = asyncio.get_running_loop()
    then = loop.time() + seconds
    monkeypatch.setattr(loop, "time", lambda: then)
    for _ in range(5):
        await asyncio.sleep(0)


def test_a_loop_keeps_it_for_the_next_user_and_closes_it_in_time(
    closed: Closed, monkeypatch: pytest.MonkeyPatch
) -> None:
    clients = AsyncSharedClients()

    async def use() -> AsyncSlurmClient:
        async with clients.lend(SETTINGS, closed.make_async) as client:
            return client

    async def main() -> None:
        first = await use()
        await pass_by(shared.KEPT - 1, monkeypatch)
        assert await use() is first
        # It is kept from its last user on.
        await pass_by(shared.KEPT - 1, monkeypatch)
        assert closed.times == 0
        await pass_by(1, monkeypatch)
        assert closed.times == 1
        assert await use() is not first
        await pass_by(shared.KEPT, monkeypatch)
        assert closed.times == 2

    asyncio.run(main())


def test_a_loop_that_ends_closes_what_is_left(closed: Closed) -> None:
    clients = AsyncSharedClients()

    async def main() -> None:
        async with clients.lend(SETTINGS, closed.make_async), clients.lend(OTHER, closed.make_async):
            pass
        assert closed.times == 0

    asyncio.run(main())
    assert closed.times == 2


def test_each_loop_has_its_own(closed: Closed) -> None:
    clients, seen = AsyncSharedClients(), []

    async def main() -> None:
        async with clients.lend(SETTINGS, closed.make_async) as client:
            seen.append(client)

    asyncio.run(main())
    asyncio.run(main())
    assert seen[0] is not seen[1]
