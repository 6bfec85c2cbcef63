"""Transport by HTTP: slurmrestd, alone or behind a proxy.

The requests are in ``slurm.rest``; this module has what HTTP needs: kept connections, tokens, versions of the
interface, and limits. A token is sent with every request and never shown: not in a ``repr``, not in an error.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import json
import math
import ssl
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import Any, TypeVar

import msgspec

from airflow_provider_soperator.shared import SharedAnswers
from airflow_provider_soperator.slurm.errors import AuthenticationFailed
from airflow_provider_soperator.slurm.requests import MintToken, Request
from airflow_provider_soperator.slurm.requests.commands import MEGABYTE, run_steps_async
from airflow_provider_soperator.slurm.rest import calls
from airflow_provider_soperator.slurm.rest.calls import VERSIONS, Owner, RestAnswer, RestCall, Site, Unsupported
from airflow_provider_soperator.transports import Transport, read_apart
from airflow_provider_soperator.transports.transport_errors import (
    ConnectFailed,
    NotSupported,
    OutputTooLarge,
    TransportError,
    rest_error,
    unexpected_answer,
    without_login,
)

T = TypeVar("T")

#: Connections at once. Soperator's slurmrestd accepts ten from all clients, and has three threads.
CONNECTIONS = 3
#: Seconds after which an idle connection is not reused: slurmrestd closes it some time later, and a request sent at
#: that moment would be lost.
IDLE = 5.0
#: Seconds until there is a connection.
CONNECT = 10.0
#: Bytes of one answer.
MOST = 256 * MEGABYTE

#: Statuses of a rejected token: for a missing one, and for one that slurmctld rejects.
_REFUSED = (401, 511)


class _VersionUnknown(Exception):
    """slurmrestd does not know this version of its interface (any more), or this path."""

    def __init__(self, meant: TransportError) -> None:
        super().__init__()
        self.meant = meant


class RestTransport:
    """Sends requests to one slurmrestd."""

    def __init__(self, url: str, tokens: Tokens, *, user: str = "", versions: tuple[int, ...] = VERSIONS) -> None:
        import httpx

        self._url = url.rstrip("/")
        self._tokens, self._user = tokens, user
        self._versions = versions
        self._version: int | None = None
        #: By their names.
        self._owners: dict[str, Owner] = {}
        limits = httpx.Limits(max_connections=CONNECTIONS, max_keepalive_connections=CONNECTIONS, keepalive_expiry=IDLE)
        # Proxies in the environment are for the internet; the connection has the address of the cluster.
        self._client = httpx.AsyncClient(verify=ssl.create_default_context(), limits=limits, trust_env=False)

    async def ask(self, request: Request[T]) -> T:
        try:
            return await self._ask(request, self._version or await self._agree())
        except _VersionUnknown:
            # slurmrestd has been upgraded or downgraded.
            self._version = None
        version = await self._agree()
        try:
            return await self._ask(request, version)
        except _VersionUnknown as error:
            raise error.meant from None

    async def close(self) -> None:
        await self._client.aclose()

    async def _ask(self, request: Request[T], version: int) -> T:
        user = self._user or user_of(await self._tokens.token())
        home = f"/home/{user}" if user not in ("", "root") else "/root"
        try:
            steps = calls.steps(request, Site(version, user, home, self._owners.setdefault(user, Owner())))
            ask = partial(self._exchange, version=version)
            return await run_steps_async(steps, ask, lambda answer, read: read_apart(answer.size, read))
        except Unsupported as error:
            raise NotSupported(error.what, error.instead) from None

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
            f"{without_login(self._url)} has no slurmrestd of a supported version (v0.0.{min(self._versions)} to "
            f"v0.0.{max(self._versions)}), or not at this path",
            "see the address and its path; Slurm 24.05 to 26.05 are supported",
        )

    async def _exchange(self, call: RestCall, version: int) -> RestAnswer:
        token = ""
        for _ in range(2):
            token = await self._tokens.token(refused=token)
            status, data = await self._send(call, version, token)
            answer = await read_apart(len(data), partial(self._read, call, status, data))
            if answer is not None:
                return answer
        raise refused(token)

    async def _send(self, call: RestCall, version: int, token: str) -> tuple[int, bytes]:
        """The status of an answer, and its bytes."""
        import httpx

        url, content = self._url + call.target(version), b"" if call.body is None else json.dumps(call.body).encode()
        # No limit on the wait for one of the few connections.
        timeout = httpx.Timeout(call.timeout, connect=CONNECT, pool=None)
        # slurmrestd does not compress, but a proxy may, in vain for a cluster nearby.
        headers = {"X-SLURM-USER-TOKEN": token, "Accept": "application/json", "Accept-Encoding": "identity"}
        if self._user:
            headers["X-SLURM-USER-NAME"] = self._user
        if content:
            headers["Content-Type"] = "application/json"
        try:
            async with self._client.stream(
                call.method, url, headers=headers, content=content, timeout=timeout
            ) as response:
                data = bytearray()
                async for chunk in response.aiter_bytes():
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
            said = _decoded(data)
        except ValueError:
            said = None
        # A proxy may have JSON of its own for a slurmrestd that is away.
        if not isinstance(said, dict) or (status >= 400 and "errors" not in said):
            error = unexpected_answer(call, self._url, status, data)
            raise _VersionUnknown(error) if status == 404 else error
        answer = RestAnswer(status, said, len(data))
        found = tuple(calls.errors(answer))
        return None if found and isinstance(calls.error(found), AuthenticationFailed) else answer


def _decoded(data: bytes) -> Any:
    """Decode JSON, each record by itself: json.loads would let no other thread go on until a whole queue is decoded."""
    decode = msgspec.json.decode
    # It takes less for JSON than json.loads, which has NaN, for one.
    with contextlib.suppress(ValueError):
        fields = decode(data, type=dict[str, msgspec.Raw])
        return {
            name: [decode(record) for record in decode(said, type=list[msgspec.Raw])]
            if memoryview(said)[0] == ord("[")
            else decode(said)
            for name, said in fields.items()
        }
    return json.loads(data)


#: Lifespan of the tokens that are made or fetched here.
LIFESPAN = timedelta(hours=1)

#: A token is renewed after this part of its life, or this many seconds before its end, whichever is earlier.
_PART_OF_LIFE = 0.8
_SECONDS_BEFORE = 60.0


def claims(token: str) -> dict[str, Any]:
    """The claims of a token; empty if it is not a JWT. Only the cluster can verify it.

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
    """The user of the cluster that a token is for; empty if it names none."""
    said = claims(token)
    return str(said.get("sun") or said.get("username") or "")


