"""Access tokens for service accounts: any signed JWT that is still valid is taken, unless its key is to be refused."""

from __future__ import annotations

import jwt
from nebius.api.nebius.iam.v1 import CreateTokenResponse, ExchangeTokenRequest

from sandbox.nebius.errors import ApiError, unauthenticated
from sandbox.nebius.rpc import Gate, Headers, Method

LIFETIME = 12 * 3600


class Tokens:
    """TokenExchangeService. The double knows no keys, so it cannot tell one signature from another."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        #: How keys are refused, by their ids: as the service does one that has expired or is deleted.
        self.refused: dict[str, ApiError] = {}

    def methods(self) -> dict[str, Method]:
        return {"Exchange": self.exchange}

    def exchange(self, request: ExchangeTokenRequest, headers: Headers) -> CreateTokenResponse:
        try:
            signed = jwt.decode_complete(
                request.subject_token,
                options={"verify_signature": False, "verify_exp": True, "require": ["iss", "sub", "exp"]},
            )
        except jwt.PyJWTError as error:
            raise unauthenticated(f"the subject token is no valid JWT: {error}") from error
        if signed["header"].get("alg") != "RS256" or not signed["header"].get("kid"):
            raise unauthenticated("the subject token must be signed with RS256 and name its key (kid)")
        if refusal := self.refused.get(signed["header"]["kid"]):
            raise refusal
        return CreateTokenResponse(
            access_token=self._gate.issue(signed["payload"]["sub"]),
            issued_token_type="urn:ietf:params:oauth:token-type:access_token",
            token_type="Bearer",
            expires_in=LIFETIME,
        )
