"""The outcome of a task by the end of its job: success, a retry, failure for good, or a skip."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from airflow_provider_soperator.slurm.job_failures import JobError, failure
from airflow_provider_soperator.slurm.job_records import JobStatus
from airflow_provider_soperator.slurm.states import JobBase

Action = Literal["retry", "fail", "skip", "succeed"]
#: By a state of Slurm's, LOST, or an exit code.
Policy = Mapping[str | int, Action]

LOST = "LOST"


def check(policy: Policy) -> None:
    """Refuse, when the DAG is parsed, what would never apply."""
    known = {LOST, *(base.value for base in JobBase)}
    for end, action in policy.items():
        if isinstance(end, str) and end not in known:
            raise ValueError(f"on_finish: jobs do not end as {end!r}; the states are {', '.join(sorted(known))}")
        if action not in get_args(Action):
            raise ValueError(f"on_finish: {action!r} must be one of {', '.join(get_args(Action))}")


def settle(status: JobStatus, policy: Policy) -> None:
    """Raise what makes Airflow do as the policy says; where it says nothing, what can help by another try gets one."""
    error = failure(status)
    if error is None:
        return
    action = _action(error, policy)
    if action == "fail":
        raise AirflowFailException(str(error)) from error
    if action == "skip":
        raise AirflowSkipException(str(error)) from error
    if action == "retry":
        raise error


def _action(error: JobError, policy: Policy) -> Action:
    part = error.part
    if part and part.exit_code.code in policy:
        return policy[part.exit_code.code]
    state = part.state.base.value if part and part.state.base else LOST
    return policy.get(state, "retry" if error.retry_helps else "fail")
