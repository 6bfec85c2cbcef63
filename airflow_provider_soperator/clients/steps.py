"""Work that takes several questions, apart from how they are put.

It is a generator: it yields requests and is sent their answers, or what went wrong with them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from typing import Any, TypeVar

from airflow_provider_soperator.slurm.requests import Request

T = TypeVar("T")

#: Yields requests, is sent what each was answered, and returns a ``T``.
Steps = Generator[Request[Any], Any, T]


def run(steps: Steps[T], ask: Callable[[Request[Any]], Any]) -> T:
    """Take the steps, one question after the other."""
    try:
        request = next(steps)
        while True:
            try:
                answer = ask(request)
            except Exception as error:
                request = steps.throw(error)
            else:
                request = steps.send(answer)
    except StopIteration as end:
        result: T = end.value
        return result


async def run_async(steps: Steps[T], ask: Callable[[Request[Any]], Awaitable[Any]]) -> T:
    """The same for an event loop."""
    try:
        request = next(steps)
        while True:
            try:
                answer = await ask(request)
            except Exception as error:
                request = steps.throw(error)
            else:
                request = steps.send(answer)
    except StopIteration as end:
        result: T = end.value
        return result
