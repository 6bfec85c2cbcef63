"""Submission keys: the same everywhere, different for different submissions, found again in any job's name."""

from __future__ import annotations

import subprocess
import sys
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_soperator.slurm.submission_keys import NAME_LIMIT, SubmissionKey, key_of, readable_name, strip_key

IDS = st.text(min_size=0, max_size=40)
PARTS = st.tuples(IDS, IDS, IDS, st.integers(-1, 10**6), st.integers(0, 99) | IDS)


def test_the_key_is_pinned() -> None:
    """A worker of a newer release must find the jobs of an older one."""
    assert SubmissionKey.derive("d", "r", "t", -1, 1).text == "qohpbksvae4y"


def test_the_key_is_the_same_in_another_process() -> None:
    program = (
        "from airflow_provider_soperator.slurm.submission_keys import SubmissionKey;"
        "print(SubmissionKey.derive('d', 'ü', 't', 3, 'g'))"
    )
    said = [
        subprocess.run([sys.executable, "-c", program], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True)
        for seed in ("1", "2")
    ]
    assert {each.stdout.strip() for each in said} == {str(SubmissionKey.derive("d", "ü", "t", 3, "g"))}


@given(PARTS, PARTS)
def test_different_submissions_have_different_keys(
    one: tuple[str, str, str, int, str | int], other: tuple[str, str, str, int, str | int]
) -> None:
    alike = tuple(map(str, one)) == tuple(map(str, other))
    assert (SubmissionKey.derive(*one) == SubmissionKey.derive(*other)) == alike


def test_parts_cannot_be_shifted_into_each_other() -> None:
    assert SubmissionKey.derive("a", "bc", "d", 0, 0) != SubmissionKey.derive("ab", "c", "d", 0, 0)


@given(st.text(), PARTS)
def test_any_name_gives_its_key_back(readable: str, parts: tuple[str, str, str, int, str | int]) -> None:
    key = SubmissionKey.derive(*parts)
    name = key.name(readable)
    assert key_of(name) == key
    assert len(name.encode()) <= NAME_LIMIT
    assert not any(unicodedata.category(letter) in ("Cc", "Cs") or letter in ",'\"" for letter in name)
    assert key.name(name) == name  # a name that has a key keeps one
    assert strip_key(name) == name.removesuffix(key.suffix)


def test_a_long_name_is_cut_between_letters() -> None:
    key = SubmissionKey.derive("d", "r", "t", -1, 1)
    family = "\U0001f468\u200d\U0001f469\u200d\U0001f467"  # one picture of three people
    for filler in range(8):
        name = key.name("x" * filler + family * 40)
        assert strip_key(name).endswith(("x", family, "\U0001f467")), name
    combined = strip_key(key.name("q\u0308" * 200))  # no composed form exists
    assert combined.endswith("\u0308")


@pytest.mark.parametrize(
    "name",
    ["", "job", "job.af-", "job.af-z4kjrjwmwsj", "job.af-Z4KJRJWMWSJ3", "job.af-z4kjrjwmwsj1", "af-z4kjrjwmwsj3"],
)
def test_names_without_a_key(name: str) -> None:
    assert key_of(name) is None
    assert strip_key(name) == name


def test_a_name_of_several_lines_has_its_key() -> None:
    """Names of other people's jobs are as they are: none but ours is cleaned of what ends a line."""
    name = "two\nlines.af-z4kjrjwmwsj3"
    assert key_of(name) == SubmissionKey("z4kjrjwmwsj3")
    assert strip_key(name) == "two\nlines"


def test_a_wrong_key_is_refused() -> None:
    with pytest.raises(ValueError, match="is not a submission key"):
        SubmissionKey("x")


def test_readable_names() -> None:
    assert readable_name("dag", "run", "group.task") == "group.task.dag.run"
    assert readable_name("dag", "run", "task", 0) == "task.0.dag.run"
