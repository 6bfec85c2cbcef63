"""A second process of the test, which does something and may be killed at any moment of it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from collections.abc import Callable, Iterator

_PR_SET_PDEATHSIG = 1


@contextlib.contextmanager
def forked(work: Callable[[], object]) -> Iterator[int]:
    """A copy of this process that does ``work``; what is left of it at the end is killed.

    A fork, as a Python that has to import everything first would take seconds to get to its work.
    """
    test, pid = os.getpid(), os.fork()
    if pid == 0:
        try:
            # A test that is killed ends nothing; it may have been killed before this.
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() == test:
                work()
        finally:
            # Nothing of the test is to run on in the copy, no `finally` of a fixture and no handler of pytest's.
            os._exit(0)
    try:
        yield pid
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
