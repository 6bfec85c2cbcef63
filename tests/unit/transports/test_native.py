"""A question for pyslurm where it cannot be used: an error with its cause, in a process that lives.

With a pyslurm and a Slurm it is tested in tests/contract/test_native_way.py.
"""

from __future__ import annotations

import asyncio
import sys

import pytest

from airflow_provider_soperator.slurm.requests import ListPartitions
from airflow_provider_soperator.transports.native import NativeTransport
from airflow_provider_soperator.transports.transport_errors import ConnectFailed

#: Without site-packages, so without pyslurm whatever is installed.
BARE = (sys.executable, "-S")


def refusals(python: tuple[str, ...], times: int = 1) -> list[ConnectFailed]:
    """How it fails, asked one time after the other."""

    async def ask() -> list[ConnectFailed]:
        transport, failures = NativeTransport(python), []
        try:
            for _ in range(times):
                with pytest.raises(ConnectFailed) as failed:
                    await transport.ask(ListPartitions())
                failures.append(failed.value)
        finally:
            await transport.close()
        return failures

    return asyncio.run(ask())


@pytest.mark.parametrize(
    ("python", "cause"),
    [
        (BARE, "No module named 'pyslurm'"),
        (("/nowhere/python3",), "No such file or directory"),
        # As libslurm does with the process that it is loaded into.
        (("sh", "-c", "echo 'python: fatal: Could not establish a configuration source' >&2; exit 1"), "Could not est"),
        (("true",), "no output"),
    ],
)
def test_the_cause_and_the_remedy_are_told(python: tuple[str, ...], cause: str) -> None:
    [error] = refusals(python)
    assert cause in error.what
    assert "choose the transport `local`" in error.remedy
    assert not error.retryable


def test_a_configuration_that_is_not_there_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """libslurm would, for a minute."""
    monkeypatch.setenv("SLURM_CONF", "/nowhere/slurm.conf")
    assert "/nowhere/slurm.conf" in refusals(BARE)[0].what


def test_it_can_be_asked_again_after_a_failure() -> None:
    assert len(refusals(BARE, times=2)) == 2
