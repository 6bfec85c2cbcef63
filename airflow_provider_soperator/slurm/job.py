"""Batch jobs: their checks before anything is sent, their submissions, and their fields as plain values."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import combinations
from typing import Any

from airflow_provider_soperator.errors import name_remedy
from airflow_provider_soperator.slurm import dependencies, directives, job_description, option_values, sbatch_arguments
from airflow_provider_soperator.slurm.job_description import JobDescription
from airflow_provider_soperator.slurm.job_ids import array_indices, array_text
from airflow_provider_soperator.slurm.sbatch_arguments import Submission
from airflow_provider_soperator.values import shell_path

#: Linux's limit on a single variable with its name.
VARIABLE_LIMIT = 128 * 1024 - 1
#: A process can be started with a quarter of a usual stack; half of that is left for other data.
ENVIRONMENT_LIMIT = 1024 * 1024
#: slurmctld's limits, in bytes; it is 1024 for other fields.
_LIMITS = {"dependency": 128 * 1024, "array": 4096, "bb": 8192, "output": 4095, "error": 4095, "input": 4095}
_LIMITS |= dict.fromkeys(("chdir", "nodelist", "exclude", "container", "export", "container_env"), 4095)
_LIMITS |= dict.fromkeys(("container_image", "container_mounts", "container_workdir"), 64 * 1024)

#: Groups of fields that exclude each other.
EXCLUSIVE = (
    ("mem", "mem_per_cpu", "mem_per_gpu"),
    ("cpus_per_task", "cpus_per_gpu"),
    ("exclusive", "oversubscribe"),
    ("core_spec", "thread_spec"),
    ("container", "container_image"),
)
_EXCLUSIVE_PAIRS = (
    *((one, other) for group in EXCLUSIVE for one, other in combinations(group, 2)),
    *(("ntasks_per_gpu", other) for other in ("gpus_per_task", "gpus_per_socket", "ntasks_per_node", "tres_per_task")),
)
_NOT_IN_COMPONENTS = ("array", "array_limit", "export", "hold", "begin", "deadline", "dependency", "het", "env", "args")
_BOOLEANS = (job_description.YES_NO, job_description.ONE_ZERO)
#: Fields that are true or false, and the texts for that.
_FLAGS = sorted({one.field for one in job_description.OPTIONS if one.constant is not None or one.kind in _BOOLEANS})
_TRUTH = {"true": True, "false": False, "none": None}
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_GPUS = re.compile(r"(?:\w[\w.-]*:)?\d+(?:,(?:\w[\w.-]*:)?\d+)*")
_NODES = re.compile(r"\d+[kKmM]?(?:-\d+[kKmM]?)?|\d+(?:-\d+(?::\d+)?)?(?:,\d+(?:-\d+(?::\d+)?)?)*")


class BatchJob(JobDescription):
    """A job for sbatch or slurmrestd: one body, and sbatch's options under their own names.

    >>> job = BatchJob(command=["python", "train.py", "--tag", "it's"], nodes=2, gpus_per_node=8, gpu_type="h100")
    >>> job.argv()
    ['--nodes=2', '--gpus-per-node=h100:8']
    >>> job.replace(mem="8G", mem_per_cpu="1G").problems()
    ['mem and mem_per_cpu: Slurm takes only one of them']
    """

    def problems(self) -> list[str]:
        """All problems at once, as messages."""
        found = [*_body(self), *_options(self), *_environment(self), *_script_lines(self)]
        for number, component in enumerate(self.het, start=1):
            found += (f"het component {number}: {problem}" for problem in _component(component))
        if self.het and self.array is not None:
            found.append("array and het: Slurm has no arrays of heterogeneous jobs")
        return list(dict.fromkeys(found))

    def check(self) -> None:
        if found := self.problems():
            raise job_description.InvalidJob(found)

    def argv(self) -> list[str]:
        """The options as words of sbatch's command line, which override #SBATCH lines in the script."""
        self.check()
        return sbatch_arguments.argv(self)

    def submission(self) -> Submission:
        """The command, and its standard input, that submits the job on the cluster."""
        self.check()
        return sbatch_arguments.build_submission(self)

    def to_payload(self, version: str, user: str = "", home: str = "") -> dict[str, Any]:
        """The body of slurmrestd's POST /slurm/{version}/job/submit, for a user with that home."""
        self.check()
        return sbatch_arguments.build_payload(self, version, user, home)


