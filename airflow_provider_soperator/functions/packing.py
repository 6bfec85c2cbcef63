"""A call of a Python function as a batch script: everything it needs goes with the script, and a file comes back."""

from __future__ import annotations

import base64
import inspect
import io
import json
import pickle
import posixpath
import sys
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from airflow_provider_soperator.functions import remote
from airflow_provider_soperator.functions.launch import Launch

#: Bytes that a script of Slurm's can have (SchedulerParameters=max_script_size), less what else is in it.
MOST_TO_SEND = (4 << 20) - (64 << 10)
#: Bytes of what comes back.
MOST_TO_RETURN = 16 << 20

#: Where calls keep their files, in the job's working directory.
FOLDER = ".airflow-soperator"
#: Days after which a call removes what earlier ones have left there: of those that failed, or whose task was killed.
DAYS = 30

_SCRIPT = """\
#!/bin/bash
# Calls {function}; made by Airflow.
set -eu
folder=$PWD/{folder}
mkdir -p -m 700 "$folder"
find "$folder" -type f -mtime +{days} -delete || true
rm -f "$folder/{name}.result"
base64 -d >"$folder/{name}.zip" <<'END'
{payload}END
{launch}
"""


class CallError(ValueError):
    """A call cannot go to the cluster, or what it returned cannot come back; the message says why, and what to do."""


def script(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    name: str,
    launch: Launch = Launch(),  # noqa: B008
    most: int = MOST_TO_RETURN,
) -> str:
    """A batch script that makes the call. ``name`` tells its files from those of other calls.

    Of several ranks the first one's result comes back.
    """
    payload = base64.encodebytes(_archive(function, args, kwargs)).decode()
    if len(payload) > MOST_TO_SEND:
        raise CallError(
            f"the call of {_called(function)} has {len(payload) >> 10} KiB with its arguments, and a script of Slurm's "
            f"can have {MOST_TO_SEND >> 10}: write large arguments to the cluster's shared root, and pass their path"
        )
    return _SCRIPT.format(
        function=_called(function),
        folder=FOLDER,
        days=DAYS,
        name=name,
        payload=payload,
        launch=launch.lines(f'"$folder/{name}.zip" "$folder/{name}.result" {most}'),
    )


def result_path(workdir: str, name: str) -> str:
    """Where the result is, once the job has succeeded."""
    return posixpath.join(workdir, FOLDER, f"{name}.result")


def paths(workdir: str, name: str) -> tuple[str, ...]:
    """All that a call has written."""
    return result_path(workdir, name), posixpath.join(workdir, FOLDER, f"{name}.zip")


def result(data: bytes) -> Any:
    """What the function returned. It is unpickled, so whoever can write it can run code here."""
    try:
        return pickle.loads(data)
    except Exception as error:
        raise CallError(
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
        raise CallError(
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
