"""The arguments of sbatch for a job: its command line and script, the command on the cluster, and slurmrestd's JSON.

sbatch's own options cannot carry a job's environment. `--export=NAME=value` interprets quotes and commas in values,
and writes the values into the job's SLURM_EXPORT_ENV (which every srun in it obeys) and into accounting.
`--export-file` clears sbatch's environment, and with it the variables of SPANK plugins such as pyxis. Lines at the head
of the script work for shells only and change the user's script. So the values precede the script on standard input, a
small shell program puts them into sbatch's environment, and `--export` names them: they are never part of a command
line, never evaluated by a shell, and a transport need not carry variables.

slurmrestd (versions v0.0.41 to v0.0.45) reads no #SBATCH lines and has no login's environment; this module does what
sbatch does with them, so that a job is the same either way.
"""

from __future__ import annotations

import contextlib
import math
import posixpath
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from airflow_provider_soperator.slurm import dependencies, directives, job_description, option_values
from airflow_provider_soperator.slurm.job_description import FIELDS, PER_COMPONENT, Job, JobDescription
from airflow_provider_soperator.slurm.job_ids import array_indices, array_text
from airflow_provider_soperator.slurm.job_records import count_gpus, with_name

GPU_COUNTS = ("gpus", "gpus_per_node", "gpus_per_task", "gpus_per_socket")
#: By these a job says that it may be on several nodes.
_SPREAD = ("nodes", "nodelist", "ntasks", "ntasks_per_node", "ntasks_per_gpu", *GPU_COUNTS[1:])


def on_one_node(job: Job) -> Job:
    """The job of one process with its ``gpus`` on a node: Slurm would take them from several, and it sees one's.

    >>> on_one_node(JobDescription(gpus=8)).nodes, on_one_node(JobDescription(gpus=8, extra_args=["--nodes=2"])).nodes
    (1, None)
    """
    try:
        asked = with_lines(job)
    except job_description.InvalidJob:
        return job  # words that only sbatch can read
    one = asked.replace(ntasks=None) if str(asked.ntasks) == "1" else asked
    is_spread = any(getattr(one, name) is not None for name in _SPREAD)
    return job if is_spread or asked.gpus is None else job.replace(nodes=1)


def body(job: JobDescription) -> str | None:
    """The script's text; None if it is a file on the cluster."""
    if job.script is not None:
        return job.script
    if job.command is not None:
        # As sbatch does for --wrap.
        command = job.command if isinstance(job.command, str) else shlex.join(map(str, job.command))
        return f"#!/bin/sh\n{command}\n"
    return None


def lines(job: JobDescription) -> str:
    """The text with the #SBATCH lines; empty for a file on the cluster that is not read yet."""
    return body(job) or job.remote_lines or ""


def values(job: JobDescription) -> Mapping[str, Any]:
    """The fields' values for the option table: with GPU type and array limit."""
    found = {field: getattr(job, field) for field in FIELDS}
    if job.gpu_type is not None:
        for field in GPU_COUNTS:
            # A number from a template is a text.
            if str(found[field]).isdecimal():
                found[field] = f"{job.gpu_type}:{found[field]}"
    if job.array is not None:
        found["array"] = array_text(job.array, job.array_limit)
    return found


def export(job: JobDescription) -> str | None:
    """The value of --export that passes on sbatch's environment and the job's variables in it."""
    names = [] if job.export is None else option_values.as_words(job.export)
    if not job.env:
        return ",".join(names) or None
    if not names or "ALL" in (name.upper() for name in names):
        return ",".join(names) or "ALL"
    return ",".join([name for name in names if name.upper() != "NONE"] + sorted(job.env))


def words(job: JobDescription) -> list[str]:
    """One component's options, each one word."""
    said = dict(values(job)) | {"export": export(job)}
    return [option.word(value) for option, value in job_description.said(said)] + list(job.extra_args)


def argv(job: JobDescription) -> list[str]:
    """All components' options for sbatch's command line, with ":" between components."""
    found = words(job)
    for component in job.het:
        found += [":", *words(component)]
    return found


