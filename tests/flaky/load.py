"""Other work for the machine while tests run: cores that are busy, and a disk that is slow."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Collection, Iterator

# Each looks for itself whether its parent is still there, as one that is killed cannot stop them.
_WHILE = "import os\nimport sys\nwhile os.getppid() == int(sys.argv[1]):\n"
_BUSY = f"{_WHILE}    for _ in range(100_000): pass\n"
# A file without a name, which goes with the process, whatever ends it.
_DISK = f"""
import tempfile
file = tempfile.TemporaryFile(prefix="flaky-")
{_WHILE}
    file.seek(file.tell() % (64 << 20))
    file.write(os.urandom(1 << 20))
    file.flush()
    os.fsync(file.fileno())
"""

#: The programs of each kind of load.
KINDS = {"busy": [_BUSY] * (os.cpu_count() or 1), "disk": [_DISK]}


@contextlib.contextmanager
def load(kinds: Collection[str]) -> Iterator[list[int]]:
    """Load of these kinds, until the block is left; the ids of its processes."""
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for program in (program for kind in kinds for program in KINDS[kind]):
            command = [sys.executable, "-S", "-c", program, str(os.getpid())]
            # In a session of their own, as an interrupt by the keyboard goes to all of this one.
            processes.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True))
        yield [process.pid for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
