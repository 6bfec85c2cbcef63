"""A job as plain JSON and back, for whoever must hand it to another process."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from airflow_provider_soperator.slurm import options, terms
from airflow_provider_soperator.slurm.job import BatchJob, ScriptFile

#: What no option says.
_LISTS = ("args", "extra_args")


def plain(job: BatchJob) -> dict[str, Any]:
    """The fields that are set, as texts, numbers, booleans, lists and dicts.

    >>> from datetime import timedelta
    >>> plain(BatchJob(command=["echo", "a"], time_limit=timedelta(hours=2), array=range(3), exclusive=True))
    {'command': ['echo', 'a'], 'exclusive': True, 'time_limit': '0-02:00:00', 'array': '0-2'}
    """
    said = {field.name: getattr(job, field.name) for field in dataclasses.fields(job)}
    return {
        name: _plain(name, value) for name, value in said.items() if value is not None and value not in ((), {}, [])
    }


def _plain(name: str, value: Any) -> Any:
    if name == "het":
        return [plain(component) for component in value]
    if isinstance(value, ScriptFile):
        return dataclasses.asdict(value)
    if isinstance(value, (str, int)):
        return value
    if isinstance(value, Mapping):
        return dict(value)
    if name in _LISTS or name == "command":
        return list(value)
    if name == "array":
        return terms.array_text(value)
    return options.by_field(name, value).kind.write(value)


def job_of(said: Mapping[str, Any]) -> BatchJob:
    """The job that ``plain`` was given; parts of a heterogeneous one may be jobs already."""
    fields = dict(said)
    if "script_file" in fields:
        fields["script_file"] = ScriptFile(**fields["script_file"])
    if "het" in fields:
        fields["het"] = tuple(one if isinstance(one, BatchJob) else job_of(one) for one in fields["het"])
    return BatchJob(**fields)
