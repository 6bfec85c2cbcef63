"""What the task that submits leaves for the others, by way of XCom."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_soperator.pipelines.plan import Ahead, AheadJob, ahead_keys
from airflow_provider_soperator.slurm.submission_keys import SubmissionKey

NAMES = st.text("abc._-", min_size=1, max_size=5)
NOON = datetime(2026, 11, 23, 12, tzinfo=timezone.utc)
JOBS = st.builds(AheadJob, st.integers(1, 10**9).map(str), st.just("abcdefghijkl"), st.integers(0, 3))


@given(st.integers(0, 5), st.dictionaries(NAMES, st.dictionaries(st.integers(-1, 5), JOBS)))
def test_it_is_read_as_it_was_left(cleared: int, jobs: dict[str, dict[int, AheadJob]]) -> None:
    left = Ahead(cleared, jobs)
    assert Ahead.read(json.loads(json.dumps(left.write()))) == left


def test_the_jobs_of_some_stages() -> None:
    jobs = {name: {index: AheadJob(f"{name}{index}", "k") for index in (0, 1)} for name in "ab"}
    left = Ahead(0, jobs)
    assert [one.job for one in left.of(["b", "unknown"])] == ["b0", "b1"]
    assert [one.job for one in left.of(jobs)] == ["a0", "a1", "b0", "b1"]


def test_each_job_has_a_key_of_its_own() -> None:
    keys = {
        key.text
        for dag in ("d", "e")
        for run in ("r", "s")
        for task in ("a", "b")
        for index in (-1, 0, 1)
        for begun in (NOON, NOON + timedelta(microseconds=1))
        for key in keys_of(dag, run, task, index, begun)
    }
    assert len(keys) == 2 * 2 * 2 * 3 * 2 * 2
    assert keys_of("d", "r", "a", -1, NOON) == keys_of("d", "r", "a", -1, NOON)


def keys_of(dag: str, run: str, task: str, index: int, begun: datetime) -> list[SubmissionKey]:
    """The keys after a clear."""
    ti = SimpleNamespace(dag_id=dag, run_id=run)
    return ahead_keys(ti, SimpleNamespace(clear_number=1, start_date=begun), task, index)
