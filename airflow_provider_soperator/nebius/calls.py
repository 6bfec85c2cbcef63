"""How the API is called: with an end to every wait, and with what was wrong said at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from airflow_provider_soperator.nebius.errors import explained

if TYPE_CHECKING:
    from nebius.aio.request import Request

T = TypeVar("T")

#: Seconds for a call with all its tries, for one try, and for all of it with a fetch of a token; tries after the first.
LIMITS: dict[str, Any] = {"timeout": 20.0, "per_retry_timeout": 8.0, "auth_timeout": 30.0, "retries": 2}


async def answer(request: Request[Any, T], verb: str, thing: str) -> T:
    """What a request comes to; ``verb`` and ``thing`` say in an error what was asked."""
    # Else a closed port would be one that has not opened yet, and be told of as a deadline that is over.
    request.wait_for_ready = False
    with explained(verb, thing):
        return await request
