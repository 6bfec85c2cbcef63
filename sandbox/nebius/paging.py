"""Lists in pages: a token is the index at which the next page starts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from sandbox.nebius.errors import invalid

T = TypeVar("T")
DEFAULT_PAGE = 100


def page(service: str, items: Sequence[T], size: int, token: str) -> tuple[list[T], str]:
    """The page that ``token`` names, and the token of the next one, empty after the last."""
    if token and not token.isdecimal():
        raise invalid(service, "page_token", f"{token!r} is not a token that this API has given out")
    start = int(token or 0)
    end = start + (size if size > 0 else DEFAULT_PAGE)
    return list(items[start:end]), str(end) if end < len(items) else ""