def fields_of(job: BatchJob) -> dict[str, Any]:
    """The fields that are set, as texts, numbers, booleans, lists and dicts.

    >>> from datetime import timedelta
    >>> fields_of(BatchJob(command=["echo", "a"], time_limit=timedelta(hours=2), array=range(3), exclusive=True))
    {'command': ['echo', 'a'], 'exclusive': True, 'time_limit': '0-02:00:00', 'array': '0-2'}
    """
    said = {field.name: getattr(job, field.name) for field in dataclasses.fields(job)}
    return {
        name: _plain_field(name, value)
        for name, value in said.items()
        if value is not None and value not in ((), {}, [])
    }


def _plain_field(name: str, value: Any) -> Any:
    if name == "het":
        return [fields_of(component) for component in value]
    if isinstance(value, (str, int)):
        return value
    if isinstance(value, Mapping):
        return dict(value)
    if name in ("command", "args", "by_default", "extra_args"):
        return list(value)
    if name == "array":
        return array_text(value)
    return job_description.by_field(name, value).kind.write(value)


def literal_problems(said: Mapping[str, Any], hidden: Collection[str]) -> list[str]:
    """The problems that some fields of a job have whatever its other, ``hidden`` ones will be.

    >>> literal_problems({"mem": "much", "array_limit": 2}, ["command", "array"])
    ["mem: 'much' is not an amount of memory: write a whole number and K, M, G or T, such as 16G"]
    """
    try:
        job = job_of({name: value for name, value in said.items() if value is not None})
    except job_description.InvalidJob as error:
        return error.of_parameters
    found = [problem for problem in job.problems() if not {*re.findall(r"\w+", problem)} & {*hidden}]
    return job_description.InvalidJob(found).of_parameters


def job_of(said: Mapping[str, Any]) -> BatchJob:
    """The job with the fields from ``fields_of``; parts of a heterogeneous one may be jobs already."""
    fields = dict(said)
    if isinstance(fields.get("het"), Mapping):
        raise job_description.InvalidJob(["het: must be a list of components, got one"])
    if "het" in fields:
        fields["het"] = tuple(one if isinstance(one, BatchJob) else job_of(one) for one in fields["het"])
    # Templates render to text.
    for name in (*_FLAGS, "exclusive"):
        if isinstance(value := fields.get(name), str):
            fields[name] = _TRUTH.get(value.lower(), value)
    # Natively they render to numbers, which also are natural to write.
    for name in {"args", "command", "env", "extra_args"} & fields.keys():
        fields[name] = option_values.as_texts(fields[name])
    if type(array := fields.get("array")) is int:
        fields["array"] = str(array)
    known = [field.name for field in dataclasses.fields(BatchJob)]
    if unknown := [name for name in fields if name not in known]:
        otherwise = "there are those of SbatchOperator"
        remedies = {name: name_remedy(name, known, otherwise) for name in unknown}
        raise job_description.InvalidJob([f"{name}: no such field; {said}" for name, said in remedies.items()])
    return BatchJob(**fields)


# Checks of the body


