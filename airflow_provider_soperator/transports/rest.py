"""Slurm by HTTP: slurmrestd, alone or behind a proxy.

What is asked is in ``slurm.rest``; here is what is different about HTTP: connections that are kept, tokens, versions of
the interface, and limits. A token is sent with every question and never shown: not in a ``repr``, not in an error.
"""

from __future__ import annotations

import base64
import binascii
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from airflow_provider_soperator.slurm import rest
from airflow_provider_soperator.slurm.errors import AuthenticationFailed
from airflow_provider_soperator.slurm.requests import MintToken, Request
from airflow_provider_soperator.slurm.requests.commands import MEGABYTE
from airflow_provider_soperator.slurm.rest import calls
from airflow_provider_soperator.slurm.rest.calls import VERSIONS, RestAnswer, RestCall, Site
from airflow_provider_soperator.transports.transport import Transport
from airflow_provider_soperator.transports.transport_errors import (
    ConnectFailed,
    NotSupported,
    OutputTooLarge,
    TransportError,
    rest_error,
    unexpected_answer,
)

if TYPE_CHECKING:
    import httpx

T = TypeVar("T")

#: Connections at once. Soperator's slurmrestd takes ten, from all its clients, and has three threads.
CONNECTIONS = 3
#: Seconds after which an idle connection is not used any more: slurmrestd ends it at a time of its own, and a question
#: that meets this would be lost.
IDLE = 5.0
#: Seconds until there is a connection.
CONNECT = 10.0
#: Bytes of one answer.
MOST = 256 * MEGABYTE

#: Statuses with which a token is refused: none was sent, and what slurmctld says of a wrong one.
_REFUSED = (401, 511)


class _VersionUnknown(Exception):
    """slurmrestd does not know this version of its interface (any more), or not this path."""

    def __init__(self, meant: TransportError) -> None:
        super().__init__()
        self.meant = meant


def _options(verify: bool | str) -> dict[str, Any]:
    import httpx

    limits = httpx.Limits(max_connections=CONNECTIONS, max_keepalive_connections=CONNECTIONS, keepalive_expiry=IDLE)
    # A proxy of the environment is for the internet; the cluster is reached as the connection says.
    return {"verify": _context(verify), "limits": limits, "trust_env": False, "follow_redirects": False}


def _context(verify: bool | str) -> Any:
    """The context by which certificates are checked: the system's, or a file; False for no check."""
    import ssl

    if not verify:
        return False
    return ssl.create_default_context(cafile=verify if isinstance(verify, str) else None)


def _timeout(call: RestCall) -> httpx.Timeout:
    import httpx

    # Waiting for one of the few connections takes as long as those before it need.
    return httpx.Timeout(call.timeout, connect=CONNECT, pool=None)


class RestTransport:
    """Asks one slurmrestd."""

    def __init__(
        self,
        url: str,
        tokens: TokenSource,
        *,
        user: str = "",
        home: str = "",
        verify: bool | str = True,
        versions: tuple[int, ...] = VERSIONS,
    ) -> None:
        import httpx

        self._url = url.rstrip("/")
        self._tokens, self._user, self._home = tokens, user, home
        self._versions = versions
        self._version: int | None = None
        self._client = httpx.AsyncClient(**_options(verify))

    async def ask(self, request: Request[T]) -> T:
        try:
            return await self._ask(request, self._version or await self._agree())
        except _VersionUnknown:
            # It has been replaced by another release.
            self._version = None
        version = await self._agree()
        try:
            return await self._ask(request, version)
        except _VersionUnknown as error:
            raise error.meant from None

    async def close(self) -> None:
        await self._client.aclose()

    async def _ask(self, request: Request[T], version: int) -> T:
        user = self._user or user_of(await self._tokens.token(False))
        home = self._home or (f"/home/{user}" if user not in ("", "root") else "/root")
        try:
            return await self._take(rest.steps(request, Site(version, user, home)), version)
        except rest.Unsupported as error:
            raise NotSupported(error.what, error.instead) from None

    async def _take(self, steps: rest.Steps[T], version: int) -> T:
        try:
            call = next(steps)
            while True:
                call = steps.send(await self._exchange(call, version))
        except StopIteration as end:
            result: T = end.value
            return result
        finally:
            steps.close()

    async def _agree(self) -> int:
        """The newest version that both sides know."""
        for version in sorted(self._versions, reverse=True):
            try:
                await self._exchange(RestCall("GET", "slurm/ping/"), version)
            except _VersionUnknown:
                continue
            self._version = version
            return version
        raise ConnectFailed(
            f"{self._url} has no slurmrestd of a supported version (v0.0.{min(self._versions)} to "
            f"v0.0.{max(self._versions)}), or not at this path",
            "see the address and its path; Slurm 24.05 to 26.05 are supported",
        )

    async def _exchange(self, call: RestCall, version: int) -> RestAnswer:
        for renew in (False, True):
            token = await self._tokens.token(renew)
            answer = self._read(call, *await self._send(call, version, token))
            if answer is not None:
                return answer
        raise refused(token)

    async def _send(self, call: RestCall, version: int, token: str) -> tuple[int, bytes]:
        """The status of an answer, and its bytes."""
        url, content = self._url + call.target(version), b"" if call.body is None else json.dumps(call.body).encode()
        headers = {"X-SLURM-USER-TOKEN": token, "Accept": "application/json"}
        if self._user:
            headers["X-SLURM-USER-NAME"] = self._user
        if content:
            headers["Content-Type"] = "application/json"
        try:
            async with self._client.stream(
                call.method, url, headers=headers, content=content, timeout=_timeout(call)
            ) as response:
                data = bytearray()
                async for chunk in response.aiter_raw():
                    data += chunk
                    if len(data) > MOST:
                        raise OutputTooLarge(str(call), MOST)
                return response.status_code, bytes(data)
        except Exception as error:
            raise rest_error(error, call, url) from error

    def _read(self, call: RestCall, status: int, data: bytes) -> RestAnswer | None:
        """None if the token was refused."""
        if status in _REFUSED:
            return None
        try:
            said = json.loads(data)
        except ValueError:
            said = None
        if not isinstance(said, dict):
            error = unexpected_answer(call, self._url, status, data)
            raise _VersionUnknown(error) if status == 404 else error
        answer = RestAnswer(status, said)
        found = tuple(calls.errors(answer))
        return None if found and isinstance(calls.error(found), AuthenticationFailed) else answer


