"""A question for pyslurm where it cannot be used: an error with its cause, in a process that lives.

With a pyslurm and a Slurm it is tested in tests/contract/test_native_way.py.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable

import pytest

from airflow_provider_soperator.slurm.requests import ListPartitions
from airflow_provider_soperator.transports.errors import ConnectFailed
from airflow_provider_soperator.transports.native import AsyncNativeTransport, NativeTransport

#: Without site-packages, so without pyslurm whatever is installed.
BARE = (sys.executable, "-S")


def refusal(python: tuple[str, ...]) -> ConnectFailed:
    transport = NativeTransport(python)
    try:
        with pytest.raises(ConnectFailed) as failed:
            transport.ask(ListPartitions())
    finally:
        transport.close()
    return failed.value


def async_refusal(python: tuple[str, ...]) -> ConnectFailed:
    async def ask() -> ConnectFailed:
        transport = AsyncNativeTransport(python)
        try:
            with pytest.raises(ConnectFailed) as failed:
                await transport.ask(ListPartitions())
        finally:
            await transport.close()
        return failed.value

    return asyncio.run(ask())


@pytest.mark.parametrize("refused", [refusal, async_refusal])
@pytest.mark.parametrize(
    ("python", "cause"),
    [
        (BARE, "No module named 'pyslurm'"),
        (("/nowhere/python3",), "No such file or directory"),
        # As libslurm does with the process that it is loaded into.
        (("sh", "-c", "echo 'python: fatal: Could not establish a configuration source' >&2; exit 1"), "Could not est"),
        (("true",), "it said nothing"),
    ],
)
def test_the_cause_and_the_remedy_are_told(
    refused: Callable[[tuple[str, ...]], ConnectFailed], python: tuple[str, ...], cause: str
) -> None:
    error = refused(python)
    assert cause in error.what
    assert "choose the transport `local`" in error.remedy
    assert not error.retryable


def test_a_configuration_that_is_not_there_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """libslurm would, for a minute."""
    monkeypatch.setenv("SLURM_CONF", "/nowhere/slurm.conf")
    started = time.monotonic()
    assert "/nowhere/slurm.conf" in refusal(BARE).what
    assert time.monotonic() - started < 20


def test_it_can_be_asked_again_after_a_failure() -> None:
    transport = NativeTransport(BARE)
    try:
        for _ in range(2):
            with pytest.raises(ConnectFailed):
                transport.ask(ListPartitions())
    finally:
        transport.close()