def _body(job: JobDescription) -> Iterator[str]:
    given = [name for name in ("script", "command", "remote_script") if getattr(job, name) is not None]
    if len(given) != 1:
        what = f"{' and '.join(given)} are set" if given else "nothing to run"
        yield f"{what}: set exactly one of script, command and remote_script"
    if job.script is not None:
        yield from _script(job.script)
    if isinstance(job.args, str):
        yield f"args: must be a list of words, got {job.args!r}"
        return
    if isinstance(job.extra_args, str):
        yield f"extra_args: must be a list of words, got {job.extra_args!r}"
        return
    words = [job.command] if isinstance(job.command, str) else list(job.command or ())
    # A DAG file is not type-checked.
    if odd := [word for word in (*words, *job.args) if not isinstance(word, str)]:
        yield f"{'args' if job.args else 'command'}: {odd[0]!r} must be a text"
        return
    if job.command is not None:
        if not any(part.strip() for part in words):
            yield "command: must not be empty"
        for part in words:
            if "\0" in part or "\r\n" in part:
                yield "command: Slurm rejects scripts with NUL characters or DOS line ends"
            elif not _encodable(part):
                yield f"command: {part!r} cannot be encoded as UTF-8"
    if job.remote_script is not None:
        yield from _plain("remote_script", job.remote_script)
        if not job.remote_script or job.remote_script.startswith(("-", ":")):
            yield f"remote_script: {job.remote_script!r} must be a path that does not begin with - or :"
        if problem := shell_path(job.remote_script):
            yield f"remote_script: {problem}"
    for arg in job.args:
        if "\0" in arg or not _encodable(arg):
            yield f"args: {arg!r} has a NUL character or cannot be encoded as UTF-8"
        elif arg == ":":
            yield "args: sbatch drops an argument that is a lone ':'"
    if job.args and job.command is not None:
        yield "args: put them into command"


def _script(text: str) -> Iterator[str]:
    if not text.startswith("#!"):
        mark = "; before it is a byte order mark (U+FEFF): save it without" if text.startswith("\ufeff") else ""
        yield f"script: its first line must begin with #! and a program, such as #!/bin/bash{mark}"
    if "\0" in text:
        yield "script: Slurm rejects scripts with NUL characters"
    if "\r\n" in text:
        yield "script: Slurm rejects scripts with DOS line ends (\\r\\n)"
    if not _encodable(text):
        yield "script: it cannot be encoded as UTF-8"


def _plain(field: str, text: str) -> Iterator[str]:
    if not _encodable(text):
        yield f"{field}: {text!r} cannot be encoded as UTF-8"
    elif found := _CONTROL.search(text):
        yield f"{field}: {text[:80]!r} has the control character {found[0]!r}, which a line of output cannot hold"


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


# Checks of options


def _options(job: JobDescription) -> Iterator[str]:
    said: Mapping[str, Any] = {}
    try:
        said = sbatch_arguments.values(job)
    except (TypeError, ValueError):
        yield f"array: {job.array!r} is neither a text such as '0-9' nor a list of indices"
    for option, value in job_description.said(said):
        try:
            written = option.kind.write(value)
        except ValueError as wrong:
            yield f"{option.field}: {wrong}"
            continue
        except (AttributeError, TypeError):
            yield f"{option.field}: takes no {type(value).__name__}, got {value!r}"
            continue
        yield from _plain(option.field, written)
        limit = _LIMITS.get(option.field, 1024)
        if _encodable(written) and len(written.encode()) > limit:
            yield f"{option.field}: {len(written.encode())} bytes exceed Slurm's limit of {limit}"
        if not written and option.takes_argument == "required" and option.field not in ("array", "extra"):
            yield f"{option.field}: must not be empty; use None to leave it out"
        # Slurm takes it as it is, and newer versions make a folder of that name.
        if option.field in ("chdir", "error", "input", "output") and (problem := shell_path(written)):
            yield f"{option.field}: {problem}"
        for problem in _SPECIAL.get(option.field, lambda _: iter(()))(value):
            yield f"{option.field}: {problem}"
    for flag in _FLAGS:
        if (value := getattr(job, flag)) not in (None, True, False):
            yield f"{flag}: must be True or False, got {value!r}"
    yield from _contradictions(job)
    yield from _extra_args(job)


