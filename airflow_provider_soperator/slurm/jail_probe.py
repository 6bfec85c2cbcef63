"""Times what the jail's file system does with small files; this file is run on the cluster as it stands.

It imports nothing that would have to be read from the very file system that may hang, and Python 3.8 understands it.
What touches files is a child, which can be waited for or left behind.
"""

import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

#: What the names of its folders begin with.
PREFIX = ".soperator-jail-check-"

_SIZE = 4096
#: Seconds after which the folder of another run was left behind by it.
_STALE = 3600.0
#: Seconds that a child has to end once it is told to, or to remove what it has made.
_GRACE = 3.0


def _create(path: str) -> None:
    handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    try:
        os.write(handle, b"\0" * _SIZE)
        os.fsync(handle)
    finally:
        os.close(handle)


def _read(path: str) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.read(handle, _SIZE)
    finally:
        os.close(handle)


#: What each round does to a file, in this order.
OPERATIONS: "dict[str, Callable[[str], object]]" = {
    "create": _create,
    "stat": os.stat,
    "read": _read,
    "list": lambda path: os.listdir(os.path.dirname(path)),
    "rename": lambda path: os.rename(path, path + "~"),
    "delete": lambda path: os.unlink(path + "~"),
}


def _remove(folder: str) -> None:
    """A folder of this program's, with the files in it."""
    for name in os.listdir(folder):
        os.unlink(os.path.join(folder, name))
    os.rmdir(folder)


def _sweep(place: str) -> None:
    """Remove what runs of this node have left behind that could not remove it themselves."""
    for name in os.listdir(place):
        path = os.path.join(place, name)
        if name.startswith(PREFIX + os.uname().nodename + "-") and os.stat(path).st_mtime < time.time() - _STALE:
            _remove(path)


def _measure(folder: str, rounds: int, tell: int) -> None:
    """Do it, and write a line to ``tell`` when an operation begins, and one with its seconds when it ends."""
    parent = os.getppid()
    _sweep(os.path.dirname(folder))
    os.mkdir(folder, 0o700)
    for number in range(rounds):
        for operation, step in OPERATIONS.items():
            if os.getppid() != parent:
                return
            os.write(tell, f"{operation}\n".encode())
            began = time.perf_counter()
            step(os.path.join(folder, str(number)))
            os.write(tell, f"{operation} {time.perf_counter() - began:.6f}\n".encode())
    os.rmdir(folder)


def _child(work: "Callable[..., None]", *arguments: object) -> int:
    """A process that does some work, and ends with status 0, or with 1 and the cause on stderr."""
    child = os.fork()
    if child:
        return child
    try:
        work(*arguments)
        os._exit(0)
    except OSError as error:
        os.write(2, f"{error}\n".encode())
    os._exit(1)


def _ended(child: int, within: float) -> bool:
    """Whether a child has ended, or has after a SIGKILL that comes when its time is over."""
    for deadline in (time.monotonic() + within, time.monotonic() + within + _GRACE):
        while time.monotonic() < deadline:
            if os.waitpid(child, os.WNOHANG)[0]:
                return True
            time.sleep(0.01)
        os.kill(child, 9)
    return False


def _summary(seconds: "list[float]") -> str:
    seconds = sorted(seconds)
    # The least that half, and 19 of 20, do not exceed.
    median, p95 = seconds[(len(seconds) - 1) // 2], seconds[-(-len(seconds) * 19 // 20) - 1]
    return f"{median:.6f} {p95:.6f} {seconds[-1]:.6f}"


def _heard(told: int, child: int, limit: float) -> "tuple[str, int | None, float]":
    """What a child has told, the status it has ended with, if it has, and for how long it has been silent."""
    said, heard = b"", time.monotonic()
    deadline = heard + limit
    while True:
        # Looked at before its last words are read, so that none of them is lost.
        found, status = os.waitpid(child, os.WNOHANG)
        try:
            while piece := os.read(told, 65536):
                said, heard = said + piece, time.monotonic()
        except BlockingIOError:
            pass
        if found or time.monotonic() > deadline:
            return said.decode(), status if found else None, time.monotonic() - heard
        time.sleep(0.01)


def main(place: str, rounds: int, limit: float) -> None:
    """Print a line for each operation: median, p95 and longest; then how it ended."""
    folder = os.path.join(os.path.expanduser(place), f"{PREFIX}{os.uname().nodename}-{os.getpid()}")
    told, tell = os.pipe()
    os.set_blocking(told, False)
    child = _child(_measure, folder, rounds, tell)
    os.close(tell)
    said, status, silent = _heard(told, child, limit)
    times: dict[str, list[float]] = {operation: [] for operation in OPERATIONS}
    doing = "mkdir"
    for line in said.splitlines():
        doing, _, seconds = line.partition(" ")
        if seconds:
            times[doing].append(float(seconds))
            doing = "rmdir"
    for operation in OPERATIONS:
        if times[operation]:
            print(operation, _summary(times[operation]))
    if status is not None:
        print("failed " + doing if status else "done")
        return
    # The process may be stuck in the kernel, and end only once the file system answers again.
    is_gone = _ended(child, 0.0) and _ended(_child(_remove, folder), _GRACE)
    print(f"stopped {doing} {silent:.6f} {'' if is_gone else folder}")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
