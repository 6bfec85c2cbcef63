"""A round of a soak can be run again from what is printed of it, and a soak says what has failed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.soak.__main__ import parse
from tests.soak.rounds import ORDER, SCENARIOS, VERSIONS, Play, Round, Soak, find


def soak(play: Play, **options: object) -> tuple[Soak, list[str]]:
    said: list[str] = []
    return Soak(7, 60, find=lambda name: play, say=said.append, **options), said  # type: ignore[arg-type]


def rolls(round_: Round, part: str = "") -> list[int]:
    dice = round_.dice(part)
    return [dice.randrange(10**6) for _ in range(5)]


def test_dice_depend_on_seed_scenario_and_number_alone() -> None:
    one = Round("shifts", 3, 7, "26.05")
    assert rolls(one, "cuts") == rolls(Round("shifts", 3, 7, "24.11"), "cuts")
    others = [Round("shifts", 4, 7, "26.05"), Round("shifts", 3, 8, "26.05"), Round("chaos", 3, 7, "26.05")]
    assert len({tuple(rolls(another, "cuts")) for another in (one, *others)}) == 4
    assert rolls(one, "cuts") != rolls(one, "kills")


def until(rounds: int, end: Callable[[], None]) -> Play:
    """A scenario that comes to an end after so many rounds."""
    begun = iter(range(rounds))

    def play(round_: Round) -> None:
        round_.counts["begun"] += 1
        if next(begun, None) is None:
            end()
        round_.checked["all is well"] += 1

    return play


def fail() -> None:
    lost = 3
    assert lost == 0


def interrupt() -> None:
    raise KeyboardInterrupt


def test_the_first_failure_ends_it_and_says_how_to_run_the_round_again() -> None:
    made, said = soak(until(len(ORDER) + 1, fail))
    assert made.run() == 1
    assert [one.scenario for one in made.played] == [*ORDER, *ORDER[:2]]
    assert said[-1] == f'make soak ARGS="--seed 7 --only {ORDER[1]} --round 2 --slurm {VERSIONS[0]}"'
    # Without pytest an assertion does not tell of its values by itself.
    assert any("lost = 3" in line for line in said)
    assert "  proved        2  all is well" in said


def test_it_can_go_on_after_a_failure() -> None:
    rounds = iter((fail, fail, interrupt))
    made, said = soak(lambda round_: next(rounds)(), scenarios=["chaos"], keep_going=True)
    assert made.run() == 1
    assert [one.number for one in made.failed] == [0, 1]
    assert said[-2:] == [one.again for one in made.failed]


def test_what_is_interrupted_has_not_failed() -> None:
    made, said = soak(until(1, interrupt), scenarios=["shifts", "fan_out"])
    assert made.run() == 0
    assert "interrupted" in said
    assert "2 rounds with seed 7, 0 failed" in said[-1]


def test_rounds_take_turns_between_versions_of_slurm_unless_told_otherwise() -> None:
    made, _ = soak(until(3, interrupt), scenarios=["chaos"])
    made.run()
    assert [one.slurm for one in made.played] == [*VERSIONS, *VERSIONS]
    made, _ = soak(until(3, interrupt), scenarios=["chaos"], slurm="24.11")
    made.run()
    assert {one.slurm for one in made.played} == {"24.11"}


def test_one_round_can_be_run_alone() -> None:
    made, _ = soak(until(9, fail), scenarios=["fan_out"], width=5)
    assert made.run(4) == 0
    assert [(one.number, one.width) for one in made.played] == [(4, 5)]


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_each_scenario_can_be_played(scenario: str) -> None:
    assert callable(find(scenario))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--only", "shifts,weather"], "no such scenario: weather"),
        (["--round", "3"], "--round means nothing without the --seed"),
        (["--width", "0"], "--width 0 is out of range"),
    ],
)
def test_mistakes_are_told_before_anything_is_started(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parse(words)
    assert said in capsys.readouterr().err
