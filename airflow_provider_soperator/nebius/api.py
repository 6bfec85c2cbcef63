"""Calls of the Nebius API: their timeouts, their errors, and the account that makes them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from airflow_provider_soperator.errors import ConnectionMistake
from airflow_provider_soperator.transports.transport_errors import TransportError

if TYPE_CHECKING:
    from nebius.aio.request import Request
    from nebius.aio.service_error import RequestError
    from nebius.sdk import SDK

T = TypeVar("T")

#: Otherwise the SDK retries a refused key in the background, and tells of no answer: its ``OPTION_REPORT_ERROR``.
_AUTH = {"auth_options": {"token_renew_report_error": "1"}}
#: Seconds for a call with its retries, for one try, and for a call that fetches a token; number of retries.
LIMITS: dict[str, Any] = {"timeout": 20.0, "per_retry_timeout": 8.0, "auth_timeout": 30.0, "retries": 2, **_AUTH}
#: The same for a call that a user waits for, with a form open.
_QUICK: dict[str, Any] = {"timeout": 8.0, "per_retry_timeout": 8.0, "auth_timeout": 10.0, "retries": 0, **_AUTH}


class NebiusError(TransportError):
    """A call of the Nebius API has failed."""


class NebiusUnreachable(NebiusError):
    """No answer, none in time, or an internal error of the API. The call may have taken effect."""

    retryable = True
    unsettled = True


class NebiusBusy(NebiusError):
    """Too many calls at a time."""

    retryable = True


class NebiusUnauthenticated(NebiusError):
    """The API rejects the credentials."""


class NebiusDenied(NebiusError):
    """The account lacks a right."""


class NebiusMissing(NebiusError):
    """The object does not exist."""


class NebiusConflict(NebiusError):
    """Another operation runs on the same object, or has changed it since it was read."""

    retryable = True


class NebiusShortage(NebiusError):
    """Not enough machines, GPUs or disks at present."""

    retryable = True


class NebiusQuota(NebiusError):
    """A quota is exceeded."""


@contextmanager
def explained(verb: str, thing: str) -> Iterator[None]:
    """Turn exceptions of the SDK into our own errors. ``thing`` is the object of the call, with its id."""
    try:
        yield
    except (TransportError, ConnectionMistake):
        # The second is of the file that the SDK reads the key from.
        raise
    except Exception as error:
        raise explain(error, verb, thing) from error


def explain(error: Exception, verb: str, thing: str) -> NebiusError:
    """The error for an exception of the SDK; ``verb`` and ``thing`` name the failed call."""
    from nebius.aio.service_error import RequestError
    from nebius.base.error import SDKError

    if isinstance(error, RequestError):
        return _refusal(error, verb, thing)
    if isinstance(error, (TimeoutError, asyncio.TimeoutError)):
        return NebiusUnreachable(f"could not {verb} {thing}: no answer in time", _IS_IT_THERE)
    if isinstance(error, SDKError):
        return NebiusError(f"could not {verb} {thing} ({error})", "check the Nebius connection")
    return NebiusUnauthenticated(
        f"could not {verb} {thing} ({type(error).__name__}: {error})", "check the credentials of the Nebius connection"
    )


_IS_IT_THERE = "check host and port of the Nebius connection, whether it speaks TLS, and firewalls"
_RENEW = "put a new token into the Nebius connection (they live for 12 hours), or the key of a service account"
_TOKEN = "an access token"
#: Codes with which the exchange of a service account's key for a token says that this is not one, or no longer.
_NO_KEY = {"UNAUTHENTICATED", "PERMISSION_DENIED", "NOT_FOUND", "INVALID_ARGUMENT", "FAILED_PRECONDITION"}


def _refusal(error: RequestError, verb: str, thing: str) -> NebiusError:
    status = error.status
    code, kinds = status.code.name, {said.WhichOneof("details") for said in status.service_errors}
    words = f"could not {verb} {thing} ({status_words(status)})"
    if thing == _TOKEN and code in _NO_KEY:
        return NebiusUnauthenticated(
            f"Nebius refused the key of the service account ({status_words(status)})",
            "check in Nebius that the service account and its public key exist and have not expired, and that the "
            "Nebius connection has both ids",
        )
    if code == "UNAUTHENTICATED":
        return NebiusUnauthenticated(f"Nebius refused the credentials ({status_words(status)})", _RENEW)
    if code == "PERMISSION_DENIED":
        return NebiusDenied(
            f"the account may not {verb} {thing} ({status_words(status)})",
            "give it a role such as viewer (to read) or editor (to change) on the project, and for capacity blocks "
            "viewer on the tenant",
        )
    if code == "NOT_FOUND":
        return NebiusMissing(f"there is no {thing}", "check its id, and the rights of the connection's account")
    for signs, error_of, remedy in _REFUSALS:
        if signs & {code, *kinds}:
            return error_of(words, remedy)
    return NebiusError(words, "correct the request as the message says")


#: Details or codes of a refusal, its error and the remedy; details say more.
_REFUSALS: tuple[tuple[set[str], type[NebiusError], str], ...] = (
    ({"quota_failure"}, NebiusQuota, "raise the quota, or free resources that it counts"),
    ({"not_enough_resources"}, NebiusShortage, "check the limit of the capacity block, and who holds the rest of it"),
    (
        {"resource_conflict", "operation_conflict", "operation_aborted", "ABORTED"},
        NebiusConflict,
        "read it again and retry",
    ),
    ({"internal_error", "INTERNAL", "UNKNOWN"}, NebiusUnreachable, "retry, and give Nebius' support the request's id"),
    ({"UNAVAILABLE", "DEADLINE_EXCEEDED"}, NebiusUnreachable, _IS_IT_THERE),
    # Without details, the exhausted resource may be anything: public addresses, disks, calls per second.
    ({"RESOURCE_EXHAUSTED"}, NebiusBusy, "check the project's quotas and the rate of calls"),
)


def status_words(status: Any) -> str:
    """Join all messages of the API; the SDK's own text of an error omits details."""
    details = [line for said in status.service_errors for line in _details(said)]
    request = f"request {status.request_id}" if status.request_id else ""
    return "; ".join(filter(None, (status.message or status.code.name, *details, request)))


