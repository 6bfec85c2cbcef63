"""Moments as operators and sensors are given them, and as their templates make them."""

from __future__ import annotations

from datetime import datetime


def moment_of(what: str, said: datetime | str | None) -> datetime | None:
    """The moment; None for a template that has made nothing. ``ValueError`` if there can be no such moment.

    >>> moment_of("since", "2026-11-21T20:00:00+01:00").hour
    20
    >>> moment_of("since", "noon")
    Traceback (most recent call last):
    ValueError: since='noon' is no moment, such as 2026-11-21T20:00:00+01:00
    """
    if said is None or said in ("", "None"):
        return None
    import pendulum

    try:
        parsed = pendulum.parse(said) if isinstance(said, str) else said
    except ValueError:
        raise ValueError(f"{what}={said!r} is no moment, such as 2026-11-21T20:00:00+01:00") from None
    if not isinstance(parsed, datetime) or parsed.tzinfo is None:
        raise ValueError(f"{what}={said!r} is no moment with a time zone")
    return parsed
