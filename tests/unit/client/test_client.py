"""The two clients: the same to work with, and the same in what they ask again."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

import pytest

from airflow_provider_soperator.client.client import AsyncSlurmClient
from airflow_provider_soperator.client.pace import RetryPolicy
from airflow_provider_soperator.client.sync import SlurmClient
from airflow_provider_soperator.slurm.errors import TryAgain
from airflow_provider_soperator.slurm.files import FileError, FilePiece
from airflow_provider_soperator.slurm.job_ids import JobId
from airflow_provider_soperator.slurm.requests import ListJobs, Request, RequeueJobs
from airflow_provider_soperator.transports.transport_errors import ConnectFailed, ConnectionLost, Unreachable
from tests.unit.client.tracking import Log, run_without_waiting

#: Only triggers, which have a loop, follow files and share answers.
ONLY_IN_LOOPS = {"tail", "size", "ask_shared", "ask_now"}
#: Only workers, which may wait for disks, copy files.
ONLY_IN_THREADS = {"upload", "download"}
QUICK = RetryPolicy(tries=3, first=0.001, longest=0.001)


def methods(client: type) -> dict[str, list[tuple[str, Any, Any]]]:
    return {
        name: [(one.name, one.kind, one.default) for one in inspect.signature(method).parameters.values()]
        for name, method in inspect.getmembers(client, inspect.isfunction)
        if not name.startswith("_")
    }


def test_both_clients_have_the_same_methods_with_the_same_parameters() -> None:
    sync, loop = methods(SlurmClient), methods(AsyncSlurmClient)
    assert loop.keys() - sync.keys() == ONLY_IN_LOOPS
    assert sync.keys() - loop.keys() == ONLY_IN_THREADS
    both = sync.keys() & loop.keys()
    assert {name: sync[name] for name in both} == {name: loop[name] for name in both}


class Failing:
    """A transport that fails some times and answers then."""

    def __init__(self, *failures: Exception) -> None:
        self.failures = list(failures)
        self.asked: list[Request[Any]] = []

    async def ask(self, request: Request[Any]) -> Any:
        self.asked.append(request)
        if self.failures:
            raise self.failures.pop(0)
        return "answer"

    async def close(self) -> None: ...


def _ask(request: Request[Any], *failures: Exception) -> tuple[Any, list[Request[Any]]]:
    transport = Failing(*failures)
    return SlurmClient(AsyncSlurmClient(transport, QUICK)).ask(request), transport.asked


def _ask_in_a_loop(request: Request[Any], *failures: Exception) -> tuple[Any, list[Request[Any]]]:
    transport = Failing(*failures)

    async def ask() -> Any:
        return await AsyncSlurmClient(transport, QUICK).ask(request)

    return asyncio.run(ask()), transport.asked


@pytest.fixture(params=[_ask, _ask_in_a_loop], ids=["thread", "loop"])
def ask(request: pytest.FixtureRequest) -> Any:
    return request.param


def test_what_may_pass_is_asked_again(ask: Callable[..., Any]) -> None:
    answer, asked = ask(ListJobs(), ConnectionLost("cut"), TryAgain("busy"))
    assert (answer, len(asked)) == ("answer", 3)


def test_it_is_given_up_after_the_last_try(ask: Callable[..., Any]) -> None:
    with pytest.raises(TryAgain, match="third"):
        ask(ListJobs(), TryAgain("first"), TryAgain("second"), TryAgain("third"))


def test_what_may_have_been_done_is_not_done_again(ask: Callable[..., Any]) -> None:
    with pytest.raises(ConnectionLost):
        ask(RequeueJobs((JobId(7),)), ConnectionLost("cut"))


AWAY = Unreachable("nothing listens there")


def test_a_patient_caller_waits_while_the_cluster_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    transport, log = Failing(*[AWAY] * 5, ConnectionLost("cut"), *[AWAY] * 5), Log()
    asked = AsyncSlurmClient(transport).patient(log).ask(ListJobs())
    assert run_without_waiting(asked, monkeypatch) == "answer"
    assert (len(transport.asked), len(log.lines)) == (12, 2)


@pytest.mark.parametrize("failure", [AWAY, ConnectFailed("the login was refused")])
def test_others_are_told_at_once_that_there_is_no_connection(
    failure: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = AsyncSlurmClient(Failing(failure))
    caller = client if failure is AWAY else client.patient(Log())
    with pytest.raises(ConnectFailed, match=str(failure)):
        run_without_waiting(caller.ask(ListJobs()), monkeypatch)


@pytest.mark.parametrize("is_patient_first", [True, False])
def test_those_who_share_a_question_are_told_and_fail_each_by_himself(
    is_patient_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Away(Failing):
        async def ask(self, request: Request[Any]) -> Any:
            await asyncio.sleep(1)
            return await super().ask(request)

    async def ask() -> list[Any]:
        client = AsyncSlurmClient(transport)
        callers = [client.patient(logs[0]), client.patient(logs[1])]
        callers.insert(2 if is_patient_first else 0, client)
        asking = [asyncio.ensure_future(caller.ask_shared(ListJobs(), 60)) for caller in callers]
        # The task whose question it was is killed.
        await asyncio.sleep(2)
        asking[0].cancel()
        return await asyncio.gather(*asking, return_exceptions=True)

    transport, logs = Away(*[AWAY] * 5), (Log(), Log())
    told = run_without_waiting(ask(), monkeypatch)
    assert [type(one) for one in told].count(Unreachable) == 1
    assert "answer" in told
    assert [len(log.lines) for log in logs] == [1, 1]
    assert len(transport.asked) <= 8


def test_nobody_waits_for_a_client_that_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def closed() -> None:
        client = AsyncSlurmClient(Failing(*[AWAY] * 1000))
        waiting = asyncio.ensure_future(client.patient(Log()).ask(ListJobs()))
        await asyncio.sleep(1000)
        await client.close()
        with pytest.raises(Unreachable):
            await waiting

    run_without_waiting(closed(), monkeypatch)


def test_a_client_that_is_closed_during_a_pause_asks_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    async def closed() -> None:
        transport = Failing(AWAY)
        client = AsyncSlurmClient(transport)
        waiting = asyncio.ensure_future(client.patient(Log()).ask(ListJobs()))
        while not transport.asked:
            await asyncio.sleep(0)
        await client.close()
        with pytest.raises(Unreachable):
            await waiting
        assert len(transport.asked) == 1

    run_without_waiting(closed(), monkeypatch)


def test_a_file_that_cannot_be_read_is_not_an_empty_one() -> None:
    class Folder:
        async def ask(self, request: Request[Any]) -> Any:
            return [FilePiece(b"", 4096)]

    with pytest.raises(FileError, match="/root/results cannot be read"):
        asyncio.run(AsyncSlurmClient(Folder()).read_file("/root/results"))  # type: ignore[arg-type]
