"""A call of a Python function as a batch script: everything it needs goes with the script, and a file comes back."""

from __future__ import annotations

import base64
import inspect
import io
import json
import pickle
import posixpath
import shlex
import sys
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from airflow_provider_soperator.functions import remote

#: Bytes that a script of Slurm's can have (SchedulerParameters=max_script_size), less what else is in it.
MOST_TO_SEND = (4 << 20) - (64 << 10)
#: Bytes of what comes back.
MOST_TO_RETURN = 16 << 20

#: Where a call keeps its files, in the job's working directory.
FOLDER = ".airflow-soperator"

_SCRIPT = """\
#!/bin/bash
# Calls {function}; made by Airflow.
set -eu
folder=$PWD/{folder}
mkdir -p -m 700 "$folder"
rm -f "$folder/result.pickle"
base64 -d >"$folder/call.zip" <<'END'
{payload}END
exec {command} "$folder/call.zip" "$folder/result.pickle" {most}
"""


class CannotSend(ValueError):
    """A function or its arguments cannot be sent to the cluster; the message says which, and what to do."""


def script(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    name: str,
    python: str = "python3",
    launcher: Sequence[str] = (),
    most: int = MOST_TO_RETURN,
) -> str:
    """A batch script that makes the call. ``name`` tells its files from those of other calls.

    ``launcher`` comes before the interpreter, as ``srun`` does; of several ranks the first one's result comes back.
    """
    payload = base64.encodebytes(_archive(function, args, kwargs)).decode()
    if len(payload) > MOST_TO_SEND:
        raise CannotSend(
            f"the call of {_called(function)} has {len(payload) >> 10} KiB with its arguments, and a script of Slurm's "
            f"can have {MOST_TO_SEND >> 10}: write large arguments to the cluster's shared root, and pass their path"
        )
    return _SCRIPT.format(
        function=_called(function),
        folder=shlex.quote(posixpath.join(FOLDER, name)),
        payload=payload,
        command=" ".join([*map(shlex.quote, launcher), shlex.quote(python), "-u"]),
        most=most,
    )


def result_path(workdir: str, name: str) -> str:
    """Where the result is, once the job has succeeded."""
    return posixpath.join(workdir, FOLDER, name, "result.pickle")


def result(data: bytes) -> Any:
    """What the function returned."""
    try:
        return pickle.loads(data)
    except Exception as error:
        raise CannotSend(
            f"what the function returned cannot be read here ({type(error).__name__}: {error}): return plain values, "
            f"or types of packages that are installed on both sides"
        ) from error


def _archive(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> bytes:
    import cloudpickle

    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("__main__.py", inspect.getsource(remote))
        archive.writestr("about.json", json.dumps(_about(function)))
        archive.writestr("call.pickle", _pickled(function, args, kwargs))
        # The other side may not have it, or another version of it.
        for file in Path(cloudpickle.__file__).parent.glob("*.py"):
            archive.write(file, f"cloudpickle/{file.name}")
    return packed.getvalue()


def _pickled(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> bytes:
    import cloudpickle

    module = inspect.getmodule(function)
    # A DAG file is no module that the cluster could import: what is defined in it goes by value.
    by_value = module is not None and module.__name__ != "__main__"
    if by_value:
        cloudpickle.register_pickle_by_value(module)
    try:
        data: bytes = cloudpickle.dumps((function, tuple(args), dict(kwargs)))
    except Exception as error:
        raise CannotSend(
            f"{_called(function)} or its arguments cannot be sent ({error}): make what it needs inside of it"
        ) from error
    finally:
        if by_value:
            cloudpickle.unregister_pickle_by_value(module)
    return data


def _about(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        file = inspect.getsourcefile(function)
        sources = {file: Path(file).read_text()} if file else {}
    except (OSError, TypeError):
        sources = {}
    return {"python": f"{sys.version_info.major}.{sys.version_info.minor}", "sources": sources}


def _called(function: Callable[..., Any]) -> str:
    return str(getattr(function, "__qualname__", function))
