"""Calls a function on the cluster: this file is the ``__main__`` of a zip archive that also contains the call.

Any Python 3 must be able to run it far enough to report a version that does not fit.
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

#: Exit code for errors that a retry cannot fix; EX_CONFIG in sysexits.h.
UNFIT = 78


def main(archive: str, result_path: str, most: int) -> None:
    with zipfile.ZipFile(archive) as packed:
        about = json.loads(packed.read("about.json").decode())
        call = packed.read("call.pickle")
    here = ".".join(map(str, sys.version_info[:2]))
    if here != about["python"]:
        fail(
            f"this is Python {here} ({sys.executable}), but the function comes from Python {about['python']}: "
            f"set an interpreter of that version (python=, venv=), or run the Airflow workers with Python {here}"
        )
    for name, text in about["sources"].items():
        # So that a traceback can show lines of a file that does not exist here.
        linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    # Now, because the archive may be gone when a long call ends.
    cloudpickle = importlib.import_module("cloudpickle")
    try:
        function, args, kwargs = pickle.loads(call)
    except ImportError as error:
        fail(f"the function needs a module that is not installed for {sys.executable}: {error}")
    try:
        result = function(*args, **kwargs)
    except Exception:
        kind, raised, trace = sys.exc_info()
        # The first frame is this file.
        traceback.print_exception(kind, raised, trace and trace.tb_next)
        sys.exit(1)
    if os.environ.get("SLURM_PROCID", "0") == "0":
        keep(result, result_path, most, cloudpickle.dumps)


def keep(result: Any, path: str, most: int, dumps: Any) -> None:
    try:
        data = dumps(result)
    except Exception as error:
        fail(f"the result of the function cannot be pickled: {error}")
    if len(data) > most:
        fail(f"the function returned {len(data)} bytes, more than {most}: write a file, and return its path")
    # Atomically.
    with open(path + ".partial", "wb") as out:
        out.write(data)
    os.replace(path + ".partial", path)


def fail(why: str) -> NoReturn:
    print(f"airflow: {why}", file=sys.stderr)
    sys.exit(UNFIT)


if __name__ == "__main__":
    main(os.path.dirname(os.path.abspath(__file__)), sys.argv[1], int(sys.argv[2]))
