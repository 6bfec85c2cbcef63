"""Errors of transports: each with its cause and a remedy, in terms of the connection's settings."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import re
import socket
import ssl
from collections.abc import Iterator
from typing import TYPE_CHECKING

from airflow_provider_soperator.errors import ClusterError, ConnectionMistake, LastingError

if TYPE_CHECKING:
    from airflow_provider_soperator.slurm.rest.calls import RestCall


class TransportError(ClusterError):
    """A request did not reach the cluster, or its answer did not arrive."""

    def __init__(self, what: str, remedy: str = "") -> None:
        super().__init__(f"{what}: {remedy}" if remedy else what)
        self.what = what
        self.remedy = remedy


class ConnectFailed(TransportError):
    """The connection failed: the host, its key, the private key or the name is wrong, or there is no server."""


class Unreachable(ConnectFailed):
    """The server does not answer, or nothing listens there: it may be down, or starting.

    Not worth another try at once: a caller without patience is told of a wrong address or port quickly.
    """

    passing = True


class UnknownEndpoint(ConnectFailed, LastingError):
    """There is no such Airflow connection, or no such host."""


class ConnectRefused(ConnectFailed):
    """The server accepts no connection at the moment, such as an sshd with too many of them, or no further shell."""

    retryable = True


class ConnectionLost(TransportError):
    """The connection broke while a command was under way: it may or may not have run, or still be running."""

    retryable = True
    unsettled = True


class CommandTimedOut(TransportError):
    """A command timed out, and was ended on the cluster."""

    retryable = True
    unsettled = True

    def __init__(self, command: str, seconds: float) -> None:
        super().__init__(
            f"{command} did not answer within {seconds:g} s",
            "see whether slurmctld is up and not overloaded (`scontrol ping`, `sdiag`)",
        )


class OutputTooLarge(TransportError):
    """A command printed more than its limit."""

    def __init__(self, command: str, limit: int) -> None:
        super().__init__(f"{command} printed more than {limit} bytes", "request less at a time")


class NotSupported(TransportError, LastingError):
    """The transport cannot do this; the message names one that can."""


#: Errors of a cluster or a cloud, or of the way there.
FAILURES = (ClusterError, ConnectionMistake)

#: Seconds that the API has for an answer.
API_TIMEOUT = 20.0
#: Rights that an account needs to start shells.
_SHELLS = "get and list on pods, and get and create on pods/exec,"
#: Remedy for an API that is overloaded. It answers the same for a pod that starts, ends or moves.
_POD_MOVES = "see whether the pod runs and the API is not overloaded"
#: What the API says if no right is missing, but rules of the cluster's owner forbid the request.
_DENIED = re.compile(r"^admission webhook |ValidatingAdmissionPolicy .* denied request")


@contextlib.contextmanager
def kubernetes_errors(what: str, rights: str = _SHELLS, for_now: str = _POD_MOVES) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise kubernetes_error(error, what, rights, for_now) from error


@contextlib.contextmanager
def namespace_errors(namespace: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        status = _kubernetes_status(error)
        if status == 404:
            raise ConnectFailed(
                f"there is no namespace {namespace}", "set the namespace of the SlurmCluster"
            ) from error
        # Without the right to read namespaces the error is still that no pod was found.
        if status != 403:
            raise kubernetes_error(error, f"read namespace {namespace}") from error


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        # Several addresses were tried.
        yield from getattr(error, "exceptions", ())
        error = error.__cause__ or error.__context__


def _kubernetes_status(error: BaseException) -> int | None:
    """The HTTP status of the API's answer; that of an exec may be wrapped, or the context of another error."""
    statuses = (getattr(one, "status", None) for one in _causes(error))
    return next((status for status in statuses if isinstance(status, int) and status), None)


def _kubernetes_words(error: BaseException) -> str:
    """The API's message, without the headers around it."""
    for one in _causes(error):
        if isinstance(one, (TimeoutError, asyncio.TimeoutError)) and not str(one):
            return f"no answer within {API_TIMEOUT:g} s"
        if type(one).__name__ == "WSServerHandshakeError":
            # Its text is the whole address, without the reason.
            return f"HTTP {_kubernetes_status(one)}"
        body = getattr(one, "body", None)
        if isinstance(body, (str, bytes)) and body:
            data = body.encode() if isinstance(body, str) else body
            return status_message(data).strip()
    innermost = list(_causes(error))[-1]
    return str(innermost).strip() or type(innermost).__name__


