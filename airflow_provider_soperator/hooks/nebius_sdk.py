"""From a connection's settings to an SDK, which connects at its first call."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from nebius.aio.token.file import Bearer as FileBearer
from nebius.aio.token.static import NoTokenInEnvError
from nebius.base.resolver import Constant
from nebius.base.service_account.credentials_file import ServiceAccountCredentials
from nebius.base.service_account.service_account import ServiceAccount
from nebius.base.service_account.static import Reader
from nebius.sdk import SDK

from airflow_provider_soperator import __version__
from airflow_provider_soperator.errors import ConnectionMistake
from airflow_provider_soperator.hooks.login import lines_of_key
from airflow_provider_soperator.hooks.nebius_settings import NebiusSettings, is_json
from airflow_provider_soperator.nebius.errors import NebiusUnauthenticated

#: After an outage gRPC would wait for up to two minutes before it connects again.
_MOST_WAIT_TO_RECONNECT_MS = 5_000


def open_sdk(settings: NebiusSettings) -> SDK:
    """An SDK of its own, which the caller closes."""
    options: list[tuple[str, Any]] = [("grpc.max_reconnect_backoff_ms", _MOST_WAIT_TO_RECONNECT_MS)]
    if settings.insecure:
        options.append(("nebius.insecure", True))
    try:
        return SDK(
            resolver=Constant(settings.endpoint) if settings.endpoint else None,
            domain=settings.domain or None,
            options=options,
            credentials=_credentials(settings),
            user_agent_prefix=f"airflow-provider-soperator/{__version__}",
        )
    except NoTokenInEnvError as error:
        raise NebiusUnauthenticated(
            f"the connection {settings.conn_id} has no token, and neither has the environment ({error})",
            "set its password to a token, or private_key to a service account's credentials",
        ) from error


def _credentials(settings: NebiusSettings) -> Any:
    if settings.token:
        return settings.token
    if settings.private_key:
        return _service_account(settings, settings.private_key, "private_key")
    if not settings.credentials_file:
        # The SDK looks into the environment for itself.
        return None
    try:
        content = Path(settings.credentials_file).expanduser().read_text()
    except OSError as error:
        raise ConnectionMistake(f"credentials_file cannot be read on this machine: {error}") from error
    if is_json(content) or "-----BEGIN" in content:
        return _service_account(settings, content, "credentials_file")
    return FileBearer(settings.credentials_file)


def _service_account(settings: NebiusSettings, said: str, field: str) -> Reader:
    try:
        document = json.loads(said) if is_json(said) else _document(settings, said)
        credentials = ServiceAccountCredentials.from_json(document).subject_credentials
        return Reader(ServiceAccount(credentials.parse_private_key(), credentials.kid, credentials.sub))
    except Exception as error:
        # Whatever a wrong key leads to, its text may not be told.
        kind = type(error).__name__
        raise ConnectionMistake(
            f"{field} has no RSA key of a service account that could be read ({kind}): it is to be the JSON of its "
            "credentials as Nebius made it, or its key as PEM beside account_id and public_key_id"
        ) from error


def _document(settings: NebiusSettings, pem: str) -> dict[str, Any]:
    """What the JSON would be for a key that stands alone."""
    return {
        "subject-credentials": {
            "alg": "RS256",
            "private-key": lines_of_key(pem),
            "kid": settings.public_key_id,
            "iss": settings.account_id,
            "sub": settings.account_id,
        }
    }