def _details(said: Any) -> Iterator[str]:
    kind = said.WhichOneof("details")
    detail: Any = getattr(said, kind or "details")
    if kind == "quota_failure":
        for one in detail.violations:
            yield f"quota {one.quota}: {one.requested} requested, the limit is {one.limit}. {one.message}".strip(". ")
    elif kind == "not_enough_resources":
        for one in detail.violations:
            yield f"not enough {one.resource_type}{f' ({one.requested} requested)' if one.requested else ''}"
    elif kind == "bad_request":
        for one in detail.violations:
            yield f"{one.field} {one.message}"
    elif kind == "operation_conflict":
        yield f"operation {detail.conflicting_operation_id} is running"
    elif kind == "bad_resource_state":
        yield detail.message


async def answer(method: Callable[..., Request[Any, T]], asked: object, verb: str, thing: str, **options: Any) -> T:
    """Return the answer of a method to what it is asked; ``verb`` and ``thing`` describe it in errors."""
    return await _sent(method(asked, **LIMITS, **options), verb, thing)


async def _sent(request: Request[Any, T], verb: str, thing: str) -> T:
    # Otherwise the SDK waits for a closed port to open, and reports an expired deadline.
    request.wait_for_ready = False
    from nebius.aio.service_error import RequestError

    with explained(verb, thing):
        try:
            return await request
        except RequestError as error:
            if error.status is request.current_status():
                raise
            # It is not of the call, but of the exchange of a key for a token before it.
            raise explain(error, "get", _TOKEN) from error


async def listed(method: Callable[..., Request[Any, Any]], asked: Any, thing: str, of: str = "items") -> list[Any]:
    """Return all that a request for a list is answered with; each page of it has its part in the field ``of``."""
    found = list[Any]()
    while True:
        page = await answer(method, asked, "list", thing)
        found += getattr(page, of)
        if not page.next_page_token:
            return found
        asked.page_token = page.next_page_token


async def whoami(sdk: SDK) -> str:
    """The account behind an SDK, in words."""
    profile = await _sent(sdk.whoami(**_QUICK), "read", "own profile")
    if account := profile.service_account_profile:
        metadata = account.info.metadata
        return f"service account {metadata.name or metadata.id} of {metadata.parent_id}"
    if user := profile.user_profile:
        return f"user {(user.attributes and user.attributes.email) or user.id}"
    return "an unknown account"


async def access_token(sdk: SDK) -> str:
    """The token that the SDK itself uses."""
    with explained("get", _TOKEN):
        token = await sdk.get_token(_QUICK["auth_timeout"], _QUICK["auth_options"])
        return str(token.token)