def _is_unknown_name(error: BaseException) -> bool:
    """True if there is no host of the name; not if the name servers do not answer."""
    return any(isinstance(one, socket.gaierror) and one.errno != socket.EAI_AGAIN for one in _causes(error))


def is_missing(error: BaseException) -> bool:
    """True if there is no such object."""
    return _kubernetes_status(error) == 404


def is_forbidden(error: BaseException) -> bool:
    """True if a right is missing."""
    return _kubernetes_status(error) == 403


def is_refused(error: BaseException) -> bool:
    """True if the token is not accepted."""
    return _kubernetes_status(error) == 401


def is_conflict(error: BaseException) -> bool:
    """True if the object has changed since it was read."""
    return _kubernetes_status(error) == 409


def denial(error: BaseException) -> str:
    """The words of the admission webhook or policy that has denied a request; empty if none has."""
    words = _kubernetes_words(error)
    return words if _DENIED.search(words) else ""


def kubernetes_error(
    error: BaseException, what: str, rights: str = _SHELLS, for_now: str = _POD_MOVES
) -> TransportError:
    """The error of a call to the Kubernetes API, in terms of the user's settings."""
    if isinstance(error, TransportError):
        return error
    status, words = _kubernetes_status(error), _kubernetes_words(error)
    if status == 401:
        return ConnectFailed(
            f"the Kubernetes API refused the token ({words})", "renew the credentials of the Kubernetes connection"
        )
    if status is not None and status < 500 and _DENIED.search(words):
        return ConnectFailed(f"could not {what} ({words})", "ask the owner of that webhook or policy")
    # Quotas and the like answer 403, too. Of a missing right the API says that the user cannot do it; an exec, nothing.
    if status == 403 and "is forbidden: " in words and " cannot " not in words:
        if "it is being terminated" in words:
            return ConnectRefused(f"could not {what} ({words})", "try again when the namespace is gone")
        return ConnectFailed(f"could not {what} ({words})", "the cluster's owner limits this: see the message")
    if status == 403:
        return ConnectFailed(
            f"the Kubernetes account has no right to {what} ({words})",
            f"bind a Role with {rights} to the connection's account",
        )
    if "field not declared in schema" in words:
        # Server-side apply answers 500.
        return ConnectFailed(f"could not {what} ({words})", "correct the field, or install the CRDs of this release")
    if status == 422:
        return ConnectFailed(f"could not {what} ({words})", "correct the object as the message says")
    if status in (400, 404, 409, 429) or (status is not None and status >= 500):
        return ConnectRefused(f"could not {what} ({words})", for_now)
    if status is not None:
        return ConnectFailed(f"could not {what} ({status}: {words})", "check the Kubernetes connection")
    names = {type(one).__name__ for one in _causes(error)}
    if "ConfigException" in names and words.startswith("exec: process returned"):
        # What it asks may be away, such as the cloud or the network.
        return Unreachable(
            f"could not {what}: the plugin in its kubeconfig failed ({words.removeprefix('exec: ')})",
            f"see whether what it asks is up, and run it on {socket.gethostname()}",
        )
    if "ConfigException" in names and "kube-config" in words:
        return ConnectFailed(
            f"the kubeconfig on {socket.gethostname()} lacks what the Kubernetes connection names ({words})",
            "put the kubeconfig itself into the connection, as kube_config; a context that Terraform or a command has "
            "written is only on the machine where that ran, not on other Airflow workers or the triggerer",
        )
    if isinstance(error, FileNotFoundError) and error.filename:
        kind = "file" if "/" in str(error.filename) else "program"
        return ConnectFailed(
            f"{socket.gethostname()} has no {kind} {error.filename}, from which the kubeconfig gets its token",
            "install it on all Airflow workers and the triggerer, or give the Kubernetes connection a kubeconfig with "
            "the token of a service account",
        )
    untrusted = {"SSLCertVerificationError", "ClientConnectorCertificateError"}
    if names & untrusted or "CERTIFICATE_VERIFY_FAILED" in str(error):
        return ConnectFailed(
            f"the certificate of the Kubernetes API is not trusted ({words})",
            "add its certificate authority to the Kubernetes connection",
        )
    if any(isinstance(one, ssl.SSLError) and one.library == "X509" for one in _causes(error)):
        return ConnectFailed(
            f"the certificate authority of the Kubernetes connection cannot be read ({words})",
            "correct it: it has to be a certificate in PEM format",
        )
    if names & {"ServerDisconnectedError", "ConnectionResetError"}:
        return ConnectRefused(
            f"the Kubernetes API closed the connection ({words})", "it may be starting, or a proxy in front of it"
        )
    if _is_unknown_name(error):
        return UnknownEndpoint(
            f"the host name of the Kubernetes API is unknown ({words})", "check the server of the Kubernetes connection"
        )
    silent = any(isinstance(one, (OSError, asyncio.TimeoutError)) for one in _causes(error))
    if silent or "ClientConnectorError" in names:
        return Unreachable(
            f"the Kubernetes API does not answer ({words})",
            "check the server of the Kubernetes connection, and firewalls",
        )
    return ConnectFailed(f"could not {what} ({type(error).__name__}: {words})", "check the Kubernetes connection")


