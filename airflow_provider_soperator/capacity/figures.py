"""What a shift costs: seconds of its parts, GPU-seconds that no target could use, lost jobs; and a window's report."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from airflow_provider_soperator.capacity.calendar import utc
from airflow_provider_soperator.capacity.holdings import Allocation, World
from airflow_provider_soperator.capacity.targets.protocol import JobLosses
from airflow_provider_soperator.errors import AirflowAway
from airflow_provider_soperator.values import keep, kept

if TYPE_CHECKING:
    from airflow_provider_soperator.capacity.schedule import ScheduleSegment

#: Seconds between two looks, after which it is unknown what has been between them.
_GAP = 600.0
#: Sums of a meter that are no target's.
_SUMS = ("idle", "limbo", "unused")
#: How jobs end.
_ENDS = ("ended", "requeued", "killed")
#: Reports that an Airflow Variable keeps.
_KEPT = 20


def in_words(report: Mapping[str, Any]) -> str:
    """The report of a shift, as lines of its log, without figures that are unknown.

    >>> hours = {"gpu_hours": {"training": 16.0}, "idle_gpu_hours": 0.5, "limbo_gpu_hours": 0.25}
    >>> print(in_words(hours | {"seconds": 723.0, "jobs": {"ended": 2, "killed": 1}, "bought_gpus": 0}))
    It took 0:12:03
    GPU-hours: training 16.0, idle 0.5, limbo 0.25
    Jobs on nodes that left: 2 ended, 1 killed
    GPUs bought beside the block: 0
    """
    named = {name.removesuffix("_gpu_hours"): hours for name, hours in report.items() if name.endswith("_gpu_hours")}
    jobs = {name: number for name, number in report["jobs"].items() if number is not None}
    parts = {
        "GPU-hours": [f"{name} {hours}" for name, hours in (report["gpu_hours"] | named).items() if hours is not None],
        "Jobs on nodes that left": [f"{number} {name}" for name, number in jobs.items()],
        "GPUs bought beside the block": ["unknown" if report["bought_gpus"] is None else str(report["bought_gpus"])],
    }
    took = timedelta(seconds=round(report["seconds"]))
    return "\n".join([f"It took {took}", *(f"{name}: {', '.join(said)}" for name, said in parts.items() if said)])


@dataclass(frozen=True, kw_only=True)
class Figures:
    """Seconds, GPU-seconds and jobs; None for a part that did not happen."""

    #: From the first release to the last.
    release_seconds: float | None
    #: From then until the last unit was ready at its new target.
    arrive_seconds: float | None
    total_seconds: float
    #: Delay after the wanted time.
    late_seconds: float
    #: GPU-seconds that no target could use.
    limbo_gpu_seconds: float
    #: GPU-seconds of units that were idle, and reserved for the shift.
    idle_gpu_seconds: float
    #: GPU-seconds that were free in the block, while a target was to have them.
    unused_gpu_seconds: float
    #: GPU-seconds that each target could use.
    target_gpu_seconds: dict[str, float]
    jobs_ended: int | None
    jobs_requeued: int | None
    jobs_killed: int | None
    lost_gpu_seconds: float | None
    #: GPUs of the targets' machines that are not of the block; None if that is unknown.
    bought_gpus: int | None

    def describe(self) -> dict[str, Any]:
        return {name: round(value, 1) if isinstance(value, float) else value for name, value in asdict(self).items()}

    def report(self) -> dict[str, Any]:
        """GPU-hours, jobs and bought GPUs, as JSON for an XCom."""
        named = (*_SUMS, "lost")
        seconds = self.target_gpu_seconds | {name: getattr(self, f"{name}_gpu_seconds") for name in named}
        hours = {name: None if value is None else round(value / 3600, 2) for name, value in seconds.items()}
        jobs = {name: getattr(self, f"jobs_{name}") for name in _ENDS}
        return {
            "seconds": round(self.total_seconds, 1),
            "gpu_hours": {name: hours[name] for name in self.target_gpu_seconds},
            **{f"{name}_gpu_hours": hours[name] for name in named},
            "bought_gpus": self.bought_gpus,
            "jobs": jobs,
        }


class Meter:
    """Sums up GPU-seconds between two observations.

    :param gpus: GPUs of one unit of each target
    :param sums: what another process has summed up so far, to continue from
    """

    def __init__(self, gpus: Mapping[str, int], sums: Mapping[str, float] | None = None) -> None:
        self._gpus = gpus
        #: Plain values. A colon is before each name of a target.
        self.sums: dict[str, float] = dict(sums or {})

    def see(self, world: World, now: datetime, wished: Allocation = MappingProxyType({})) -> None:
        """Note what has been since the last observation; ``wished``: the units that each target is to have by now."""
        seen, gpus = world.holdings, self._gpus
        had = {f":{name}": one.at_work * gpus[name] for name, one in seen.items()}
        usable = sum(had.values())
        lacking = sum(max(0, units - seen[name].held) * gpus[name] for name, units in wished.items())
        # The highest number seen so far counts as usable.
        most = max(usable, self.sums.get("usable", 0))
        rates = {
            **had,
            "limbo": most - usable,
            "idle": sum(one.idle * gpus[name] for name, one in seen.items()),
            "unused": min(world.block.free or 0, lacking),
        }
        at = now.timestamp()
        passed = at - self.sums.get("at", at)
        self.sums |= {name: self.sums.get(name, 0.0) + rate * passed for name, rate in rates.items()}
        self.sums |= {"usable": most, "at": at}

    def figures(
        self,
        marks: Mapping[str, float],
        wanted_at: datetime,
        now: datetime,
        losses: Sequence[JobLosses] | None = None,
        bought_gpus: int | None = None,
    ) -> Figures:
        """The figures of a shift until now; ``marks`` are the times at which its parts were over."""
        total = None if losses is None else sum(losses, JobLosses())
        said: dict[str, Any] = {f"{name}_gpu_seconds": self.sums.get(name, 0.0) for name in _SUMS}
        said |= {f"jobs_{name}": getattr(total, name, None) for name in _ENDS}
        marks = {"ended": marks.get("ready", now.timestamp()), **marks}
        return Figures(
            release_seconds=_between(marks, "leaving", "released"),
            arrive_seconds=_between(marks, "released", "ready"),
            total_seconds=_between(marks, "began", "ended") or 0.0,
            late_seconds=max(0.0, marks["ended"] - wanted_at.timestamp()),
            target_gpu_seconds={name: round(self.sums.get(f":{name}", 0.0), 1) for name in self._gpus},
            lost_gpu_seconds=total.lost_gpu_seconds if total else None,
            bought_gpus=bought_gpus,
            **said,
        )


def _between(marks: Mapping[str, float], start: str, end: str) -> float | None:
    return marks[end] - marks[start] if start in marks and end in marks else None


def note_window(
    state: dict[str, Any], world: World, window: ScheduleSegment, goal: Allocation, now: datetime
) -> dict[str, Any] | None:
    """Note an observation; the report of the window before, if this is the first look at another one.

    ``state`` has plain values, from which another process goes on; it is empty at first.
    """
    at, since = now.timestamp(), utc(window.since).isoformat()
    which = [window.name, since]
    is_new = state.get("which") != which
    sums = dict(state.get("sums", {}))
    passed = at - sums.get("at", at)
    if passed > _GAP:
        sums["at"], passed = at, 0.0
    meter = Meter(world.gpus, sums)
    meter.see(world, now, {} if is_new else goal)
    state |= {"sums": meter.sums, "measured": state.get("measured", 0.0) + passed}
    report = None
    if is_new:
        # If an override was removed, or an edit has moved a begin, another one was in force until now.
        since = since if since > state.get("since", "") else utc(now).isoformat()
        if "window" in state:
            report = _window_report(state, min(state["until"], since))
        state |= {"which": which, "window": window.name, "since": since, "sums": {"at": at}, "measured": 0.0}
    state["until"] = utc(window.until).isoformat()
    return report


def _window_report(state: Mapping[str, Any], until: str) -> dict[str, Any]:
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
    return kept(f"{dag_id}_windows", [])


def last_report(dag_id: str) -> dict[str, Any] | None:
    """The report of the last window, as far as it is known: a shift that is over does not fail for it."""
    with suppress(AirflowAway, IndexError):
        return kept_reports(dag_id)[-1]
    return None


def keep_report(dag_id: str, report: Mapping[str, Any]) -> None:
    keep(f"{dag_id}_windows", [*kept_reports(dag_id), report][-_KEPT:])
