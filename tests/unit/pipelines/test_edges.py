"""Edges that say what one job waits for in another, and who heeds them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from airflow.sdk import DAG, Label, TaskGroup

from airflow_provider_soperator.operators.pipeline import (
    SbatchPipeline,
    after,
    afterany,
    aftercorr,
    afternotok,
    afterok,
)
from airflow_provider_soperator.pipelines.graph import PipelineError
from tests.unit.operators.dags import job, links, plain, refused, taken


@pytest.mark.parametrize(
    ("edge", "label"),
    [
        (afterok, "afterok"),
        (afterany, "afterany"),
        (afternotok, "afternotok"),
        (after, "after"),
        (lambda: after(minutes=5), "after+5"),
        (aftercorr, "aftercorr"),
    ],
)
def test_an_edge_is_shown_and_heeded(edge: Callable[[], Any], label: str) -> None:
    with taken() as dag, SbatchPipeline("p") as p:
        job("a", array="0-1") >> edge() >> job("b", array="0-1")
    assert dag.get_edge_info("p.a", "p.b")["label"] == label
    assert links(p, "b") == {"a": label}


def test_it_may_be_said_from_its_end_and_of_several() -> None:
    with taken(), SbatchPipeline("p") as p:
        a, b, c, d = map(job, "abcd")
        c << afterany() << a
        [a, b] >> after() >> d
    assert links(p, "c") == {"a": "afterany"}
    assert links(p, "d") == {"a": "after", "b": "after"}


def test_it_is_about_the_two_also_across_groups() -> None:
    with taken(), SbatchPipeline("p") as p:
        a = job("a")
        with TaskGroup("g"):
            x, y = job("x"), job("y")
        a >> afterany() >> x
    assert links(p, "g.x") == {"a": "afterany"}
    assert (links(p, "g.y"), y.upstream_task_ids) == ({}, {"p.submit"})


def test_with_a_group_it_is_about_each_of_its_ends() -> None:
    with taken(), SbatchPipeline("p") as p:
        a, b = job("a"), job("b")
        with TaskGroup("g") as g:
            job("x") >> job("y")
            job("z")
        a >> afterany() >> g >> afternotok() >> b
    assert links(p, "g.x") == links(p, "g.z") == {"a": "afterany"}
    assert links(p, "g.y") == {"g.x": "afterok"}
    assert links(p, "b") == {"g.y": "afternotok", "g.z": "afternotok"}


def test_other_labels_are_words_for_people() -> None:
    with taken() as dag, SbatchPipeline("p") as p:
        job("a") >> Label("then") >> job("b")
    assert links(p, "b") == {"a": "afterok"}
    assert dag.get_edge_info("p.a", "p.b")["label"] == "then"


@pytest.mark.parametrize("minutes", [-2, 0.5, "5"])
def test_minutes_that_are_none_are_refused_where_they_are_said(minutes: Any) -> None:
    with pytest.raises(PipelineError, match="must be a whole number"):
        after(minutes=minutes)


def test_two_edges_between_two_stages_are_refused() -> None:
    with refused("p.b follows p.a by both after+2 and afterok: say one of them"), SbatchPipeline("p"):
        a, b = job("a"), job("b")
        a >> after(minutes=2) >> b
        a >> afterok() >> b


def test_the_same_said_twice_is_said_once() -> None:
    with taken(), SbatchPipeline("p") as p:
        a, b = job("a"), job("b")
        a >> afterany() >> b
        a >> afterany() >> b
    assert links(p, "b") == {"a": "afterany"}


# ---------------------------------------------------------------------------------------- where nobody heeds them


@pytest.mark.parametrize(
    ("edge", "remedy"),
    [
        (afterany, "say p.a >> clean, and give it trigger_rule='all_done'"),
        (afternotok, "say p.a >> clean, and give it trigger_rule='all_failed'"),
        (after, "say p.a >> clean"),
    ],
)
def test_before_a_task_that_is_no_job(edge: Callable[[], Any], remedy: str) -> None:
    with refused("clean cannot follow p.a by after", "as it is not a job of a pipeline", remedy):
        clean = plain("clean")
        with SbatchPipeline("p"):
            job("a") >> edge() >> clean


def test_before_a_job_in_no_pipeline() -> None:
    with refused("b cannot follow a by afterany, as it is not a job of a pipeline", "say a >> b"):
        job("a") >> afterany() >> job("b")


def test_behind_a_pipeline() -> None:
    with refused("report cannot follow p.a by afterany", "give it trigger_rule='all_done'"):
        with SbatchPipeline("p") as p:
            job("a")
        p >> afterany() >> plain("report")


def test_before_a_pipeline() -> None:
    with refused("the pipeline p cannot follow extract by afterany, only by success: put a task between the two"):
        with SbatchPipeline("p") as p:
            job("a")
        plain("extract") >> afterany() >> p


def test_after_the_end_of_a_pipeline() -> None:
    with refused("p.a >> p.b was said after the end of the pipeline p", "say it within the with block"):
        with SbatchPipeline("p"):
            a, b = job("a"), job("b")
            a >> b
        a >> afterany() >> b


def test_afterok_is_what_an_edge_means_anyway() -> None:
    with taken() as dag:
        with SbatchPipeline("p") as p:
            job("a")
        p >> afterok() >> plain("report")
    assert dag.get_task("report").upstream_task_ids == {"p.a"}


def test_a_plain_task_before_a_stage_is_followed_by_airflow() -> None:
    with DAG("d", schedule=None) as dag, SbatchPipeline("p") as p:
        plain("check") >> afternotok() >> job("mend") >> job("go_on")
    assert dag.get_task("p.mend").trigger_rule == "all_failed"
    assert p.graph.stages.keys() == {"p.go_on"}
