"""Writes a job as words of sbatch's command line and as a script with #SBATCH lines."""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Mapping
from typing import Any

from airflow_provider_soperator.slurm import directives, options, terms
from airflow_provider_soperator.slurm.description import JobDescription

_SHELL = re.compile(r"#!\s*(?:\S*/)?(?:env\s+(?:-S\s+)?)?(?:\S*/)?(?:ba|da|k|z|a)?sh(?:\s|$)")
GPU_COUNTS = ("gpus", "gpus_per_node", "gpus_per_task", "gpus_per_socket")


def body(job: JobDescription) -> str | None:
    """The script's text; None where it is a file on the cluster, of which nothing is known here."""
    if job.script is not None:
        return job.script
    if job.script_file is not None:
        return job.script_file.text
    if job.command is not None:
        # What sbatch makes of --wrap.
        command = job.command if isinstance(job.command, str) else shlex.join(job.command)
        return f"#!/bin/sh\n{command}\n"
    return None


def values(job: JobDescription) -> Mapping[str, Any]:
    """The fields' values as the table writes them: with GPU type, array limit, default name and exported names."""
    found = {field: getattr(job, field) for field in options.FIELDS}
    if job.name is None and job.script_file is not None:
        found["name"] = posixpath.basename(job.script_file.name)
    if job.gpu_type is not None:
        for field in GPU_COUNTS:
            if isinstance(found[field], int):
                found[field] = f"{job.gpu_type}:{found[field]}"
    if job.array is not None:
        found["array"] = terms.array_text(job.array, job.array_limit)
    return found


def export(job: JobDescription) -> str | None:
    """The value of --export with which sbatch hands on its own environment and the job's variables in it."""
    names = [] if job.export is None else terms.as_words(job.export)
    if not job.env:
        return ",".join(names) or None
    if not names or "ALL" in (name.upper() for name in names):
        return ",".join(names) or "ALL"
    return ",".join([name for name in names if name.upper() != "NONE"] + sorted(job.env))


def words(job: JobDescription) -> list[str]:
    """One component's options, each one word."""
    said = dict(values(job)) | {"export": export(job)}
    return [option.word(value) for option, value in options.said(said)] + list(job.extra_args)


def argv(job: JobDescription) -> list[str]:
    """All components' options as sbatch's command line has them, with ":" between components."""
    found = words(job)
    for component in job.het:
        found += [":", *words(component)]
    return found


def script(job: JobDescription) -> str:
    """The body with the job's options as #SBATCH lines after the user's own, so that they win.

    The environment goes as `export` lines, for only a shell can say it in a script; nothing but `submission` is
    exact for every body.
    """
    text = body(job)
    if text is None:
        raise ValueError(f"remote_script: the text of {job.remote_script} is on the cluster")
    if job.args:
        raise ValueError("args: a script cannot hold its own arguments")
    first, _, _ = text.partition("\n")
    if job.env and not _SHELL.match(first):
        raise ValueError(f"env: only a shell script can set variables itself, and this one begins with {first!r}")
    lines = text.split("\n")
    ends = _component_ends(text)
    blocks = [_lines(job)] * len(ends)  # like words of the command line, they hold for each component
    for component in job.het:
        blocks[-1] = [*blocks[-1], "#SBATCH hetjob", *_lines(component)]
    exports = [f"export {name}={shlex.quote(value)}" for name, value in job.env.items()]
    if exports:
        # Before the first command, and after the last line that sbatch reads.
        start = _first_command(lines)
        lines[start:start] = exports
    for end, block in reversed(list(zip(ends, blocks, strict=True))):
        lines[end:end] = block
    return "\n".join(lines)


def _lines(job: JobDescription) -> list[str]:
    # The variables are set in the script, so that there is nothing to hand on but what the user asked for.
    said = dict(values(job)) | {"export": export(job.replace(env={}))}
    own = [option.word(value) for option, value in options.said(said)]
    return [f"#SBATCH {directives.quote(word)}" for word in [*own, *job.extra_args]]


def _component_ends(text: str) -> list[int]:
    """For each component the index of the line before which more #SBATCH lines for it can go."""
    ends = [1]
    for number, rest in directives.directive_lines(text):
        if directives.is_separator(rest):
            ends.append(number)
        ends[-1] = number
    return ends


def _first_command(lines: list[str]) -> int:
    for index, line in enumerate(lines):
        if (bare := line.strip()) and not bare.startswith("#"):
            return index
    return len(lines)