def command_line(job: JobDescription) -> list[str]:
    """The job as a user would submit it, without the text of its script."""
    return ["sbatch", *argv(job), *([job.remote_script] if job.remote_script else []), *job.args]


#: Prefix of the variables of the program below, which a job's own must not have.
RESERVED_PREFIX = "_soperator_"
#: Variables beside SBATCH_* that sbatch itself obeys: for where it submits, as whom, and with what options.
_OBEYED = ("SLURM_CLUSTERS", "SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_HINT", "SLURM_HOSTFILE", "SLURM_JWT")


def changes_submission(name: str) -> bool:
    """True for a variable that would change what sbatch submits."""
    return name.startswith("SBATCH_") or name in _OBEYED


# Reads records that end in NUL up to an empty one. bash reads a pipe byte by byte here, so the rest is left to sbatch.
# Variables that bash reserves (UID, SHELLOPTS) or uses in this loop (IFS) are set by env.
_READ_ENVIRONMENT = """\
_soperator_sbatch=$(type -P sbatch) || { echo "sbatch: command not found" >&2; exit 127; }
_soperator_kept=()
while IFS= read -r -d '' _soperator_pair && [ -n "$_soperator_pair" ]; do
  case $_soperator_pair in IFS=*) false ;; *) unset -v "${_soperator_pair%%=*}" && export "$_soperator_pair" ;; esac \
    2>/dev/null || _soperator_kept+=("$_soperator_pair")
done
_soperator_run=("$_soperator_sbatch" "$@")
[ ${#_soperator_kept[@]} -eq 0 ] || _soperator_run=(/usr/bin/env "${_soperator_kept[@]}" "${_soperator_run[@]}")
"""
_FROM_STDIN = 'exec "${_soperator_run[@]}"\n'
# sbatch takes arguments only for a named script, and opens it: that works for a pipe, but not for a socket, which an
# SSH server's stdin can be.
_FROM_NAMED_PIPE = 'exec "${_soperator_run[@]}" < <(exec /bin/cat)\n'


def by_bash(program: str, name: str, *words: str) -> tuple[str, ...]:
    """The words that run a program by bash, without what the user's BASH_ENV and exported functions would add to it."""
    return ("bash", "-p", "-c", program, name, *words)


@dataclass(frozen=True)
class Submission:
    """A command to run on the cluster, as words, and its standard input. It prints the job's id (and ";cluster")."""

    argv: tuple[str, ...]
    stdin: bytes


def with_script_environment(job: Job) -> Job:
    """The job with the variables and the `--export` of its script, which its own `--export` would override."""
    if not job.env or job.export is not None:
        return job
    said = directives.read(lines(job))[0].fields
    if "export" not in said:
        return job
    env: Mapping[str, str] = {**said.get("env", {}), **job.env}
    return job.replace(export=said["export"], env=env)


def submit_folder(job: JobDescription) -> str:
    """The folder to submit a job from, as one who has changed to it would; empty for the home."""
    # A script is looked for from the home.
    is_found = job.remote_script is None or posixpath.isabs(job.remote_script)
    return job.chdir if job.chdir and posixpath.isabs(job.chdir) and is_found else ""


def build_submission(job: JobDescription) -> Submission:
    job = with_script_environment(job)
    text = body(job)
    words = ["--parsable", *argv(job)]
    if job.remote_script is not None:
        words += [job.remote_script, *job.args]
    elif job.args:
        words += ["/dev/stdin", *job.args]
    stdin = (text or "").encode()
    if not job.env and (text is None or not job.args):
        return Submission(("sbatch", *words), stdin)
    records = [*(f"{name}={value}".encode() for name, value in job.env.items()), b""]
    finish = _FROM_NAMED_PIPE if text is not None and job.args else _FROM_STDIN
    program = _READ_ENVIRONMENT + finish
    return Submission(by_bash(program, "sbatch", *words), b"\0".join(records) + b"\0" + stdin)


PAYLOAD_VERSIONS = tuple(f"v0.0.{number}" for number in range(41, 46))

#: Where a job finds programs without a login's environment.
DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

