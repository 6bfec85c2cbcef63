"""Why a connection was not made, in words, and whether it is worth another try."""

from __future__ import annotations

import paramiko
import pytest

from airflow_provider_soperator.transports.transport_errors import ConnectRefused, ssh_error


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
