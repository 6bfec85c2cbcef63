"""Figures of tasks as metrics of Airflow's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

#: What the name of each of this provider's metrics begins with.
PREFIX = "soperator"


def emit(gauges: Iterable[tuple[str, float | None, Mapping[str, str]]], **tags: str) -> None:
    """Set gauges by their names, values and tags, each with ``tags`` as well; what has no value is left out."""
    from airflow.providers.common.compat.sdk import Stats

    for name, value, own in gauges:
        if value is not None:
            Stats.gauge(f"{PREFIX}.{name}", value, tags={**tags, **own})
