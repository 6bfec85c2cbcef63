"""A story that a seed makes, and the rules that hold whatever happens in it."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import ClassVar

from tests.simulation.clock import NeverEnds, virtual_time


class Violated(Exception):
    """A rule did not hold."""

    def __init__(self, seed: int, rule: str, what: str, story: list[str], kind: str) -> None:
        # All of them, so that another process can hand it on.
        super().__init__(seed, rule, what, story, kind)
        self.seed, self.rule = seed, rule
        again = f"python -m tests.simulation {kind}--seed {seed}"
        self._text = "\n".join([f"seed {seed}: {rule}", *story, what, f"repeat: {again}"])

    def __str__(self) -> str:
        return self._text


class Story(ABC):
    """One story, on a clock that jumps."""

    #: The option of ``python -m tests.simulation`` that plays such stories.
    kind: ClassVar[str] = ""
    seed: int
    #: The first rule that did not hold, and how.
    broken: tuple[str, str] | None = None

    @abstractmethod
    async def _play(self) -> None:
        """All that happens."""

    @abstractmethod
    def note(self, text: str) -> None: ...

    @abstractmethod
    def told(self) -> list[str]: ...

    def _patched(self) -> AbstractContextManager[object]:
        """What stands for the world while it is played."""
        return nullcontext()

    def play(self) -> None:
        """Play it to its end; ``Violated`` if a rule did not hold."""
        random.seed(self.seed)
        with virtual_time() as run, self._patched():
            try:
                run(self._play())
            except NeverEnds:
                self._break("everything comes to an end", "nothing moves any more")
        if self.broken:
            raise Violated(self.seed, *self.broken, self.told(), self.kind)

    def _break(self, rule: str, what: str) -> None:
        if self.broken is None:
            self.broken = rule, what
            self.note(f"=> {rule}: {what}")


def play(make: Callable[[int], Story], seeds: Iterable[int]) -> None:
    for seed in seeds:
        make(seed).play()


def play_until_broken(make: Callable[[int], Story], rule: str, seeds: Iterable[int]) -> None:
    """``Violated`` of the first story in which this rule does not hold."""
    for seed in seeds:
        try:
            make(seed).play()
        except Violated as violated:
            # Others are broken, too.
            if violated.rule == rule:
                raise


def played(story: Story) -> list[str]:
    """What it tells when it is over."""
    story.play()
    return story.told()
