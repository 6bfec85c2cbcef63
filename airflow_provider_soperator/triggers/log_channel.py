"""The channel by which lines of tasks go from the event loop of a triggerer to the process that writes their logs."""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import stat
import sys
import termios
import time

#: Seconds between two looks at the channel.
_INTERVAL = 0.1
#: Seconds after which a line is given up: with many tasks at once Airflow may be behind by some tens.
_LIMIT = 120.0


async def written() -> None:
    """Wait until all lines are read, so that those of this moment are in the logs of their tasks.

    Airflow closes a task's log with its trigger, and what comes later is in the triggerer's own. It reads 4 KiB of all
    that is written in each of its rounds, in which it also stores events: when some tasks fail at once, the cause of a
    failure, which is said last, is behind by seconds.
    """
    end = time.monotonic() + _LIMIT
    while unread() and time.monotonic() < end:
        await asyncio.sleep(_INTERVAL)


def unread() -> int:
    """Bytes in the channel; 0 outside of a triggerer."""
    return sum(map(_unread_of, logging.getLogger().handlers))


def _unread_of(handler: logging.Handler) -> int:
    try:
        fd = handler.stream.fileno()  # type: ignore[attr-defined]
        if stat.S_ISSOCK(os.fstat(fd).st_mode):
            return int.from_bytes(fcntl.ioctl(fd, termios.TIOCOUTQ, bytes(4)), sys.byteorder)
    except (AttributeError, OSError, ValueError):
        # It writes to something without a descriptor, or to a closed one.
        pass
    return 0
