"""One client for all who use the same connection at the same time, and one answer for the same question."""

from __future__ import annotations

import asyncio

import pytest

from airflow_provider_soperator import shared
from airflow_provider_soperator.client.client import AsyncSlurmClient
from airflow_provider_soperator.hooks.slurm import Settings
from airflow_provider_soperator.shared import SharedAnswers, SharedClients
from airflow_provider_soperator.transports.local import LocalTransport

SETTINGS = Settings(conn_id="mine", transport="local")
OTHER = Settings(conn_id="mine", transport="local", written=("another host",))


class Closed:
    """Transports of this machine that tell when they are closed."""

    def __init__(self) -> None:
        self.times = 0

    def make(self, settings: Settings) -> AsyncSlurmClient:
        return AsyncSlurmClient(_Telling(self))


class _Telling(LocalTransport):
    def __init__(self, closed: Closed) -> None:
        super().__init__()
        self._counter = closed

    async def close(self) -> None:
        await super().close()
        self._counter.times += 1


@pytest.fixture
def closed() -> Closed:
    return Closed()


def test_a_changed_connection_gets_a_client_of_its_own(closed: Closed) -> None:
    clients = SharedClients()

    async def main() -> None:
        async with clients.lend(SETTINGS, closed.make) as first, clients.lend(OTHER, closed.make) as second:
            assert first is not second
        async with clients.lend(SETTINGS, closed.make) as again:
            assert again is first

    asyncio.run(main())


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
    clients = SharedClients()

    async def use() -> AsyncSlurmClient:
        async with clients.lend(SETTINGS, closed.make) as client:
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
    clients = SharedClients()

    async def main() -> None:
        async with clients.lend(SETTINGS, closed.make), clients.lend(OTHER, closed.make):
            pass
        assert closed.times == 0

    asyncio.run(main())
    assert closed.times == 2


def test_each_loop_has_its_own(closed: Closed) -> None:
    clients, seen = SharedClients(), []

    async def main() -> None:
        async with clients.lend(SETTINGS, closed.make) as client:
            seen.append(client)

    asyncio.run(main())
    asyncio.run(main())
    assert seen[0] is not seen[1]


def test_a_failure_does_not_drop_the_answer_that_is_under_way_since() -> None:
    async def main() -> None:
        answers, asked = SharedAnswers(), list[str]()
        failing = asyncio.get_running_loop().create_future()

        async def ask() -> str:
            asked.append("again")
            return "answer"

        first = asyncio.ensure_future(answers.get("question", lambda: failing, 0.0))
        await asyncio.sleep(0)
        failing.set_exception(OSError("away"))
        # Its callback has not run yet.
        assert await answers.get("question", ask, 0.0) == "answer"
        assert await answers.get("question", ask, 60.0) == "answer"
        assert asked == ["again"]
        with pytest.raises(OSError, match="away"):
            await first

    asyncio.run(main())
