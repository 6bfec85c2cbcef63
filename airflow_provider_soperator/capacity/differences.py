"""Differences between wish and world: when one has lasted, and a run is to begin."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from airflow_provider_soperator.capacity.allocation import Units, bounds_of

#: How long wish and world must differ.
_LASTING = timedelta(minutes=5)
#: The pause after the first run that has not mended it, which doubles each time, and the longest one.
_FIRST_PAUSE, _LONGEST_PAUSE = timedelta(minutes=10), timedelta(hours=2)
#: A watcher that was told to stop and comes back later than this was paused; sooner, the DAG file was edited.
_PAUSED = timedelta(minutes=10)


class Differences:
    """Differences between wish and world that last, and that nobody is at.

    Only what was asked for is put into force: a wish that has been in force, or that has taken the place of another
    while this looked on. What was wished for when a DAG was switched on is left to whoever has switched it on.
    """

    def __init__(self, memory: Mapping[str, Any] | None = None) -> None:
        said = memory or {}
        self._wished: str | None = said.get("wished")
        self._is_asked = bool(said.get("is_asked"))
        self._looked, self._since, self._told = (_moment(said.get(name)) for name in ("looked", "since", "told"))
        self._pause = timedelta(seconds=said.get("pause", 0))
        self._was_stopped = bool(said.get("was_stopped"))

    def memory(self, *, is_stopped: bool = False) -> dict[str, Any]:
        """Plain values, from which another process goes on."""
        moments = {"looked": self._looked, "since": self._since, "told": self._told}
        return {
            "wished": self._wished,
            "is_asked": self._is_asked,
            **{name: moment and moment.isoformat() for name, moment in moments.items()},
            "pause": self._pause.total_seconds(),
            "was_stopped": is_stopped,
        }

    def look(self, wished: Mapping[str, Units], now: datetime, *, is_different: bool, is_busy: bool) -> bool:
        """Note what is wished for, if the world differs from it, and if a run is at it; True if one shall begin."""
        if self._was_stopped and (self._looked is None or now - self._looked > _PAUSED):
            self._wished = None
        self._was_stopped, self._looked = False, now
        said = json.dumps({target: bounds_of(units) for target, units in wished.items()}, sort_keys=True)
        if said != self._wished:
            self._is_asked = self._wished is not None
            self._wished, self._since, self._told, self._pause = said, None, None, timedelta(0)
        is_due = self._told is None or now - self._told >= self._pause
        if is_busy:
            self._since = None
            return False
        if not is_different:
            self._is_asked, self._since = True, None
            if is_due:
                self._told, self._pause = None, timedelta(0)
            return False
        self._since = self._since or now
        if not self._is_asked or not is_due or now - self._since < _LASTING:
            return False
        self._told, self._pause = now, min(max(2 * self._pause, _FIRST_PAUSE), _LONGEST_PAUSE)
        return True


def _moment(said: str | None) -> datetime | None:
    return datetime.fromisoformat(said) if said else None
