"""Threads wait for what an event loop does for them."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from asgiref.sync import sync_to_async

from airflow_provider_soperator.client.sync import LoopThread
from tests.forks import forked
from tests.patience import PATIENCE


async def where() -> tuple[str, int]:
    return threading.current_thread().name, id(asyncio.get_running_loop())


def test_all_threads_have_one_loop_in_a_thread_of_its_own() -> None:
    loop = LoopThread()
    with ThreadPoolExecutor(8) as pool:
        [(name, _)] = {*pool.map(lambda _: loop.run(where()), range(8))}
    assert name == "soperator-loop"


def test_what_goes_wrong_is_raised_where_it_is_waited_for() -> None:
    async def fail() -> None:
        raise ZeroDivisionError("in the loop")

    with pytest.raises(ZeroDivisionError, match="in the loop"):
        LoopThread().run(fail())


class InterruptedTask(BaseException):
    """As Airflow's time-out of a task."""


def test_a_signal_that_ends_the_wait_ends_the_work() -> None:
    loop, ended = LoopThread(), threading.Event()

    async def endless() -> None:
        try:
            os.kill(os.getpid(), signal.SIGUSR1)
            await asyncio.Event().wait()
        finally:
            ended.set()

    def strike(*_: Any) -> None:
        # No OSError, which an event loop ignores where it wakes up another thread.
        raise InterruptedTask("struck")

    before = signal.signal(signal.SIGUSR1, strike)
    try:
        with pytest.raises(InterruptedTask, match="struck"):
            loop.run(endless())
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert ended.wait(PATIENCE)


def test_a_forked_process_has_a_loop_of_its_own() -> None:
    loop = LoopThread()
    parents = loop.run(where())
    reading, writing = os.pipe()

    def child() -> None:
        os.write(writing, str(loop.run(where())[0]).encode())

    with forked(child):
        assert os.read(reading, 100) == b"soperator-loop"
    assert loop.run(where()) == parents
    os.close(reading)
    os.close(writing)


def test_a_forked_process_makes_blocking_calls_in_a_thread_of_its_own() -> None:
    """As tasks of LocalExecutor do, which are forked from a scheduler that has SlurmExecutor, too."""
    loop = LoopThread()

    async def call() -> int:
        return await sync_to_async(os.getpid)()

    assert loop.run(call()) == os.getpid()
    reading, writing = os.pipe()

    def child() -> None:
        os.write(writing, str(loop.run(call())).encode())

    with forked(child) as pid:
        assert select.select([reading], [], [], PATIENCE)[0], "the call waits for a thread that there is not"
        assert os.read(reading, 100) == str(pid).encode()
    os.close(reading)
    os.close(writing)


def test_the_loop_does_not_wait_for_itself() -> None:
    loop = LoopThread()

    async def nested() -> None:
        loop.run(where())

    with pytest.raises(RuntimeError, match="use the async client"):
        loop.run(nested())


def test_a_process_that_ends_closes_what_the_loop_has_open() -> None:
    program = """
import asyncio
from airflow_provider_soperator.client.sync import LOOP

async def generate():
    try:
        yield
    finally:
        print("closed")

opened = generate()
LOOP.run(opened.__anext__())
"""
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert (said.stdout, said.stderr) == ("closed\n", "")
