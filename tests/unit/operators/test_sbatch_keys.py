"""Whose job a try goes on with, whose it cancels, and which it leaves alone: by the keys of a task's tries."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import TaskDeferred

from airflow_provider_soperator.operators.sbatch import SbatchOperator
from airflow_provider_soperator.slurm.submission_keys import key_of_try
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


def begin(run: TaskRun, *, start_from_trigger: bool = False, **options: Any) -> Keys:
    """The keys of the next try, in an Airflow worker."""
    operator = SbatchOperator(
        task_id=run.task_id, command="true", deferrable=True, retries=run.retries, poll_interval=1, **options
    )
    with pytest.raises(TaskDeferred) as deferred:
        operator.execute(run.begin(start_from_trigger=start_from_trigger))
    return read(deferred.value.trigger)


def read(trigger: Any) -> Keys:
    *earlier, own = trigger.keys
    return Keys(own, frozenset(earlier), frozenset(trigger.replaced))


def begin_in_the_triggerer(run: TaskRun) -> Keys:
    operator = SbatchOperator(task_id=run.task_id, command="true", start_from_trigger=True)
    trigger = SbatchStartTrigger(**operator._asked(), **operator.endings())
    trigger.task_instance = run.begin_in_the_triggerer()
    trigger._begin()
    return read(trigger)


EACH_AIRFLOW = pytest.mark.parametrize("airflow", ["no state", "3.3", "3.4"])


@EACH_AIRFLOW
def test_a_retry_goes_on_with_the_job_of_any_try_before_it(airflow: str) -> None:
    run = TaskRun(airflow=airflow)
    first, second, third = begin(run), begin(run), begin(run)
    assert {first.own, second.own} <= third.earlier
    assert first.own in second.earlier
    assert not second.replaced | third.replaced


def test_a_later_try_that_is_ended_before_a_worker_begins_it_ends_the_jobs_of_all_before() -> None:
    run = TaskRun()
    first, second = begin_in_the_triggerer(run), begin_in_the_triggerer(run)
    assert first.all < second.all


@EACH_AIRFLOW
def test_a_run_that_is_made_again_under_its_id_has_nothing_of_the_one_before(airflow: str) -> None:
    deleted, made_again = (TaskRun(airflow=airflow) for _ in range(2))
    assert not begin(deleted).all & begin(made_again).all
    first, again = (begin_in_the_triggerer(TaskRun(airflow=airflow)) for _ in range(2))
    assert not first.all & again.all


@EACH_AIRFLOW
@pytest.mark.parametrize("retries", [0, 2])
def test_a_cleared_task_has_a_new_job_and_the_old_ones_are_cancelled(airflow: str, retries: int) -> None:
    run = TaskRun(airflow=airflow, retries=retries)
    first = begin(run)
    run.clear()
    second = begin(run)
    run.clear()
    third = begin(run)
    assert second.replaced == {first.own}
    assert third.replaced == {first.own, second.own}
    assert not (second.earlier | third.earlier) & {first.own, second.own}
    assert len({first.own, second.own, third.own}) == 3


@EACH_AIRFLOW
def test_a_retry_after_a_clear_goes_on_with_the_tries_since_then(airflow: str) -> None:
    run = TaskRun(airflow=airflow)
    first, second = begin(run), begin(run)
    run.clear()
    third, fourth = begin(run), begin(run)
    assert fourth.replaced == {first.own, second.own}
    assert fourth.earlier == {third.own}


@pytest.mark.parametrize(
    ("airflow", "retries", "in_a_pod"),
    [
        ("no state", 0, True),
        *(("3.3", retries, False) for retries in (0, 2)),
        ("3.3", 0, True),
        *(("3.4", retries, True) for retries in (0, 2)),
    ],
)
def test_a_task_that_is_cleared_while_it_runs_in_a_worker_has_a_new_job(
    airflow: str, retries: int, in_a_pod: bool
) -> None:
    run = TaskRun(airflow=airflow, retries=retries)
    first = begin(run)
    run.clear_while_it_runs(in_a_pod=in_a_pod)
    second = begin(run)
    assert second.replaced == {first.own}
    assert not second.earlier


@pytest.mark.parametrize("airflow", ["3.3", "3.4"])
@pytest.mark.parametrize("start_from_trigger", [False, True])
def test_a_task_without_retries_goes_on_with_its_job_when_a_scheduler_has_died(
    airflow: str, start_from_trigger: bool
) -> None:
    run = TaskRun(airflow=airflow, retries=0)
    first = begin_in_the_triggerer(run) if start_from_trigger else begin(run)
    second = begin(run, start_from_trigger=start_from_trigger)
    assert not second.replaced
    assert first.own in second.earlier
    run.clear()
    third = begin(run, start_from_trigger=start_from_trigger)
    assert {first.own, second.own} <= third.replaced
    fourth = begin(run, start_from_trigger=start_from_trigger)
    assert fourth.replaced == third.replaced
    assert fourth.earlier == {third.own}


def test_a_task_that_lost_its_retries_in_the_dag_has_a_new_job_after_a_clear() -> None:
    """Also where the maximum is the same by chance."""
    run = TaskRun(retries=1)
    first = begin(run)
    run.retries = 0
    run.clear()
    assert begin(run).replaced == {first.own}


def test_a_clear_of_another_task_is_none_of_a_task_with_retries() -> None:
    run = TaskRun()
    first = begin(run)
    run.clear_another()
    second = begin(run)
    assert first.own in second.earlier
    assert not second.replaced


@pytest.mark.parametrize("airflow", ["3.3", "3.4"])
@pytest.mark.parametrize("retries", [1, 5])
def test_a_task_whose_retries_were_changed_in_the_dag_has_a_new_job_after_a_clear_only(
    airflow: str, retries: int
) -> None:
    run = TaskRun(retries=2, airflow=airflow)
    first = begin(run)
    run.retries = retries
    second = begin(run)
    assert first.own in second.earlier
    assert not second.replaced
    run.clear()
    run.retries = 3
    third, fourth = begin(run), begin(run)
    assert third.replaced == fourth.replaced == {first.own, second.own}
    assert not third.earlier
    assert fourth.earlier == {third.own}


def test_what_is_not_to_be_cancelled_is_not_gone_on_with_either() -> None:
    run = TaskRun()
    first = begin(run)
    run.clear()
    second = begin(run, cancel_on_kill=False)
    assert not second.replaced
    assert first.own not in second.all


@EACH_AIRFLOW
def test_a_retry_goes_on_with_the_job_that_the_triggerer_began(airflow: str) -> None:
    run = TaskRun(airflow=airflow)
    first = begin_in_the_triggerer(run)
    second = begin(run, start_from_trigger=True)
    assert first.own in second.earlier
    assert not first.replaced | second.replaced


@EACH_AIRFLOW
def test_a_task_that_is_cleared_after_the_triggerer_began_it_has_a_new_job(airflow: str) -> None:
    run = TaskRun(airflow=airflow)
    first = begin_in_the_triggerer(run)
    run.clear()
    second = begin(run, start_from_trigger=True)
    assert first.own not in second.earlier
    assert first.own in second.replaced


def test_the_iterations_of_a_loop_have_jobs_of_their_own() -> None:
    loop, first, second = uuid.uuid4(), uuid.uuid4(), uuid.uuid4()
    places = [
        {"region_id": uuid.UUID(int=0), "region_index": -1},
        *({"region_id": region, "region_index": index} for region, index in [(loop, 0), (loop, 1), (uuid.uuid4(), 0)]),
        # Mapped in two iterations.
        *(
            {"region_id": region, "region_index": index, "map_index": index}
            for region in (first, second)
            for index in (0, 1)
        ),
    ]
    outside, *inside = (TaskRun(airflow="3.4", **place) for place in places)
    plain, mapped = TaskRun(airflow="3.3"), TaskRun(airflow="3.3", map_index=0)
    for run in (*inside, plain, mapped):
        run.start_date = outside.start_date
    assert begin(outside).own == begin(plain).own
    assert len({begin(run).own for run in (plain, mapped, *inside)}) == 9


def test_a_task_that_is_mapped_in_a_loop_can_share_an_array_with_those_of_its_iteration_alone() -> None:
    regions = [uuid.uuid4(), uuid.uuid4()]
    of = [
        key_of_try(instance(map_index=index, region_id=region, region_index=index), None, 1)
        for region in regions
        for index in (0, 1)
    ]
    assert [key.element for key in of] == [0, 1, 0, 1]
    assert [key.shared == of[0].shared for key in of] == [True, True, False, False]


def instance(**place: Any) -> Any:
    return SimpleNamespace(dag_id="d", run_id="r", task_id="t", **place)
