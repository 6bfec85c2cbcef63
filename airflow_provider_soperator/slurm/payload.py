"""A job as slurmrestd takes it: the JSON of POST /slurm/{version}/job/submit, for the versions v0.0.41 to v0.0.45.

slurmrestd reads no #SBATCH lines and has no login's environment; what sbatch does with these is done here, so that a
job is the same job over either road.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from airflow_provider_soperator.slurm import checks, directives, options, rendering, terms
from airflow_provider_soperator.slurm.description import Job, JobDescription

VERSIONS = tuple(f"v0.0.{number}" for number in range(41, 46))

#: What a job finds when nobody says more; slurmd adds HOME, USER and the like.
ENVIRONMENT = ("PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",)

#: Variables that sbatch sets from options for the script to read, beside those that slurmd sets.
_VARIABLES = {
    "ntasks": ("SLURM_NTASKS", "SLURM_NPROCS"),
    "ntasks_per_node": ("SLURM_NTASKS_PER_NODE",),
    "ntasks_per_socket": ("SLURM_NTASKS_PER_SOCKET",),
    "ntasks_per_core": ("SLURM_NTASKS_PER_CORE",),
    "ntasks_per_gpu": ("SLURM_NTASKS_PER_GPU",),
    "cpus_per_task": ("SLURM_CPUS_PER_TASK",),
    "cpus_per_gpu": ("SLURM_CPUS_PER_GPU",),
    "threads_per_core": ("SLURM_THREADS_PER_CORE",),
    "gpus": ("SLURM_GPUS",),
    "gpus_per_node": ("SLURM_GPUS_PER_NODE",),
    "gpus_per_socket": ("SLURM_GPUS_PER_SOCKET",),
    "gpu_freq": ("SLURM_GPU_FREQ",),
    "tres_bind": ("SLURM_TRES_BIND",),
}


def build(job: JobDescription, version: str, environment: Iterable[str]) -> dict[str, Any]:
    """The request's body. InvalidJob names what slurmrestd has no words for."""
    if version not in VERSIONS:
        raise ValueError(f"slurmrestd {version} is unknown here; there are {', '.join(VERSIONS)}")
    text = rendering.body(job)
    if text is None:
        raise checks.InvalidJob(
            [f"remote_script: slurmrestd takes a script's text; read {job.remote_script} and give it as script"]
        )
    wanted = components(job)
    problems: list[str] = []
    if wanted[0].chdir is None:
        problems.append("chdir: slurmrestd knows no home to start in, so a job must say where it runs")
    said = []
    for number, component in enumerate(wanted):
        where = f"het component {number}: " if number else ""
        described, wrong = _describe(component, version)
        problems += (where + problem for problem in wrong)
        said.append(described)
    if problems:
        raise checks.InvalidJob(problems)
    first = said[0]
    for described in said:
        _finish(described, environment, wanted[0])
    first["script"] = text
    if job.args:
        first["argv"] = ["script", *job.args]  # slurmstepd puts the script's path in the first one's place
    if len(said) == 1:
        return {"job": first}
    return {"jobs": said}


def components(job: JobDescription) -> list[JobDescription]:
    """The job and its further components, each with all that its fields, #SBATCH lines and extra options ask for."""
    parts = directives.read(rendering.body(job) or "")
    found = [with_lines(job, part) for part in parts[:1]]
    # As for sbatch, the job's own options hold for each component of its script.
    for part in parts[1:]:
        found.append(with_lines(job.replace(env={}, het=()), part))
    found += (with_lines(component, directives.Component()) for component in job.het)
    for index, component in enumerate(found[1:], start=1):
        before = found[index - 1]
        missing = {field for field in options.FIELDS if getattr(component, field) is None} - options.PER_COMPONENT
        if component.mem_per_cpu is not None or component.mem_per_gpu is not None:
            missing.discard("mem")
        inherited = {field: getattr(before, field) for field in missing}
        found[index] = component.replace(**inherited, env={**before.env, **component.env})
    return found


