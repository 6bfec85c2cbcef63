"""Call of a Python function as a batch script: the script contains all it needs, and the result comes in a file."""

from __future__ import annotations

import base64
import hashlib
import inspect
import io
import json
import linecache
import posixpath
import re
import shlex
import sys
import zipfile
import zlib
from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, ClassVar

from airflow_provider_soperator.errors import LastingError
from airflow_provider_soperator.functions import remote
from airflow_provider_soperator.functions.source_form import NoSourceForm, modules_of, read_by, remade, source_form
from airflow_provider_soperator.slurm import job_description, option_values
from airflow_provider_soperator.slurm.job import BatchJob
from airflow_provider_soperator.values import listed

#: Slurm's limit for a batch script in bytes (SchedulerParameters=max_script_size), less its other contents.
MOST_TO_SEND = (4 << 20) - (64 << 10)
#: Limit of a result in bytes.
MOST_TO_RETURN = 16 << 20

#: Folder for the files of calls, in the job's working directory.
FOLDER = ".airflow-soperator"
#: Days after which a call removes files of earlier calls that failed, or whose task was killed.
DAYS = 30

#: What differs between calls of a function stands in one place: mapped tasks go as arrays with all else there once.
_SCRIPT = """\
#!/bin/bash
# Calls {function}; made by Airflow.
set -eu
folder=$PWD/{folder}
mkdir -p -m 700 "$folder"
find "$folder" -maxdepth 1 -type f -mtime +{days} -delete || true
set -- {name}
base64 -d >"$folder/$1.zip" <<'END'
{arguments}END
base64 -d >>"$folder/$1.zip" <<'END'
{archive}END
rm -f "$folder/$1.result"
{launch}
"""
#: Fields of a job that are options of pyxis, not of Slurm's own containers.
CONTAINER = frozenset(name for name in job_description.FIELDS if name.startswith("container_")) - {"container_id"}


class CallError(LastingError, ValueError):
    """A call cannot be sent, or its result cannot be read. The message ends with the remedy."""