#: How long a token is valid that is made or fetched here.
LIFESPAN = timedelta(hours=1)

#: A token is renewed after so much of its life, or so many seconds before its end, whichever comes first.
_PART_OF_LIFE = 0.8
_SECONDS_BEFORE = 60.0


class TokenSource(Protocol):
    """Gives the token to send. ``renew`` says that the last one was refused."""

    async def token(self, renew: bool) -> str: ...


def claims(token: str) -> dict[str, Any]:
    """The claims of a token; none if it is no JWT. Whether it is genuine only the cluster can tell.

    >>> claims("no token")
    {}
    """
    try:
        part = token.split(".")[1]
        said = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    except (IndexError, ValueError, binascii.Error):
        return {}
    return said if isinstance(said, dict) else {}


def user_of(token: str) -> str:
    """The user of the cluster in whose name a token speaks; empty if it does not say."""
    said = claims(token)
    return str(said.get("sun") or said.get("username") or "")


def refused(token: str) -> ConnectFailed:
    """The error of a token that slurmrestd has refused."""
    said = claims(token)
    if not said:
        return ConnectFailed("slurmrestd refused the token", "it is not a JWT; `scontrol token` makes one")
    if isinstance(end := said.get("exp"), (int, float)) and end <= time.time():
        return _expired(end)
    # Slurm looks at no other time in it than its end, and its clock may be ahead of this one.
    return ConnectFailed(
        "slurmrestd refused the token",
        "see whether its key is the cluster's (secret CLUSTER-rest-jwt-key), its user is known there, and the clocks "
        "agree",
    )


def _expired(end: float) -> ConnectFailed:
    return ConnectFailed(
        f"the token for slurmrestd expired at {_written(end)}",
        "make another (`scontrol token lifespan=…`), or set the key or a source of tokens in the connection",
    )


def _written(moment: float) -> str:
    return datetime.fromtimestamp(moment, timezone.utc).isoformat(timespec="seconds")


@dataclass(frozen=True)
class GivenToken:
    """One token, which ends at its time.

    >>> GivenToken("a.b.c")
    GivenToken()
    """

    given: str = field(repr=False)

    async def token(self, renew: bool) -> str:
        if renew:
            raise refused(self.given)
        end = claims(self.given).get("exp")
        if isinstance(end, (int, float)) and end <= time.time():
            raise _expired(end)
        return self.given


class _Kept:
    """A token that is used until it is time for another."""

    def __init__(self) -> None:
        self._token = ""
        self._until = 0.0

    def current(self, renew: bool) -> str:
        return "" if renew or time.time() >= self._until else self._token

    def keep(self, token: str, lifespan: timedelta) -> str:
        now, life = time.time(), lifespan.total_seconds()
        end = claims(token).get("exp")
        if isinstance(end, (int, float)):
            life = min(life, end - now)
        # Of a life of a minute or less, half is waited for.
        self._until = now + min(life * _PART_OF_LIFE, max(life - _SECONDS_BEFORE, life / 2))
        self._token = token
        return token


class MintedTokens:
    """Tokens made from the cluster's own key (HS256), for any user of it."""

    def __init__(self, key: bytes, user: str, lifespan: timedelta = LIFESPAN) -> None:
        self._key, self._user, self._lifespan = key, user, lifespan
        self._kept = _Kept()

    async def token(self, renew: bool) -> str:
        return self._kept.current(renew) or self._kept.keep(self._mint(), self._lifespan)

    def _mint(self) -> str:
        import jwt

        now = int(time.time())
        end = now + int(self._lifespan.total_seconds())
        return jwt.encode({"sun": self._user, "iat": now, "exp": end}, self._key, algorithm="HS256")


class FetchedTokens:
    """Tokens from ``scontrol token``, over another transport: the user's own, or as root anybody's.

    The transport is made when the first token is needed.
    """

    def __init__(self, make: Callable[[], Transport], user: str = "", lifespan: timedelta = LIFESPAN) -> None:
        self._make, self._request = make, MintToken(lifespan, user)
        self._transport: Transport | None = None
        self._kept = _Kept()

    async def token(self, renew: bool) -> str:
        if token := self._kept.current(renew):
            return token
        self._transport = self._transport or self._make()
        return self._kept.keep(await self._transport.ask(self._request), self._request.lifespan)
