"""Tests that mostly wait, told side by side: each is a function, and the test of its name hears how it has ended."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor, wait

#: Stories of one module that are told at the same time.
AT_ONCE = 6


class Stories:
    """Functions that run in threads of their own from now on, the first ones first."""

    def __init__(self, stories: Mapping[str, Callable[[], None]]) -> None:
        pool = ThreadPoolExecutor(AT_ONCE)
        self._futures = {name: pool.submit(story) for name, story in stories.items()}
        pool.shutdown(wait=False)

    def end(self, name: str) -> None:
        """Wait for the end of a story, and raise what has made it fail."""
        self._futures[name].result()

    def wait(self) -> None:
        """Wait for the ends of all, however they come about."""
        wait(self._futures.values())
