"""A schedule says of each minute what a naive model says of it, also when clocks are changed."""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.capacity.naive import MINUTE, Week, handovers, weeks

DAYS = 5


@settings(max_examples=30, deadline=None)
@given(weeks(), st.data())
def test_what_holds_and_what_changes(week: Week, data: st.DataObject) -> None:
    schedule = week.schedule()
    start, end = week.change - timedelta(days=DAYS), week.change + timedelta(days=DAYS)
    held = week.walk(start, end)
    expected = handovers(start, held)
    changes = list(schedule.changes(start + MINUTE, end))
    assert [(one.at, one.after.allocation) for one in changes] == expected
    assert all(one.begins == one.at - week.lead for one in changes)
    # No shift begins before the handover ahead of it.
    assert all(one.at <= following.begins for one, following in pairwise(changes))

    segments = schedule.segments(start, end)
    assert segments[0].since <= start < segments[0].until
    assert segments[-1].since < end <= segments[-1].until
    assert all(one.until == next_one.since for one, next_one in pairwise(segments))
    assert all(one.since < one.until for one in segments)

    for minute in data.draw(st.lists(st.integers(0, len(held) - 1), min_size=4, max_size=4)):
        moment = start + minute * MINUTE
        segment = schedule.at(moment)
        assert segment.allocation == held[minute]
        assert segment.since <= moment < segment.until
        later = [one for one in expected if one[0] > moment]
        found = schedule.next_change(moment)
        if later:
            assert found is not None
            assert (found.at, found.after.allocation) == later[0]
        else:
            assert found is None or found.at >= end
        earlier = [one for one in expected if one[0] <= moment]
        found = schedule.last_change(moment)
        if earlier:
            assert found is not None
            assert (found.at, found.after.allocation) == earlier[-1]
        else:
            assert found is None or found.at <= start
