"""Which stage waits for which, and what follows from that."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_soperator.pipelines.graph import (
    KINDS,
    Graph,
    Link,
    PipelineError,
    Stage,
    check_arrays,
    is_met,
    ordered,
)

#: Long enough for a recursion to fail, and for a loop in a loop to take seconds.
MANY = 5_000


def graph(links: dict[str, list[str]], **gates: str) -> Graph:
    """Stages by name, with what each follows: ``a`` or ``afterany:a``."""

    def link(said: str) -> Link:
        kind, _, upstream = said.rpartition(":")
        found = Link.parse(upstream, kind or "afterok")
        assert found is not None
        return found

    return Graph(
        {
            name: Stage(name, "c", tuple(map(link, of_stage)), frozenset([gates[name]] if name in gates else []))
            for name, of_stage in links.items()
        }
    )


def segments(graph: Graph) -> list[tuple[str, ...]]:
    return [segment.stages for segment in graph.segments]


# ------------------------------------------------------------------------------------------------------- links


@pytest.mark.parametrize("kind", KINDS)
def test_a_link_is_read_as_it_is_written(kind: str) -> None:
    minutes = 7 if kind == "after" else 0
    assert Link.parse("a", str(Link("a", kind, minutes))) == Link("a", kind, minutes)


@pytest.mark.parametrize("label", ["", "then", "afterOK", "after+", "afterok:a", "after +5", "singleton"])
def test_other_labels_are_no_links(label: str) -> None:
    assert Link.parse("a", label) is None


@pytest.mark.parametrize("minutes", [-1, 2.5, "5"])
def test_minutes_are_whole_and_not_negative(minutes: int) -> None:
    with pytest.raises(PipelineError, match=r"minutes must be a whole number >= 0, got"):
        Link("a", "after", minutes)


def test_only_after_takes_minutes() -> None:
    with pytest.raises(PipelineError, match="only after takes minutes, afterok does not"):
        Link.parse("a", "afterok+5")


# ------------------------------------------------------------------------------------------------------- order


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), max_size=40), st.randoms())
def test_each_comes_after_those_that_it_waits_for(pairs: list[tuple[int, int]], random: Random) -> None:
    upstream: dict[str, list[str]] = {str(number): [] for number in range(13)}
    for one, other in pairs:
        if one != other:
            upstream[str(max(one, other))].append(str(min(one, other)))
    names = list(upstream)
    random.shuffle(names)
    order = ordered({name: upstream[name] for name in names})
    assert sorted(order) == sorted(upstream)
    assert all(order.index(before) < order.index(name) for name in names for before in upstream[name])


def test_order_is_that_in_which_the_stages_were_named_where_it_can_be() -> None:
    assert graph({"b": [], "a": [], "d": ["c"], "c": ["b"]}).order == ("b", "a", "c", "d")
    assert graph({"prepare": [], "fit": ["prepare"], "alone": []}).order == ("prepare", "fit", "alone")
    assert graph({"fit": ["prepare"], "alone": [], "prepare": []}).order == ("prepare", "fit", "alone")


@pytest.mark.parametrize(
    ("links", "circle"),
    [
        ({"a": ["a"]}, "a >> a"),
        ({"a": ["b"], "b": ["a"]}, "a >> b >> a"),
        ({"z": [], "a": ["z", "c"], "b": ["a"], "c": ["b"]}, "a >> b >> c >> a"),
        ({"y": ["a"], "a": ["b"], "b": ["a"]}, "a >> b >> a"),
    ],
)
def test_a_circle_is_told_as_its_edges_were_written(links: dict[str, list[str]], circle: str) -> None:
    with pytest.raises(PipelineError, match=f"in a circle: {circle}$"):
        graph(links).order  # noqa: B018 - it is computed when it is asked for


# ---------------------------------------------------------------------------------------------------- segments


def test_stages_behind_the_same_tasks_are_submitted_together() -> None:
    one = graph({"a": [], "b": ["a"], "c": [], "d": ["c", "b"], "e": ["d"]}, c="extract")
    assert segments(one) == [("a", "b"), ("c", "d", "e")]
    assert [segment.gates for segment in one.segments] == [frozenset(), {"extract"}]


def test_a_segment_is_on_one_cluster() -> None:
    one = Graph({"a": Stage("a", "east"), "b": Stage("b", "west"), "c": Stage("c", "east", (Link("a"),))})
    assert [(segment.cluster, segment.stages) for segment in one.segments] == [("east", ("a", "c")), ("west", ("b",))]


def test_stages_behind_tasks_of_which_some_are_the_same_are_not_submitted_together() -> None:
    one = graph({"a": [], "b": ["a"], "c": ["a"]}, b="x", c="y")
    assert segments(one) == [("a",), ("b",), ("c",)]


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=20), st.sets(st.integers(0, 9)))
def test_segments_can_be_submitted_one_after_the_other(pairs: list[tuple[int, int]], gated: set[int]) -> None:
    links: dict[str, list[str]] = {str(number): [] for number in range(10)}
    for one, other in pairs:
        if one != other:
            links[str(max(one, other))].append(str(min(one, other)))
    made = graph(links, **{str(number): f"x{number}" for number in gated})
    submitted = list(itertools.chain(*segments(made)))
    assert sorted(submitted) == sorted(links)
    for segment in made.segments:
        for position, name in enumerate(segment.stages):
            # Nothing of the same segment comes later, and nothing of another is behind more tasks.
            assert not set(links[name]) & set(segment.stages[position:])
            theirs = [other.gates for other in made.segments if set(other.stages) & set(links[name])]
            assert all(gates <= segment.gates for gates in theirs)


# ------------------------------------------------------------------------------------------- those that follow


def test_after_are_those_right_after() -> None:
    one = graph({"a": [], "b": ["a"], "c": ["b", "after:a"], "d": ["c"]})
    assert (one.after("a"), one.after("b"), one.after("d")) == (("b", "c"), ("c",), ())


@pytest.mark.parametrize(
    ("state", "doomed"),
    [
        ("failed", {"ok", "corr", "ok_of_ok", "not_of_not"}),
        ("success", {"not", "ok_of_not"}),
        ("skipped", {"ok", "corr", "ok_of_ok", "not", "ok_of_not", "not_of_not"}),
    ],
)
def test_those_that_can_never_run_are_doomed(state: str, doomed: set[str]) -> None:
    one = graph(
        {
            "a": [],
            **{
                "ok": ["a"],
                "corr": ["aftercorr:a"],
                "any": ["afterany:a"],
                "not": ["afternotok:a"],
                "soon": ["after:a"],
            },
            **{"ok_of_ok": ["ok"], "any_of_ok": ["afterany:ok"], "ok_of_any": ["any"], "ok_of_not": ["not"]},
            "not_of_not": ["afternotok:any", "ok"],
        }
    )
    assert set(one.doomed_by("a", state)) == doomed


def test_what_follows_a_failure_by_its_failure_lives() -> None:
    # The one in between never runs, which is a failure to those after it.
    assert graph({"a": [], "b": ["a"], "c": ["afternotok:b"]}).doomed_by("a") == ("b",)


def test_what_a_skip_skips_is_no_failure() -> None:
    one = graph({"a": [], "b": ["a"], "c": ["afternotok:b"]})
    assert set(one.doomed_by("a", "skipped")) == {"b", "c"}


def test_the_doomed_come_each_before_those_that_it_follows() -> None:
    assert graph({"a": [], "b": ["a"], "c": ["b"], "d": ["c", "a"]}).doomed_by("a") == ("d", "c", "b")


@pytest.mark.parametrize(
    ("kind", "met"),
    [
        ("afterok", {"success"}),
        ("aftercorr", {"success"}),
        ("afternotok", {"failed", "upstream_failed"}),
        ("afterany", {"success", "failed", "upstream_failed", "skipped", "removed"}),
        ("after", {"success", "failed", "upstream_failed", "skipped", "removed"}),
    ],
)
def test_what_each_kind_asks_of_an_end(kind: str, met: set[str]) -> None:
    states = ["success", "failed", "upstream_failed", "skipped", "removed"]
    assert {state for state in states if is_met(kind, state)} == met


# ----------------------------------------------------------------------------------------------------- arrays


def test_arrays_of_the_same_indices_go_together() -> None:
    one = graph({"a": [], "b": ["aftercorr:a"], "c": ["b"]})
    check_arrays(one, {"a": [0, 1, 5], "b": [5, 1, 0], "c": []})


@pytest.mark.parametrize("known", [{}, {"a": [0, 1]}, {"b": [0]}, {"a": []}])
def test_what_is_not_known_of_arrays_is_not_refused(known: dict[str, list[int]]) -> None:
    check_arrays(graph({"a": [], "b": ["aftercorr:a"]}), known)


@pytest.mark.parametrize(
    ("a", "b", "said"),
    [
        (
            [0, 1, 2],
            [0, 1],
            "of a with that of the same index of b, but the first has 0-2 and the second 0-1: give both",
        ),
        ([1, 2], [2, 3], "but the first has 1-2 and the second 2-3"),
        ([], [1], "of two arrays, but a is none: say afterok"),
        ([1], [], "of two arrays, but b is none: say afterok"),
    ],
)
def test_aftercorr_of_what_does_not_go_together_is_refused(a: list[int], b: list[int], said: str) -> None:
    with pytest.raises(PipelineError) as refused:
        check_arrays(graph({"a": [], "b": ["aftercorr:a"]}), {"a": a, "b": b})
    assert said in str(refused.value)


# ------------------------------------------------------------------------------------------------------- size


def chain() -> dict[str, list[str]]:
    return {f"s{number}": [f"s{number - 1}"] if number else [] for number in range(MANY)}


def chain_from_its_end() -> dict[str, list[str]]:
    return dict(reversed(chain().items()))


def fan() -> dict[str, list[str]]:
    middle = [f"s{number}" for number in range(MANY - 2)]
    return {"first": [], **{name: ["first"] for name in middle}, "last": middle}


@pytest.mark.parametrize("shape", [chain, chain_from_its_end, fan])
def test_thousands_of_stages_take_no_time(shape: Callable[[], dict[str, list[str]]]) -> None:
    one = graph(shape())
    first = next(name for name, links in shape().items() if not links)
    began = time.process_time()
    assert len(one.order) == MANY
    assert [len(stages) for stages in segments(one)] == [MANY]
    assert len(one.doomed_by(first)) == MANY - 1
    assert time.process_time() - began < 1


def test_a_circle_of_thousands_is_found() -> None:
    with pytest.raises(PipelineError, match="s0 >> s1 >> s2"):
        graph(chain() | {"s0": [f"s{MANY - 1}"]}).order  # noqa: B018 - it is computed when it is asked for
