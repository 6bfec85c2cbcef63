"""Job ids: every notation is read and written again, and wholes know their parts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_soperator.slurm.job_ids import JobId, JobIdSet

parse = JobId.parse

numbers = st.integers(1, 2**32 - 3)
steps = st.sampled_from(["", "batch", "extern", "interactive", "0", "17", "0+1"])
job_ids = st.one_of(
    st.builds(JobId, numbers, step=steps),
    st.builds(JobId, numbers, element=st.integers(0, 10**6), step=steps),
    st.builds(JobId, numbers, elements=st.sampled_from(["1", "1-5", "1-5,7%2", "0-999:3", "1,3,5-9:2%1"])),
    st.builds(JobId, numbers, part=st.integers(0, 99), step=steps),
)


@given(job_ids)
def test_what_is_written_is_read_again(job: JobId) -> None:
    again = parse(str(job))
    assert again == job
    assert hash(again) == hash(job)
    assert str(again) == str(job)


@pytest.mark.parametrize(
    ("text", "job"),
    [
        ("123", JobId(123)),
        ("123_4", JobId(123, element=4)),
        ("123_[1-5,7%2]", JobId(123, elements="1-5,7%2")),
        ("123+1", JobId(123, part=1)),
        ("123.batch", JobId(123, step="batch")),
        ("123_4.0", JobId(123, element=4, step="0")),
        ("4+1.extern", JobId(4, part=1, step="extern")),
        ("123;soperator\n", JobId(123)),
        (123, JobId(123)),
    ],
)
def test_notations(text: str | int, job: JobId) -> None:
    assert parse(text) == job


def test_the_cluster_makes_no_other_job() -> None:
    assert parse("5;east") == parse("5")
    assert str(parse("5;east")) == "5"


@pytest.mark.parametrize(
    "text", ["", "0", "-1", "abc", "12_", "12_x", "12_[", "12_[]", "12.", "1 2", "12+", "12;", "١٢"]
)
def test_nonsense_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a Slurm job id"):
        parse(text)


def test_elements_of_an_array() -> None:
    assert list(parse("9_[0-9:3,20%2]").indices()) == [0, 3, 6, 9, 20]
    assert list(parse("9_7").indices()) == [7]
    assert list(parse("9").indices()) == []


@given(job_ids)
def test_an_argument_means_the_same_jobs_and_has_no_steps_in_it(job: JobId) -> None:
    again = parse(job.argument)
    assert set(again.indices()) == set(job.indices())
    assert (again.job, again.part, again.step) == (job.job, job.part, job.step)
    assert not set(job.argument) & set(":%")


def test_elements_that_slurm_cut_short_are_not_guessed() -> None:
    with pytest.raises(ValueError, match="truncated the list"):
        list(parse("9_[1,3,5,...]").indices())


@pytest.mark.parametrize(
    ("whole", "part"),
    [
        ("7", "7"),
        ("7", "7_3"),
        ("7", "7+1"),
        ("7", "7_3.batch"),
        ("7_3", "7_3.batch"),
        ("7_[1-5]", "7_3"),
        ("7_[1-5]", "7_[2-3%1]"),
        ("7+1", "7+1.0"),
    ],
)
def test_a_whole_covers_its_parts(whole: str, part: str) -> None:
    assert parse(whole).covers(parse(part))
    assert whole == part or not parse(part).covers(parse(whole))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("7", "8"),
        ("7_3", "7_4"),
        ("7_3", "7"),
        ("7_[1-5]", "7_6"),
        ("7_[0-9:3]", "7_4"),
        ("7+0", "7+1"),
        ("7.0", "7.1"),
    ],
)
def test_what_it_does_not_cover(one: str, other: str) -> None:
    assert not parse(one).covers(parse(other))


def test_order_is_that_of_a_queue() -> None:
    in_order = ["7", "7.0", "7.2", "7.10", "7.batch", "7+0", "7+1", "7_2", "7_10", "7_10.batch", "7_[11-20]", "8"]
    assert [str(job) for job in sorted(map(parse, reversed(in_order)))] == in_order


def test_a_set_finds_what_touches_any_of_it() -> None:
    ids = JobIdSet(map(parse, ["5", "9_3", "11"]))
    touching = ["5", "5_1", "5+1", "9_3", "9_[1-4]", "9", "11.batch"]
    others = ["6", "9_4", "9_[4-9]", "9+1"]
    assert all(ids.touches(parse(text)) for text in touching)
    assert not any(ids.touches(parse(text)) for text in others)
