"""Tasks about the queue and the jail that could never work: refused as soon as the DAG is read."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest
from airflow.sdk import DAG, BaseOperator
from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_soperator.operators.queue import HoldJobsOperator, UpdateJobsOperator
from airflow_provider_soperator.operators.stats import SlurmStatsOperator


@pytest.mark.parametrize(
    ("operator", "options", "says"),
    [
        (HoldJobsOperator, {}, "job_ids or job_filter, and not both"),
        (HoldJobsOperator, {"job_ids": "1", "job_filter": {"user": "a"}}, "job_ids or job_filter, and not both"),
        (HoldJobsOperator, {"job_filter": {}}, "the whole queue"),
        (HoldJobsOperator, {"job_filter": {"user": ""}}, "the whole queue"),
        (HoldJobsOperator, {"job_filter": {"parition": "main"}}, "unknown condition parition; known are states"),
        (UpdateJobsOperator, {"job_ids": "1"}, "nothing to change: give priority, nice"),
    ],
)
def test_it_is_refused_when_the_dag_is_read(operator: type[Any], options: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says)):
        operator(task_id="task", **options)


@pytest.mark.parametrize(
    ("task", "says"),
    [
        (HoldJobsOperator(task_id="task", job_ids="1, seven"), "job_ids: "),
        (UpdateJobsOperator(task_id="task", job_ids="1", nice="much"), "nice must be a number, got 'much'"),
        (UpdateJobsOperator(task_id="task", job_ids="1", qos=""), "nothing to change: what a template was to give"),
        (UpdateJobsOperator(task_id="task", job_ids="1", time_limit="2h"), "time_limit: '2h' is not a duration"),
        (SlurmStatsOperator(task_id="task", top="all"), "top must be a number of users, got 'all'"),
    ],
)
def test_what_a_template_has_made_of_it(task: Any, says: str) -> None:
    # Before anything is connected to: there is no connection here.
    with pytest.raises(AirflowFailException, match=re.escape(says)):
        task.execute({"ti": None})


@pytest.mark.parametrize(
    ("made", "says"),
    [
        ({"job_filter": {"user": ""}}, "the whole queue"),
        ({"job_filter": {"partition": "main", "user": ""}}, "user is empty, so any would do"),
        ({"job_filter": {"partition": "main", "states": ""}}, "states is empty, so any would do"),
        ({"job_filter": "alice"}, "job_filter='alice' has no conditions"),
        ({"job_filter": None}, "no jobs are named"),
    ],
)
def test_a_template_that_has_made_nothing_means_no_job(made: dict[str, Any], says: str) -> None:
    task = HoldJobsOperator(task_id="task", job_filter={"user": "{{ params.user }}"})
    for name, value in made.items():
        setattr(task, name, value)
    with pytest.raises(AirflowFailException, match=re.escape(says)):
        task.execute({"ti": None})  # type: ignore[typeddict-item]


def test_what_slurm_is_told_to_change() -> None:
    task = UpdateJobsOperator(task_id="task", job_ids="1", priority="7", qos="slow", time_limit=timedelta(hours=2))
    assert task._changes() == (
        {"QOS": "slow", "Priority": "7", "TimeLimit": "0-02:00:00"},
        {"qos": "slow", "priority": 7, "time_limit": timedelta(hours=2)},
    )


class _Later(UpdateJobsOperator):
    """A class of a DAG's author, which gives a change itself."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(nice=1000, **kwargs)


def _of_a_dag(operator: type[BaseOperator], **given: Any) -> Any:
    """A task of a DAG whose jobs have options."""
    options = {"partition": "main", "account": "ml", "time_limit": "1:00:00", "priority": 5}
    with DAG("d", schedule=None, default_args=options):
        return operator(task_id="task", job_filter={"user": "alice"}, **given)


def test_an_option_of_the_dags_own_jobs_is_no_change_of_others() -> None:
    assert _of_a_dag(UpdateJobsOperator, nice=1000)._changes()[0] == {"Nice": "1000"}
    assert _of_a_dag(_Later)._changes()[0] == {"Nice": "1000"}
    # Also the same, if it is given here.
    assert _of_a_dag(UpdateJobsOperator, partition="main")._changes()[0] == {"Partition": "main"}
    with pytest.raises(ValueError, match=r"nothing to change: .* \(those of default_args do not count\)"):
        _of_a_dag(UpdateJobsOperator)


def test_a_mapped_task_changes_what_it_is_given() -> None:
    with DAG("d", schedule=None, default_args={"partition": "main", "qos": "high"}):
        mapped = UpdateJobsOperator.partial(task_id="task", qos="high").expand(job_ids=["1", "2"])
    assert mapped.unmap({"job_ids": "1"})._changes()[0] == {"QOS": "high"}  # type: ignore[attr-defined]


def test_the_log_says_what_is_changed() -> None:
    task = _of_a_dag(UpdateJobsOperator, nice=1000, qos="low")
    task.steps(task._meant())
    assert task.done == "changed to QOS=low, Nice=1000"
