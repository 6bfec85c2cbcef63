"""What jobs have used, by accounting: GPU-hours, memory, and efficiencies as Slurm's ``seff`` computes them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from airflow_provider_soperator.slurm.job_records import AccountingJob, count_gpus, resource
from airflow_provider_soperator.slurm.notations import parse_bytes

_HOUR = 3600.0
_NOTHING = timedelta(0)


@dataclass(frozen=True, kw_only=True)
class Usage:
    """What a job, or a part of one, has used."""

    #: Of its runs before a requeue, too: they were charged as well.
    gpu_seconds: float
    #: Seconds of its CPUs while it had them; and while they computed, if its steps were measured.
    core_seconds: float
    cpu_seconds: float | None
    #: Bytes of memory that it had, and of the most that it used at a time.
    memory: int | None
    peak_memory: int | None


def usage_of(job: AccountingJob) -> Usage:
    """What a job has used: the CPU time of all steps, and the peak of the step with the largest, of all its tasks."""
    runs = (*job.earlier_runs, job)
    cpu_times = [step.cpu_time for step in job.steps if step.cpu_time is not None]
    peaks = [step.total_rss for step in job.steps if step.total_rss]
    return Usage(
        gpu_seconds=sum(count_gpus(run.tres) * (run.elapsed or _NOTHING).total_seconds() for run in runs),
        core_seconds=int(resource(job.tres, "cpu") or 1) * (job.elapsed or _NOTHING).total_seconds(),
        cpu_seconds=sum(cpu_times, _NOTHING).total_seconds() if cpu_times else None,
        memory=parse_bytes(resource(job.tres, "mem")),
        peak_memory=max(peaks, default=None),
    )


def figures(used: Iterable[Usage]) -> dict[str, float | None]:
    """The figures of a job from those of its parts: sums, and of memory the part that came closest to its limit."""
    used = list(used)
    measured = [one for one in used if one.cpu_seconds is not None]
    cores = sum(one.core_seconds for one in measured)
    computed = sum(one.cpu_seconds or 0.0 for one in measured)
    shares = [one.peak_memory / one.memory for one in used if one.peak_memory and one.memory]
    return {
        "gpu_hours": round(sum(one.gpu_seconds for one in used) / _HOUR, 4) if used else None,
        "cpu_efficiency": round(computed / cores, 4) if cores else None,
        "memory_efficiency": round(max(shares), 4) if shares else None,
        "peak_memory": max((one.peak_memory for one in used if one.peak_memory), default=None),
    }


def gauges(report: Mapping[str, Any]) -> list[tuple[str, float | None, dict[str, str]]]:
    """The figures of a report as the names, values and tags of gauges."""
    names = ("elapsed", "gpu_hours", "cpu_efficiency", "memory_efficiency", "peak_memory")
    return [(f"job.{name}", report[name], {"state": report["state"]}) for name in names]


def in_words(report: Mapping[str, Any]) -> str:
    """Figures as a sentence without its subject; empty without any.

    >>> in_words({"gpu_hours": 1.5, "cpu_efficiency": 0.784, "memory_efficiency": 0.25, "peak_memory": 3 << 30})
    'used 1.50 GPU-hours, 78 % of its CPU time, at most 3.00 GiB of memory (25 %)'
    """
    said = []
    if report["gpu_hours"]:
        said.append(f"{report['gpu_hours']:.2f} GPU-hours")
    if report["cpu_efficiency"] is not None:
        said.append(f"{_percent(report['cpu_efficiency'])} of its CPU time")
    if report["peak_memory"] is not None:
        share = report["memory_efficiency"]
        of_all = "" if share is None else f" ({_percent(share)})"
        said.append(f"at most {_size(report['peak_memory'])} of memory{of_all}")
    return f"used {', '.join(said)}" if said else ""


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _size(count: int) -> str:
    return f"{count / 2**30:.2f} GiB" if count >= 1 << 30 else f"{count / 2**20:.1f} MiB"
