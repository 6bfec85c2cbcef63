"""The event loop of those who run in none: one in a thread of its own, for all of a process."""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")

#: Seconds that a process gives connections to be closed when it ends.
_AT_EXIT = 3.0


class LoopThread:
    """Runs coroutines for threads, which wait for them. A forked process has one of its own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        os.register_at_fork(after_in_child=self._forget)
        atexit.register(self._end)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """What a coroutine returns. It is cancelled if a signal ends the wait for it."""
        if threading.current_thread() is self._thread:
            work.close()
            raise RuntimeError("this is for threads, and would wait for itself in the event loop: use the async client")
        running: Future[T] = asyncio.run_coroutine_threadsafe(work, self._started())
        try:
            return running.result()
        except BaseException:
            running.cancel()
            raise

    def _started(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=self._work, args=(self._loop,), name="soperator-loop", daemon=True
                )
                self._thread.start()
            return self._loop

    @staticmethod
    def _work(loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        loop.run_forever()
        # Clients are closed by generators that the loop ends as the last that it does.
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()

    def _end(self) -> None:
        with self._lock:
            loop, thread, self._loop, self._thread = self._loop, self._thread, None, None
        if loop and thread:
            loop.call_soon_threadsafe(loop.stop)
            thread.join(_AT_EXIT)

    def _forget(self) -> None:
        # What the parent's thread has opened is the parent's to close.
        self._lock, self._loop, self._thread = threading.Lock(), None, None


LOOP = LoopThread()
