"""A slurmrestd that is away, told from a connection that is wrong."""

from __future__ import annotations

import asyncio
import errno
import socket
from functools import partial

import httpx
import pytest

from airflow_provider_soperator.slurm.requests import Ping
from airflow_provider_soperator.slurm.rest.calls import RestAnswer, RestCall
from airflow_provider_soperator.transports.rest import RestTransport, Tokens, _VersionUnknown, minted
from airflow_provider_soperator.transports.transport_errors import (
    ConnectFailed,
    ConnectionLost,
    rest_error,
    unexpected_answer,
)

URL = "http://rest:6820"
CALL = RestCall("GET", "slurm/jobs/")


@pytest.mark.parametrize(
    ("cause", "passing"),
    [
        (ConnectionRefusedError("Connection refused"), True),
        (OSError(errno.EHOSTUNREACH, "No route to host"), True),
        (socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution"), True),
        (socket.gaierror(socket.EAI_NONAME, "Name or service not known"), False),
    ],
    ids=str,
)
def test_connections(cause: Exception, passing: bool) -> None:
    error = httpx.ConnectError("All connection attempts failed")
    error.__cause__ = cause
    assert rest_error(error, CALL, URL).passing == passing


@pytest.mark.parametrize(("status", "passing"), [(503, True), (502, True), (429, True), (404, False), (200, False)])
def test_answers_that_are_not_those_of_slurmrestd(status: int, passing: bool) -> None:
    assert unexpected_answer(CALL, URL, status, b"<html>").passing == passing


def test_a_login_in_the_address_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    url = URL.replace("//", "//ada:hunter2@")

    async def nothing_here(call: RestCall, version: int) -> RestAnswer:
        raise _VersionUnknown(unexpected_answer(call, url, 404, b"no such page"))

    transport = RestTransport(url, Tokens(partial(minted, b"k" * 32, "root")))
    monkeypatch.setattr(transport, "_exchange", nothing_here)
    with pytest.raises(ConnectFailed) as caught:
        asyncio.run(transport.ask(Ping()))
    errors = [rest_error(error, CALL, url) for error in (httpx.ConnectTimeout(""), httpx.InvalidURL("what?"))]
    for error in (caught.value, unexpected_answer(CALL, url, 404, b""), *errors):
        assert URL in str(error)


def test_a_proxy_that_answers_with_json_is_not_slurmrestd() -> None:
    transport = RestTransport(URL, Tokens(partial(minted, b"k" * 32, "root")))
    with pytest.raises(ConnectionLost, match="HTTP 502"):
        transport._read(CALL, 502, b'{"message": "upstream connect error"}')
    said = b'{"errors": [{"error_number": 2017, "error": "Invalid job id specified"}]}'
    assert transport._read(CALL, 500, said) is not None
