"""Rounds of a soak, one after the other until the time is over: their dice, what they count, and what they prove."""

from __future__ import annotations

import hashlib
import importlib
import random
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

#: The turns that scenarios take; those whose rounds are short come more often.
ORDER = (
    *("submissions", "shifts", "chaos", "submissions", "shifts", "executor", "clusters"),
    *("fan_out", "matrix", "outage", "simulation"),
)
SCENARIOS = tuple(dict.fromkeys(ORDER))
VERSIONS = ("26.05", "24.11")
#: What a round has for a version that runs on all of them.
EACH = "of each version"
#: Characters of a value that are shown where an assertion had no words.
_SHOWN = 300

Say = Callable[[str], None]


@dataclass
class Round:
    """One round of a scenario; all that is left to chance in it comes from the seed, the scenario and the number."""

    scenario: str
    number: int
    base: int
    slurm: str
    width: int = 200
    say: Say = print
    #: What has happened.
    counts: Counter[str] = field(default_factory=Counter)
    #: How often something was proved.
    checked: Counter[str] = field(default_factory=Counter)

    @property
    def seed(self) -> int:
        """A number that stands for this round's dice."""
        said = f"{self.base}/{self.scenario}/{self.number}"
        return int.from_bytes(hashlib.sha256(said.encode()).digest()[:4], "big")

    def dice(self, part: str = "") -> random.Random:
        """Those of a part of the round: how long another part has taken does not change what these show."""
        return random.Random(f"{self.seed}/{part}")

    @property
    def again(self) -> str:
        """The command line that runs this round once more."""
        width = f" --width {self.width}" if self.scenario in ("fan_out", "outage") else ""
        slurm = f" --slurm {self.slurm}" if self.slurm != EACH else ""
        return f'make soak ARGS="--seed {self.base} --only {self.scenario} --round {self.number}{slurm}{width}"'


Play = Callable[[Round], None]


def find(scenario: str) -> Play:
    """The function that makes a round of a scenario; its imports cost seconds, so only those are made that are used."""
    play: Play = importlib.import_module(f"tests.soak.{scenario}").play
    return play


@dataclass
class Soak:
    """Rounds until the time is over, or until one fails; a round that was begun is finished."""

    seed: int
    minutes: float
    scenarios: Sequence[str] = SCENARIOS
    slurm: str = ""
    width: int = 200
    keep_going: bool = False
    find: Callable[[str], Play] = find
    say: Say = print
    played: list[Round] = field(default_factory=list)
    failed: list[Round] = field(default_factory=list)

    def run(self, only_round: int | None = None) -> int:
        """The exit status: 1 if anything has failed. Ctrl-C ends it as the end of its time does, but at once."""
        try:
            if only_round is None:
                self._run_on()
            else:
                for scenario in self.scenarios:
                    self._play(scenario, only_round)
        except KeyboardInterrupt:
            self.say("interrupted")
        self._conclude()
        return 1 if self.failed else 0

    def _run_on(self) -> None:
        order = [name for name in ORDER if name in self.scenarios]
        numbers: Counter[str] = Counter()
        end = time.monotonic() + 60 * self.minutes
        while True:
            for scenario in order:
                if time.monotonic() >= end or (self.failed and not self.keep_going):
                    return
                self._play(scenario, numbers[scenario])
                numbers[scenario] += 1

    def _play(self, scenario: str, number: int) -> None:
        slurm = EACH if scenario == "matrix" else self.slurm or VERSIONS[number % len(VERSIONS)]
        one = Round(scenario, number, self.seed, slurm, self.width, self.say)
        self.say(f"\n{scenario} round {number}: seed {one.seed}, Slurm {slurm}")
        self.played.append(one)
        began = time.monotonic()
        try:
            self.find(scenario)(one)
        except Exception as error:
            self.failed.append(one)
            self.say(f"FAILED after {time.monotonic() - began:.0f} s\n{told(error)}\nto run it again: {one.again}")
        else:
            self.say(f"  done in {time.monotonic() - began:.0f} s: {listed(one.counts)}")

    def _conclude(self) -> None:
        for scenario in dict.fromkeys(one.scenario for one in self.played):
            mine = [one for one in self.played if one.scenario == scenario]
            versions = ", ".join(sorted({one.slurm for one in mine}))
            self.say(f"\n{scenario}: {len(mine)} rounds on Slurm {versions}")
            self._show("counted", [one.counts for one in mine])
            self._show("proved", [one.checked for one in mine])
        self.say(f"\n{len(self.played)} rounds with seed {self.seed}, {len(self.failed)} failed")
        for one in self.failed:
            self.say(one.again)

    def _show(self, title: str, counters: Iterable[Counter[str]]) -> None:
        total = Counter[str]()
        for counter in counters:
            # What has never happened is told, too.
            total.update(counter)
        for what, times in sorted(total.items()):
            self.say(f"  {title:8} {times:6}  {what}")


def listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{times} {what}" for what, times in sorted(counts.items()) if times) or "nothing counted"


def told(error: BaseException) -> str:
    """The trace of an error, and the values that were at hand in the last function of the suite's own."""
    trace = "".join(traceback.format_exception(error))
    here = str(Path(__file__).parent.parent)
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__) if frame.f_code.co_filename.startswith(here)]
    if not isinstance(error, AssertionError) or not frames:
        return trace
    values = [f"  {name} = {repr(value)[:_SHOWN]}" for name, value in frames[-1].f_locals.items()]
    return "\n".join([f"{trace}in {frames[-1].f_code.co_name}:", *values])


def flushed(line: str) -> None:
    """Print at once: a soak is mostly read by way of a file."""
    print(line)
    sys.stdout.flush()