def _contradictions(job: JobDescription) -> Iterator[str]:
    def set_(field: str) -> bool:
        return getattr(job, field) not in (None, False)

    for one, other in _EXCLUSIVE_PAIRS:
        if set_(one) and set_(other):
            yield f"{one} and {other}: Slurm takes only one of them"
    if job.gpus_per_node is not None and job.gres is not None and "gpu" in ",".join(option_values.as_words(job.gres)):
        yield "gpus_per_node and gres: both ask for GPUs, which Slurm rejects from 26.05 on"
    per_task = "" if job.tres_per_task is None else ",".join(option_values.as_words(job.tres_per_task))
    for field, resource in (("cpus_per_task", "cpu"), ("gpus_per_task", "gres/gpu")):
        if getattr(job, field) is not None and resource in per_task:
            yield f"{field} and tres_per_task: both set the number of {resource} per task"
    if job.gpu_type is not None and not any(str(getattr(job, f)).isdecimal() for f in sbatch_arguments.GPU_COUNTS):
        yield f"gpu_type: needs a number of GPUs: {' or '.join(sbatch_arguments.GPU_COUNTS)}"
    if job.array_limit is not None and job.array is None:
        yield "array_limit: needs array"
    if job.priority is not None and job.hold:
        yield "hold and priority: a held job has priority 0"
    if job.export is not None and job.env and "NIL" in map(str.upper, option_values.as_words(job.export)):
        yield "export and env: NIL drops all variables; use NONE to keep those of env"
    if job.time_min is not None and job.time_limit is not None:
        try:
            limited = not (option_values.is_unlimited(job.time_min) or option_values.is_unlimited(job.time_limit))
            if limited and option_values.in_minutes(job.time_min) > option_values.in_minutes(job.time_limit):
                yield "time_min: must not exceed time_limit"
        except ValueError:
            return  # reported for the field itself


def _extra_args(job: JobDescription) -> Iterator[str]:
    for word in job.extra_args:
        yield from _plain("extra_args", word)
        if word in (":", "--", "") or word.startswith(":"):
            yield f"extra_args: {word!r} is not an option"
    if job.extra_args and not job.extra_args[0].startswith("-"):
        yield f"extra_args: {job.extra_args[0]!r} is not an option; write each as one word, such as '--bbf=/x'"
    # A word that follows an unknown option may be its value.
    for word in job.extra_args:
        for name in directives.options_in(word) if word.startswith("-") else ():
            option = job_description.BY_LONG.get(name)
            if option is not None and getattr(job, option.field) is not None:
                yield f"extra_args: {word!r} is also set by {option.field}"
            if name in job_description.REFUSED:
                yield f"extra_args: --{name} cannot be used: {job_description.REFUSED[name]}"


def _array(value: str) -> Iterator[str]:
    indices, percent, limit = value.partition("%")
    try:
        if not indices:
            raise ValueError("must have elements")
        array_indices(indices)
    except ValueError as problem:
        yield str(problem)
    if percent and not (limit.isdecimal() and int(limit) > 0):
        yield f"{limit!r} must be the number of elements that may run at once"


def _dependency(value: Any) -> Iterator[str]:
    try:
        for term in dependencies.dependency_terms(value):
            yield from term.problems()
    except ValueError as problem:
        yield str(problem)


def _time(value: Any) -> Iterator[str]:
    if not option_values.is_unlimited(value) and option_values.in_seconds(value) == 0:
        yield "0 would mean no limit; use UNLIMITED for that"


def _gpus(value: int | str) -> Iterator[str]:
    if not _GPUS.fullmatch(str(value)):
        yield f"{value!r} is not a number of GPUs: write 8, h100:8 or a100:4,h100:4"


def _nodes(value: int | str) -> Iterator[str]:
    text = str(value)
    if not _NODES.fullmatch(text):
        yield f"{text!r} is not a number of nodes: write 4, 2-4 or 1,2,4"
    elif (found := re.fullmatch(r"(\d+)-(\d+)", text)) and int(found[1]) > int(found[2]):
        yield f"{text!r} runs backwards"


