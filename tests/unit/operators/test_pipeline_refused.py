"""Pipelines that cannot be one: who reads why, knows which stages are meant, and what to write in their place."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

import pytest
from airflow.sdk import DAG, TaskGroup, task, task_group

from airflow_provider_soperator.operators.pipeline import SbatchPipeline, after, afterany, aftercorr, afternotok
from airflow_provider_soperator.operators.sbatch import SbatchOperator
from tests.unit.operators.dags import job, plain, refused, taken

# ------------------------------------------------------------------------------------------------- what is said late


def test_an_edge_to_a_stage_after_the_end() -> None:
    with refused("extract >> p.b was said after the end of the pipeline p", "within the with block, or extract >> p"):
        extract = plain("extract")
        with SbatchPipeline("p"):
            a, b = job("a"), job("b")
            a >> b
        extract >> b


@pytest.mark.parametrize("kind", [job, plain])
def test_an_edge_within_the_pipeline_after_its_end(kind: Any) -> None:
    with refused("p.a >> p.b was said after the end of the pipeline p", "say it within the with block"):
        with SbatchPipeline("p"):
            a, b = kind("a"), job("b")
        a >> b


def test_a_stage_after_the_end() -> None:
    with refused("p.b was put into the pipeline p after its end: say it in the with block"):
        with SbatchPipeline("p") as p:
            job("a")
        job("b", task_group=p)


def test_a_second_with_block() -> None:
    with refused("the pipeline p has ended before: say all of it in one with block"):
        with SbatchPipeline("p") as p:
            job("a")
        with p:
            job("b")


# ------------------------------------------------------------------------------------------------------- groups


def test_a_pipeline_in_a_mapped_group() -> None:
    with refused("the pipeline g.p has to do with the mapped group g: map its stages instead"):

        @task_group
        def g(point: int) -> None:
            with SbatchPipeline("p"):
                job("a", nodes=point)

        g.expand(point=[1, 2])


def test_a_mapped_group_in_a_pipeline() -> None:
    with refused("the pipeline p has to do with the mapped group p.g: map its stages instead"), SbatchPipeline("p"):

        @task_group
        def g(point: int) -> None:
            job("a", nodes=point)

        g.expand(point=[1, 2])


def test_a_pipeline_in_a_pipeline() -> None:
    with (
        refused("the pipelines p.g.q and p are one within the other: make the inner one a TaskGroup"),
        SbatchPipeline("p"),
        TaskGroup("g"),
        SbatchPipeline("q"),
    ):
        job("a")


@pytest.mark.parametrize("name", ["submit", "cancel_rest"])
def test_a_stage_that_is_called_as_one_of_the_pipelines_own_tasks(name: str) -> None:
    with refused(f"there is a p.{name} already", "the pipeline p adds: call yours otherwise"), SbatchPipeline("p"):
        job(name)


def test_two_pipelines_whose_tasks_have_no_prefix() -> None:
    with refused("the pipeline q adds: leave prefix_group_id=False out"):
        for name in "pq":
            with SbatchPipeline(name, prefix_group_id=False):
                job(f"{name}1")


def test_an_empty_pipeline() -> None:
    with refused("the pipeline p has no stages: put SbatchOperators into its with block"), SbatchPipeline("p"):
        plain("a")


def test_a_pipeline_of_which_nothing_can_be_submitted_ahead() -> None:
    with refused("the pipeline p has no job that can be submitted ahead, as p.a", "TaskGroup"), SbatchPipeline("p"):
        plain("check") >> afternotok() >> job("a")


def test_a_mistake_in_the_block_is_not_covered_up() -> None:
    # Without stages it would be refused, too.
    with DAG("d", schedule=None), pytest.raises(ZeroDivisionError), SbatchPipeline("p"):
        plain(1 / 0)  # type: ignore[arg-type]


def test_what_follows_a_block_with_a_mistake_is_not_in_it() -> None:
    with DAG("d", schedule=None) as dag:
        with pytest.raises(ZeroDivisionError), SbatchPipeline("p"):
            raise ZeroDivisionError
        plain("a")
        with pytest.raises(ValueError, match="no stages"), SbatchPipeline("q"):
            pass
        plain("b")
    assert dag.task_ids == ["a", "b"]


# -------------------------------------------------------------------------------------------------------- edges


@pytest.mark.parametrize("through", [job, plain])
def test_a_circle(through: Any) -> None:
    with refused("these wait for each other in a circle: p.a >> p.b >> p.c >> p.a"), SbatchPipeline("p"):
        a, b, c = job("a"), through("b"), job("c")
        a >> b >> c >> a


@pytest.mark.parametrize("given", ["none_failed", "one_failed", "none_failed_min_one_success", "always"])
def test_a_trigger_rule_that_slurm_has_no_word_for(given: str) -> None:
    with refused(f"p.b has the trigger rule {given}", "a >> afterany() >> b"), SbatchPipeline("p"):
        job("a") >> job("b", trigger_rule=given)


@pytest.mark.parametrize("edge", [after, aftercorr])
def test_early_edges_to_what_slurm_does_not_know(edge: Any) -> None:
    with refused("p.b cannot follow p.a by after", "not a job of the pipeline p: say afterok()"), SbatchPipeline("p"):
        plain("a") >> edge() >> job("b", array="0-1")
    with refused("by after", "it is on another cluster (east): say afterok()"), SbatchPipeline("p"):
        job("a", slurm_conn_id="east", array="0-1") >> edge() >> job("b", slurm_conn_id="west", array="0-1")
    with (
        refused("p.b cannot follow p.a by after", "its job is not submitted ahead: say afterok()"),
        SbatchPipeline("p"),
    ):
        plain("check") >> afternotok() >> job("a", array="0-1") >> edge() >> job("b", array="0-1")
    with refused("q.b cannot follow p.a by after", "not a job of the pipeline q"):
        with SbatchPipeline("p"):
            a = job("a", array="0-1")
        with SbatchPipeline("q"):
            a >> edge() >> job("b", array="0-1")


def test_an_early_edge_to_a_stage_whose_result_is_needed() -> None:
    with refused("p.fit cannot follow p.split by after, as p.fit needs its result"), SbatchPipeline("p"):

        @task.sbatch
        def split() -> int:
            return 1

        @task.sbatch
        def fit(parts: int) -> int:
            return parts

        parts = split()
        parts >> after() >> fit(parts)


def test_minutes_after_the_beginning_have_their_name() -> None:
    with refused("after('5m') is no edge: write after(), or after(minutes=5)"):
        after("5m")


def test_an_early_stage_that_is_to_wait_for_more() -> None:
    with refused("cannot be submitted with it", "wait for p.e: have p.a follow p.e, and not p.b"), SbatchPipeline("p"):
        a, b = job("a"), job("b")
        a >> after() >> b
        plain("e") >> b
    with refused("cannot be submitted with it", "wait for p.e: have p.a follow p.e, too"), SbatchPipeline("p"):
        a, b = job("a"), job("b")
        a >> after() >> b
        plain("e") >> job("x") >> b
    with refused("p.b may begin while p.a runs (after)", "leave p.e >> p.b out"), SbatchPipeline("p"):
        a, b = job("a"), job("b")
        a >> after() >> b
        plain("e") >> [a, b]
    with refused("p.b may begin while p.a runs (after)", "p.x, too: leave p.x >> p.b out"), SbatchPipeline("p"):
        a, b = job("a"), job("b")
        plain("e") >> a >> after() >> b
        job("x") >> b


def test_arrays_that_do_not_go_together() -> None:
    with refused("the first has 0-3 and the second 0-4: give both the same array="), SbatchPipeline("p"):
        job("a", array="0-3") >> aftercorr() >> job("b", array="0-4")
    with refused("aftercorr joins the elements of two arrays, but p.b is none"), SbatchPipeline("p"):
        job("a", array="0-3") >> aftercorr() >> job("b")


def test_another_cluster_by_an_option() -> None:
    said = (
        "p.a is to run on another cluster by clusters=, where the ids of other jobs mean nothing: give it a connection"
    )
    with refused(said), SbatchPipeline("p"):
        job("a", clusters="west")
    with refused(said), SbatchPipeline("p", default_args={"clusters": "west"}):
        SbatchOperator.partial(task_id="a").expand(command=["true"])
    with refused(said), SbatchPipeline("p"):
        SbatchOperator.partial(task_id="a", command="true").expand(clusters=["west"])


@pytest.mark.parametrize("expand", ["expand", "expand_kwargs"])
def test_a_stage_on_several_clusters(expand: str) -> None:
    with refused("p.a is mapped over slurm_conn_id", "make a stage for each"), SbatchPipeline("p"):
        stage = SbatchOperator.partial(task_id="a", command="true")
        if expand == "expand":
            stage.expand(slurm_conn_id=["east", "west"])
        else:
            stage.expand_kwargs([{"slurm_conn_id": "east"}, {"slurm_conn_id": "west"}])


def test_a_choice_right_before_stages() -> None:
    with refused("p.which chooses between tasks", "of p.a, p.b: put an EmptyOperator between"), SbatchPipeline("p"):

        @task.branch
        def which() -> str:
            return "p.a"

        which() >> [job("a"), job("b")]


def test_stages_that_set_up_or_tear_down() -> None:
    with refused("p.a is a setup or teardown task", "put it outside the pipeline p"), SbatchPipeline("p"):
        job("a").as_setup() >> job("b")
    with refused("p.b is a setup or teardown task"), SbatchPipeline("p"):
        job("a") >> job("b").as_teardown()


def test_a_setup_task_right_before_what_may_run_when_others_have_failed() -> None:
    with refused("p.b follows the setup task p.begin", "put another task between the two"), SbatchPipeline("p"):
        b = job("b")
        plain("begin").as_setup() >> b
        job("a") >> afterany() >> b


# ------------------------------------------------------------------------------------------------- from a dict


@pytest.mark.parametrize(
    ("dependency", "said"),
    [
        ("afterok:preapre", "fit waits for preapre, which is not a stage of the pipeline: did you mean 'prepare'?"),
        ("afterburst:prepare", "fit: unknown kind of dependency afterburst"),
        ("afterok:fit", "in a circle: p.fit >> p.fit"),
        ("afterok:report", "in a circle: p.fit >> p.report >> p.fit"),
        ("afterok:prepare,after:prepare+5", "p.fit follows p.prepare by both afterok and after+5"),
    ],
)
def test_a_dict(dependency: str, said: str) -> None:
    with refused(said):
        SbatchPipeline.of(
            "p",
            {
                "prepare": {"command": "true"},
                "fit": {"command": "true", "dependency": dependency},
                "report": {"command": "true", "dependency": "afterok:fit"},
            },
        )


def test_an_empty_dict() -> None:
    with refused("the pipeline p has no stages"):
        SbatchPipeline.of("p", {})


@pytest.mark.parametrize("name", ["depends_on_past", "wait_for_downstream"])
def test_stages_that_wait_for_the_run_before(name: str) -> None:
    with refused("p.b has ", name, "does not wait for the DAG run before", "of the pipeline p"), SbatchPipeline("p"):
        job("a") >> job("b", **{name: True})
    with refused("p.a has ", name), SbatchPipeline("p", default_args={name: True}):
        SbatchOperator.partial(task_id="a").expand(command=["true"])


@pytest.mark.parametrize("call", [lambda made: made(1), lambda made: made.expand(x=[1])])
@pytest.mark.parametrize("decorate", [task.run_if, task.skip_if])
def test_stages_with_a_condition(decorate: Any, call: Any) -> None:
    stage = decorate(lambda context: False)(task.sbatch(task_id="b")(lambda x: x))
    with refused("p.b has a condition", "@task.run_if", "its job is submitted ahead"), SbatchPipeline("p"):
        job("a") >> call(stage)
    # Airflow starts it, and asks before.
    with taken(), SbatchPipeline("p"):
        job("a", retries=1) >> afterany() >> call(stage)


@pytest.mark.parametrize("name", ["start_date", "end_date"])
def test_stages_with_dates_of_their_own(name: str) -> None:
    dates = {name: datetime(2027, 1, 1, tzinfo=timezone.utc)}
    with refused("p.b has a start_date or end_date of its own", "in each DAG run"), SbatchPipeline("p"):
        job("a") >> job("b", **dates)
    with refused("p.a has a start_date"), SbatchPipeline("p"):
        SbatchOperator.partial(task_id="a", **dates).expand(command=["true"])
    with taken(), SbatchPipeline("p", default_args=dates):
        job("a") >> job("b")
