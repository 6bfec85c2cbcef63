"""How the interpreter of a call is started on the cluster: by itself, or by srun as several ranks or in a container."""

from __future__ import annotations

import posixpath
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_soperator.slurm import options
from airflow_provider_soperator.slurm.job import BatchJob

#: The fields of a job that are options of pyxis. Those of Slurm's own containers are not.
CONTAINER = frozenset(name for name in options.FIELDS if name.startswith("container_")) - {"container_id"}


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
