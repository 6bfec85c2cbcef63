"""Whose connection it is, and its token: what everybody may ask."""

from __future__ import annotations

from typing import Any

from nebius.sdk import SDK

from airflow_provider_soperator.nebius.calls import answer
from airflow_provider_soperator.nebius.errors import explained

#: Somebody looks at a form meanwhile.
_LIMITS: dict[str, Any] = {"timeout": 8.0, "per_retry_timeout": 8.0, "auth_timeout": 10.0, "retries": 0}


async def whoami(sdk: SDK) -> str:
    """The account behind an SDK, in words."""
    profile = await answer(sdk.whoami(**_LIMITS), "read", "own profile")
    if account := profile.service_account_profile:
        metadata = account.info.metadata
        return f"service account {metadata.name or metadata.id} of {metadata.parent_id}"
    if user := profile.user_profile:
        return f"user {(user.attributes and user.attributes.email) or user.id}"
    return "nobody in particular"


async def access_token(sdk: SDK) -> str:
    """The token with which the SDK itself would ask."""
    with explained("get", "an access token"):
        token = await sdk.get_token(_LIMITS["auth_timeout"])
        return str(token.token)