_SPECIAL: Mapping[str, Callable[[Any], Iterable[str]]] = {
    "array": _array,
    "dependency": _dependency,
    "nodes": _nodes,
    "signal": lambda value: option_values.Signal.of(value).problems(),
    "time_limit": _time,
    "time_min": _time,
    **dict.fromkeys(sbatch_arguments.GPU_COUNTS, _gpus),
}


# Checks of the environment, #SBATCH lines and components

_INSTEAD = {"SLURM_HINT": "; use hint", "SLURM_HOSTFILE": "; use nodelist"}


def _environment(job: JobDescription) -> Iterator[str]:
    if not isinstance(job.env, Mapping):  # a DAG file is not type-checked
        yield f"env: must be variables by their names, got {type(job.env).__name__}"  # type: ignore[unreachable]
        return
    total = 0
    for name, value in job.env.items():
        if not _NAME.fullmatch(name) or len(name) > 254:
            yield f"env: {name[:80]!r} is not a variable name (letters, digits and _, at most 254)"
        elif name == "_":
            yield "env: _ is overwritten by every shell on the way"
        elif name.startswith(sbatch_arguments.RESERVED_PREFIX) or sbatch_arguments.changes_submission(name):
            yield f"env: {name} would change the submission itself, not the job{_INSTEAD.get(name, '')}"
        elif not isinstance(value, str):  # a DAG file is not type-checked
            yield f"env: the value of {name} must be a string, got {type(value).__name__}"  # type: ignore[unreachable]
        elif "\0" in value or not _encodable(value):
            yield f"env: the value of {name} has a NUL character or cannot be encoded as UTF-8"
        else:
            size = len(name) + 1 + len(value.encode())
            total += size + 1
            if size > VARIABLE_LIMIT:
                yield f"env: {name} has {size} bytes with its name; Linux takes {VARIABLE_LIMIT}: use a file"
    if total > ENVIRONMENT_LIMIT:
        yield f"env: {total} bytes in total exceed the limit of {ENVIRONMENT_LIMIT}: use a file"


def _script_lines(job: JobDescription) -> Iterator[str]:
    """Problems of the script's own #SBATCH lines, alone and with the job's fields."""
    if sbatch_arguments.body(job) is None and job.remote_lines is None:
        return
    try:
        components = directives.read(sbatch_arguments.lines(job))
    except directives.DirectiveError as problem:
        yield f"script: {problem}"
        return
    yield from _missing(job, components[0])
    for component in components:
        for name, line in component.lines.items():
            if name in job_description.REFUSED:
                yield f"script: line {line}: --{name} cannot be used: {job_description.REFUSED[name]}"
            for one, other in _EXCLUSIVE_PAIRS:
                for here, there in ((one, other), (other, one)):
                    if name == here and getattr(job, there) not in (None, False) and getattr(job, here) is None:
                        yield f"{there}: cannot be combined with {name} on line {line} of the script"
    if len(components) > 1 and job.het:
        yield "het: the script has #SBATCH hetjob lines as well"
    if len(components) > 1 and (job.array is not None or any("array" in part.fields for part in components)):
        yield "array and het: Slurm has no arrays of heterogeneous jobs"


def _missing(job: JobDescription, lines: directives.Component) -> Iterator[str]:
    """What the job's fields need beside them, be it in a line of the script."""
    try:
        asked = sbatch_arguments.with_lines(job, lines)
    except job_description.InvalidJob:
        return  # extra words that only sbatch can read
    if job.gpus_per_task is not None and (asked.ntasks, asked.nodes, asked.gpus) == (None, None, None):
        yield "gpus_per_task: needs ntasks, nodes or gpus"
    if job.gpus_per_socket is not None and asked.sockets_per_node is None:
        yield "gpus_per_socket: needs sockets_per_node"


def _component(job: JobDescription) -> Iterator[str]:
    for field in ("script", "command", "remote_script", *_NOT_IN_COMPONENTS):
        if getattr(job, field):
            yield f"{field}: belongs to the whole job, not to a component"
    yield from _options(job)
