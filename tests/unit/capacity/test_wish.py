"""What is wished for besides windows and exceptions: holidays, overrides with an end, and ranges."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import Variable
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_soperator.capacity import overrides
from airflow_provider_soperator.capacity.allocation import bounds_of, goal_of
from airflow_provider_soperator.capacity.calendar import zone
from airflow_provider_soperator.capacity.holidays import read_holidays
from airflow_provider_soperator.capacity.overrides import Override, keep_override, kept_overrides, written
from airflow_provider_soperator.capacity.schedule import CapacitySchedule, Window
from airflow_provider_soperator.errors import CapacityMistake

NIGHT = {"training": 8, "inference": 0}
DAY = {"training": 4, "inference": 4}
HOLIDAY = {"training": 2, "inference": 6}
DEADLINE = {"training": 6, "inference": 2}
HOUR = timedelta(hours=1)
GPUS = {"training": 8, "inference": 8}


def schedule(**more: Any) -> CapacitySchedule:
    fields: dict[str, Any] = {
        "timezone": "Europe/Amsterdam",
        "windows": [Window("mon-fri 20:00 - 08:00", NIGHT, name="night")],
        "otherwise": DAY,
        "gpus_per_unit": GPUS,
        "limit": 64,
    }
    return CapacitySchedule(**fields | more)


def at(made: CapacitySchedule, text: str) -> tuple[str, Any]:
    segment = made.at(datetime.fromisoformat(f"{text}+01:00"))
    return segment.name, segment.allocation


def test_overrides_come_before_exceptions_these_before_holidays_and_those_before_windows() -> None:
    made = schedule(
        holidays={"12-25/12-26": HOLIDAY},
        exceptions={"2026-12-25": "night"},
        overrides=[Override("2026-12-25T12:00/2026-12-26T06:00", DEADLINE, by="ann", because="the deadline")],
    )
    assert at(made, "2026-12-24T12:00") == ("otherwise", DAY)
    assert at(made, "2026-12-25T11:59") == ("night", NIGHT)
    assert at(made, "2026-12-26T05:59") == ("override by ann (the deadline)", DEADLINE)
    assert at(made, "2026-12-26T06:00") == ("12-25/12-26", HOLIDAY)
    assert at(made, "2027-12-25T12:00") == ("12-25/12-26", HOLIDAY)
    assert CapacitySchedule.read(json.loads(json.dumps(made.describe()))) == made


def test_the_29th_of_february_is_a_day_of_leap_years_alone() -> None:
    always = Window("daily 00:00 - 24:00", DAY)
    made = CapacitySchedule(timezone="UTC", windows=[always], exceptions={"02-29": HOLIDAY})
    change = made.next_change(datetime.fromisoformat("2096-03-02T00:00+00:00"))
    assert change is not None
    assert f"{change.at:%Y-%m-%d}" == "2104-02-29"


ICAL = """BEGIN:VCALENDAR
VERSION:2.0
PRODID:-//test//test//EN
BEGIN:VEVENT
UID:1
SUMMARY:Easter Monday
DTSTART;VALUE=DATE:20260406
DTEND;VALUE=DATE:20260407
END:VEVENT
BEGIN:VEVENT
UID:2
SUMMARY:Christmas
DTSTART;VALUE=DATE:20201225
DTEND;VALUE=DATE:20201227
RRULE:FREQ=YEARLY
END:VEVENT
BEGIN:VEVENT
UID:3
SUMMARY:Thanksgiving
DTSTART;VALUE=DATE:20261126
END:VEVENT
END:VCALENDAR
"""


def test_holidays_are_read_from_a_file_or_a_text(tmp_path: Path) -> None:
    expected = {"2026-04-06": "night", "12-25/12-26": "night", "2026-11-26": "night"}
    assert read_holidays(ICAL, "night") == expected
    path = tmp_path / "holidays.ics"
    path.write_text(ICAL)
    made = schedule(holidays=read_holidays(path, "night"))
    assert at(made, "2031-12-26T12:00") == ("night", NIGHT)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("no calendar", "the list of holidays cannot be read: "),
        (
            ICAL.replace("VALUE=DATE:20260406", "TZID=Europe/Amsterdam:20260406T120000"),
            "Easter Monday is not whole days",
        ),
        (ICAL.replace("RRULE:FREQ=YEARLY", "RRULE:FREQ=YEARLY;BYMONTH=11;BYDAY=4TH"), "Christmas is not whole days of"),
        (ICAL.replace("RRULE:FREQ=YEARLY", "RDATE;VALUE=DATE:20271225"), "Christmas is not whole days of"),
    ],
)
def test_what_is_no_list_of_whole_days_is_refused(text: str, said: str) -> None:
    with pytest.raises(CapacityMistake, match=said):
        read_holidays(text, "night")
    with pytest.raises(CapacityMistake, match=r"the holidays in /nowhere/holidays\.ics cannot be read: "):
        read_holidays(Path("/nowhere/holidays.ics"), "night")


WEEKEND = "2026-11-27T18:00/2026-11-29T18:00"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (
            {"overrides": [Override(WEEKEND, DEADLINE), Override("2026-11-29", DAY)]},
            "the overrides '2026-11-27T18:00/2026-11-29T18:00' and '2026-11-29' overlap from 2026-11-29 00:00 to",
        ),
        (
            {"overrides": [Override(WEEKEND, {"training": 6, "inference": 4})]},
            f"the override '{WEEKEND}' needs 80 GPUs",
        ),
        ({"overrides": [Override(WEEKEND, {"training": 6})]}, "'night' names the target 'inference', but the override"),
        ({"holidays": {"12-25": {**DAY, "serving": 1}}}, "the holiday '12-25' names the target 'serving', but 'night'"),
        ({"holidays": {"12-25": "nigth"}}, "the holiday '12-25' names an unknown window 'nigth': did you mean"),
        (
            {"holidays": {"12-25": "night", "2026-12-24/2026-12-25": DAY}},
            "the holidays '2026-12-24/2026-12-25' and '12-25' overlap from 2026-12-25 00:00 to 2026-12-26 00:00",
        ),
        ({"exceptions": {"13-25": DAY}}, "the exception '13-25' has a date that does not exist"),
        (
            {"otherwise": {"training": {"min": 5, "max": 8}, "inference": {"min": 4, "max": 4}}},
            "otherwise needs 72 GPUs (training 5 x 8 + inference 4 x 8), but the block has 64",
        ),
        (
            {"otherwise": {"training": {"min": 5}, "inference": 0}},
            "otherwise: the range of 'training' must have min <= max",
        ),
        (
            {"otherwise": {"training": {"min": 5, "max": 4}, "inference": 0}},
            "otherwise: the range of 'training' must have",
        ),
        (
            {"otherwise": {"training": {"min": -1, "max": 4}, "inference": 0}},
            "otherwise: units of 'training' must be a",
        ),
    ],
)
def test_wishes_that_could_never_be_are_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(CapacityMistake) as refusal:
        schedule(**fields)
    assert str(refusal.value).startswith(said)


@pytest.mark.parametrize(
    ("when", "said"),
    [
        ("2026-11-27T18:00", "the override '2026-11-27T18:00' has no end: write "),
        ("2026-11-27T18:00/", "the override '2026-11-27T18:00/' has no end: write "),
        ("until Sunday", "the override 'until Sunday' is not a date or period: write "),
        ("12-25", "the override '12-25' comes back each year: name the year"),
    ],
)
def test_an_override_has_an_end(when: str, said: str) -> None:
    with pytest.raises(CapacityMistake) as refusal:
        Override(when, DAY)
    assert str(refusal.value).startswith(said)


def test_two_lists_may_have_the_same_holiday() -> None:
    made = schedule(holidays={"12-25": "night", "2026-12-25/2026-12-26": "night"})
    assert at(made, "2026-12-25T12:00") == at(made, "2026-12-26T12:00") == ("night", NIGHT)


def test_the_override_that_began_last_comes_before_all_others_and_needs_no_lead() -> None:
    made = schedule(overrides=[Override(WEEKEND, DEADLINE)], lead="2h")
    now, until = (datetime.fromisoformat(f"2026-11-28T{time}+00:00") for time in ("11:00", "11:30"))
    newer = made.override(HOLIDAY, now, until, "bob", "the demo")
    overridden = made.overridden([newer], now).overridden([Override("2026-11-28", DAY)], now)
    assert at(overridden, "2026-11-28T11:59") == ("override", DAY)
    assert at(overridden, "2026-11-28T12:00") == ("override by bob (the demo)", HOLIDAY)
    assert at(overridden, "2026-11-28T12:30") == ("override", DAY)
    assert at(overridden, "2026-11-29T00:00") == ("override", DEADLINE)
    assert at(made, "2026-11-28T12:00") == ("override", DEADLINE)
    with pytest.raises(CapacityMistake, match="needs 160 GPUs"):
        made.overridden([made.override({"training": 20, "inference": 0}, now, until, "", "")], now)


def test_an_override_of_a_form_lasts_until_the_next_handover_unless_it_says_when() -> None:
    now, made = datetime.fromisoformat("2026-11-27T12:00+00:00"), schedule()
    assert made.override(DEADLINE, now, None, "", "").when == "2026-11-27T13:00:00/2026-11-27T20:00:00"
    # A shift that has begun is overridden, too.
    ahead = schedule(lead="2h")
    assert ahead.override(DEADLINE, now + 5 * HOUR, None, "", "").when == "2026-11-27T18:00:00/2026-11-28T08:00:00"
    with pytest.raises(CapacityMistake, match="the shift to night has begun, and has the block until its handover at"):
        ahead.override(DEADLINE, now + 5.5 * HOUR, now + 7 * HOUR, "", "")
    # So it is while something was asked for that is still to come.
    ahead = ahead.overridden([Override("2026-11-27T20:15/2026-11-27T22:00", DEADLINE)], now)
    with pytest.raises(CapacityMistake, match="the shift to night has begun, and has the block until its handover at"):
        ahead.override(DEADLINE, now + 6.5 * HOUR, now + 7 * HOUR, "", "")
    fixed = CapacitySchedule(timezone="UTC", windows=[Window("daily 00:00 - 24:00", DAY)])
    assert fixed.override(DEADLINE, now, None, "", "").when == "2026-11-27T12:00:00/2026-12-04T12:00:00"
    with pytest.raises(CapacityMistake, match="until must be after 2026-11-27 12:00:00"):
        made.override(DEADLINE, now, now, "", "")
    # In October clocks show an hour twice, and an override ends as they show its end first: before this one begins.
    twice = datetime.fromisoformat("2026-10-25T02:45+01:00")
    with pytest.raises(CapacityMistake, match="clocks show 02:45 twice then"):
        made.override(DEADLINE, twice - HOUR / 2, twice, "", "")
    assert made.override(DEADLINE, twice - HOUR / 2, twice - HOUR / 4 + HOUR / 2, "", "").when.endswith("T03:00:00")


def test_in_an_hour_that_clocks_show_twice_what_was_asked_for_last_holds() -> None:
    made, first = schedule(), datetime.fromisoformat("2026-10-25T02:40+02:00")
    for now, units, by in ((first, DEADLINE, "ann"), (first + HOUR / 2, HOLIDAY, "bob")):
        made = made.overridden([made.override(units, now, first + 4 * HOUR, by, "")], now)
        assert made.at(now).name == f"override by {by}"


def test_overrides_are_kept_until_they_are_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overrides, "_SETTLED", 0)
    variables: dict[str, str] = {}
    monkeypatch.setattr(Variable, "get", lambda key, default=None: variables.get(key, default))
    monkeypatch.setattr(Variable, "set", variables.__setitem__)
    over, lasting = Override("2026-11-27", DAY), Override(WEEKEND, DEADLINE, "ann", "the deadline")
    for text in ("27T12:00", "28T12:00", "28T13:00"):
        now = datetime.fromisoformat(f"2026-11-{text}+01:00")
        keep_override("shifts", over if text == "27T12:00" else lasting, now, zone("Europe/Amsterdam"))
    assert kept_overrides("shifts") == [lasting]
    assert kept_overrides(None) == kept_overrides("none") == []


def test_of_two_overrides_that_are_kept_at_one_moment_none_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    variables: dict[str, str] = {}
    anns, bobs = Override(WEEKEND, DEADLINE, "ann"), Override(WEEKEND, HOLIDAY, "bob")
    now, amsterdam = datetime.fromisoformat("2026-11-27T12:00+01:00"), zone("Europe/Amsterdam")

    def sleep(seconds: float) -> None:
        if "bob" not in variables["shifts"]:
            # His run has read it before that.
            variables["shifts"] = json.dumps(written([bobs], now, amsterdam))

    monkeypatch.setattr(Variable, "get", lambda key, default=None: variables.get(key, default))
    monkeypatch.setattr(Variable, "set", variables.__setitem__)
    monkeypatch.setattr("time.sleep", sleep)
    keep_override("shifts", anns, now, amsterdam)
    assert kept_overrides("shifts") == [bobs, anns]


def test_an_override_that_a_secrets_backend_hides_is_not_written_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overrides, "_SETTLED", 0)
    texts: list[str] = []
    monkeypatch.setattr(Variable, "get", lambda key, default=None: "[]")
    monkeypatch.setattr(Variable, "set", lambda key, text: texts.append(text))
    now = datetime.fromisoformat("2026-11-27T12:00+01:00")
    keep_override("shifts", Override(WEEKEND, DEADLINE), now, zone("Europe/Amsterdam"))
    assert len({*texts}) == 1


@pytest.mark.parametrize(
    "text", ["training 6", '{"when": 1}', '[{"when": "2026-11-27"}]', '[{"until": "x"}]', "[1]", "1"]
)
def test_a_variable_that_is_no_list_of_overrides_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Variable, "get", lambda key, default=None: text)
    with pytest.raises(CapacityMistake, match=r"the Airflow Variable shifts is no list of overrides \(.*\): write "):
        kept_overrides("shifts")


def test_an_override_that_names_a_removed_target_is_refused_with_the_variable_that_keeps_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept = [{"when": WEEKEND, "allocation": {**DEADLINE, "batch": 1}}]
    monkeypatch.setattr(Variable, "get", lambda key, default=None: json.dumps(kept))
    now = datetime.fromisoformat("2026-11-27T12:00+01:00")
    where = "remove it from the Airflow Variable shifts, as `airflow soperator override DAG --remove` does"
    with pytest.raises(CapacityMistake, match=rf"names the target 'batch', .*: {where}"):
        schedule().as_kept("shifts", now)
    assert schedule().as_kept("shifts", now + timedelta(days=9)) == schedule()


targets = ("training", "inference", "batch")
numbers = st.integers(0, 9)
ranges = st.lists(numbers, min_size=2, max_size=2).map(sorted).map(lambda two: {"min": two[0], "max": two[1]})


@given(
    wished=st.fixed_dictionaries(dict.fromkeys(targets, numbers | ranges)),
    has=st.fixed_dictionaries(dict.fromkeys(targets, numbers)),
    gpus=st.fixed_dictionaries({target: st.sampled_from([1, 4, 8]) for target in targets}),
    limit=st.integers(0, 100),
)
def test_each_side_keeps_what_it_has_within_its_range_and_never_over_the_block(
    wished: dict[str, Any], has: dict[str, int], gpus: dict[str, int], limit: int
) -> None:
    def taken(units: dict[str, int]) -> int:
        return sum(number * gpus[target] for target, number in units.items())

    fewest = {target: bounds_of(units)[0] for target, units in wished.items()}
    if taken(fewest) > limit:
        with pytest.raises(CapacityMistake, match="GPUs at least, but the block has"):
            goal_of(wished, has, gpus, limit)
        return
    goal = goal_of(wished, has, gpus, limit)
    most = {target: bounds_of(units)[1] for target, units in wished.items()}
    nearest = {target: min(max(has[target], fewest[target]), most[target]) for target in targets}
    assert taken(goal) <= limit
    assert all(fewest[target] <= goal[target] <= nearest[target] for target in targets)
    assert goal == nearest or taken(nearest) > limit
    # Nothing moves a second time.
    assert goal_of(wished, goal, gpus, limit) == goal
