"""Answers of slurmrestd, which may be those of a large queue."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest

from airflow_provider_soperator.slurm.job_ids import JobId
from airflow_provider_soperator.slurm.requests import ListJobs
from airflow_provider_soperator.slurm.rest import jobs
from airflow_provider_soperator.transports import read_apart, rest
from airflow_provider_soperator.transports.rest import RestTransport, Tokens, _decoded

#: Far fewer fields than slurmrestd writes.
JOB = {
    "array_job_id": None, "array_task_id": None, "array_task_string": "", "het_job_id": None, "name": "fit",
    "user_name": "ann", "user_id": 1000, "job_state": ["RUNNING"],
}  # fmt: skip


@pytest.mark.parametrize("fault", [None, RuntimeError("can't start new thread")])
def test_a_large_queue_is_decoded_and_read_beside_the_loop_if_there_may_be_a_thread(
    fault: Exception | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = dict[str, threading.Thread]()

    def noted(module: Any, name: str) -> None:
        done = getattr(module, name)

        def note(*args: Any) -> Any:
            threads[name] = threading.current_thread()
            return done(*args)

        monkeypatch.setattr(module, name, note)

    async def token() -> str:
        return ""

    async def ask(count: int) -> list[int]:
        transport = RestTransport("http://rest:6820", Tokens(token), user="ann", versions=(43,))
        transport._version = 43
        answer = json.dumps({"jobs": [JOB | {"job_id": number} for number in range(1, count + 1)], "errors": []})
        monkeypatch.setattr(transport, "_send", AsyncMock(return_value=(200, answer.encode())))
        try:
            found = await transport.ask(ListJobs(ids=tuple(map(JobId, range(1, 6)))))
        finally:
            await transport.close()
        return [job.id.job for job in found]

    noted(rest, "_decoded")
    noted(jobs, "_readable_job")
    if fault:
        monkeypatch.setattr(asyncio.BaseEventLoop, "run_in_executor", Mock(side_effect=fault))
    for count, beside in ((5, False), (5000, fault is None)):
        assert asyncio.run(ask(count)) == [1, 2, 3, 4, 5]
        assert [thread is not threading.main_thread() for thread in threads.values()] == [beside, beside]


@pytest.mark.parametrize(
    "said",
    [
        '{"jobs": [{"job_id": 7, "share": 0.1}, {}], "meta": {"slurm": [1]}, "errors": [], "last": null, "of": "é["}',
        ' {"jobs" :\n[ ] }',
        '{"shares": {"effective_usage": NaN}}',
        '{"number": 18446744073709551616, "half": "\\ud800"}',
        "[]",
        '"busy"',
    ],
)
def test_whatever_json_there_is_is_decoded(said: str) -> None:
    assert repr(_decoded(said.encode())) == repr(json.loads(said))


@pytest.mark.parametrize("said", [b"", b"<html>", b'{"jobs": [{]}', b'{"jobs": [\xff]}'])
def test_what_is_no_json_is_told_as_that(said: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - of two libraries
        _decoded(said)


def test_what_fails_as_it_is_read_in_a_thread_is_not_read_again() -> None:
    begun = list[int]()

    def read() -> None:
        begun.append(1)
        raise RuntimeError("generator raised StopIteration")

    with pytest.raises(RuntimeError, match="generator raised StopIteration"):
        asyncio.run(read_apart(1 << 20, read))
    assert begun == [1]
