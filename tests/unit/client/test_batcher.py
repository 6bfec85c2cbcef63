"""Requests that many tasks share: what is in each, who is answered, and what happens while the cluster is away."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import pytest

from airflow_provider_soperator.client.batcher import Batcher
from airflow_provider_soperator.client.pace import TOLD_AGAIN, RetryPolicy
from airflow_provider_soperator.slurm.errors import ControllerUnreachable, SubmitRefused
from airflow_provider_soperator.transports.transport_errors import ConnectFailed, ConnectionLost, Unreachable
from tests.unit.client.tracking import Log, run_without_waiting

Run = Callable[[Coroutine[Any, Any, Any]], Any]


class Doubling:
    """Answers each number with its double, unless there is a failure at that time."""

    def __init__(self, failure: Callable[[float], Exception | None] = lambda now: None, effort: float = 0.0) -> None:
        self.failure, self.effort = failure, effort
        self.requests: list[list[int]] = []

    async def __call__(self, items: Mapping[str, int]) -> Mapping[str, int]:
        self.requests.append(list(items.values()))
        await asyncio.sleep(self.effort)
        if failure := self.failure(time.monotonic() - 1000):
            raise failure
        return {key: 2 * item for key, item in items.items()}

    def batcher(self, tries: int = 1) -> Batcher[str, int, int]:
        return Batcher(self, RetryPolicy(tries=tries), 100)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    return lambda work: run_without_waiting(work, monkeypatch)


async def all_of(batcher: Batcher[str, int, int], count: int, log: Log | None) -> list[Any]:
    answers = (batcher.get(str(number), number, log) for number in range(count))
    return await asyncio.gather(*answers, return_exceptions=True)


def away_until(end: float, *kinds: type[Exception]) -> Callable[[float], Exception | None]:
    """Failures of all of these kinds, one after the other."""
    taken = iter(range(1_000_000))
    return lambda now: kinds[next(taken) % len(kinds)]("away") if now < end else None


def test_all_wait_until_the_cluster_is_back(run: Run) -> None:
    slurm, log = Doubling(away_until(6 * 3600, Unreachable)), Log()
    assert run(all_of(slurm.batcher(), 250, log)) == [2 * number for number in range(250)]
    # One request at a time, and at the pace of the poller: six hours are no more than 400 of the longest pauses.
    assert len(slurm.requests) < 400
    assert [len(one) for one in slurm.requests[-3:]] == [100, 100, 50]


def test_a_request_has_not_too_many_bytes(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airflow_provider_soperator.client.batcher.MOST_BYTES", 10)
    slurm = Doubling()
    batcher: Batcher[str, int, int] = Batcher(slurm, RetryPolicy(), kind=lambda key, item: "", size=lambda item: item)
    assert run(all_of(batcher, 7, None)) == [0, 2, 4, 6, 8, 10, 12]
    assert slurm.requests == [[0, 1, 2, 3, 4], [5], [6]]
    # One that is too large goes alone.
    assert run(batcher.get("more", 11)) == 22


def test_each_cause_is_told_once_and_again_from_time_to_time(run: Run) -> None:
    slurm, log = Doubling(away_until(2.5 * TOLD_AGAIN, Unreachable, ConnectionLost)), Log()
    assert run(all_of(slurm.batcher(), 1, log)) == [0]
    assert log.lines == ["The cluster cannot be asked at present, this waits until it can: away"] * 6


def test_whoever_comes_while_the_cluster_is_away_is_told_at_once(run: Run) -> None:
    slurm, log = Doubling(away_until(600, Unreachable)), Log()

    async def later() -> float:
        batcher = slurm.batcher()
        first = asyncio.ensure_future(batcher.get("1", 1, Log()))
        await asyncio.sleep(300)
        second = asyncio.ensure_future(batcher.get("2", 2, log))
        await asyncio.sleep(0)
        told = len(log.lines)
        await asyncio.gather(first, second)
        return told

    assert run(later()) == 1


@pytest.mark.parametrize("failure", [ConnectFailed("the login was refused"), SubmitRefused("no"), ValueError("a bug")])
def test_what_cannot_pass_by_itself_is_raised_at_once(failure: Exception, run: Run) -> None:
    slurm, log = Doubling(lambda now: failure), Log()
    assert run(all_of(slurm.batcher(tries=6), 150, log)) == [failure] * 150
    assert [len(one) for one in slurm.requests] == [100, 50]
    assert log.lines == []


def test_without_a_log_there_is_a_number_of_tries(run: Run) -> None:
    slurm = Doubling(away_until(6 * 3600, ControllerUnreachable))
    [failure] = run(all_of(slurm.batcher(tries=3), 1, None))
    assert isinstance(failure, ControllerUnreachable)
    assert len(slurm.requests) == 3


def test_patient_tasks_do_not_end_with_the_others(run: Run) -> None:
    slurm = Doubling(away_until(600, ControllerUnreachable))

    async def both() -> list[Any]:
        batcher = slurm.batcher()
        calls = [batcher.get("1", 1, None), batcher.get("1", 1, Log()), batcher.get("2", 2, Log())]
        return await asyncio.gather(*calls, return_exceptions=True)

    impatient, *patient = run(both())
    assert isinstance(impatient, ControllerUnreachable)
    assert patient == [2, 4]


def test_what_nobody_waits_for_is_not_sent(run: Run) -> None:
    slurm = Doubling(away_until(600, Unreachable))

    async def ended() -> None:
        batcher = slurm.batcher()
        tasks = [asyncio.ensure_future(batcher.get(str(number), number, Log())) for number in range(3)]
        await asyncio.sleep(60)
        tasks[1].cancel()
        await asyncio.wait(tasks)
        assert tasks[1].cancelled()

    run(ended())
    assert (slurm.requests[0], slurm.requests[-1]) == ([0, 1, 2], [0, 2])


def test_whoever_ends_while_a_request_is_under_way_knows_when_that_has_come_to_its_end(run: Run) -> None:
    slurm = Doubling(effort=100)

    async def ended() -> float:
        batcher = slurm.batcher()
        task = asyncio.ensure_future(batcher.get("1", 1))
        await asyncio.sleep(50)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        return time.monotonic()

    assert run(ended()) >= 1100
    assert slurm.requests == [[1]]
