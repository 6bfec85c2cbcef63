"""Times in which nodes are unhealthy, each of which is told once, however long it takes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from airflow_provider_soperator.health.findings import NodeHealth


class Episodes:
    """Who has been told of, and whom it is time to tell of now.

    >>> from airflow_provider_soperator.health.findings import Finding, Kind
    >>> sick = NodeHealth("n", (Finding(node="n", kind=Kind.POD, what="there is no Pod", source="kubernetes"),))
    >>> episodes = Episodes()
    >>> [len(episodes.news(unhealthy)) for unhealthy in ({"n": sick}, {"n": sick}, {}, {"n": sick})]
    [1, 0, 0, 1]
    """

    def __init__(
        self,
        lasting: float = 0,
        told: Mapping[str, bool] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        #: Nodes that were told of, and whether it was said that their machines have to go.
        self.told: dict[str, bool] = dict(told or {})
        self._lasting = lasting
        self._since: dict[tuple[str, bool], float] = {}
        self._clock = clock

    def news(self, unhealthy: Mapping[str, NodeHealth]) -> list[NodeHealth]:
        """Those that have been unhealthy for long enough now, or worse than was told."""
        now = self._clock()
        states = {name: any(one.takes_machine for one in health.findings) for name, health in unhealthy.items()}
        self._since = {pair: self._since.get(pair, now) for pair in states.items()}
        self.told = {name: was for name, was in self.told.items() if name in states}
        ripe = [name for name, worse in states.items() if now - self._since[name, worse] >= self._lasting]
        news = [name for name in ripe if name not in self.told or (states[name] and not self.told[name])]
        self.told |= {name: states[name] for name in news}
        return [unhealthy[name] for name in news]
