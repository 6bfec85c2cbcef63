"""Moments as parameters name them."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest

from airflow_provider_soperator.values import moment_of, number_or_share


def test_what_is_one() -> None:
    noon = datetime(2026, 11, 22, 12, tzinfo=timezone.utc)
    assert moment_of("since", noon) == moment_of("since", "2026-11-22T12:00:00Z") == noon
    # Templates make these of nothing.
    assert [moment_of("since", said) for said in (None, "", "None")] == [None, None, None]


def test_what_is_none() -> None:
    with pytest.raises(ValueError, match="is not a date and time with a time zone"):
        moment_of("since", datetime(2026, 11, 22))
    with pytest.raises(ValueError, match="is not a date and time with a time zone"):
        moment_of("since", "2026-11-22T12:00:00")
    with pytest.raises(ValueError, match="since='soon' is not a date and time"):
        moment_of("since", "soon")


@pytest.mark.parametrize("said", [0, -1, "0%", "110%", "some", "", True])
def test_how_many_at_once_is_checked(said: int | str) -> None:
    with pytest.raises(ValueError, match="must be a number of nodes >= 1 or a percentage"):
        number_or_share("max_parallel", said, 4)
