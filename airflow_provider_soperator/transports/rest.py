"""Slurm by HTTP: slurmrestd, alone or behind a proxy.

What is asked is in ``slurm.rest``; here is what is different about HTTP: connections that are kept, tokens, versions of
the interface, limits, and what the failures mean.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from airflow_provider_soperator.slurm import rest
from airflow_provider_soperator.slurm.errors import AuthenticationFailed
from airflow_provider_soperator.slurm.requests import Request
from airflow_provider_soperator.slurm.requests.base import MEGABYTE
from airflow_provider_soperator.slurm.rest import answers
from airflow_provider_soperator.slurm.rest.calls import VERSIONS, Answer, Call, Site
from airflow_provider_soperator.transports.errors import ConnectFailed, NotSupported, OutputTooLarge, TransportError
from airflow_provider_soperator.transports.rest_errors import explain, unexpected
from airflow_provider_soperator.transports.tokens import TokenSource, refused, user_of

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


@dataclass(frozen=True)
class _NeedToken:
    renew: bool


@dataclass(frozen=True)
class _NeedAnswer:
    """A request to send; its answer is the status and the bytes."""

    method: str
    url: str
    headers: Mapping[str, str]
    content: bytes
    call: Call


#: Yields what has to be done on the way, so that threads and event loops share all that is decided between.
_Talk = Generator[_NeedToken | _NeedAnswer, Any, T]


class _VersionUnknown(Exception):
    """slurmrestd does not know this version of its interface (any more), or not this path."""

    def __init__(self, meant: TransportError) -> None:
        super().__init__()
        self.meant = meant


class _Conversation:
    """What is said to one slurmrestd; it sends nothing itself."""

    def __init__(self, url: str, user: str, home: str, versions: tuple[int, ...]) -> None:
        self._url = url.rstrip("/")
        self._user = user
        self._home = home
        self._versions = versions
        self._version: int | None = None

    def answer(self, request: Request[T]) -> _Talk[T]:
        known = self._version
        try:
            return (yield from self._ask(request, known or (yield from self._agree())))
        except _VersionUnknown:
            # It has been replaced by another release.
            self._version = None
        version = yield from self._agree()
        try:
            return (yield from self._ask(request, version))
        except _VersionUnknown as error:
            raise error.meant from None

    def _ask(self, request: Request[T], version: int) -> _Talk[T]:
        user = self._user or user_of((yield _NeedToken(False)))
        home = self._home or (f"/home/{user}" if user not in ("", "root") else "/root")
        try:
            return (yield from self._take(rest.steps(request, Site(version, user, home)), version))
        except rest.Unsupported as error:
            raise NotSupported(error.what, error.instead) from None

    def _take(self, steps: rest.Steps[T], version: int) -> _Talk[T]:
        try:
            call = next(steps)
            while True:
                call = steps.send((yield from self._exchange(call, version)))
        except StopIteration as end:
            result: T = end.value
            return result
        finally:
            steps.close()

    def _agree(self) -> _Talk[int]:
        """The newest version that both sides know."""
        for version in sorted(self._versions, reverse=True):
            try:
                yield from self._exchange(Call("GET", "slurm/ping/"), version)
            except _VersionUnknown:
                continue
            self._version = version
            return version
        raise ConnectFailed(
            f"{self._url} has no slurmrestd of a version that is known here (v0.0.{min(self._versions)} to "
            f"v0.0.{max(self._versions)}), or not at this path",
            "see the address and its path; Slurm 24.05 to 26.05 are known",
        )

    def _exchange(self, call: Call, version: int) -> _Talk[Answer]:
        content = b"" if call.body is None else json.dumps(call.body).encode()
        for renew in (False, True):
            token = yield _NeedToken(renew)
            headers = {"X-SLURM-USER-TOKEN": token, "Accept": "application/json"}
            if self._user:
                headers["X-SLURM-USER-NAME"] = self._user
            if content:
                headers["Content-Type"] = "application/json"
            status, data = yield _NeedAnswer(call.method, self._url + call.target(version), headers, content, call)
            answer = self._read(call, status, data)
            if answer is not None:
                return answer
        raise refused(token)

    def _read(self, call: Call, status: int, data: bytes) -> Answer | None:
        """None if the token was refused."""
        if status in _REFUSED:
            return None
        try:
            said = json.loads(data)
        except ValueError:
            said = None
        if not isinstance(said, dict):
            error = unexpected(call, self._url, status, data)
            raise _VersionUnknown(error) if status == 404 else error
        answer = Answer(status, said)
        found = tuple(answers.errors(answer))
        return None if found and isinstance(answers.error(found), AuthenticationFailed) else answer


def _options(verify: bool | str) -> dict[str, Any]:
    import httpx

    limits = httpx.Limits(max_connections=CONNECTIONS, max_keepalive_connections=CONNECTIONS, keepalive_expiry=IDLE)
    # A proxy of the environment is for the internet; the cluster is reached as the connection says.
    return {"verify": _context(verify), "limits": limits, "trust_env": False, "follow_redirects": False}


def _context(verify: bool | str) -> Any:
    """What certificates are checked by: those of the system, or a file; nothing if it is said so."""
    import ssl

    if not verify:
        return False
    return ssl.create_default_context(cafile=verify if isinstance(verify, str) else None)


def _timeout(call: Call) -> httpx.Timeout:
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

        self._tokens = tokens
        self._conversation = _Conversation(url, user, home, versions)
        self._client = httpx.AsyncClient(**_options(verify))

    async def ask(self, request: Request[T]) -> T:
        talk = self._conversation.answer(request)
        try:
            need = next(talk)
            while True:
                need = talk.send(await self._meet(need))
        except StopIteration as end:
            result: T = end.value
            return result

    async def close(self) -> None:
        await self._client.aclose()

    async def _meet(self, need: _NeedToken | _NeedAnswer) -> Any:
        if isinstance(need, _NeedToken):
            return await self._tokens.token(need.renew)
        try:
            async with self._client.stream(
                need.method, need.url, headers=need.headers, content=need.content, timeout=_timeout(need.call)
            ) as response:
                data = bytearray()
                async for chunk in response.aiter_raw():
                    data += chunk
                    if len(data) > MOST:
                        raise OutputTooLarge(str(need.call), MOST)
                return response.status_code, bytes(data)
        except Exception as error:
            raise explain(error, need.call, need.url) from error
