"""Whose job a try goes on with, whose it cancels, and which it leaves alone: by the keys of a task's tries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from airflow.sdk.exceptions import TaskDeferred

from airflow_provider_soperator.operators.sbatch import SbatchOperator
from airflow_provider_soperator.triggers.sbatch import SbatchStartTrigger
from tests.unit.operators.task_runs import TaskRun


@dataclass(frozen=True)
class Keys:
    own: str
    #: Of tries whose jobs this one may go on with.
    earlier: frozenset[str]
    #: Of tries whose jobs it cancels.
    replaced: frozenset[str]

    @property
    def all(self) -> frozenset[str]:
        return self.earlier | self.replaced | {self.own}


def begin(run: TaskRun, **options: Any) -> Keys:
    """The keys of the next try, in an Airflow worker."""
    operator = SbatchOperator(
        task_id=run.task_id, command="true", deferrable=True, retries=run.retries, poll_interval=1, **options
    )
    with pytest.raises(TaskDeferred) as deferred:
        operator.execute(run.begin())
    return read(deferred.value.trigger)


def read(trigger: Any) -> Keys:
    *earlier, own = trigger.keys
    return Keys(own, frozenset(earlier), frozenset(trigger.replaced))


def begin_in_the_triggerer(run: TaskRun) -> Keys:
    operator = SbatchOperator(task_id=run.task_id, command="true", start_from_trigger=True)
    trigger = SbatchStartTrigger(**operator._asked())
    trigger.task_instance = run.begin_in_the_triggerer()
    return read(trigger._start())


OLD_AND_NEW = pytest.mark.parametrize("is_old", [False, True])


@OLD_AND_NEW
def test_a_retry_goes_on_with_the_job_of_any_try_before_it(is_old: bool) -> None:
    run = TaskRun(is_old=is_old)
    first, second, third = begin(run), begin(run), begin(run)
    assert {first.own, second.own} <= third.earlier
    assert first.own in second.earlier
    assert not second.replaced | third.replaced


@OLD_AND_NEW
def test_a_run_that_is_made_again_under_its_id_has_nothing_of_the_one_before(is_old: bool) -> None:
    deleted, made_again = (TaskRun(is_old=is_old) for _ in range(2))
    assert not begin(deleted).all & begin(made_again).all


def test_two_airflows_whose_runs_begin_at_the_same_moment_share_nothing() -> None:
    staging, production = TaskRun(), TaskRun()
    staging.start_date = production.start_date
    assert not begin(staging).all & begin(production).all
    staging.clear()
    assert not begin(staging).all & begin(production).all


@OLD_AND_NEW
def test_a_cleared_task_has_a_new_job_and_the_old_ones_are_cancelled(is_old: bool) -> None:
    run = TaskRun(is_old=is_old)
    first, second = begin(run), begin(run)
    run.clear()
    third = begin(run)
    run.clear()
    fourth, fifth = begin(run), begin(run)
    assert third.replaced == {first.own, second.own}
    assert fourth.replaced == fifth.replaced == {first.own, second.own, third.own}
    assert not (fourth.earlier | third.earlier) & {first.own, second.own, third.own}
    assert fourth.own in fifth.earlier
    assert len({first.own, second.own, third.own, fourth.own, fifth.own}) == 5


def test_a_task_that_is_cleared_while_it_runs_in_a_worker_has_a_new_job() -> None:
    run = TaskRun()
    first = begin(run)
    run.clear_while_it_runs()
    second, third = begin(run), begin(run)
    assert second.replaced == third.replaced == {first.own}
    assert first.own not in second.earlier | third.earlier
    assert second.own in third.earlier


@pytest.mark.parametrize("retries", [0, 1, 5])
def test_a_task_whose_retries_were_changed_in_the_dag_has_a_new_job_after_a_clear_only(retries: int) -> None:
    run = TaskRun(retries=2)
    first = begin(run)
    run.retries = retries
    second = begin(run)
    assert first.own in second.earlier
    assert not second.replaced
    run.clear()
    run.retries = 3
    third, fourth = begin(run), begin(run)
    assert third.replaced == fourth.replaced == {first.own, second.own}
    assert not third.earlier & {first.own, second.own}
    assert third.own in fourth.earlier


def test_a_clear_that_leaves_the_run_as_it_is_counts_as_well() -> None:
    run = TaskRun()
    first, trace = begin(run), run.context_carrier
    run.clear()
    run.context_carrier = trace
    assert begin(run).replaced == {first.own}


def test_what_is_not_to_be_cancelled_is_not_gone_on_with_either() -> None:
    run = TaskRun()
    first = begin(run)
    run.clear_while_it_runs()
    second = begin(run, cancel_on_kill=False)
    assert not second.replaced
    assert first.own not in second.all


@OLD_AND_NEW
def test_a_retry_goes_on_with_the_job_that_the_triggerer_began(is_old: bool) -> None:
    run = TaskRun(is_old=is_old)
    first = begin_in_the_triggerer(run)
    second = begin(run)
    assert first.own in second.earlier
    assert not first.replaced | second.replaced


@OLD_AND_NEW
def test_a_task_that_is_cleared_after_the_triggerer_began_it_has_a_new_job(is_old: bool) -> None:
    run = TaskRun(is_old=is_old)
    first = begin_in_the_triggerer(run)
    run.clear()
    assert first.own not in begin(run).earlier
