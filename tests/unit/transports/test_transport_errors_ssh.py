"""Why a connection was not made, in words, and whether it is worth another try."""

from __future__ import annotations

import errno
import socket

import paramiko
import pytest

from airflow_provider_soperator.transports.transport_errors import (
    ConnectRefused,
    UnknownEndpoint,
    Unreachable,
    kubernetes_error,
    ssh_error,
)


@pytest.mark.parametrize(
    "error",
    [
        ConnectionResetError("Connection reset by peer"),
        EOFError(),
        paramiko.SSHException("Error reading SSH protocol banner"),
        # What it says when the connection is cut during the login.
        paramiko.AuthenticationException("Authentication failed: transport shut down or saw EOF"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_one_that_was_dropped_is_worth_another_try(error: Exception) -> None:
    assert isinstance(ssh_error(error), ConnectRefused)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (paramiko.AuthenticationException("Authentication failed."), "the login was refused"),
        (ConnectionRefusedError("Connection refused"), "nothing listens there"),
        (TimeoutError(), "does not answer"),
        (FileNotFoundError("/no/key"), "the private key cannot be used"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_one_that_was_refused_is_not(error: Exception, words: str) -> None:
    failure = ssh_error(error)
    assert words in str(failure)
    assert not failure.retryable


@pytest.mark.parametrize(
    ("error", "passing"),
    [
        (ConnectionRefusedError("Connection refused"), True),
        (ConnectionResetError("Connection reset by peer"), True),
        (TimeoutError(), True),
        (OSError(errno.ENETUNREACH, "Network is unreachable"), True),
        (OSError(errno.EHOSTUNREACH, "No route to host"), True),
        (OSError(errno.EMFILE, "Too many open files"), True),
        (OSError(errno.EBADF, "Bad file descriptor"), True),
        (RuntimeError("can't start new thread"), True),
        (socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution"), True),
        (socket.gaierror(socket.EAI_NONAME, "Name or service not known"), False),
        (paramiko.AuthenticationException("Authentication failed."), False),
        (FileNotFoundError("/no/key"), False),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_a_cluster_that_is_away_is_told_from_a_connection_that_is_wrong(error: Exception, passing: bool) -> None:
    assert ssh_error(error).passing == passing


UNKNOWN = socket.gaierror(socket.EAI_NONAME, "Name or service not known")
NO_ANSWER = socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")


def test_an_unknown_host_is_told_apart_from_a_name_server_that_does_not_answer() -> None:
    for error in (ssh_error, lambda error: kubernetes_error(error, "list pods")):
        assert isinstance(error(UNKNOWN), UnknownEndpoint)
        assert isinstance(error(NO_ANSWER), Unreachable)
        assert not isinstance(error(NO_ANSWER), UnknownEndpoint)


def test_host_and_connection_are_named() -> None:
    where = "at login:22 (connection soperator_default)"
    said = str(ssh_error(UNKNOWN, where))
    assert said.startswith("the host name is unknown (")
    assert said.endswith("at login:22 (connection soperator_default): check the host of the connection")
    # A failure that is known already stays as it is.
    assert ssh_error(ConnectRefused("busy"), where).what == "busy"
