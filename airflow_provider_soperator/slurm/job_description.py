"""The fields of a batch job and their options, independent of how and where it is submitted.

The class of jobs is ``BatchJob`` (in `job`), which checks the fields. `option_values` has the forms of single values,
`directives` reads #SBATCH lines, and `sbatch_arguments` makes of both a command line, or slurmrestd's JSON.
"""
# ruff: noqa: RUF009 - option() makes a field of a dataclass

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, TypeVar

from airflow_provider_soperator.errors import LastingError
from airflow_provider_soperator.slurm import dependencies, option_values
from airflow_provider_soperator.slurm.dependencies import Dependencies
from airflow_provider_soperator.slurm.option_values import Fields, Json, Signal, pyxis

#: A ``JobDescription`` or a subclass of it.
Job = TypeVar("Job", bound="JobDescription")

Words = str | Sequence[str]
Duration = timedelta | int | str
Moment = datetime | timedelta | str


@dataclass(frozen=True)
class ValueKind:
    """A type of values: written as an option's text, and read from it. Both raise ValueError with a message.

    ``json`` makes slurmrestd's value of the text.
    """

    write: Callable[[Any], str]
    read: Callable[[str], Any]
    json: Callable[[str], Any] = str


def _number(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise ValueError(f"{value!r} is not a whole number")
    try:
        return int(value)
    except ValueError:
        raise ValueError(f"{value!r} is not a whole number") from None


def _count(value: Any) -> int:
    if (number := _number(value)) < 0:
        raise ValueError(f"must be >= 0, got {number}")
    return number


def _positive(value: Any) -> int:
    if (number := _count(value)) == 0:
        raise ValueError("must be at least 1, got 0")
    return number


def _counted(value: Any) -> str:
    """A count, or a text with counts in it such as "h100:8" or "2-4"."""
    return value if isinstance(value, str) else str(_count(value))


def _digits(text: str) -> int | str:
    return int(text) if text.isdecimal() else text


def _boolean(no: str, yes: str) -> ValueKind:
    def read(text: str) -> bool:
        if text.lower() not in (no, yes):
            raise ValueError(f"must be {no} or {yes}, got {text!r}")
        return text.lower() == yes

    return ValueKind(lambda value: yes if value else no, read)


#: sbatch's value for "TOP".
_TOP = 0xFFFF_FFFD


def _priority(value: Any) -> int | str:
    return "TOP" if isinstance(value, str) and value.upper() == "TOP" else _count(value)


def _open_mode(value: str) -> str:
    for mode in ("append", "truncate"):
        if value.lower() in (mode, mode[0]):
            return mode
    raise ValueError(f"must be append or truncate, got {value!r}")


def _exclusive(value: bool | str) -> str:
    if value is True or str(value).lower() == "exclusive":
        return ""
    if str(value).lower() not in ("user", "mcs", "topo", "oversubscribe"):
        raise ValueError(f"must be True, user, mcs or topo, got {value!r}")
    return str(value).lower()


def _minutes(written: str) -> Json:
    # As with sbatch, no minutes are no limit.
    if option_values.is_unlimited(written) or not option_values.in_minutes(written):
        return {"set": True, "infinite": True, "number": 0}
    return {"set": True, "number": option_values.in_minutes(written)}


TEXT = ValueKind(option_values.plain_text, str)
LIST = ValueKind(option_values.list_text, str)
PAIRS = ValueKind(lambda value: option_values.list_text(value, "="), str)
NUMBER = ValueKind(lambda value: str(_number(value)), _number, int)
COUNT = ValueKind(lambda value: str(_count(value)), _count, int)
POSITIVE = ValueKind(lambda value: str(_positive(value)), _positive, int)
COUNTED = ValueKind(_counted, _digits)
MEMORY = ValueKind(
    option_values.memory_text, str, lambda written: {"set": True, "number": option_values.in_megabytes(written)}
)
DURATION = ValueKind(option_values.duration_text, str, _minutes)
MOMENT = ValueKind(option_values.moment_text, str)
DEPENDENCY = ValueKind(dependencies.dependency_text, str)
SIGNAL = ValueKind(lambda value: str(Signal.of(value)), Signal.parse)
PRIORITY = ValueKind(
    lambda value: str(_priority(value)),
    _priority,
    lambda written: {"set": True, "number": _TOP if written == "TOP" else int(written)},
)
OPEN_MODE = ValueKind(_open_mode, _open_mode)
EXCLUSIVE = ValueKind(_exclusive, _exclusive)
YES_NO = _boolean("no", "yes")
ONE_ZERO = _boolean("0", "1")
#: A flag without a value.
FLAG = ValueKind(lambda value: "", str)


@dataclass(frozen=True)
class Option:
    """An option of sbatch, and the job's field for it."""

    kind: ValueKind = TEXT
    short: str = ""
    #: slurmrestd's field for the value, or what its fields are; None if it has none for the option.
    rest: str | Json | Fields | None = None
    #: The first version of slurmrestd's interface with the field, v0.0.…
    rest_since: int = 41
    #: The field's value for a flag.
    constant: bool | None = None
    #: The field's value for the option without its optional argument.
    bare: Any = None
    long: str = ""
    field: str = ""

    @property
    def takes_argument(self) -> str:
        """As in getopt: "no", "required" or "optional"."""
        if self.constant is not None:
            return "no"
        return "required" if self.bare is None else "optional"

    def word(self, value: Any) -> str:
        """The option and its value as one word of a command line; ValueError for an invalid value."""
        written = self.kind.write(value)
        if self.takes_argument == "no" or (self.takes_argument == "optional" and not written):
            return f"--{self.long}"
        return f"--{self.long}={written}"

    def to_json(self, written: str) -> Json:
        """slurmrestd's fields for the option's text."""
        if isinstance(self.rest, str):
            return {self.rest: self.kind.json(written)}
        assert self.rest is not None, f"slurmrestd has no field for --{self.long}"
        return self.rest(written) if callable(self.rest) else self.rest


def option(kind: ValueKind = TEXT, short: str = "", rest: str | Json | Fields | None = None, **other: Any) -> Any:
    """A field for an option: its kind of values, short name and field of slurmrestd; the long name is the field's."""
    return field(default=None, metadata={"options": (Option(kind, short, rest, **other),)})


def flags(yes: str, no: str, rest: Callable[[str], Json | Fields]) -> Any:
    """A field with one flag for true and another for false."""
    both = (Option(FLAG, "", rest(long), constant=long == yes, long=long) for long in (yes, no))
    return field(default=None, metadata={"options": tuple(both)})


@dataclass(frozen=True, kw_only=True, repr=False)
class JobDescription:
    """One body, and sbatch's options under their own names; the methods are in ``BatchJob``."""

    # The body: exactly one of these
    script: str | None = None
    #: A text is a line of shell, as for --wrap; a sequence is the words of one command.
    command: Words | None = None
    #: A path on the cluster.
    remote_script: str | None = None
    #: The #SBATCH lines there, once they are read, and the fields that give way to them: names that were made for it.
    remote_lines: str | None = None
    by_default: Sequence[str] = ()
    #: Arguments of the script.
    args: Sequence[str] = ()

    # What it is and where it goes
    name: str | None = option(TEXT, "J", "name", long="job-name")
    account: str | None = option(TEXT, "A", "account")
    partition: Words | None = option(LIST, "p", "partition")
    qos: str | None = option(TEXT, "q", "qos")
    reservation: Words | None = option(LIST, rest="reservation")
    wckey: str | None = option(TEXT, rest="wckey")
    #: The user's own; Soperator's health checks may read it.
    comment: str | None = option(TEXT, rest="comment")
    mcs_label: str | None = option(TEXT, rest="mcs_label")
    extra: str | None = option(TEXT, rest="extra")
    clusters: Words | None = option(LIST, "M")

    # Nodes
    nodes: int | str | None = option(COUNTED, "N", "nodes")
    nodelist: Words | None = option(LIST, "w", option_values.listed("required_nodes"))
    exclude: Words | None = option(LIST, "x", option_values.listed("excluded_nodes"))
    constraint: str | None = option(TEXT, "C", "constraints")
    prefer: str | None = option(TEXT, rest="prefer")
    batch: str | None = option(TEXT, rest="batch_features")
    contiguous: bool | None = option(FLAG, rest={"contiguous": True}, constant=True)
    exclusive: bool | str | None = option(EXCLUSIVE, rest=lambda written: {"shared": [written or "none"]}, bare=True)
    oversubscribe: bool | None = option(FLAG, "s", {"shared": ["oversubscribe"]}, constant=True)
    overcommit: bool | None = option(FLAG, "O", {"overcommit": True}, constant=True)
    spread_job: bool | None = option(FLAG, rest={"flags": ["SPREAD_JOB"]}, constant=True)
    use_min_nodes: bool | None = option(FLAG, rest={"flags": ["PREFER_MINIMUM_NODE_COUNT"]}, constant=True)
    switches: int | str | None = option(COUNTED, rest=option_values.switches)
    segment: int | None = option(POSITIVE, rest="segment_size")
    reboot: bool | None = option(FLAG, rest={"reboot": True}, constant=True)
    delay_boot: Duration | None = option(
        DURATION, rest=lambda written: {"delay_boot": option_values.in_seconds(written)}
    )
    wait_all_nodes: bool | None = option(ONE_ZERO, rest=lambda written: {"wait_all_nodes": written == "1"})

    # Tasks and processors
    ntasks: int | None = option(POSITIVE, "n", "tasks")
    ntasks_per_node: int | None = option(POSITIVE, rest="tasks_per_node")
    ntasks_per_socket: int | None = option(POSITIVE, rest="tasks_per_socket")
    ntasks_per_core: int | None = option(POSITIVE, rest="tasks_per_core")
    ntasks_per_gpu: int | None = option(POSITIVE, rest="ntasks_per_tres")
    cpus_per_task: int | None = option(POSITIVE, "c", "cpus_per_task")
    cpus_per_gpu: int | None = option(POSITIVE, rest=option_values.generic_resource("cpus_per_tres"))
    mincpus: int | None = option(POSITIVE, rest="minimum_cpus_per_node")
    sockets_per_node: int | None = option(POSITIVE, rest="sockets_per_node")
    cores_per_socket: int | None = option(POSITIVE, rest="cores_per_socket", rest_since=45)
    threads_per_core: int | None = option(POSITIVE, rest="threads_per_core")
    core_spec: int | None = option(COUNT, "S", "core_specification")
    thread_spec: int | None = option(COUNT, rest="thread_specification")
    cpu_freq: str | None = option(TEXT, rest="cpu_frequency")
    distribution: str | None = option(TEXT, "m", "distribution")
    hint: str | None = option(TEXT)
    network: str | None = option(TEXT, rest="network")

    # Memory and disk: a number is megabytes, a text is like "16G"
    mem: int | str | None = option(MEMORY, rest="memory_per_node")
    mem_per_cpu: int | str | None = option(MEMORY, rest="memory_per_cpu")
    mem_per_gpu: int | str | None = option(
        MEMORY, rest=lambda written: {"memory_per_tres": f"gres/gpu:{option_values.in_megabytes(written)}"}
    )
    tmp: int | str | None = option(
        MEMORY, rest=lambda written: {"temporary_disk_per_node": option_values.in_megabytes(written)}
    )

    # GPUs and other resources
    gpus: int | str | None = option(COUNTED, "G", option_values.generic_resource("tres_per_job"))
    gpus_per_node: int | str | None = option(COUNTED, rest=option_values.generic_resource("tres_per_node"))
    gpus_per_task: int | str | None = option(COUNTED, rest=option_values.gpus_per_task)
    gpus_per_socket: int | str | None = option(COUNTED, rest=option_values.generic_resource("tres_per_socket"))
    #: The type of all GPUs that are given as plain numbers.
    gpu_type: str | None = None
    gpu_bind: str | None = option(TEXT, rest=lambda written: {"tres_bind": f"gres/gpu:{written}"})
    gpu_freq: str | None = option(TEXT, rest=lambda written: {"tres_freq": f"gpu:{written}"})
    gres: Words | None = option(LIST, rest=option_values.gres)
    gres_flags: Words | None = option(LIST, rest=option_values.gres_flags)
    tres_per_task: Words | None = option(PAIRS, rest="tres_per_task")
    tres_bind: str | None = option(TEXT, rest="tres_bind")
    licenses: Words | None = option(LIST, "L", "licenses")
    bb: str | None = option(TEXT, rest="burst_buffer")

    # When, and after what. A number is minutes.
    time_limit: Duration | None = option(DURATION, "t", "time_limit", long="time")
    time_min: Duration | None = option(DURATION, rest="time_minimum")
    begin: Moment | None = option(MOMENT, "b", "begin_time")
    deadline: Moment | None = option(MOMENT, rest="deadline")
    dependency: Dependencies | None = option(DEPENDENCY, "d", "dependency")
    kill_on_invalid_dep: bool | None = option(
        YES_NO, rest=lambda written: {"flags": [f"{'' if written == 'yes' else 'NO_'}KILL_INVALID_DEPENDENCY"]}
    )
    array: str | range | Sequence[int] | None = option(TEXT, "a", "array")
    #: How many elements of the array may run at once.
    array_limit: int | None = None
    priority: int | str | None = option(PRIORITY, rest="priority")
    nice: int | None = option(NUMBER, rest="nice", bare=100)
    hold: bool | None = option(FLAG, "H", {"hold": True}, constant=True)

    # What happens to it
    requeue: bool | None = flags("requeue", "no-requeue", lambda said: {"requeue": said == "requeue"})
    #: "" keeps the job when a node fails, "off" does not.
    no_kill: str | None = option(TEXT, "k", lambda said: {"kill_on_node_fail": said.lower() in ("no", "off")}, bare="")
    signal: Signal | str | None = option(SIGNAL, rest=option_values.signal)
    mail_type: Words | None = option(LIST, rest=option_values.mail)
    mail_user: Words | None = option(LIST, rest="mail_user")
    profile: Words | None = option(LIST, rest=option_values.profile)
    acctg_freq: str | None = option(TEXT, rest="account_gather_frequency")

    # Files and environment
    output: str | None = option(TEXT, "o", "standard_output")
    error: str | None = option(TEXT, "e", "standard_error")
    input: str | None = option(TEXT, "i", "standard_input")
    open_mode: str | None = option(OPEN_MODE, rest=lambda written: {"open_mode": [written.upper()]})
    chdir: str | None = option(TEXT, "D", "current_working_directory")
    #: Variables that the job gets from the submitting side, as for --export: ALL, NONE, NIL or names.
    export: Words | None = option(PAIRS, rest=lambda written: {})  # slurmrestd has only the environment itself
    #: The job's own variables, independent of `export`.
    env: Mapping[str, str] = field(default_factory=dict)

    # Containers: OCI of Slurm itself, then pyxis
    container: str | None = option(TEXT, rest="container")
    container_id: str | None = option(TEXT, rest="container_id")
    container_image: str | None = option(TEXT, rest=pyxis("container-image"))
    container_mounts: Words | None = option(LIST, rest=pyxis("container-mounts"))
    container_workdir: str | None = option(TEXT, rest=pyxis("container-workdir"))
    container_name: str | None = option(TEXT, rest=pyxis("container-name"))
    container_save: str | None = option(TEXT, rest=pyxis("container-save"))
    #: Names of the variables that override the image's.
    container_env: Words | None = option(LIST, rest=pyxis("container-env"))
    container_mount_home: bool | None = flags("container-mount-home", "no-container-mount-home", pyxis)
    container_remap_root: bool | None = flags("container-remap-root", "no-container-remap-root", pyxis)
    container_entrypoint: bool | None = flags("container-entrypoint", "no-container-entrypoint", pyxis)
    container_writable: bool | None = flags("container-writable", "container-readonly", pyxis)

    #: Any other options of sbatch, as words of a command line: `["--bbf=/x", "--propagate=NONE"]`.
    extra_args: Sequence[str] = ()
    #: The further components of a heterogeneous job: jobs without a body.
    het: Sequence[JobDescription] = ()

    def __repr__(self) -> str:
        """The fields that are set, without secrets: variables by name only, a script by its size."""
        shown = []
        for each in dataclasses.fields(self):
            value = getattr(self, each.name)
            if value is None or (not value and each.name in ("args", "by_default", "env", "extra_args", "het")):
                continue
            if each.name == "env":
                shown.append(f"env=<{', '.join(value)}>")
            elif each.name in ("script", "remote_lines"):
                shown.append(f"{each.name}=<{len(value)} characters>")
            else:
                shown.append(f"{each.name}={value!r}")
        return f"{type(self).__name__}({', '.join(shown)})"

    def replace(self: Job, **changes: Any) -> Job:
        return dataclasses.replace(self, **changes)


OPTIONS: tuple[Option, ...] = tuple(
    dataclasses.replace(one, field=each.name, long=one.long or each.name.replace("_", "-"))
    for each in dataclasses.fields(JobDescription)
    for one in each.metadata.get("options", ())
)

#: Options with which the submission would hang or be misread, and why.
REFUSED: Mapping[str, str] = {
    "autocomplete": "it makes sbatch print instead of submit",
    "export-file": "it drops what other options put into the environment: use env",
    "help": "it makes sbatch print instead of submit",
    "parsable": "the provider sets it itself",
    "quiet": "it hides the job's id",
    "test-only": "nothing would be submitted",
    "usage": "it makes sbatch print instead of submit",
    "version": "it makes sbatch print instead of submit",
    "wait": "the submission would last as long as the job; the task waits anyway",
    "wrap": "use command",
}

#: Fields that each component of a heterogeneous job sets for itself; it inherits others from the one before it.
PER_COMPONENT = frozenset(
    {
        *("partition", "constraint", "nodes", "nodelist", "contiguous", "exclusive", "oversubscribe", "overcommit"),
        *("spread_job", "use_min_nodes", "switches", "segment", "ntasks", "ntasks_per_node", "ntasks_per_socket"),
        *("ntasks_per_core", "ntasks_per_gpu", "cpus_per_task", "cpus_per_gpu", "mincpus", "sockets_per_node"),
        *("cores_per_socket", "threads_per_core", "core_spec", "thread_spec", "cpu_freq", "distribution", "hint"),
        *("network", "mem_per_cpu", "mem_per_gpu", "tmp", "gpus", "gpus_per_node", "gpus_per_task"),
        *("gpus_per_socket", "gpu_bind", "gpu_freq", "gres", "gres_flags", "tres_per_task", "tres_bind", "licenses"),
        *("bb", "mail_type", "mail_user"),
    }
)

BY_LONG: Mapping[str, Option] = {option.long: option for option in OPTIONS}
#: Fields that are no parameters: the provider sets them.
INTERNAL = frozenset({"remote_lines", "by_default"})
FIELDS: tuple[str, ...] = tuple(dict.fromkeys(option.field for option in OPTIONS))


def by_field(field: str, value: Any) -> Option:
    """The option for this value: a field may have one for true and one for false."""
    matching = [option for option in OPTIONS if option.field == field]
    return next((option for option in matching if option.constant == value), matching[0])


def said(values: Mapping[str, Any]) -> Iterator[tuple[Option, Any]]:
    """The options for a job's fields, in the table's order. A false flag without an option for "no" is left out."""
    for name in FIELDS:
        value = values.get(name)
        if value is None:
            continue
        option = by_field(name, value)
        if option.constant is not None and option.constant != value:
            continue
        if value is False and option.bare is True:  # exclusive=False
            continue
        yield option, value


class InvalidJob(LastingError, ValueError):
    """A job that Slurm would reject or misread, with all of its problems."""

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = list(problems)
        super().__init__("; ".join(self.problems))

    @property
    def of_parameters(self) -> list[str]:
        """The problems by the names of an operator's parameters, which differ from a job's fields in one."""
        return [re.sub("^extra_args:", "sbatch_args:", problem) for problem in self.problems]
