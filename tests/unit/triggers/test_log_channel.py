"""A trigger goes on until the lines that it has logged are read, however often Airflow cancels it meanwhile."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Iterator
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_soperator.triggers import log_channel
from airflow_provider_soperator.triggers.base import NO_WORKER, KillableTrigger
from airflow_provider_soperator.work.protocols import refused

#: Bytes that Airflow reads of its triggers' lines in a round, and lines that need some rounds.
READ = 4096
LINES = 100


@pytest.fixture
def supervisor() -> Iterator[socket.socket]:
    """The end of the channel that Airflow reads; this process logs to the other, as a triggerer's event loop does."""
    ours, theirs = socket.socketpair()
    with closing(theirs), ours, ours.makefile("w") as stream:
        theirs.setblocking(False)
        handler = logging.StreamHandler(stream)
        logging.getLogger().addHandler(handler)
        yield theirs
        logging.getLogger().removeHandler(handler)


class Talkative(KillableTrigger):
    fate = ""
    is_cancelled: asyncio.Event

    async def event(self) -> dict[str, Any]:
        self.say("why it failed")
        return refused("refused")

    async def state(self) -> str | None:
        return "failed"

    async def cancel(self) -> None:
        await self.is_cancelled.wait()
        self.say("what became of it")

    def say(self, words: str) -> None:
        for number in range(1, LINES + 1):
            logging.getLogger("of.a.trigger").error("%s, line %d %s", words, number, "." * 200)


async def cancel(task: asyncio.Future[Any]) -> None:
    """As Airflow does in each of its rounds."""
    for _ in range(3):
        task.cancel("__airflow_user_action__")
        await asyncio.sleep(0.01)
    assert not task.done()


@pytest.mark.parametrize(("is_killed", "said"), [(False, "why it failed"), (True, "what became of it")])
def test_a_trigger_ends_after_its_lines_are_read(
    is_killed: bool, said: str, supervisor: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_channel, "_INTERVAL", 0.001)

    async def events(trigger: Talkative) -> None:
        [_] = [event async for event in trigger.run()]

    async def lines() -> list[str]:
        trigger = Talkative(made=NO_WORKER)
        trigger.task_instance = SimpleNamespace(task_id="t")  # type: ignore[assignment]
        trigger.is_cancelled = asyncio.Event()
        ends = asyncio.ensure_future(trigger.on_kill() if is_killed else events(trigger))
        await asyncio.sleep(0.01)
        if is_killed:
            await cancel(ends)
            trigger.is_cancelled.set()
        read = bytearray()
        while f"line {LINES} ".encode() not in read:
            await cancel(ends)
            read += await asyncio.get_running_loop().sock_recv(supervisor, READ)
        await ends
        return read.decode().splitlines()

    assert [line.split(",")[0] for line in asyncio.run(lines())] == [said] * LINES


def test_nothing_is_waited_for_where_lines_go_to_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    with open("/dev/null", "w") as file:
        closed = open("/dev/null")  # noqa: SIM115
        closed.close()
        handlers = [logging.StreamHandler(file), logging.StreamHandler(closed), logging.NullHandler()]
        monkeypatch.setattr(logging.getLogger(), "handlers", handlers)
        assert log_channel.unread() == 0
