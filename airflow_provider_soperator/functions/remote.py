"""Calls a function on the cluster: this file goes there as the ``__main__`` of a zip archive, with the call beside it.

Any Python 3 that people have there must understand it, up to the point at which it says what does not fit.
"""

import importlib
import json
import linecache
import os
import pickle
import sys
import traceback
import zipfile
from typing import Any, NoReturn

#: The exit code for what another try would not change; sysexits.h calls it a configuration error.
UNFIT = 78


def main(archive: str, result_path: str, most: int) -> None:
    with zipfile.ZipFile(archive) as packed:
        about = json.loads(packed.read("about.json").decode())
        call = packed.read("call.pickle")
    here = ".".join(map(str, sys.version_info[:2]))
    if here != about["python"]:
        fail(
            f"this is Python {here} ({sys.executable}), but the function comes from Python {about['python']}: "
            f"name an interpreter of that version (python=, venv=), or run Airflow's workers with this one"
        )
    for name, text in about["sources"].items():
        # So that a traceback shows the lines of a file that is not here.
        linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    # By now, as the archive may be gone when a long call ends.
    cloudpickle = importlib.import_module("cloudpickle")
    try:
        function, args, kwargs = pickle.loads(call)
    except ImportError as error:
        fail(f"the function needs what is not installed for {sys.executable}: {error}")
    try:
        result = function(*args, **kwargs)
    except Exception:
        kind, raised, trace = sys.exc_info()
        # The first frame is this file's.
        traceback.print_exception(kind, raised, trace and trace.tb_next)
        sys.exit(1)
    if os.environ.get("SLURM_PROCID", "0") == "0":
        keep(result, result_path, most, cloudpickle.dumps)


def keep(result: Any, path: str, most: int, dumps: Any) -> None:
    try:
        data = dumps(result)
    except Exception as error:
        fail(f"what the function returned cannot be sent back: {error}")
    if len(data) > most:
        fail(f"the function returned {len(data)} bytes, more than {most}: write a file, and return its path")
    # Whole or not at all.
    with open(path + ".partial", "wb") as out:
        out.write(data)
    os.replace(path + ".partial", path)


def fail(why: str) -> NoReturn:
    print(f"airflow: {why}", file=sys.stderr)
    sys.exit(UNFIT)


if __name__ == "__main__":
    main(os.path.dirname(os.path.abspath(__file__)), sys.argv[1], int(sys.argv[2]))
