"""Lists of nodes: nothing is lost on the way there and back, and nonsense is refused in words."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_soperator.slurm.hostlist import HostlistError, expand, fold, intersect

prefixes = st.sampled_from(["worker-", "worker-cpu-", "gb-rack1-", "gb-rack12-", "h100-worker-", "node", "a.b-"])
names = st.builds(
    lambda prefix, number, width: f"{prefix}{number:0{width}}", prefixes, st.integers(0, 2000), st.integers(1, 4)
)


@given(st.sets(names))
def test_folding_and_expanding_lose_nothing(nodes: set[str]) -> None:
    folded = fold(nodes)
    assert set(expand(folded)) == nodes
    assert fold(folded) == folded


@given(st.sets(names), st.sets(names))
def test_intersection_is_that_of_sets(one: set[str], other: set[str]) -> None:
    assert set(intersect(one, other)) == one & other
    assert set(intersect(fold(one), fold(other))) == one & other


@given(st.sets(names, min_size=1))
def test_no_name_gets_more_than_one_pair_of_brackets_at_its_end(nodes: set[str]) -> None:
    for piece in fold(nodes).replace("],", "] ").split():
        head, bracket, _ = piece.rpartition("[") if piece.endswith("]") else (piece, "", "")
        assert "[" not in head.rpartition(",")[2] or not bracket


@pytest.mark.parametrize(
    ("hostlist", "nodes"),
    [
        ("", []),
        ("worker-0", ["worker-0"]),
        ("worker-[0-1,5],worker-cpu-18", ["worker-0", "worker-1", "worker-5", "worker-cpu-18"]),
        ("n[08-11]", ["n08", "n09", "n10", "n11"]),
        ("rack[1-2]-n[0-1]", ["rack1-n0", "rack1-n1", "rack2-n0", "rack2-n1"]),
        ("gb-rack1-[0-1],gb-rack2-0", ["gb-rack1-0", "gb-rack1-1", "gb-rack2-0"]),
        ("a,a,a", ["a"]),
    ],
)
def test_notations(hostlist: str, nodes: list[str]) -> None:
    assert expand(hostlist) == nodes


@pytest.mark.parametrize("nonsense", ["a,,b", ",", "a,", "a b", "a[1-", "a]", "a[]", "a[3-1]", "a[x]", "-a", "a!b"])
@pytest.mark.parametrize("reader", [expand, fold])
def test_nonsense_is_refused(nonsense: str, reader: object) -> None:
    with pytest.raises(HostlistError, match="not a list of nodes"):
        reader(nonsense)  # type: ignore[operator]


@pytest.mark.parametrize("operator", ["@group", "a&b", "a^b", "a[1-9/2]", "*", "$(id)", "a\nb", "a;b", "ä"])
def test_what_only_clustershell_would_take_is_refused(operator: str) -> None:
    with pytest.raises(HostlistError):
        expand(operator)


def test_all_is_not_expanded() -> None:
    for word in ("ALL", "all"):
        with pytest.raises(HostlistError, match="every node"):
            expand(word)


def test_the_message_shows_the_place() -> None:
    with pytest.raises(HostlistError, match=r"see 'worker 3'"):
        expand("worker-[0-1,2],worker 3,worker-4")


def test_a_mistyped_range_does_not_fill_the_memory() -> None:
    for huge in ("n[0-99999999999]", "n[0-99999]-[0-99999]"):
        with pytest.raises(HostlistError, match="check its ranges"):
            expand(huge)


@pytest.mark.parametrize(
    "hostlist",
    [
        "a[0-1000000]",
        "a[0-99999],b,c[0-99999]-gpu,d",
        "a[0-9,20-29]-[0-999]-[0-9]",
        ["a[0-99999]", "b[0-99999]"],
    ],
)
def test_ranges_that_are_too_many_together_are_refused_before_they_are_expanded(
    hostlist: str | list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ClusterShell.NodeSet.NodeSet.fromlist", lambda *_, **__: pytest.fail("expanded"))
    with pytest.raises(HostlistError, match="check its ranges"):
        fold(hostlist)


def test_thirty_thousand_nodes_are_quick() -> None:
    started = time.process_time()
    nodes = expand("worker-[0-29999]")
    assert fold(nodes) == "worker-[0-29999]"
    assert len(intersect("worker-[0-29999]", nodes[::2])) == 15_000
    # Less than a second, and ten where each node is compared with all others.
    assert time.process_time() - started < 4


def test_more_nodes_than_that_can_be_meant() -> None:
    assert len(expand("worker-[0-99999]")) == 100_000
    assert len(expand("a[1-300]-[1-300],b,c[0-9,12]-gpu")) == 90_012
