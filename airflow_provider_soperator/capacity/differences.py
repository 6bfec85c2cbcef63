"""Differences between wish and world: when one has lasted, and a run is to begin."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from airflow_provider_soperator.capacity.allocation import Units, bounds_of

#: Seconds for which wish and world must differ.
_LASTING = 300
#: Seconds of the pause after the first run that has not mended it, which doubles each time, and of the longest one.
_FIRST_PAUSE, _LONGEST_PAUSE = 600, 7200
#: A watcher that was told to stop and is back so many seconds later was paused; sooner, the DAG file was edited.
_PAUSED = 600


class Differences:
    """Differences between wish and world that last, and that no run works on.

    Only what was asked for is put into force: a wish that has been in force, or that has taken the place of another
    while this looked on. What was wished for when a DAG was switched on is left to the person who has switched it on.
    ``state`` has plain values, from which another process goes on.
    """

    def __init__(self, memory: Mapping[str, Any] | None = None) -> None:
        new = {"wished": None, "is_asked": False, "looked": 0, "since": None, "told": 0, "pause": 0, "stopped": False}
        self.state: dict[str, Any] = {**new, **(memory or {})}

    def look(self, wished: Mapping[str, Units], now: datetime, *, is_different: bool, is_busy: bool) -> bool:
        """Note what is wished for, if the world differs from it, and if a run is at it; True if one shall begin."""
        state, at = self.state, now.timestamp()
        if state["stopped"] and at - state["looked"] > _PAUSED:
            state["wished"] = None
        said = json.dumps({target: bounds_of(units) for target, units in wished.items()}, sort_keys=True)
        if said != state["wished"]:
            state |= {"wished": said, "is_asked": state["wished"] is not None, "since": None, "pause": 0}
        is_due = at - state["told"] >= state["pause"]
        state |= {"looked": at, "stopped": False}
        if is_busy or not is_different:
            state |= {"since": None} if is_busy else {"since": None, "is_asked": True}
            state["pause"] = 0 if is_due and not is_different else state["pause"]
            return False
        state["since"] = state["since"] or at
        if not state["is_asked"] or not is_due or at - state["since"] < _LASTING:
            return False
        state |= {"told": at, "pause": min(max(2 * state["pause"], _FIRST_PAUSE), _LONGEST_PAUSE)}
        return True
