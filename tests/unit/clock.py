"""Time that hardly passes: a test may begin an hour after it was collected, and what is to come would have come."""

from __future__ import annotations

from datetime import datetime, timezone, tzinfo


class StoppedClock:
    """In the place of ``datetime``: a microsecond goes by whenever it is asked for the time."""

    def __init__(self, now: datetime) -> None:
        self._now = now

    def now(self, zone: tzinfo = timezone.utc) -> datetime:
        self._now += datetime.resolution
        return self._now.astimezone(zone)
