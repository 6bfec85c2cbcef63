"""What a pipeline makes of a DAG: which tasks there are, what they follow, and what is submitted together."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
from airflow.sdk import DAG, TaskGroup, task

from airflow_provider_soperator.operators.pipeline import (
    SbatchPipeline,
    after,
    afterany,
    aftercorr,
    afternotok,
)
from airflow_provider_soperator.operators.sbatch import SbatchOperator
from airflow_provider_soperator.pipelines.group import pipeline_of
from tests.unit.operators.dags import job, links, plain, rule, segments, take, taken, upstream

ONE, ALL, ALL_DONE, ALL_FAILED = "one_success", "all_success", "all_done", "all_failed"


def test_a_chain() -> None:
    with taken() as dag, SbatchPipeline("p") as p:
        job("a") >> job("b") >> job("c")
    assert [task.task_id for task in dag.tasks] == ["p.a", "p.b", "p.c", "p.submit", "p.cancel_rest"]
    assert segments(p) == [["a", "b", "c"]]
    assert [upstream(p, name) for name in ("submit", "a", "b", "c")] == [set(), {"submit"}, {"a"}, {"b"}]
    assert upstream(p, "cancel_rest") == {"submit", "c"}
    assert dag.get_task("p.submit").is_setup
    assert dag.get_task("p.cancel_rest").is_teardown


def test_each_kind_of_edge_has_a_rule() -> None:
    with taken(), SbatchPipeline("p") as p:
        a = job("a", array="0-1")
        a >> job("ok")
        a >> afterany() >> job("any")
        a >> afternotok() >> job("not")
        a >> after(minutes=3) >> job("soon")
        a >> aftercorr() >> job("each", array="0-1")
    assert segments(p) == [["a", "ok", "any", "not", "soon", "each"]]
    rules = {name: rule(p, name) for name in segments(p)[0]}
    assert rules == {"a": ALL, "ok": ALL, "any": ALL_DONE, "not": ALL_FAILED, "soon": ONE, "each": ONE}
    # What can begin while another job runs begins once it is submitted.
    assert upstream(p, "soon") == upstream(p, "each") == {"a", "submitted"}
    assert (rule(p, "submitted"), upstream(p, "submitted")) == (ALL, {"submit"})


def test_what_no_rule_can_say_waits_for_all_and_finds_out() -> None:
    with taken(), SbatchPipeline("p") as p:
        a, b, c = map(job, "abc")
        a >> afternotok() >> c
        b >> c
    assert rule(p, "c") == ALL_DONE
    assert links(p, "c") == {"a": "afternotok", "b": "afterok"}


@pytest.mark.parametrize(
    ("given", "kind"), [(ALL, "afterok"), (ALL_DONE, "afterany"), (ALL_FAILED, "afternotok"), (None, "afterok")]
)
def test_a_trigger_rule_says_what_edges_without_a_label_mean(given: str | None, kind: str) -> None:
    options = {"trigger_rule": given} if given else {}
    with taken(), SbatchPipeline("p") as p:
        job("a") >> job("b", **options)
    assert links(p, "b") == {"a": kind}


def test_tasks_around_a_pipeline() -> None:
    with taken() as dag:
        with SbatchPipeline("p") as p:
            a, b, c = map(job, "abc")
            a >> [b, c]
        plain("extract") >> p >> plain("report")
    assert upstream(p, "submit") == {"extract"}
    assert upstream(p, "a") == {"submit"}
    assert dag.get_task("report").upstream_task_ids == {"p.b", "p.c"}


def test_tasks_around_a_pipeline_that_submits_several_times() -> None:
    with taken() as dag:
        with SbatchPipeline("p") as p:
            a, b, c = map(job, "abc")
            a >> plain("check") >> b
            a >> after() >> c
        plain("extract") >> p >> plain("report")
    assert (upstream(p, "submit"), upstream(p, "submit_2")) == ({"extract"}, {"check"})
    assert dag.get_task("report").upstream_task_ids == {"p.b", "p.c"}


# ------------------------------------------------------------------------------------------------ what cuts it


def test_a_plain_task_in_the_middle_cuts_it() -> None:
    with taken(), SbatchPipeline("p") as p:
        job("a") >> plain("check") >> job("b") >> job("c")
    assert segments(p) == [["a"], ["b", "c"]]
    assert upstream(p, "submit_2") == {"check"}
    assert upstream(p, "b") == {"check", "submit_2"}
    # Whatever nobody follows in Slurm may be left over.
    assert upstream(p, "cancel_rest") == {"submit", "submit_2", "a", "c"}


def test_a_plain_task_at_the_side_cuts_off_what_follows_it() -> None:
    with taken(), SbatchPipeline("p") as p:
        a, b, c = map(job, "abc")
        a >> b >> afterany() >> c
        plain("check") >> c
    assert segments(p) == [["a", "b"], ["c"]]
    assert (rule(p, "c"), upstream(p, "c")) == (ALL_DONE, {"b", "check", "submitted_2"})
    assert links(p, "c") == {"b": "afterany"}
    # By then the jobs that it is to follow are known.
    assert upstream(p, "submit_2") == {"check", "submit"}


def test_two_clusters() -> None:
    with taken() as dag, SbatchPipeline("p", slurm_conn_id="east") as p:
        job("a") >> job("b") >> job("c", slurm_conn_id="west") >> job("d", slurm_conn_id="west") >> job("e")
    assert segments(p) == [["a", "b"], ["c", "d"], ["e"]]
    assert p.submits == {"p.submit": "east", "p.submit_2": "west", "p.submit_3": "east"}
    assert [dag.get_task(name).slurm_conn_id for name in p.submits] == ["east", "west", "east"]
    assert dag.get_task("p.cancel_rest").submits == p.submits


def test_a_connection_may_be_a_template() -> None:
    with taken() as dag, SbatchPipeline("p", slurm_conn_id="{{ params.site }}") as p:
        job("a") >> job("b")
    assert segments(p) == [["a", "b"]]
    rest = dag.get_task("p.cancel_rest").prepare_for_execution()
    rest.render_template_fields({"params": {"site": "east"}})
    assert rest.submits == {"p.submit": "east"}


def test_what_only_airflow_can_start_is_a_task_like_any_other() -> None:
    with taken(), SbatchPipeline("p", slurm_conn_id="east") as p:
        a, b, c = job("a"), job("b", slurm_conn_id="west"), job("c", slurm_conn_id="west")
        a >> afterany() >> b >> c
    assert segments(p) == [["a"], ["c"]]
    assert (rule(p, "b"), upstream(p, "b")) == (ALL_DONE, {"a"})
    assert upstream(p, "submit_2") == {"b"}


@pytest.mark.parametrize("edge", [afterany, afternotok])
def test_what_follows_an_end_that_another_try_may_change_is_started_by_airflow(edge: Callable[[], Any]) -> None:
    with taken() as dag, SbatchPipeline("p", default_args={"retries": 1}) as p:
        a, b, c, d = map(job, "abcd")
        a >> edge() >> b
        a >> c
        a >> after() >> d
    assert segments(p) == [["a", "c", "d"]]
    assert upstream(p, "b") == {"a"}
    # Airflow's scope of a setup: b does not run if nothing could be submitted.
    assert upstream(p, "cancel_rest") == {"submit", "b", "c", "d"}
    assert [setup.task_id for setup in dag.get_task("p.b").get_upstreams_only_setups()] == ["p.submit"]


def test_a_result_of_another_stage_cuts_it() -> None:
    with taken(), SbatchPipeline("p") as p:

        @task.sbatch
        def split() -> list[int]:
            return [1, 2]

        @task.sbatch
        def fit(parts: list[int]) -> int:
            return len(parts)

        fit(split()) >> job("report")
    assert segments(p) == [["split"], ["fit", "report"]]
    assert upstream(p, "submit_2") == {"split"}


def test_a_result_in_an_option_cuts_it_too() -> None:
    with taken() as dag:

        @task
        def sizes() -> int:
            return 2

        nodes = sizes()
        with SbatchPipeline("p") as p:
            job("a", nodes=nodes) >> job("b")
            job("c")
    assert sorted(segments(p)) == [["a", "b"], ["c"]]
    assert upstream(p, "submit") == {"sizes"}
    assert dag.get_task("p.a").upstream_task_ids == {"sizes", "p.submit"}


def test_an_early_stage_is_submitted_with_the_one_that_it_may_run_beside() -> None:
    with taken(), SbatchPipeline("p") as p:
        plain("check") >> job("serve") >> after(minutes=1) >> job("load")
    assert segments(p) == [["serve", "load"]]
    assert upstream(p, "load") == {"serve", "submitted"}


def test_a_choice_before_tasks_before_stages_leaves_the_others_out() -> None:
    with taken(), SbatchPipeline("p") as p:

        @task.branch
        def which() -> str:
            return "p.small_data"

        choice = which()
        choice >> plain("small_data") >> job("small")
        choice >> plain("large_data") >> job("large")
    assert segments(p) == [["small"], ["large"]]


# ----------------------------------------------------------------------------------------------- mapped stages


def test_mapped_stages_are_stages() -> None:
    with taken(), SbatchPipeline("p") as p:
        points = SbatchOperator.partial(task_id="points").expand(command=["echo 1", "echo 2"])
        others = SbatchOperator.partial(task_id="others", nodes=2).expand_kwargs([{"command": "true"}])
        job("a") >> points >> afterany() >> others >> after() >> job("b")
    assert segments(p) == [["a", "points", "others", "b"]]
    assert (rule(p, "points"), rule(p, "others"), rule(p, "b")) == (ALL, ALL_DONE, ONE)


def test_a_stage_that_is_mapped_over_the_result_of_another_is_behind_it() -> None:
    with taken(), SbatchPipeline("p") as p:

        @task.sbatch
        def points() -> list[int]:
            return [1, 2]

        SbatchOperator.partial(task_id="fit", command="true").expand(nodes=points()) >> job("best")
    assert segments(p) == [["points"], ["fit", "best"]]


@pytest.mark.parametrize("given_to", ["pipeline", "defaults", "dag", "stage"])
def test_a_mapped_stage_is_on_the_cluster_of_its_pipeline(given_to: str) -> None:
    conn = {"slurm_conn_id": "east"}
    with (
        taken(default_args=conn if given_to == "dag" else {}),
        SbatchPipeline(
            "p", default_args=conn if given_to == "defaults" else {}, **(conn if given_to == "pipeline" else {})
        ) as p,
    ):
        own = conn if given_to == "stage" else {}
        SbatchOperator.partial(task_id="points", **own).expand(command=["echo 1"]) >> job("best", **own)
    assert segments(p) == [["points", "best"]]
    assert p.submits == {"p.submit": "east"}


# ---------------------------------------------------------------------------------------------- groups and DAGs


def test_groups_in_a_pipeline() -> None:
    with taken(), SbatchPipeline("p") as p:
        a, b = job("a"), job("b")
        with TaskGroup("g") as g:
            job("x") >> job("y")
            with TaskGroup("h"):
                job("z")
        a >> g >> b
    (stages,) = segments(p)
    assert (stages[0], set(stages[1:-1]), stages[-1]) == ("a", {"g.x", "g.y", "g.h.z"}, "b")
    assert links(p, "g.x") == links(p, "g.h.z") == {"a": "afterok"}
    assert links(p, "b") == {"g.y": "afterok", "g.h.z": "afterok"}


def test_a_group_with_two_parts_has_the_task_between_them() -> None:
    """Else the two would wait for each other: Airflow 3.4 warns of it, and 3.5 refuses it."""
    with taken() as dag, SbatchPipeline("p") as p:
        with TaskGroup("g"):
            a, b = job("a"), job("b")
            a >> plain("check") >> b
            b >> after() >> job("c")
        with TaskGroup("h"):
            b >> job("d")
    assert segments(p) == [["g.a"], ["g.b", "g.c", "h.d"]]
    assert list(p.submits) == ["p.submit", "p.g.submit_2"]
    assert upstream(p, "g.submit_2") == {"g.check"}
    assert (upstream(p, "g.c"), upstream(p, "h.d")) == ({"g.b", "g.submitted_2"}, {"g.b"})
    assert upstream(p, "cancel_rest") >= {"submit", "g.submit_2"}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        dag.check_cycle()


def test_a_pipeline_in_a_group() -> None:
    with taken() as dag:
        with TaskGroup("g", default_args={"retries": 4}) as g:
            with SbatchPipeline("p") as p:
                job("a") >> job("b")
            p >> plain("report")
        plain("extract") >> g
    assert p.group_id == "g.p"
    assert segments(p) == [["a", "b"]]
    assert dag.get_task("g.p.submit").upstream_task_ids == {"extract"}
    assert dag.get_task("g.p.a").retries == 4


def test_a_pipeline_without_a_prefix() -> None:
    with taken() as dag, SbatchPipeline("p", prefix_group_id=False) as p:
        job("a") >> job("b")
    assert set(dag.task_ids) == {"a", "b", "submit", "cancel_rest"}
    assert p.graph.order == ("a", "b")


def test_two_pipelines_in_a_dag() -> None:
    with taken() as dag:
        with SbatchPipeline("p", slurm_conn_id="east") as p:
            job("a") >> job("b")
        with SbatchPipeline("q", slurm_conn_id="west") as q:
            job("a") >> job("b")
        p >> q
    assert segments(p) == segments(q) == [["a", "b"]]
    assert dag.get_task("q.submit").upstream_task_ids == {"p.b"}
    assert pipeline_of(dag.get_task("p.a")) is p
    assert pipeline_of(dag.get_task("q.a")) is q
    assert pipeline_of(dag.get_task("q.submit")) is None


def test_a_stage_that_follows_one_of_another_pipeline_is_started_by_airflow() -> None:
    with taken() as dag:
        with SbatchPipeline("p"):
            a, b = job("a"), job("b")
            a >> b
        with SbatchPipeline("q") as q:
            c, d, e = map(job, "cde")
            b >> c >> e
            a >> afterany() >> d
    assert segments(q) == [["c", "e"]]
    assert dag.get_task("q.submit").upstream_task_ids == {"p.b"}
    assert (rule(q, "d"), dag.get_task("q.d").upstream_task_ids) == (ALL_DONE, {"p.a"})


def test_default_args_are_for_the_stages() -> None:
    defaults = {"partition": "main", "trigger_rule": ALL_DONE, "pool": "gpus"}
    with taken() as dag, SbatchPipeline("p", default_args=defaults) as p:
        a, b, c = map(job, "abc")
        a >> b
        a >> after() >> c
    assert [dag.get_task(f"p.{name}").job["partition"] for name in "abc"] == ["main"] * 3
    assert links(p, "b") == {"a": "afterany"}
    # Those that the pipeline adds have to do as it needs them to.
    assert {rule(p, name) for name in ("submit", "submitted")} == {ALL}
    assert dag.get_task("p.submit").retries == 2
    assert dag.get_task("p.submit").pool == "gpus"


def test_the_tasks_that_are_added_do_not_wait_for_the_run_before() -> None:
    past = {"depends_on_past": True, "wait_for_downstream": True}
    with taken(default_args=past) as dag, SbatchPipeline("p"):
        a, b = (job(name, **dict.fromkeys(past, False)) for name in "ab")
        a >> after() >> b
    added = [dag.get_task(f"p.{name}") for name in ("submit", "submitted", "cancel_rest")]
    assert not any(getattr(one, name) for one in added for name in past)


def test_a_dag_that_fails_at_once() -> None:
    with taken(fail_fast=True), SbatchPipeline("p") as p:
        a, b = job("a"), job("b")
        a >> afterany() >> b
    assert segments(p) == [["a", "b"]]


def test_tasks_of_the_users_that_set_up_and_tear_down() -> None:
    with taken(), SbatchPipeline("p") as p:
        begin, end = plain("begin").as_setup(), plain("end")
        a, b = job("a"), job("b")
        begin >> a >> afterany() >> b >> end.as_teardown(setups=begin)
    assert segments(p) == [["a", "b"]]
    assert upstream(p, "submit") == {"begin"}


# ------------------------------------------------------------------------------------------- parts and copies


def test_clearing_a_stage_clears_what_submits_and_what_cleans_up() -> None:
    with taken() as dag, SbatchPipeline("p"):
        job("a") >> job("b") >> job("c")
        job("d")
    part = dag.partial_subset(["p.b"], include_downstream=True, include_upstream=False)
    assert set(part.task_ids) == {"p.b", "p.c", "p.submit", "p.cancel_rest"}
    # The part is a DAG, too, in which a stage finds its pipeline.
    part.resolve_template_files()
    found = pipeline_of(part.get_task("p.b"))
    assert found is not None
    assert found.graph.after("p.b") == ("p.c",)


def test_clearing_a_stage_that_begins_early_clears_what_submits_and_what_cleans_up() -> None:
    with taken() as dag, SbatchPipeline("p"):
        job("a") >> after() >> job("b")
    part = dag.partial_subset(["p.b"], include_downstream=True, include_upstream=False)
    assert {"p.b", "p.submit", "p.cancel_rest"} <= set(part.task_ids)


def test_a_copy_is_the_same_pipeline() -> None:
    with taken() as dag, SbatchPipeline("p") as p:
        job("a") >> plain("check") >> job("b")
    again: DAG = copy.deepcopy(dag)
    found = again.task_group.children["p"]
    assert isinstance(found, SbatchPipeline)
    assert (found.graph, found.followed, found.submits) == (p.graph, p.followed, p.submits)
    assert [*found.children] == [*p.children]
    take(again)


# ------------------------------------------------------------------------------------------------ from a dict


def test_a_pipeline_from_a_dict() -> None:
    with taken(default_args={"partition": "main"}) as dag:
        p = SbatchPipeline.of(
            "model",
            {
                "report": {"command": "true", "dependency": "afterany:fit,after:prepare+5,afterok:77,singleton"},
                "fit": {"command": "true", "array": "0-3", "dependency": "afterok:prepare"},
                "prepare": {"command": "true", "partition": "cpu"},
            },
            slurm_conn_id="east",
        )
    assert segments(p) == [["prepare", "fit", "report"]]
    assert links(p, "fit") == {"prepare": "afterok"}
    assert links(p, "report") == {"fit": "afterany", "prepare": "after+5"}
    assert dag.get_task("model.report").job["dependency"] == "afterok:77,singleton"
    assert "dependency" not in dag.get_task("model.fit").job
    assert [dag.get_task(f"model.{name}").job["partition"] for name in ("prepare", "fit")] == ["cpu", "main"]
    assert p.submits == {"model.submit": "east"}
