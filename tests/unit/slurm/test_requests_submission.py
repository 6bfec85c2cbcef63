"""Who waits for whom among jobs that are submitted once."""

from __future__ import annotations

import pytest

from airflow_provider_soperator.slurm.dependencies import Dependency
from airflow_provider_soperator.slurm.errors import InvalidRequest
from airflow_provider_soperator.slurm.job import BatchJob
from airflow_provider_soperator.slurm.job_description import InvalidJob
from airflow_provider_soperator.slurm.requests.submission import (
    SubmitOnce,
    Together,
    dependency_of,
    in_order,
    readable_job_name,
)
from airflow_provider_soperator.slurm.submission_keys import SubmissionKey, key_of
from tests.submissions import after, new_jobs

KEY, OTHER = SubmissionKey("abcdefghijkl"), SubmissionKey("234567abcdef")


def ids(key: SubmissionKey) -> int:
    return {KEY: 5, OTHER: 12}[key]


@pytest.mark.parametrize(
    ("dependency", "resolved"),
    [
        (Dependency("afterok", KEY, 7, OTHER), "afterok:5:7:12"),
        (Dependency("after", KEY, minutes=5), "after:5+5"),
        (f"afterok:{KEY}_3:{OTHER}_*", "afterok:5_3:12_*"),
        (f"afterok:{KEY}?afternotok:3", "afterok:5?afternotok:3"),
        ([Dependency("aftercorr", KEY), "singleton"], "aftercorr:5,afterany:20:21"),
        ("Singleton", "afterany:20:21"),
    ],
)
def test_ids_take_the_place_of_keys_and_names(dependency: object, resolved: str) -> None:
    job = BatchJob(command="true", dependency=dependency)  # type: ignore[arg-type]
    assert job.problems() == []
    assert dependency_of(job).resolve(ids, same_name=(20, 21)) == resolved


def test_nothing_is_waited_for_where_no_job_has_the_name() -> None:
    assert dependency_of(BatchJob(command="true", dependency="singleton")).resolve(ids) == ""
    assert dependency_of(BatchJob(command="true", dependency="afterok:7,singleton")).resolve(ids) == "afterok:7"


def test_the_numbers_of_jobs_are_told_from_keys() -> None:
    job = BatchJob(command="true", dependency=f"afterok:7:234567,after:9+5,aftercorr:{KEY}:12_3,afterany:2345672345ab")
    assert dependency_of(job).numbers == {7, 234567, 9, 12}


def test_what_slurm_itself_understands_is_left_to_it() -> None:
    assert dependency_of(BatchJob(command="true", dependency="afterok:234567,after:9+5")).is_plain
    assert dependency_of(BatchJob(command="true")).is_plain


@pytest.mark.parametrize(
    "job",
    [
        BatchJob(script="#!/bin/sh\n#SBATCH --dependency=singleton\ntrue\n"),
        BatchJob(command="true", extra_args=["--dependency=singleton"]),
    ],
)
def test_what_the_script_or_further_options_ask_for_counts(job: BatchJob) -> None:
    assert dependency_of(job).is_singleton
    assert dependency_of(BatchJob(script=job.script, command=job.command, dependency="afterok:7")).is_plain


def test_a_script_that_cannot_be_read_is_no_job() -> None:
    with pytest.raises(InvalidJob, match="line 2"):
        dependency_of(BatchJob(script="#!/bin/sh\n#SBATCH --nodes\ntrue\n"))


def test_singleton_is_no_alternative() -> None:
    with pytest.raises(InvalidRequest, match="singleton cannot be joined"):
        dependency_of(BatchJob(command="true", dependency="afterok:7?singleton"))


def test_each_comes_after_those_that_it_waits_for() -> None:
    first, second, third, other = new_jobs(4)
    second = after(second, first)
    third = after(third, second, first)
    assert in_order((third, other, second, first)) == (1, 3, 2, 0)


def test_a_singleton_comes_after_those_of_its_name_that_stand_before_it() -> None:
    first, second, third, fourth, other = new_jobs(5)
    alone = [job.replace(dependency="singleton") for job in (third, fourth)]
    other = other.replace(name=(key_of(str(other.name)) or KEY).name("other"), dependency="singleton")
    assert in_order((first, after(second, first), *alone, other)) == (0, 4, 1, 2, 3)
    # What stands before them waits for them.
    assert in_order((after(first, third), alone[0])) == (1, 0)


def test_jobs_that_wait_for_each_other_are_refused() -> None:
    first, second = new_jobs(2)
    first, second = after(first, second), after(second, first)
    with pytest.raises(InvalidRequest, match=r"wait for each other.*once -> once -> once"):
        in_order((first, second))


def test_keys_of_others_say_nothing_about_the_order() -> None:
    [job] = new_jobs(dependency=Dependency("afterok", KEY))
    assert in_order((job,)) == (0,)
    assert key_of(job.name or "") != KEY
    assert readable_job_name(job) == "once"


def test_a_priority_is_restored_as_a_number() -> None:
    [job] = new_jobs()
    request = SubmitOnce(jobs=(job.replace(priority="TOP"),), together=Together.START)
    # What scontrol knows of the word.
    assert b"4294967293" in request.command().stdin.split(b"\0")
