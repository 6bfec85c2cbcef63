"""Calls of the Nebius API: their limits in time, their errors, and the account that makes them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from airflow_provider_soperator.transports.transport_errors import TransportError

if TYPE_CHECKING:
    from nebius.aio.request import Request
    from nebius.aio.service_error import RequestError
    from nebius.sdk import SDK

T = TypeVar("T")

#: Seconds for a call with all its tries, for one try, and for all of it with a fetch of a token; tries after the first.
LIMITS: dict[str, Any] = {"timeout": 20.0, "per_retry_timeout": 8.0, "auth_timeout": 30.0, "retries": 2}
#: The same for a call that a user waits for, with a form open.
_QUICK: dict[str, Any] = {"timeout": 8.0, "per_retry_timeout": 8.0, "auth_timeout": 10.0, "retries": 0}


class NebiusError(TransportError):
    """The Nebius API was asked and did not do it."""


class NebiusUnreachable(NebiusError):
    """There was no answer, or none in time. What was asked may have been done all the same."""

    retryable = True
    unsettled = True


class NebiusBusy(NebiusError):
    """The API is asked for too much at a time."""

    retryable = True


class NebiusUnauthenticated(NebiusError):
    """The API rejects the credentials."""


class NebiusDenied(NebiusError):
    """The account lacks a right."""


class NebiusMissing(NebiusError):
    """There is no such thing."""


class NebiusConflict(NebiusError):
    """Something else is being done to the same thing, or has been done since it was read."""

    retryable = True


class NebiusShortage(NebiusError):
    """There are not enough machines, GPUs or disks at present."""

    retryable = True


class NebiusQuota(NebiusError):
    """A quota stands against it."""


@contextmanager
def explained(verb: str, thing: str) -> Iterator[None]:
    """Turn what the SDK raises into our own errors. ``thing`` is what was asked about, with its id."""
    try:
        yield
    except TransportError:
        raise
    except Exception as error:
        raise explain(error, verb, thing) from error


def explain(error: Exception, verb: str, thing: str) -> NebiusError:
    """Turn an exception of the SDK into the error that says why the API did not ``verb`` a ``thing``."""
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


def _refusal(error: RequestError, verb: str, thing: str) -> NebiusError:
    status = error.status
    code, kinds = status.code.name, {said.WhichOneof("details") for said in status.service_errors}
    words = f"could not {verb} {thing} ({_words(status)})"
    if code == "UNAUTHENTICATED":
        return NebiusUnauthenticated(f"Nebius refused the credentials ({_words(status)})", _RENEW)
    if code == "PERMISSION_DENIED":
        return NebiusDenied(
            f"the account may not {verb} {thing} ({_words(status)})",
            "give it a role such as viewer (to read) or editor (to change) on the project, and for capacity blocks "
            "viewer on the tenant",
        )
    if code == "NOT_FOUND":
        return NebiusMissing(f"there is no {thing}", "see its id, and whether the connection's account may see it")
    if "quota_failure" in kinds:
        return NebiusQuota(words, "have the quota raised, or free what it counts")
    if "not_enough_resources" in kinds:
        return NebiusShortage(words, "see what holds the rest of the capacity block, and its limit")
    if kinds & {"resource_conflict", "operation_conflict", "operation_aborted"} or code == "ABORTED":
        return NebiusConflict(words, "look again and decide anew")
    if code in ("UNAVAILABLE", "DEADLINE_EXCEEDED"):
        return NebiusUnreachable(words, _IS_IT_THERE)
    if code == "RESOURCE_EXHAUSTED":
        # A shortage without details may be anything: public addresses, disks, calls for each second.
        return NebiusBusy(words, "see the project's quotas, and how often it is asked")
    return NebiusError(words, "see what it says of the request")


def _words(status: Any) -> str:
    """Join all that the API said; the SDK's own text of an error leaves details out."""
    details = [line for said in status.service_errors for line in _details(said)]
    request = f"request {status.request_id}" if status.request_id else ""
    return "; ".join(filter(None, (status.message or status.code.name, *details, request)))


def _details(said: Any) -> Iterator[str]:
    kind = said.WhichOneof("details")
    detail: Any = getattr(said, kind or "details")
    if kind == "quota_failure":
        for one in detail.violations:
            yield f"quota {one.quota}: {one.requested} asked for, the limit is {one.limit}. {one.message}".strip(". ")
    elif kind == "not_enough_resources":
        for one in detail.violations:
            yield f"not enough {one.resource_type}{f' ({one.requested} asked for)' if one.requested else ''}"
    elif kind == "bad_request":
        for one in detail.violations:
            yield f"{one.field} {one.message}"
    elif kind == "operation_conflict":
        yield f"operation {detail.conflicting_operation_id} is running"
    elif kind == "bad_resource_state":
        yield detail.message


async def answer(request: Request[Any, T], verb: str, thing: str) -> T:
    """Return the answer to a request; ``verb`` and ``thing`` say in an error what was asked."""
    # Else a closed port would be one that has not opened yet, and be told of as a deadline that is over.
    request.wait_for_ready = False
    with explained(verb, thing):
        return await request


async def whoami(sdk: SDK) -> str:
    """The account behind an SDK, in words."""
    profile = await answer(sdk.whoami(**_QUICK), "read", "own profile")
    if account := profile.service_account_profile:
        metadata = account.info.metadata
        return f"service account {metadata.name or metadata.id} of {metadata.parent_id}"
    if user := profile.user_profile:
        return f"user {(user.attributes and user.attributes.email) or user.id}"
    return "nobody in particular"


async def access_token(sdk: SDK) -> str:
    """The token with which the SDK itself would ask."""
    with explained("get", "an access token"):
        token = await sdk.get_token(_QUICK["auth_timeout"])
        return str(token.token)
