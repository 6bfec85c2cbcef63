"""Where the tokens come from by which slurmrestd knows who asks: given, made from the key, or fetched over another way.

A token is sent with every question and never shown: not in a ``repr``, not in an error.
"""

from __future__ import annotations

import base64
import binascii
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import Any, Protocol

from airflow_provider_soperator.slurm.requests import MintToken
from airflow_provider_soperator.transports.errors import ConnectFailed
from airflow_provider_soperator.transports.protocol import Transport

#: How long a token is valid that is made or fetched here.
LIFESPAN = timedelta(hours=1)

#: A token is renewed after so much of its life, or so many seconds before its end, whichever comes first.
_PART_OF_LIFE = 0.8
_SECONDS_BEFORE = 60.0


class TokenSource(Protocol):
    """Gives the token to send. ``renew`` says that the last one was refused."""

    async def token(self, renew: bool) -> str: ...


def claims(token: str) -> dict[str, Any]:
    """What a token says of itself; nothing if it is none. Whether it is genuine only the cluster can tell.

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
    """Why slurmrestd may have refused a token."""
    said = claims(token)
    if not said:
        return ConnectFailed("slurmrestd refused the token", "it is no JWT; `scontrol token` makes one")
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
        "make another (`scontrol token lifespan=…`), or give the connection the key or a way to fetch tokens by",
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
