"""Call of a Python function as a batch script: everything it needs goes with the script, and a file comes back."""

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
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from airflow_provider_soperator.functions import remote
from airflow_provider_soperator.slurm import options
from airflow_provider_soperator.slurm.job import BatchJob

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
#: The fields of a job that are options of pyxis. Those of Slurm's own containers are not.
CONTAINER = frozenset(name for name in options.FIELDS if name.startswith("container_")) - {"container_id"}


class CallError(ValueError):
    """A call cannot go to the cluster, or what it returned cannot come back; the message says why, and what to do."""


@dataclass(frozen=True, kw_only=True)
class Launch:
    """An interpreter, and what it runs in.

    ``container`` has those fields of a job that are options of pyxis. sbatch would put the batch script itself into the
    container, which has no srun, and where a folder of the job is only if it is mounted.
    """

    python: str | None = None
    venv: str | None = None
    ranks: int | None = None
    srun_args: Sequence[str] = ()
    container: Mapping[str, Any] = field(default_factory=dict)

    def lines(self, arguments: str) -> str:
        """The last lines of a batch script: they run the interpreter in place of the shell, so that signals reach it.

        In the shell that they are for, ``$folder`` has the files of the call.

        >>> print(Launch().lines("call.zip"))
        exec python3 -u call.zip
        >>> print(Launch(venv="/shared/venv", ranks=2).lines("call.zip"))
        export VIRTUAL_ENV=/shared/venv PATH=/shared/venv/bin:$PATH
        exec srun --ntasks=2 --kill-on-bad-exit=1 /shared/venv/bin/python -u call.zip
        """
        words = ["exec", *self._srun(), shlex.quote(self._python()), "-u", arguments]
        lines = [" ".join(words)]
        if self.venv:
            # As its own script for activation does, for the programs that people install there.
            venv = shlex.quote(self.venv)
            lines.insert(0, f"export VIRTUAL_ENV={venv} PATH={venv}/bin:$PATH")
        return "\n".join(lines)

    def _python(self) -> str:
        return posixpath.join(self.venv, "bin", "python") if self.venv else self.python or "python3"

    def _srun(self) -> list[str]:
        if not (self.ranks or self.srun_args or self.container):
            return []
        size = [f"--ntasks={self.ranks}"] if self.ranks else ["--nodes=1", "--ntasks=1"]
        # Ranks wait for each other: without the option one that has failed leaves the others waiting for ever.
        words = ["srun", *size, "--kill-on-bad-exit=1", *self._container(), *map(shlex.quote, self.srun_args)]
        # srun looks a command up on its own node, where there may be one of the same name at another place.
        return [*words, "env"] if self.container else words

    def _container(self) -> list[str]:
        if not self.container:
            return []
        fields = dict(self.container)
        mounts = fields.pop("container_mounts", None) or ()
        words = BatchJob(command="true", **fields).argv()
        own = BatchJob(command="true", container_mounts=mounts).argv() if mounts else ["--container-mounts="]
        # Of an option that is given twice Slurm hands a plugin the last one only.
        joined = shlex.quote(own[0] + ("," if mounts else "")) + '"$folder:$folder"'
        return [*map(shlex.quote, words), joined]


def script(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    name: str,
    launch: Launch = Launch(),
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
    """Path of the result, once the job has succeeded."""
    return posixpath.join(workdir, FOLDER, f"{name}.result")


def paths(workdir: str, name: str) -> tuple[str, ...]:
    """Paths of all files that a call has written."""
    return result_path(workdir, name), posixpath.join(workdir, FOLDER, f"{name}.zip")


def result(data: bytes) -> Any:
    """Result of the function. It is unpickled, so an account that can write it can run code here."""
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


def plain(value: Any) -> Any:
    """The same of types that every Python has, as far as Airflow is what made them others.

    >>> import pendulum
    >>> plain({"at": [pendulum.datetime(2026, 11, 21, tz="UTC")]})
    {'at': [datetime.datetime(2026, 11, 21, 0, 0, tzinfo=datetime.timezone.utc)]}
    """
    if type(value) is dict:
        return {plain(key): plain(one) for key, one in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(plain, value))
    if isinstance(value, datetime) and type(value).__module__.startswith("pendulum."):
        return datetime.fromisoformat(value.isoformat())
    if isinstance(value, Sequence) and is_airflows(value):
        # The results of mapped tasks: each is fetched when it is looked at.
        return list(map(plain, value))
    return value


def is_airflows(value: Any) -> bool:
    """True if a value is of a type that comes with Airflow."""
    return type(value).__module__.partition(".")[0] == "airflow"
