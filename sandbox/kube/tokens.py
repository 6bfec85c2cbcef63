"""Who asks the API: the one who may do all, the one who may read, and ServiceAccounts with tokens of their own."""

from __future__ import annotations

import hmac
from base64 import b64encode
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import jwt
from aiohttp import web

from sandbox.kube import errors
from sandbox.kube.chart_kinds import SERVICE_ACCOUNT
from sandbox.kube.objects import Object, dig, timestamp
from sandbox.kube.rights import User
from sandbox.kube.store import ObjectStore

SECRET_TYPE = "kubernetes.io/service-account-token"
_NAME = "kubernetes.io/service-account.name"
_ISSUER = "https://kubernetes.default.svc"
#: Of a token that says nothing else, and the shortest that there may be.
_SECONDS, _LEAST = 3600, 600


@dataclass(frozen=True)
class Tokens:
    """The bearer tokens of an API."""

    store: ObjectStore
    owner: str
    ca: bytes
    #: Empty: nobody is let in only to read.
    viewer: str = ""

    def admit(self, request: web.Request) -> User:
        """Who comes with the token of a request."""
        scheme, _, given = request.headers.get("Authorization", "").partition(" ")
        given = given.strip() if scheme.lower() == "bearer" else ""
        if given and hmac.compare_digest(given.encode(), self.owner.encode()):
            return User("sandbox-admin", ("system:masters", "system:authenticated"), "all")
        if given and self.viewer and hmac.compare_digest(given.encode(), self.viewer.encode()):
            return User("viewer", power="reads")
        return self._service_account(given)

    def _service_account(self, token: str) -> User:
        """Neither an account that was deleted and made again, nor a token whose Secret is gone, gets in."""
        options: Any = {"verify_aud": False, "verify_exp": False, "verify_iat": False}
        try:
            claims = jwt.decode(token, self._key, ["HS256"], options)
        except jwt.InvalidTokenError:
            raise errors.unauthorized() from None
        of = claims["kubernetes.io"]
        namespace, account, secret = of["namespace"], of["serviceaccount"], of.get("secret")
        there = self._has(SERVICE_ACCOUNT.plural, namespace, account)
        if not there or (secret and not self._has("secrets", namespace, secret)):
            raise errors.unauthorized()
        if claims.get("exp", float("inf")) <= self.store.now().timestamp():
            raise errors.unauthorized()
        groups = ("system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated")
        return User(claims["sub"], groups)

    def _has(self, kind: str, namespace: str, wanted: Object) -> bool:
        found = self.store.list(kind, namespace, fields=f"metadata.name={wanted['name']}")
        return bool(found) and found[0]["metadata"]["uid"] == wanted["uid"]

    # Making them

    def request(self, name: str, namespace: str, body: Object) -> Object:
        """What ``serviceaccounts/NAME/token`` answers."""
        account = self.store.get(SERVICE_ACCOUNT, name, namespace)
        seconds = dig(body, "spec.expirationSeconds") or _SECONDS
        if seconds < _LEAST:
            said = "may not specify a duration less than 10 minutes"
            raise errors.invalid("TokenRequest", "", "spec.expirationSeconds", seconds, said)
        end = self.store.now() + timedelta(seconds=seconds)
        token = self._made_for(account, exp=int(end.timestamp()))
        spec = {"audiences": [_ISSUER], **(body.get("spec") or {}), "expirationSeconds": seconds}
        status = {"token": token, "expirationTimestamp": timestamp(end)}
        metadata = {"name": name, "namespace": namespace, "creationTimestamp": timestamp(self.store.now())}
        made = {"kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1"}
        return {**made, "metadata": metadata, "spec": spec, "status": status}

    def fill(self, namespace: str) -> None:
        """Put tokens without an end into the Secrets that were made to hold one."""
        for secret in self.store.list("secrets", namespace, fields=f"type={SECRET_TYPE}"):
            metadata = secret["metadata"]
            name = (metadata.get("annotations") or {}).get(_NAME, "")
            found = self.store.list(SERVICE_ACCOUNT, namespace, fields=f"metadata.name={name}")
            if found and not (secret.get("data") or {}).get("token"):
                token = self._made_for(found[0], secret={"name": metadata["name"], "uid": metadata["uid"]})
                data = {"token": token.encode(), "ca.crt": self.ca, "namespace": namespace.encode()}
                patch = {"data": {key: b64encode(value).decode() for key, value in data.items()}}
                self.store.patch("secrets", metadata["name"], patch, namespace)

    def _made_for(self, account: Object, secret: Object | None = None, **claims: Any) -> str:
        metadata = account["metadata"]
        name, namespace = metadata["name"], metadata["namespace"]
        of = {"namespace": namespace, "serviceaccount": {"name": name, "uid": metadata["uid"]}}
        said: Object = {"iss": _ISSUER, "aud": [_ISSUER], "sub": f"system:serviceaccount:{namespace}:{name}"}
        said["iat"] = int(self.store.now().timestamp())
        said["kubernetes.io"] = of | ({"secret": secret} if secret else {})
        return jwt.encode(said | claims, self._key, "HS256")

    @property
    def _key(self) -> bytes:
        # Of the sandbox, so that tokens outlive the process; long enough for what signs them.
        return self.owner.encode().ljust(32, b".")
