"""Seconds since the epoch, as the fleet counts them, and the moments that messages carry."""

from __future__ import annotations

from datetime import datetime, timezone


def moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, timezone.utc)
