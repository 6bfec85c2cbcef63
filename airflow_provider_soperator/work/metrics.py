"""Metrics of this provider among those of Airflow."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

#: What the name of each of this provider's metrics begins with.
PREFIX = "soperator"


def emit(gauges: Iterable[tuple[str, float | None, Mapping[str, str]]], **tags: str) -> None:
    """Set gauges by their names, values and tags, each with ``tags`` as well; what has no value is left out."""
    for name, value, own in gauges:
        if value is not None:
            for backend in _backends():
                backend.gauge(f"{PREFIX}.{name}", value, tags={**tags, **own})


def count(name: str, **tags: str) -> None:
    """Add one to a counter."""
    for backend in _backends():
        backend.incr(f"{PREFIX}.{name}", tags=tags)


def _backends() -> set[Any]:
    from airflow.providers.common.compat.sdk import Stats

    backends: set[Any] = {Stats}
    # Airflow 3.3 has it twice: an Airflow worker sets up the one above, the triggerer the other one.
    with suppress(ImportError):
        from airflow.observability.stats import Stats as OfTriggerer

        backends.add(OfTriggerer)
    return backends