@dataclass(frozen=True, kw_only=True)
class Launch:
    """An interpreter and its environment.

    ``requirements`` is the text of a file of requirements, from which the environment is built on the cluster.

    ``container`` has the fields of a job that are options of pyxis. They are passed to srun: sbatch would run the batch
    script itself in the container, which has no srun, and sees the job's folder only if it is mounted.
    """

    python: str | None = None
    venv: str | None = None
    requirements: str = ""
    venv_cache_path: str | None = None
    ranks: int | None = None
    srun_args: Sequence[str] = ()
    container: Mapping[str, Any] = field(default_factory=dict)

    def lines(self, arguments: str) -> str:
        """The last lines of a batch script. The interpreter replaces the shell, so that signals reach it.

        The shell variable ``$folder`` is the folder with the files of the call.
        """
        words = ["exec", *self._srun(), shlex.quote(self._python()), "-u", arguments]
        lines = [" ".join(words)]
        if self.venv:
            # Like its activation script, for programs that are installed there.
            venv = shlex.quote(self.venv)
            lines.insert(0, f"export VIRTUAL_ENV={venv} PATH={venv}/bin:$PATH")
        if self.container and self.requirements and self.venv_cache_path:
            # What does not exist cannot be mounted.
            lines.insert(0, f"mkdir -p {shlex.quote(self.venv_cache_path)}")
        return "\n".join(lines)

    def environment(self) -> dict[str, str | None] | None:
        """The environment to build, for ``remote``. The same content has the same key."""
        if not self.requirements:
            return None
        if self.venv_cache_path and not posixpath.isabs(self.venv_cache_path):
            raise CallError(
                f"venv_cache_path is {self.venv_cache_path!r}, but must be an absolute path on the root that all nodes "
                f"share"
            )
        # In another image the same path is another interpreter.
        content = (self.requirements, self._python(), str(self.container.get("container_image")))
        key = hashlib.sha256("\0".join(content).encode()).hexdigest()[:16]
        return {"folder": self.venv_cache_path, "key": key, "requirements": self.requirements}

    def told_version(self) -> str | None:
        """The version of the interpreter, if its name tells it.

        >>> Launch(python="/usr/bin/python3.12").told_version()
        '3.12'
        """
        found = re.search(r"python(3\.\d+)$", self._python())
        return found[1] if found else None

    def _python(self) -> str:
        return posixpath.join(self.venv, "bin", "python") if self.venv else self.python or "python3"

    def _srun(self) -> list[str]:
        if not (self.ranks or self.srun_args or self.container):
            return []
        size = [f"--ntasks={self.ranks}"] if self.ranks else ["--nodes=1", "--ntasks=1"]
        # Ranks wait for each other: without the option, the others would wait forever for one that has failed.
        own = map(shlex.quote, option_values.as_texts(listed(self.srun_args)))
        words = ["srun", *size, "--kill-on-bad-exit=1", *self._container(), *own]
        # srun resolves a command on its own node, where it may have another path than in the container.
        return [*words, "env"] if self.container else words

    def _container(self) -> list[str]:
        if not self.container:
            return []
        fields = dict(self.container)
        mounts = option_values.as_words(fields.pop("container_mounts", None) or ())
        if self.requirements and self.venv_cache_path:
            mounts.append(f"{self.venv_cache_path}:{self.venv_cache_path}")
        words = BatchJob(command="true", **fields).argv()
        own = BatchJob(command="true", container_mounts=mounts).argv() if mounts else ["--container-mounts="]
        # If an option is given twice, Slurm passes only the last one to a plugin.
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
    """A batch script that makes the call. ``name`` is unique to the files of this call.

    The call is sent both as bytecode and as source: only on the cluster it is known which Python runs it.

    With several ranks, the result is that of the first one.
    """
    arguments, archive = (base64.encodebytes(part).decode() for part in _parts(function, args, kwargs, launch))
    if (size := len(arguments) + len(archive)) > MOST_TO_SEND:
        raise CallError(
            f"the call of {_called(function)} has {size >> 10} KiB with its arguments, but a batch script can "
            f"have {MOST_TO_SEND >> 10}: write large arguments to the cluster's jail, and pass their path"
        )
    return _SCRIPT.format(
        function=_called(function),
        folder=FOLDER,
        days=DAYS,
        name=name,
        arguments=arguments,
        archive=archive,
        launch=launch.lines(f'"$folder/$1.zip" "$folder/$1.result" {most}'),
    )


def result_path(workdir: str, name: str) -> str:
    """Path of the result, once the job has succeeded."""
    return posixpath.join(workdir, FOLDER, f"{name}.result")


def paths(workdir: str, name: str) -> tuple[str, ...]:
    """Paths of all files that a call has written."""
    return result_path(workdir, name), posixpath.join(workdir, FOLDER, f"{name}.zip")


def result(data: bytes) -> Any:
    """Result of the function. It is unpickled, so an account that can write the file can run code here."""
    try:
        return remote.Values(data, []).load()
    except Exception as error:
        raise CallError(
            f"the result of the function cannot be unpickled here ({type(error).__name__}: {error}): return plain "
            f"values, or types of packages that are installed on both sides"
        ) from error


def _parts(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], launch: Launch
) -> tuple[bytes, bytes]:
    """What depends on the arguments, and the archive that comes after it in the same file: zip allows that."""
    import cloudpickle

    about = _about(function) | {"environment": launch.environment(), "refused": None}
    try:
        form = source_form(function, args, kwargs)
    except NoSourceForm as error:
        about["refused"], told = str(error), launch.told_version()
        if told not in (None, about["python"]):
            raise CallError(
                f"python= is Python {told}, and Airflow runs on {about['python']}: {_called(function)} would have to "
                f"be sent as source, which cannot contain {error}"
            ) from None
        pickled, arguments = _pickled(function, function, (tuple(args), dict(kwargs)))
        members = {"function.pickle": pickled}
    else:
        about["functions"] = form.functions
        # They may be large, and are sent once.
        arguments = form.arguments
        members = {"function.pickle": _pickled(function, function)[0], "values.pickle": form.values}
    members |= {"__main__.py": inspect.getsource(remote).encode(), "about.json": json.dumps(about).encode()}
    # The cluster may have no cloudpickle, or another version.
    for file in sorted(Path(cloudpickle.__file__).parent.glob("*.py")):
        members[f"cloudpickle/{file.name}"] = file.read_bytes()
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, data in members.items():
            # Of no time, so that it is the same for equal calls.
            archive.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)
    return zlib.compress(arguments), packed.getvalue()