def status_message(status: bytes) -> str:
    """The message of the Status with which Kubernetes ends an exec."""
    try:
        return str(json.loads(status)["message"])
    except (ValueError, KeyError, TypeError):
        return status.decode(errors="replace")


def without_login(url: str) -> str:
    """An address without the login that may be part of it.

    >>> without_login("http://ada:hunter2@rest:6820/slurm")
    'http://rest:6820/slurm'
    """
    return re.sub(r"//[^/]*@", "//", url)


_RESTARTS = "see whether slurmrestd runs; it restarts whenever the cluster's configuration changes"


def rest_error(error: Exception, call: RestCall, url: str) -> TransportError:
    """The error of a call that failed below HTTP."""
    import httpx

    if isinstance(error, TransportError):
        return error
    chain, words = list(_causes(error)), str(error) or type(error).__name__
    url = without_login(url)
    address = httpx.URL(url).copy_with(raw_path=b"/") if not isinstance(error, httpx.InvalidURL) else url
    tls = next((one for one in chain if isinstance(one, ssl.SSLError)), None)
    if isinstance(tls, ssl.SSLCertVerificationError):
        return ConnectFailed(
            f"the certificate of {address} is not trusted ({tls.verify_message})",
            "add its certificate authority to the system's or to SSL_CERT_FILE, or use the certificate's host name",
        )
    if tls:
        return ConnectFailed(
            f"{address} does not speak TLS ({tls.reason or tls})", "slurmrestd itself speaks plain http"
        )
    if isinstance(error, httpx.ConnectTimeout):
        return Unreachable(f"{address} does not answer", "see the address, and firewalls and network policies")
    if isinstance(error, httpx.ConnectError):
        if _is_unknown_name(error):
            return UnknownEndpoint(
                f"the host name in {address} is unknown",
                "inside Kubernetes it is CLUSTER-rest-svc.NAMESPACE.svc; from outside it needs a proxy or a tunnel",
            )
        if any(isinstance(one, ConnectionRefusedError) for one in chain) or "refused" in words:
            return ConnectRefused(f"nothing listens at {address}", _RESTARTS)
        return Unreachable(f"cannot connect to {address} ({words})", "see the address of slurmrestd")
    if isinstance(error, httpx.TimeoutException):
        return CommandTimedOut(str(call), call.timeout)
    if isinstance(error, httpx.RemoteProtocolError) and "illegal" in str(error):
        return ConnectFailed(f"what listens at {address} does not speak HTTP", "see the address and its port")
    if isinstance(error, (httpx.NetworkError, httpx.ProtocolError)):
        return ConnectionLost(f"the connection broke while {call} was under way", "it is reopened")
    return ConnectFailed(f"the request to {address} failed ({words})", "see the address of slurmrestd")


def unexpected_answer(call: RestCall, url: str, status: int, data: bytes) -> TransportError:
    """The error of an answer that is not slurmrestd's JSON."""
    said = " ".join(data[:200].decode(errors="replace").split())
    what = f"{without_login(url)} answered {call} with HTTP {status}" + (f" ({said})" if said else "")
    if status in (429, 503):
        return ConnectRefused(what, _RESTARTS if status == 503 else "a proxy lets fewer requests through at a time")
    if status >= 500:
        # A proxy also answers so when slurmrestd goes away during a request.
        return ConnectionLost(what, _RESTARTS)
    return ConnectFailed(what, "see whether this is the address of a slurmrestd, with the path that a proxy has for it")