def with_lines(job: Job, lines: directives.Component) -> Job:
    """The job with what #SBATCH lines and its own extra words ask for as fields, where it has not said otherwise."""
    try:
        extra = directives.read_words(list(job.extra_args))
    except directives.DirectiveError as wrong:
        raise checks.InvalidJob([f"extra_args: {wrong}"]) from None
    said: dict[str, Any] = lines.fields | extra.fields
    env: Mapping[str, str] = {**lines.fields.get("env", {}), **extra.fields.get("env", {}), **job.env}
    new = {field: value for field, value in said.items() if getattr(job, field) is None}
    if "array" not in new:
        new.pop("array_limit", None)
    return job.replace(**new | {"env": env, "extra_args": (*lines.extra_args, *extra.extra_args)})


def _describe(job: JobDescription, version: str) -> tuple[dict[str, Any], list[str]]:
    said: dict[str, Any] = {}
    problems: list[str] = [f"extra_args: slurmrestd {version} has no field for {word}" for word in job.extra_args]
    variables: list[str] = []
    for option, value in options.said(rendering.values(job)):
        written = option.kind.write(value)
        if option.rest is None or option.rest_since > int(version.rpartition(".")[2]):
            problems.append(f"{option.field}: slurmrestd {version} has no field for --{option.long}")
            continue
        try:
            _merge(said, option.rest(written))
        except ValueError as problem:
            problems.append(f"{option.field}: {problem}")
        variables += (f"{name}={written}" for name in _VARIABLES.get(option.field, ()))
    _imply(said)
    if "tres_per_task" in said:
        variables.append(f"SLURM_TRES_PER_TASK={said['tres_per_task']}")
    if job.chdir is not None:
        variables.append(f"SLURM_SUBMIT_DIR={job.chdir}")
    said.setdefault("name", "sbatch")
    variables += (f"{name}={value}" for name, value in job.env.items())
    said["environment"] = [*variables, *said.get("environment", ())]
    return said, problems


def _imply(said: dict[str, Any]) -> None:
    """What sbatch concludes from the resources of a task."""
    per_task = said.get("tres_per_task", "")
    cpus = re.search(r"(?:^|,)cpu[=:](\d+)", per_task)
    if cpus is not None:
        said.setdefault("cpus_per_task", int(cpus[1]))
    elif "cpus_per_task" in said:
        said["tres_per_task"] = ",".join(filter(None, (f"cpu={said['cpus_per_task']}", per_task)))
    if "cpus_per_task" in said:
        _merge(said, {"flags": ["EXACT_CPU_COUNT_REQUESTED"]})
    gpus = re.findall(r"(?:^|,)gres/gpu(?::[^=,]*)?[=:](\d+)", per_task)
    if gpus:
        said.setdefault("tres_bind", f"gres/gpu:per_task:{sum(map(int, gpus))}")


def _merge(said: dict[str, Any], more: dict[str, Any]) -> None:
    """Two options can say the same field: flags and resources add up."""
    for key, value in more.items():
        if key not in said:
            said[key] = value
        elif isinstance(value, list):
            said[key] = [*said[key], *value]
        elif key.startswith(("tres_", "cpus_per_tres", "memory_per_tres")):
            said[key] = f"{said[key]},{value}"
        else:
            said[key] = value


def _finish(said: dict[str, Any], environment: Iterable[str], job: JobDescription) -> None:
    exported = [] if job.export is None else [name.upper() for name in terms.as_words(job.export)]
    base = list(environment) if not exported or "ALL" in exported else []
    if exported and not {"ALL", "NIL"} & set(exported):
        base.append("SLURM_GET_USER_ENV=1")  # with NONE and with names slurmd begins with a login's environment
    own = {pair.partition("=")[0] for pair in said["environment"]}
    said["environment"] = [pair for pair in base if pair.partition("=")[0] not in own] + said["environment"]
    # sbatch's own; without them slurmd would take its own directory and a terminal.
    said.setdefault("standard_input", "/dev/null")
