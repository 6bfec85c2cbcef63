"""Who may ask the API: whoever has a token, and what each of them may do."""

from __future__ import annotations

import hmac
from dataclasses import dataclass

from aiohttp import web

from sandbox.kube import errors
from sandbox.kube.requests import Target


@dataclass(frozen=True)
class Tokens:
    """The bearer tokens of an API: one for everything, one for reading."""

    owner: str
    #: Empty: nobody is let in only to read.
    viewer: str = ""

    def admit(self, request: web.Request) -> None:
        if not any(token and _has(request, token) for token in (self.owner, self.viewer)):
            raise errors.unauthorized()

    def authorize(self, request: web.Request, target: Target) -> None:
        reads = request.method in ("GET", "HEAD") and target.subresource != "exec"
        if not reads and not _has(request, self.owner):
            raise errors.forbidden(target.kind.resource, target.name, target.subresource, request.method.lower())


def _has(request: web.Request, token: str) -> bool:
    scheme, _, given = request.headers.get("Authorization", "").partition(" ")
    return scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), token.encode())