#: What sbatch tells launchers of MPI: without it an mpirun confines the ranks of a node to what one task has there.
LAUNCHERS = {
    **dict.fromkeys(("HYDRA_BOOTSTRAP", "I_MPI_HYDRA_BOOTSTRAP"), "slurm"),
    **dict.fromkeys(("HYDRA_LAUNCHER_EXTRA_ARGS", "I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS"), "--external-launcher"),
    **dict.fromkeys(("OMPI_MCA_plm_slurm_args", "PRTE_MCA_plm_slurm_args"), "--external-launcher"),
}

#: Variables that sbatch sets from options for the script to read, beside those that slurmd sets.
_VARIABLES = {
    field: (f"SLURM_{field.upper()}",)
    for field in (
        *("ntasks_per_node", "ntasks_per_socket", "ntasks_per_core", "ntasks_per_gpu", "cpus_per_gpu"),
        *("threads_per_core", "gpus", "gpus_per_node", "gpus_per_socket", "gpu_freq"),
    )
} | {"ntasks": ("SLURM_NTASKS", "SLURM_NPROCS")}
#: That of the whole job, which scripts read the ids of other jobs from.
DEPENDENCY = "SLURM_JOB_DEPENDENCY"


def build_payload(job: JobDescription, version: str, user: str = "", home: str = "") -> dict[str, Any]:
    """The request's body for a user with that home. InvalidJob names options that slurmrestd does not have."""
    if version not in PAYLOAD_VERSIONS:
        raise ValueError(f"unknown slurmrestd version {version}; supported are {', '.join(PAYLOAD_VERSIONS)}")
    text = body(job)
    if text is None:
        raise job_description.InvalidJob(
            [f"remote_script: slurmrestd needs the script's text; read {job.remote_script} and pass it as script"]
        )
    folder, chdir = submit_folder(job), components(job)[0].chdir
    if home and not posixpath.isabs(chdir or ""):
        # As with sbatch.
        job = job.replace(chdir=posixpath.join(home, chdir) if chdir else home)
    wanted = components(job)
    problems: list[str] = []
    if wanted[0].chdir is None:
        problems.append("chdir: must be set, as slurmrestd knows no home directory to start in")
    if (line := directives.foreign_line(text)) and directives.IGNORE_FOREIGN not in wanted[0].extra_args:
        why = "slurmrestd does not translate it: write it as #SBATCH, or leave such lines alone with"
        problems.append(f"script: {line!r}: {why} #SBATCH {directives.IGNORE_FOREIGN}")
    said = []
    variables = {"SLURM_SUBMIT_DIR": folder} if folder else {}
    for number, component in enumerate(wanted):
        where = f"het component {number}: " if number else ""
        described, of_options, wrong = _describe(component, version)
        problems += (where + problem for problem in wrong)
        said.append(described)
        # Steps of a part take the options of this name, and those without a part's number for all of them.
        group = f"_HET_GROUP_{number}" if len(wanted) > 1 else ""
        variables |= {name + group: value for name, value in of_options.items()}
    if problems:
        raise job_description.InvalidJob(problems)
    first = said[0]
    own = _environment(wanted[0], variables, user, home)
    first["environment"] = [*(f"{name}={value}" for name, value in own.items()), *first.get("environment", ())]
    for described in said:
        # sbatch's own; without it slurmd would take a terminal.
        described.setdefault("standard_input", "/dev/null")
        # The script has that of the first component, and slurmctld rejects others without any.
        described.setdefault("environment", [f"PATH={DEFAULT_PATH}"])
    first["script"] = text
    if job.args:
        first["argv"] = ["script", *job.args]  # slurmstepd puts the script's path in the first one's place
    return {"jobs": said} if len(said) > 1 else {"job": first}


