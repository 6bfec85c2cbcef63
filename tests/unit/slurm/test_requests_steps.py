"""Work that asks several questions runs alike in a thread and in an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from airflow_provider_soperator.slurm.errors import TryAgain, UnknownJob
from airflow_provider_soperator.slurm.requests import Ping, Request, ShowConfig
from airflow_provider_soperator.slurm.requests.commands import Steps, run_steps, run_steps_async

Runner = Callable[[Steps[Any], Callable[[Request[Any]], Any]], Any]


def _in_a_loop(steps: Steps[Any], ask: Callable[[Request[Any]], Any]) -> Any:
    async def answer(request: Request[Any]) -> Any:
        return ask(request)

    return asyncio.run(run_steps_async(steps, answer))


@pytest.fixture(params=[run_steps, _in_a_loop], ids=["thread", "loop"])
def runner(request: pytest.FixtureRequest) -> Any:
    return request.param


def test_each_question_gets_its_own_answer(runner: Runner) -> None:
    def steps() -> Steps[list[str]]:
        return [(yield Ping()), (yield ShowConfig())]

    assert runner(steps(), lambda request: type(request).__name__) == ["Ping", "ShowConfig"]


def test_a_failure_can_be_met_where_the_question_was_put(runner: Runner) -> None:
    def steps() -> Steps[str]:
        try:
            yield Ping()
        except TryAgain as error:
            return f"{error.said}, then {(yield ShowConfig())}"
        raise AssertionError("the question has failed")

    def ask(request: Request[Any]) -> str:
        if isinstance(request, Ping):
            raise TryAgain("no")
        return "yes"

    assert runner(steps(), ask) == "no, then yes"


def test_a_failure_that_nobody_meets_ends_the_work(runner: Runner) -> None:
    def steps() -> Steps[None]:
        yield Ping()

    def ask(request: Request[Any]) -> None:
        raise UnknownJob("no such job")

    with pytest.raises(UnknownJob):
        runner(steps(), ask)


def test_work_that_asks_nothing_is_done_at_once(runner: Runner) -> None:
    def steps() -> Steps[int]:
        return 7
        yield

    assert runner(steps(), lambda request: pytest.fail("nothing was asked")) == 7
