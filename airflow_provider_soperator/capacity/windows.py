"""The report of a window: what targets could use of a block while it was in force, by looks a minute apart."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from airflow_provider_soperator.capacity.calendar import utc
from airflow_provider_soperator.capacity.figures import Meter
from airflow_provider_soperator.capacity.holdings import Allocation, World
from airflow_provider_soperator.capacity.schedule import ScheduleSegment

#: Seconds between two looks, after which it is unknown what has been between them.
_GAP = 600.0
#: Sums of a meter that are no target's.
_SUMS = ("idle", "limbo", "unused")
#: Reports that an Airflow Variable keeps.
_KEPT = 20


def note(
    state: dict[str, Any], world: World, window: ScheduleSegment, goal: Allocation, now: datetime
) -> dict[str, Any] | None:
    """Note an observation; the report of the window before, if this is the first look at another one.

    ``state`` has plain values, from which another process goes on; it is empty at first.
    """
    at, since = now.timestamp(), utc(window.since).isoformat()
    is_new = (state.get("window"), state.get("since")) != (window.name, since)
    sums = dict(state.get("sums", {}))
    passed = at - sums.get("at", at)
    if passed > _GAP:
        sums["at"], passed = at, 0.0
    meter = Meter(world.gpus, sums)
    meter.see(world, now, {} if is_new else goal)
    state |= {"sums": meter.sums, "measured": state.get("measured", 0.0) + passed}
    report = None
    if is_new:
        if "window" in state:
            report = _report(state, min(state["until"], since))
        state |= {"window": window.name, "since": since, "sums": {"at": at}, "measured": 0.0}
    state["until"] = utc(window.until).isoformat()
    return report


def _report(state: Mapping[str, Any], until: str) -> dict[str, Any]:
    hours = {name: round(seconds / 3600, 2) for name, seconds in state["sums"].items()}
    return {
        "window": state["window"],
        "since": state["since"],
        "until": until,
        "measured_hours": round(state["measured"] / 3600, 2),
        "gpu_hours": {name[1:]: value for name, value in hours.items() if name.startswith(":")},
        **{f"{name}_gpu_hours": hours[name] for name in _SUMS},
    }


def gauges(report: Mapping[str, Any]) -> Iterable[tuple[str, float, Mapping[str, str]]]:
    """The report as metrics: names, values and tags."""
    tags = {"window": report["window"]}
    for name in ("measured_hours", *(f"{name}_gpu_hours" for name in _SUMS)):
        yield f"window.{name}", report[name], tags
    for target, hours in report["gpu_hours"].items():
        yield "window.target_gpu_hours", hours, {**tags, "target": target}


def kept_reports(dag_id: str) -> list[dict[str, Any]]:
    """The reports of the last windows, the newest last."""
    from airflow.sdk import Variable

    found: list[dict[str, Any]] = json.loads(Variable.get(_key(dag_id), default=None) or "[]")
    return found


def keep_report(dag_id: str, report: Mapping[str, Any]) -> None:
    from airflow.sdk import Variable

    Variable.set(_key(dag_id), json.dumps([*kept_reports(dag_id), report][-_KEPT:]))


def _key(dag_id: str) -> str:
    return f"{dag_id}_windows"
