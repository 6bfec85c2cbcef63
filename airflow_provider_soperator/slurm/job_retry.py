"""Changes of a job for another try, by how the job of an earlier one has ended."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow_provider_soperator.errors import name_remedy
from airflow_provider_soperator.slurm import hostlist
from airflow_provider_soperator.slurm.job_description import FIELDS, InvalidJob
from airflow_provider_soperator.slurm.job_records import Job, JobStatus, resource
from airflow_provider_soperator.slurm.notations import parse_bytes
from airflow_provider_soperator.slurm.option_values import in_megabytes, in_seconds, is_unlimited

if TYPE_CHECKING:
    from airflow_provider_soperator.slurm.job import BatchJob

_FACTOR = re.compile(r"x([0-9]+(?:\.[0-9]+)?)")
#: Options of which a job has one at most.
_MEMORY = ("mem", "mem_per_cpu", "mem_per_gpu")
_MEBIBYTE = 1 << 20


@dataclass(frozen=True)
class Retry:
    """Another try, with a changed job; ``retry`` makes it."""

    exclude_nodes: bool = False
    changes: Mapping[str, Any] = field(default_factory=dict)

    def changed(self, job: BatchJob, end: JobStatus) -> dict[str, Any]:
        """The fields to change of a job that has ended this way, with their new values."""
        # Imported here, as DAG files import this module.
        from airflow_provider_soperator.slurm.requests.submission import asked_for

        asked = asked_for(job)
        if asked.het:
            raise InvalidJob(["on_finish: retry(...) cannot change a heterogeneous job: use 'retry'"])
        new: dict[str, Any] = {}
        for name, value in self.changes.items():
            factor = _factor(value)
            if factor is None:
                new[name] = value
            elif name == "mem":
                new |= _more_memory(asked, end.telling, factor)
            else:
                new |= _more_time(asked, end.telling, factor)
        failed = [part.nodelist for part in end.parts if part.nodelist and not part.state.succeeded]
        if self.exclude_nodes and failed:
            before = [asked.exclude] if isinstance(asked.exclude, str) else list(asked.exclude or ())
            new["exclude"] = hostlist.fold([*before, *failed])
        return new


def retry(*, exclude_nodes: bool = False, **changes: Any) -> Retry:
    """Try a task once more with a changed job, as an action of ``on_finish``.

        on_finish={"OUT_OF_MEMORY": retry(mem="x2"), "NODE_FAIL": retry(exclude_nodes=True)}

    The changes are options of the job by the names of their parameters. ``mem`` and ``time_limit`` may be multiples of
    what the job of the earlier try had; ``mem`` then stands for ``mem_per_cpu`` and ``mem_per_gpu``, too.

    :param exclude_nodes: leave out the nodes on which it failed
    """
    for name, value in changes.items():
        if name not in FIELDS:
            remedy = name_remedy(name, FIELDS, "expected the name of a parameter")
            raise ValueError(f"retry: a job has no option {name}: {remedy}")
        if _factor(value) is not None and name not in ("mem", "time_limit"):
            raise ValueError(
                f"retry: expected a value of {name}, got {value!r}: only mem and time_limit are multiplied"
            )
    if not (exclude_nodes or changes):
        raise ValueError("retry: nothing changes: use 'retry'")
    return Retry(exclude_nodes, changes)


def _factor(value: Any) -> float | None:
    found = _FACTOR.fullmatch(value) if isinstance(value, str) else None
    return float(found[1]) if found else None


def _more_memory(asked: BatchJob, had: Job | None, factor: float) -> dict[str, Any]:
    for name in _MEMORY:
        amount = getattr(asked, name)
        if amount is not None:
            return {name: math.ceil(in_megabytes(amount) * factor)}
    # The default of the partition or the cluster: of all nodes together.
    total = parse_bytes(resource(had.tres, "mem")) if had else None
    if had is None or not total:
        return {}
    nodes = int(resource(had.tres, "node") or 1)
    return {"mem": math.ceil(total / nodes / _MEBIBYTE * factor)}


def _more_time(asked: BatchJob, had: Job | None, factor: float) -> dict[str, Any]:
    if asked.time_limit is not None and is_unlimited(asked.time_limit):
        return {}
    limit = None if asked.time_limit is None else timedelta(seconds=in_seconds(asked.time_limit))
    if limit is None and had and isinstance(had.time_limit, timedelta):
        limit = had.time_limit
    return {} if limit is None else {"time_limit": limit * factor}
