"""Why a slurmrestd could not be asked, in words about the user's settings."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator

from airflow_provider_soperator.slurm.rest.calls import Call
from airflow_provider_soperator.transports.errors import (
    CommandTimedOut,
    ConnectFailed,
    ConnectionLost,
    ConnectRefused,
    TransportError,
    Unreachable,
)

_RESTARTS = "see whether slurmrestd runs; it restarts whenever the cluster's configuration changes"


def explain(error: Exception, call: Call, url: str) -> TransportError:
    """What went wrong below HTTP."""
    import httpx

    if isinstance(error, TransportError):
        return error
    chain = list(_chain(error))
    address = httpx.URL(url).copy_with(raw_path=b"/") if not isinstance(error, httpx.InvalidURL) else url
    if any(isinstance(one, ssl.SSLError) for one in chain):
        return _tls(chain, address)
    if isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout)):
        return _no_connection(error, chain, address)
    if isinstance(error, httpx.TimeoutException):
        return CommandTimedOut(str(call), call.timeout)
    if isinstance(error, httpx.RemoteProtocolError) and "illegal" in str(error):
        return ConnectFailed(f"what listens at {address} does not speak HTTP", "see the address and its port")
    if isinstance(error, (httpx.NetworkError, httpx.ProtocolError)):
        return ConnectionLost(f"the connection broke while {call} was under way", "it is opened again")
    return ConnectFailed(f"{address} cannot be asked ({_words(error)})", "see the address of slurmrestd")


def unexpected(call: Call, url: str, status: int, data: bytes) -> TransportError:
    """What an answer means that is not slurmrestd's JSON."""
    said = " ".join(data[:200].decode(errors="replace").split())
    what = f"{url} answered {call} with HTTP {status}" + (f" ({said})" if said else "")
    if status == 503:
        return ConnectRefused(what, _RESTARTS)
    if status >= 500:
        # A proxy says so too when slurmrestd went away in the middle.
        return ConnectionLost(what, _RESTARTS)
    return ConnectFailed(what, "see whether this is the address of a slurmrestd, with the path that a proxy has for it")


def _no_connection(error: Exception, chain: list[BaseException], address: object) -> TransportError:
    if any(isinstance(one, socket.gaierror) for one in chain):
        return ConnectFailed(
            f"there is no host of the name in {address}",
            "inside Kubernetes it is CLUSTER-rest-svc.NAMESPACE.svc; from outside it needs a proxy or a tunnel",
        )
    if any(isinstance(one, ConnectionRefusedError) for one in chain) or "refused" in str(error):
        return ConnectRefused(f"nobody listens at {address}", _RESTARTS)
    if type(error).__name__ == "ConnectTimeout":
        return Unreachable(f"{address} does not answer", "see the address, and firewalls and network policies")
    return ConnectFailed(f"there is no connection to {address} ({_words(error)})", "see the address of slurmrestd")


def _tls(chain: list[BaseException], address: object) -> TransportError:
    found = next(one for one in chain if isinstance(one, ssl.SSLError))
    if isinstance(found, ssl.SSLCertVerificationError):
        return ConnectFailed(
            f"the certificate of {address} is not trusted ({found.verify_message})",
            "give the connection the file of its certificate authority, or the name that the certificate is for",
        )
    return ConnectFailed(
        f"{address} does not speak TLS ({found.reason or found})", "slurmrestd itself speaks plain http"
    )


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        if isinstance(error, OSError) and isinstance(getattr(error, "exceptions", None), tuple):
            yield from error.exceptions  # type: ignore[attr-defined]
        error = error.__cause__ or error.__context__


def _words(error: Exception) -> str:
    return str(error) or type(error).__name__