def _end_of(token: str) -> float:
    end = claims(token).get("exp")
    return end if isinstance(end, (int, float)) else math.inf


def refused(token: str) -> ConnectFailed:
    """The error for a token that slurmrestd has rejected."""
    if not claims(token):
        return ConnectFailed("slurmrestd refused the token", "it is not a JWT; `scontrol token` makes one")
    if (end := _end_of(token)) <= time.time():
        written = datetime.fromtimestamp(end, timezone.utc).isoformat(timespec="seconds")
        return ConnectFailed(
            f"the token for slurmrestd expired at {written}",
            "make another (`scontrol token lifespan=…`), or set the key or a source of tokens in the connection",
        )
    # The only time in it that Slurm checks is its end, and Slurm's clock may be ahead of this one.
    return ConnectFailed(
        "slurmrestd refused the token",
        "see whether its key is the cluster's (secret CLUSTER-rest-jwt-key), its user is known there, and the clocks "
        "agree",
    )


@dataclass
class HeldToken:
    """A token, and when to renew it; clients of several event loops may share it."""

    token: str = ""
    until: float = 0.0


class Tokens:
    """The token to send: what ``make`` gives, or has given to others, used again until shortly before its end."""

    def __init__(self, make: Callable[[], Awaitable[str]], held: HeldToken | None = None) -> None:
        self._make = make
        self._made = SharedAnswers()
        self._held = held or HeldToken()

    async def token(self, refused: str = "") -> str:
        """The token; another one in place of one that was ``refused``."""
        if self._held.token == refused or time.time() >= self._held.until:
            # Many requests may be under way, and each new token may cost a login.
            await self._made.get("token", self._renew, -1.0)
        return self._held.token

    async def _renew(self) -> None:
        token = await self._make()
        now = time.time()
        life = _end_of(token) - now
        # A short-lived token is renewed at half of its life.
        self._held.until = now + min(life * _PART_OF_LIFE, max(life - _SECONDS_BEFORE, life / 2))
        self._held.token = token


async def minted(key: bytes, user: str) -> str:
    """A token made from the cluster's own key (HS256), for any user."""
    import jwt

    now = int(time.time())
    return jwt.encode({"sun": user, "iat": now, "exp": now + int(LIFESPAN.total_seconds())}, key, algorithm="HS256")


async def fetched(over: Callable[[], Transport], user: str = "") -> str:
    """A token from ``scontrol token`` over another transport: for the user, or, as root, for any user.

    The transport is open for one token at a time: a token lasts an hour, in which it would idle.
    """
    transport = over()
    try:
        return await transport.ask(MintToken(LIFESPAN, user))
    finally:
        await transport.close()