def components(job: JobDescription) -> list[JobDescription]:
    """The job and its other components, with the options of their fields, #SBATCH lines and extra words."""
    first, *others = directives.read(lines(job))
    # As with sbatch, the job's own options apply to each component of its script.
    own = job.replace(env={}, het=())
    found = [with_lines(job, first), *(with_lines(own, part) for part in others), *map(with_lines, job.het)]
    for index, component in enumerate(found[1:], start=1):
        before = found[index - 1]
        missing = {field for field in FIELDS if getattr(component, field) is None} - PER_COMPONENT
        if component.mem_per_cpu is not None or component.mem_per_gpu is not None:
            missing.discard("mem")
        inherited = {field: getattr(before, field) for field in missing}
        found[index] = component.replace(**inherited, env={**before.env, **component.env})
    return found


NO_LINES = directives.Component()


def with_lines(job: Job, lines: directives.Component = NO_LINES) -> Job:
    """The job with the options of #SBATCH lines and of its extra words as fields, unless it sets them itself."""
    if lines == NO_LINES and not job.extra_args:
        return job
    try:
        extra = directives.read_words(list(job.extra_args))
    except directives.DirectiveError as wrong:
        raise job_description.InvalidJob([f"extra_args: {wrong}"]) from None
    said: dict[str, Any] = lines.fields | extra.fields
    env: Mapping[str, str] = {**lines.fields.get("env", {}), **extra.fields.get("env", {}), **job.env}
    new = {field: value for field, value in said.items() if getattr(job, field) is None}
    if "array" not in new:
        new.pop("array_limit", None)
    return job.replace(**new | {"env": env, "extra_args": (*lines.extra_args, *extra.extra_args)})


def asked_for(job: Job) -> Job:
    """The job with the options of #SBATCH lines and extra words as fields of its first component."""
    try:
        return with_lines(job, directives.read(lines(job))[0])
    except directives.DirectiveError as wrong:
        raise job_description.InvalidJob([f"script: {wrong}"]) from None


def named_files(asked: Job) -> Job:
    """The job with the user's name for it in those of its files: what Slurm writes for ``%x`` ends in a key."""
    if not asked.name:
        return asked
    paths = {"output": asked.output, "error": asked.error}
    return asked.replace(**{field: path and with_name(path, asked.name) for field, path in paths.items()})


def is_singleton(job: JobDescription) -> bool:
    """True if the job waits for others of its name."""
    return "singleton" in str(job.dependency).lower()


def indices_asked_for(job: Job) -> list[int]:
    """The indices of the job's array; none without one, or if only Slurm understands them."""
    array = asked_for(job).array
    with contextlib.suppress(ValueError):
        return [] if array is None else array_indices(array_text(array))
    return []


def with_remote_lines(job: Job, text: str) -> Job:
    """The job with the #SBATCH lines of its script on the cluster, which win over the names that were made for it."""
    known = job.replace(remote_lines="".join(directives.head(text)), by_default=())
    asked = named_files(asked_for(known.replace(**dict.fromkeys(job.by_default))))
    made = job.output.replace("%j", "%A_%a") if job.output and asked.array is not None else job.output
    # The name that was made has the run in it, so no other job would have it.
    name = posixpath.basename(known.remote_script or "") if is_singleton(asked) else job.name
    return known.replace(name=asked.name or name, output=asked.output or made, error=asked.error)


def _describe(job: JobDescription, version: str) -> tuple[dict[str, Any], dict[str, str], list[str]]:
    """The fields of one component, the variables that its options set, and its problems."""
    said: dict[str, Any] = {}
    extra = [word for word in job.extra_args if word != directives.IGNORE_FOREIGN]
    problems: list[str] = [f"extra_args: slurmrestd {version} has no field for {word}" for word in extra]
    variables: dict[str, str] = {}
    for option, value in job_description.said(values(job)):
        written = option.kind.write(value)
        if option.rest is None or option.rest_since > int(version.rpartition(".")[2]):
            problems.append(f"{option.field}: slurmrestd {version} has no field for --{option.long}")
            continue
        try:
            _merge(said, option.to_json(written))
        except ValueError as problem:
            problems.append(f"{option.field}: {problem}")
        variables |= dict.fromkeys(_VARIABLES.get(option.field, ()), written)
    _imply(said)
    # These may be implied by other options.
    implied = {name: said[name] for name in ("cpus_per_task", "tres_per_task", "tres_bind") if name in said}
    variables |= {f"SLURM_{name.upper()}": str(value) for name, value in implied.items()}
    if "memory_per_tres" in said:
        variables["SLURM_MEM_PER_GPU"] = said["memory_per_tres"].rpartition(":")[2]
    said.setdefault("name", "sbatch")
    return said, variables, problems


