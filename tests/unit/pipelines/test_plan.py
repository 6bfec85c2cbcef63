"""What of a pipeline is submitted, by what has become of the tasks until then."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_soperator.pipelines.graph import KINDS, Graph, Link, Stage, is_met
from airflow_provider_soperator.pipelines.plan import Plan, States, Term, plan

ENDED = ("success", "failed", "upstream_failed", "skipped", "removed")
#: Of tasks that are to run, or to run again.
TO_RUN = (None, "restarting")
#: Of tasks that have a job, or find one when they begin.
UNDER_WAY = ("running", "deferred", "scheduled", "queued")
#: Of tasks that run sooner or later, and have no job now that counts.
WAITING = ("up_for_retry", "up_for_reschedule")
STATES = (*ENDED, *TO_RUN, *UNDER_WAY, *WAITING)


def planned(states: dict[str, States], jobs: dict[tuple[str, int], str] | None = None, **links: Link) -> Plan:
    """The plan for stages in a row, of which one may have other links than to the one before it."""
    names = list(states)
    of_stage = {name: (Link(before),) for before, name in itertools.pairwise(names)}
    of_stage |= {name: (link,) for name, link in links.items()}
    graph = Graph({name: Stage(name, "c", of_stage.get(name, ())) for name in names})
    (segment,) = graph.segments
    return plan(graph, segment, states.__getitem__, lambda stage, index: (jobs or {}).get((stage, index)))


def submitted(made: Plan) -> dict[str, tuple[Term, ...]]:
    return {one.stage: one.terms for one in made.submitted}


def test_a_new_run_is_submitted_as_a_whole() -> None:
    made = planned({"a": {-1: None}, "b": {-1: None}, "c": {-1: None}}, c=Link("b", "after", 5))
    assert submitted(made) == {
        "a": (),
        "b": (Term("afterok", new=(("a", -1),)),),
        "c": (Term("after", 5, new=(("b", -1),)),),
    }
    assert made.left_out == {}


@pytest.mark.parametrize("state", TO_RUN)
def test_what_is_to_run_is_submitted(state: str | None) -> None:
    assert list(submitted(planned({"a": {-1: state}}))) == ["a"]


@pytest.mark.parametrize("state", sorted({*STATES} - {*TO_RUN}, key=str))
def test_what_has_run_or_does_is_left_out(state: str) -> None:
    made = planned({"a": {-1: state}})
    assert submitted(made) == {}
    assert made.left_out == {"a": f"it is {state}"}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("state", ENDED)
def test_what_follows_what_has_ended_waits_no_more_or_is_left_out(kind: str, state: str) -> None:
    made = planned({"a": {-1: state}, "b": {-1: None}}, b=Link("a", kind))
    if is_met(kind, state):
        assert submitted(made) == {"b": ()}
    else:
        assert submitted(made) == {}
        assert made.left_out["b"] == f"a, which it was to follow ({kind}), is {state}"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("state", UNDER_WAY)
def test_what_follows_a_job_that_is_there_waits_for_that(kind: str, state: str) -> None:
    minutes = 5 if kind == "after" else 0
    made = planned({"a": {-1: state}, "b": {-1: None}}, {("a", -1): "77"}, b=Link("a", kind, minutes))
    assert submitted(made) == {"b": (Term(kind, minutes, old=("77",)),)}
    assert "a" in made.left_out


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("state", WAITING)
def test_the_job_of_an_earlier_try_is_no_job_to_wait_for(kind: str, state: str) -> None:
    made = planned({"a": {-1: state}, "b": {-1: None}, "c": {-1: None}}, {("a", -1): "77"}, b=Link("a", kind))
    assert submitted(made) == {}
    assert made.left_out["b"] == "the job of a is not known yet"


def test_what_follows_something_that_was_left_out_is_left_out_whatever_its_last_run_has_left() -> None:
    jobs = {("a", -1): "77", ("b", -1): "78", ("c", -1): "79"}
    made = planned({"a": {-1: "up_for_retry"}, "b": {-1: None}, "c": {-1: None}}, jobs)
    assert submitted(made) == {}
    assert made.left_out["c"] == "the job of b is not known yet"


@pytest.mark.parametrize("state", UNDER_WAY)
def test_a_task_that_has_just_begun_has_no_job_yet(state: str) -> None:
    made = planned({"a": {-1: state}, "b": {-1: None}})
    assert made.left_out["b"] == "the job of a is not known yet"


def test_one_reason_is_enough_to_be_left_out() -> None:
    graph = Graph(
        {"a": Stage("a", "c"), "b": Stage("b", "c"), "c": Stage("c", "c", (Link("a"), Link("b"), Link("a", "after")))}
    )
    states: dict[str, States] = {"a": {-1: None}, "b": {-1: "failed"}, "c": {-1: None}}
    made = plan(graph, graph.segments[0], states.__getitem__, lambda *_: None)
    assert list(submitted(made)) == ["a"]
    assert made.left_out == {
        "b": "it is failed",
        "c": "b, which it was to follow (afterok), is failed",
    }


# ------------------------------------------------------------------------------------------------ mapped stages


def test_each_instance_of_a_mapped_stage_is_followed() -> None:
    made = planned({"m": {0: None, 1: None}, "n": {0: None, 1: None, 2: None}})
    assert [(one.stage, one.index) for one in made.submitted] == [("m", 0), ("m", 1), ("n", 0), ("n", 1), ("n", 2)]
    assert submitted(made)["n"] == (Term("afterok", new=(("m", 0), ("m", 1))),)


def test_of_a_mapped_stage_that_was_cleared_in_part_what_was_cleared_is_submitted() -> None:
    states = {0: "success", 1: None, 2: "running", 3: "restarting"}
    made = planned({"m": states, "b": {-1: None}}, {("m", 0): "70", ("m", 2): "72", ("m", 3): "73"})
    assert [str(one) for one in made.submitted] == ["m[1]", "m[3]", "b"]
    # What has succeeded is not waited for, what runs is, and what starts anew by its new job.
    assert submitted(made)["b"] == (Term("afterok", new=(("m", 1), ("m", 3)), old=("72",)),)


def test_an_instance_that_cannot_be_followed_keeps_back_what_follows_all() -> None:
    made = planned({"m": {0: None, 1: "failed"}, "b": {-1: None}})
    assert list(submitted(made)) == ["m"]
    assert made.left_out == {"b": "m, which it was to follow (afterok), is failed"}


def test_a_mapped_stage_that_is_left_out_says_how_its_instances_are() -> None:
    assert planned({"m": {0: "success", 1: "failed", 2: "success"}}).left_out == {"m": "it is failed, success"}


# ------------------------------------------------------------------------------------------------- any pipeline


@st.composite
def runs(draw: st.DrawFn) -> tuple[Graph, dict[str, dict[int, str | None]], dict[tuple[str, int], str]]:
    """A pipeline in the middle of a run, and the jobs that tasks say are theirs: also those of earlier runs."""
    names = [f"s{number}" for number in range(draw(st.integers(1, 6)))]
    stages, states = {}, {}
    for number, name in enumerate(names):
        before = draw(st.lists(st.sampled_from(names[:number]), unique=True)) if number else []
        links = tuple(Link(upstream, draw(st.sampled_from(KINDS))) for upstream in before)
        gates = frozenset(draw(st.sets(st.sampled_from(["x", "y"]))))
        stages[name] = Stage(name, "c", links, gates)
        indices = [-1] if draw(st.booleans()) else range(draw(st.integers(1, 3)))
        states[name] = {index: draw(st.sampled_from(STATES)) for index in indices}
    jobs = {
        (name, index): f"{1000 + position}"
        for position, (name, index) in enumerate((name, index) for name in names for index in states[name])
        if draw(st.booleans())
    }
    return Graph(stages), states, jobs


@given(runs())
def test_a_plan_refers_only_to_what_is_there_by_then(
    run: tuple[Graph, dict[str, dict[int, str | None]], dict[tuple[str, int], str]],
) -> None:
    graph, states, jobs = run
    for segment in graph.segments:
        made = plan(graph, segment, states.__getitem__, lambda stage, index: jobs.get((stage, index)))
        assert {*submitted(made)} | {*made.left_out} == {*segment.stages}
        assert not {*submitted(made)} & {*made.left_out}
        there: set[tuple[str, int]] = set()
        for one in made.submitted:
            # The jobs that it refers to belong to tasks under way, or were submitted before it.
            assert states[one.stage][one.index] in TO_RUN
            for term in one.terms:
                assert {*term.new} <= there
                assert term.new or term.old
                running = {job for (stage, index), job in jobs.items() if states[stage][index] in UNDER_WAY}
                assert {*term.old} <= running
            there.add((one.stage, one.index))


@given(runs())
def test_what_is_submitted_waits_for_all_that_it_follows(
    run: tuple[Graph, dict[str, dict[int, str | None]], dict[tuple[str, int], str]],
) -> None:
    graph, states, jobs = run
    for segment in graph.segments:
        made = plan(graph, segment, states.__getitem__, lambda stage, index: jobs.get((stage, index)))
        for one in made.submitted:
            waited = {to for term in one.terms for to in (*term.new, *term.old)}
            for link in graph[one.stage].links:
                for index, state in states[link.upstream].items():
                    has_come_true = state in ENDED and is_met(link.kind, state)
                    assert has_come_true or {(link.upstream, index), jobs.get((link.upstream, index))} & waited