def _pickled(function: Callable[..., Any], *values: Any) -> list[bytes]:
    """The values as one stream, in which a class is the same for all."""
    import cloudpickle

    # The cluster cannot import a DAG file, so what it defines is pickled by value.
    by_value = [sys.modules[name] for name in _only_here(function)]
    for module in by_value:
        cloudpickle.register_pickle_by_value(module)
    packed = io.BytesIO()
    pickler, ends = _pickler(packed, function), [0]
    try:
        for value in values:
            pickler.dump(value)
            ends.append(packed.tell())
    except Exception as error:
        raise CallError(
            f"{_called(function)} or its arguments cannot be pickled ({error}): create such objects inside the function"
        ) from error
    finally:
        for module in by_value:
            cloudpickle.unregister_pickle_by_value(module)
    return [packed.getvalue()[start:end] for start, end in pairwise(ends)]


def _pickler(packed: io.BytesIO, function: Callable[..., Any]) -> Any:
    """Pickles by value what the cluster cannot import, with the names of the files for tracebacks."""
    import cloudpickle

    reduced = cloudpickle.Pickler.dispatch_table[CodeType]
    here, called = modules_of(function), (function, inspect.unwrap(function))

    def named(code: CodeType) -> Any:
        # Since 3.1.3, cloudpickle replaces the name of each file.
        made, parts = reduced(code)
        return made, tuple(code.co_filename if part == "<dynamic-code>" else part for part in parts)

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
        dispatch_table: ClassVar = ChainMap({CodeType: named}, cloudpickle.Pickler.dispatch_table)

        def reducer_override(self, value: Any) -> Any:
            if (made := remade(value, here)) is not NotImplemented:
                return made
            if isinstance(value, cached_property):
                # Before Python 3.12 it has a lock.
                return cached_property, (value.func,), {"attrname": value.attrname}
            made = super().reducer_override(value)
            if isinstance(value, FunctionType) and made is not NotImplemented:
                _, parts = made[2]
                # cloudpickle knows none that only the body of a class reads.
                parts["__globals__"] |= {name: value.__globals__[name] for name in read_by(value)}
                if value in called:
                    # They would be looked up on the cluster.
                    parts["__annotations__"] = {}
            return made

    return Pickler(packed)


def _about(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        file = inspect.getsourcefile(function)
    except TypeError:
        file = None
    # In the encoding that the file names.
    sources = {file: "".join(linecache.getlines(file))} if file else {}
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    return {"python": version, "sources": sources, "modules": _only_here(function)}


def _only_here(function: Callable[..., Any]) -> list[str]:
    """The modules that the cluster cannot import, without ``__main__``, which is another there."""
    return sorted(modules_of(function) - {"__main__"})


def _called(function: Callable[..., Any]) -> str:
    return str(getattr(function, "__qualname__", function))


def plain(value: Any) -> Any:
    """The value, with Airflow's types replaced by types of the standard library.

    >>> import pendulum
    >>> plain({"at": [pendulum.datetime(2026, 11, 21, tz="UTC")]})
    {'at': [datetime.datetime(2026, 11, 21, 0, 0, tzinfo=datetime.timezone.utc)]}

    Airflow reads a datetime that another task has returned with a time zone of pendulum:

    >>> plain(datetime(2026, 11, 21, tzinfo=pendulum.timezone("Europe/Berlin"))).tzinfo
    datetime.timezone(datetime.timedelta(seconds=3600))
    """
    if type(value) is dict:
        return {plain(key): plain(one) for key, one in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(plain, value))
    if isinstance(value, datetime) and "pendulum" in {_package(type(value)), _package(type(value.tzinfo))}:
        return datetime.fromisoformat(value.isoformat())
    if isinstance(value, Sequence) and is_airflows(value):
        # The lazy results of mapped tasks.
        return list(map(plain, value))
    return value


def is_airflows(value: Any) -> bool:
    """True if a value has a type of Airflow."""
    return _package(type(value)) == "airflow"


def _package(kind: type) -> str:
    return kind.__module__.partition(".")[0]