def _imply(said: dict[str, Any]) -> None:
    """Add the fields that sbatch derives from others: resources of a task, tasks, and nodes."""
    per_task = said.get("tres_per_task", "")
    cpus = re.search(r"(?:^|,)cpu[=:](\d+)", per_task)
    if cpus is not None:
        said.setdefault("cpus_per_task", int(cpus[1]))
    elif "cpus_per_task" in said:
        said["tres_per_task"] = ",".join(filter(None, (f"cpu={said['cpus_per_task']}", per_task)))
    if "cpus_per_task" in said:
        _merge(said, {"flags": ["EXACT_CPU_COUNT_REQUESTED"]})
    if gpus := count_gpus(per_task):
        said.setdefault("tres_bind", f"gres/gpu:per_task:{gpus}")
    nodes, per_node = said.get("nodes", ""), said.get("tasks_per_node")
    shape = [said[name] for name in ("sockets_per_node", "cores_per_socket", "threads_per_core") if name in said]
    of_job = count_gpus(said.get("tres_per_job", ""))
    if "tasks" in said:
        if per_node and not {"nodes", "required_nodes"} & said.keys():
            said["minimum_nodes"] = math.ceil(said["tasks"] / per_node)
        elif sizes := re.fullmatch(r"(\d+)(?:-(\d+))?", nodes):
            fewer = (str(min(int(size), said["tasks"])) for size in sizes.groups(sizes[1]))
            said["nodes"] = "-".join(dict.fromkeys(fewer))
    elif "ntasks_per_tres" in said:
        # Without it slurmctld asks for one processor for each node, and the job waits forever.
        of_nodes = count_gpus(said.get("tres_per_node", "")) * int(re.findall(r"\d+", nodes or "1")[0])
        if of_job or of_nodes:
            said["tasks"] = (of_job or of_nodes) * said["ntasks_per_tres"]
    elif shape and nodes.isdecimal() and not per_node:
        said["tasks"] = int(nodes) * math.prod(shape)
    elif of_job and gpus:
        said["tasks"] = of_job // gpus
    elif "tres_per_task" in said and per_node and nodes.isdecimal():
        said["tasks"] = int(nodes) * per_node


def _merge(said: dict[str, Any], more: dict[str, Any]) -> None:
    """Merge fields: two options can set the same one, and flags and resources add up."""
    for key, value in more.items():
        if key not in said:
            said[key] = value
        elif isinstance(value, list):
            said[key] = [*said[key], *value]
        else:
            said[key] = f"{said[key]},{value}"


def _environment(job: JobDescription, of_options: dict[str, str], user: str, home: str) -> dict[str, str]:
    """The variables that sbatch passes on, or has slurmd read, and its own."""
    if job.export is not None:
        said = directives.exported(",".join(option_values.as_words(job.export)))
        job = job.replace(export=said["export"], env={**said.get("env", {}), **job.env})
    exported = export(job) or "ALL"
    names = exported.upper().split(",")
    found = {"SLURM_SUBMIT_DIR": home or job.chdir or "", **LAUNCHERS}
    if job.dependency is not None:
        found[DEPENDENCY] = dependencies.dependency_text(job.dependency)
    if "ALL" in names:
        # slurmd adds nothing to them.
        login = {"HOME": home, "USER": user, "LOGNAME": user}
        found |= {"PATH": DEFAULT_PATH} | {name: value for name, value in login.items() if value}
    else:
        # Each srun in the job obeys it.
        found["SLURM_EXPORT_ENV"] = exported
        if names != ["NIL"]:
            found["SLURM_GET_USER_ENV"] = "1"  # slurmd begins with a login's environment
    return {**found, **of_options, **job.env}
