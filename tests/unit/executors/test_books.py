"""An executor's books: in whatever order things happen, no end of a superseded job is told, and no task is lost."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_soperator.executors.books import Books, Phase

LEGS = [f"leg-{number}" for number in range(6)]
#: Two tasks, with three legs each.
KEYS = dict(zip(LEGS, ["one", "other"] * 3, strict=True))


@given(st.lists(st.tuples(st.sampled_from(["accept", "start", "end"]), st.sampled_from(LEGS))))
def test_the_end_of_the_newest_leg_is_told_and_no_other(events: list[tuple[str, str]]) -> None:
    books = Books()
    newest: dict[str, str] = {}
    open_legs: set[str] = set()
    used: set[str] = set()
    for what, leg in events:
        key = KEYS[leg]
        if what == "accept":
            if leg in used:
                continue  # Airflow gives each leg an id of its own
            used.add(leg)
            open_legs.add(leg)
            newest[key] = leg
            books.accept(leg, key)
        elif what == "start":
            books.move(leg, Phase.STARTED)
        else:
            told = books.end(leg)
            assert told == (key if leg in open_legs and newest.get(key) == leg else None)
            open_legs.discard(leg)
        assert {one for one in KEYS if one in books} == open_legs
        assert set(books.unstarted) <= open_legs
        for one in open_legs:
            assert books.key_of(one) == (KEYS[one] if newest[KEYS[one]] == one else None)
    # Each task whose newest leg is open can still be told of its end, once.
    for leg in list(open_legs):
        is_newest = newest[KEYS[leg]] == leg
        assert books.end(leg) == (KEYS[leg] if is_newest else None)
        assert books.end(leg) is None
    assert not any(leg in books for leg in KEYS)


def test_what_slurm_does_not_have_yet_is_counted() -> None:
    books = Books()
    books.accept("a", "one")
    books.accept("b", "other")
    assert books.unsubmitted == 2
    books.move("a", Phase.SUBMITTED)
    books.move("unknown", Phase.SUBMITTED)
    assert (books.unsubmitted, books.unstarted) == (1, ["a", "b"])
    books.move("a", Phase.STARTED)
    assert books.unstarted == ["b"]
