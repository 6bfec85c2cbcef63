"""What is known of a stage's array when the DAG is parsed."""

from __future__ import annotations

from enum import Enum
from typing import Any, Final

from airflow_provider_soperator.slurm import directives
from airflow_provider_soperator.slurm.job_description import array_indices, array_text
from airflow_provider_soperator.values import is_template


class _Unknown(Enum):
    UNKNOWN = "unknown"


#: A template may make anything of it.
UNKNOWN: Final = _Unknown.UNKNOWN


def array_of(task: Any) -> list[int] | _Unknown | None:
    """The indices of a stage's array; None if its job is none."""
    job = getattr(task, "job", None)
    if job is None:
        # A mapped stage: each of its instances may have another.
        return UNKNOWN
    said = job.get("array")
    if said is None and isinstance(task.script, str) and "\n" in task.script and not is_template(task.script):
        try:
            said = directives.read(task.script)[0].fields.get("array")
        except directives.DirectiveError:
            return UNKNOWN
    elif said is None and (task.script or job.get("remote_script")):
        # It may say so itself, and is not read yet.
        return UNKNOWN
    if said is None:
        return None
    try:
        return UNKNOWN if is_template(said) else array_indices(array_text(said))
    except (TypeError, ValueError):
        # Whoever checks the job says what is wrong with it.
        return UNKNOWN
