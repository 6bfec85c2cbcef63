"""Why a Kubernetes API did not do what it was asked, in words about the user's settings."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterator

from airflow_provider_soperator.transports.errors import ConnectFailed, ConnectRefused, TransportError, Unreachable

#: Seconds that the API has for an answer.
PATIENCE = 20.0
#: What an account may have to be given so that shells can be started.
_SHELLS = "get and list on pods, and get and create on pods/exec,"
#: What to do about an API that refuses for now. Of a pod that starts, ends or moves, it says the same.
_POD_MOVES = "see whether the pod runs and the API is not overloaded"


@contextlib.contextmanager
def explained(what: str, rights: str = _SHELLS, for_now: str = _POD_MOVES) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise explain(error, what, rights, for_now) from error


@contextlib.contextmanager
def namespace_read(namespace: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        status = _status(error)
        if status == 404:
            raise ConnectFailed(
                f"there is no namespace {namespace}", "set the namespace that the SlurmCluster is in"
            ) from error
        # Whoever may not read namespaces is still to be told that no pod was found.
        if status != 403:
            raise explain(error, f"read namespace {namespace}") from error


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def _status(error: BaseException) -> int | None:
    """The HTTP status with which the API refused; a refused exec may come wrapped, or as an error in handling it."""
    statuses = (getattr(one, "status", None) for one in _chain(error))
    return next((status for status in statuses if isinstance(status, int) and status), None)


def _words(error: BaseException) -> str:
    """What the API said, rather than the headers around it."""
    for one in _chain(error):
        if isinstance(one, (TimeoutError, asyncio.TimeoutError)) and not str(one):
            return f"nothing within {PATIENCE:g} s"
        if type(one).__name__ == "WSServerHandshakeError":
            # Its text is the whole address, and why it was refused is not in it.
            return f"HTTP {_status(one)}"
        body = getattr(one, "body", None)
        if isinstance(body, (str, bytes)) and body:
            data = body.encode() if isinstance(body, str) else body
            return status_message(data).strip()
    innermost = list(_chain(error))[-1]
    return str(innermost).strip() or type(innermost).__name__


def is_missing(error: BaseException) -> bool:
    """Whether there is no such object."""
    return _status(error) == 404


def is_forbidden(error: BaseException) -> bool:
    """Whether it is a right that is missing."""
    return _status(error) == 403


def is_conflict(error: BaseException) -> bool:
    """Whether the object is no longer the one that was to be changed."""
    return _status(error) == 409


def explain(error: BaseException, what: str, rights: str = _SHELLS, for_now: str = _POD_MOVES) -> TransportError:
    """Why the API did not do what it was asked, in words about the user's settings."""
    if isinstance(error, TransportError):
        return error
    status, words = _status(error), _words(error)
    if status == 401:
        return ConnectFailed(
            f"the Kubernetes API refused the token ({words})", "renew the credentials of the Kubernetes connection"
        )
    if status == 403:
        return ConnectFailed(
            f"the Kubernetes API gives no right to {what} ({words})",
            f"bind a Role with {rights} to the connection's account",
        )
    if status in (400, 404, 409, 429) or (status is not None and status >= 500):
        return ConnectRefused(f"could not {what} ({words})", for_now)
    if status is not None:
        return ConnectFailed(f"could not {what} ({status}: {words})", "check the Kubernetes connection")
    names = {type(one).__name__ for one in _chain(error)}
    untrusted = {"SSLCertVerificationError", "ClientConnectorCertificateError"}
    if names & untrusted or "CERTIFICATE_VERIFY_FAILED" in str(error):
        return ConnectFailed(
            f"the certificate of the Kubernetes API is not trusted ({words})",
            "put its certificate authority into the Kubernetes connection",
        )
    if names & {"ServerDisconnectedError", "ConnectionResetError"}:
        return ConnectRefused(f"the Kubernetes API hung up ({words})", "it may be starting, or a proxy before it")
    silent = any(isinstance(one, (OSError, asyncio.TimeoutError)) for one in _chain(error))
    if silent or "ClientConnectorError" in names:
        return Unreachable(
            f"the Kubernetes API does not answer ({words})",
            "check the server of the Kubernetes connection, and firewalls",
        )
    return ConnectFailed(f"could not {what} ({type(error).__name__}: {words})", "check the Kubernetes connection")


def status_message(status: bytes) -> str:
    """The words of a Status, as Kubernetes ends an exec with."""
    try:
        return str(json.loads(status)["message"])
    except (ValueError, KeyError, TypeError):
        return status.decode(errors="replace")