_NO_WAY_THERE = (errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENETDOWN, errno.ENETUNREACH)
_NO_ROOM = (errno.EAGAIN, errno.EMFILE, errno.ENFILE, errno.ENOMEM)
#: Messages of paramiko and the SSH provider for a private key that they cannot read.
_KEY_UNREADABLE = ("private key file", "Key must have BEGIN", "Private key provided")
_HOST_KEY_UNREADABLE = ("Invalid key (class", "host key algorithm", "missing key data")


def ssh_error(error: BaseException, where: str = "") -> TransportError:
    """The error of a failed SSH connection, in terms of the user's settings; ``where`` ends the sentence."""
    if isinstance(error, TransportError):
        return error
    failure = _ssh_error(error)
    return type(failure)(f"{failure.what} {where}", failure.remedy) if where else failure


def _ssh_error(error: BaseException) -> ConnectFailed:
    kind, text = type(error).__name__, str(error).removeprefix("[Errno None] ").rstrip(".") or type(error).__name__
    if _is_unknown_name(error):
        return UnknownEndpoint(f"the host name is unknown ({text})", "check the host of the connection")
    if isinstance(error, socket.gaierror):
        return Unreachable(f"the host name is unknown at present ({text})", "see whether the name servers answer")
    if isinstance(error, OSError) and error.errno in _NO_WAY_THERE:
        return Unreachable(f"there is no way to the host ({text})", "see whether the login node is up, and the network")
    if isinstance(error, ConnectionRefusedError) or kind == "NoValidConnectionsError":
        return Unreachable(f"nothing listens there ({text})", "check host and port, and whether the login node is up")
    if kind == "BadHostKeyException":
        return ConnectFailed(
            "the host key has changed",
            "make sure that it is the right host, then put its new key into the connection's host_key or into "
            "known_hosts, wherever the old one is",
        )
    if any(words in text for words in _HOST_KEY_UNREADABLE):
        return ConnectFailed(
            f"the connection's host_key is not a public key ({text})", "put a line of `ssh-keyscan HOST` there"
        )
    if "not found in known_hosts" in text:
        return ConnectFailed(
            f"the host key is unknown, or not the expected one ({text})",
            "make sure that it is the right host, then put its key into the connection's host_key, or into known_hosts",
        )
    if "start new thread" in text or (isinstance(error, OSError) and error.errno in _NO_ROOM):
        return ConnectRefused(
            f"this machine can open nothing further ({text})", "see its limits of files and processes"
        )
    # The last one is that of a socket which was closed between the login and its first use.
    dropped = ("banner", "Connection reset", "closed", "Connection aborted", "saw EOF", "Bad file descriptor")
    if isinstance(error, (ConnectionError, EOFError)) or any(words in text for words in dropped):
        # An sshd with too many unauthenticated connections (MaxStartups) closes them before its banner. If that happens
        # during the login, paramiko calls it a failed authentication.
        return ConnectRefused(
            f"the login node closed the connection ({text})", "it has too many connections at once, or is starting"
        )
    if kind in ("AuthenticationException", "BadAuthenticationType"):
        return ConnectFailed(f"the login was refused ({text})", "check user and key of the connection")
    unreadable = kind == "PasswordRequiredException" or any(words in text for words in _KEY_UNREADABLE)
    if unreadable or isinstance(error, (FileNotFoundError, PermissionError)):
        return ConnectFailed(
            f"the private key cannot be used ({text})", "check key_file, or private_key and its passphrase"
        )
    if "remote_host" in text:
        return ConnectFailed("the connection has no host", "set it, or choose another connection of type SSH")
    # The last one is paramiko's message for a server that accepts the connection and then stays silent.
    if isinstance(error, (TimeoutError, asyncio.TimeoutError, socket.timeout)) or text == "No existing session":
        return Unreachable("the host does not answer", "check host, port and firewalls")
    return ConnectFailed(f"{kind}: {text}", "check the connection")
