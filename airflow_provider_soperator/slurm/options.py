"""Table of sbatch's options, for command lines, #SBATCH lines, their reader and slurmrestd's JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from airflow_provider_soperator.slurm import option_values
from airflow_provider_soperator.slurm.option_values import (
    COUNT,
    COUNTED,
    DEPENDENCY,
    DURATION,
    EXCLUSIVE,
    FLAG,
    LIST,
    MEMORY,
    MOMENT,
    NUMBER,
    ONE_ZERO,
    OPEN_MODE,
    POSITIVE,
    PRIORITY,
    SIGNAL,
    TEXT,
    YES_NO,
    Rest,
    ValueKind,
    always,
    flag,
    generic_resource,
    megabytes,
    minutes,
    number,
    pyxis,
    shared,
    text,
)


@dataclass(frozen=True)
class Option:
    """An option of sbatch, and the job's field for it.

    >>> by_long("nodes").word(4), by_long("hold").word(True)
    ('--nodes=4', '--hold')
    """

    field: str
    long: str
    kind: ValueKind = TEXT
    short: str = ""
    #: Makes slurmrestd's JSON; None if it has no field for the option.
    rest: Rest | None = None
    #: The first version of slurmrestd's interface with the field, v0.0.…
    rest_since: int = 41
    #: The field's value for a flag.
    constant: bool | None = None
    #: The field's value for the option without its optional argument.
    bare: Any = None

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


def _flags(field: str, yes: str, no: str, rest: tuple[Rest | None, Rest | None]) -> tuple[Option, Option]:
    """A field with one flag for true and another for false."""
    return (
        Option(field, yes, FLAG, rest=rest[0], constant=True),
        Option(field, no, FLAG, rest=rest[1], constant=False),
    )


#: Columns: field, long option, kind of value, short option, field of slurmrestd.
OPTIONS: tuple[Option, ...] = (
    # What it is and where it goes
    Option("name", "job-name", TEXT, "J", text("name")),
    Option("account", "account", TEXT, "A", text("account")),
    Option("partition", "partition", LIST, "p", text("partition")),
    Option("qos", "qos", TEXT, "q", text("qos")),
    Option("reservation", "reservation", LIST, "", text("reservation")),
    Option("wckey", "wckey", TEXT, "", text("wckey")),
    Option("comment", "comment", TEXT, "", text("comment")),
    Option("mcs_label", "mcs-label", TEXT, "", text("mcs_label")),
    Option("extra", "extra", TEXT, "", text("extra")),
    Option("clusters", "clusters", LIST, "M"),
    # Nodes
    Option("nodes", "nodes", COUNTED, "N", text("nodes")),
    Option("nodelist", "nodelist", LIST, "w", option_values.listed("required_nodes")),
    Option("exclude", "exclude", LIST, "x", option_values.listed("excluded_nodes")),
    Option("constraint", "constraint", TEXT, "C", text("constraints")),
    Option("prefer", "prefer", TEXT, "", text("prefer")),
    Option("batch", "batch", TEXT, "", text("batch_features")),
    Option("contiguous", "contiguous", FLAG, "", always("contiguous", True), constant=True),
    Option("exclusive", "exclusive", EXCLUSIVE, "", shared, bare=True),
    Option("oversubscribe", "oversubscribe", FLAG, "s", always("shared", ["oversubscribe"]), constant=True),
    Option("overcommit", "overcommit", FLAG, "O", always("overcommit", True), constant=True),
    Option("spread_job", "spread-job", FLAG, "", flag("SPREAD_JOB"), constant=True),
    Option("use_min_nodes", "use-min-nodes", FLAG, "", flag("PREFER_MINIMUM_NODE_COUNT"), constant=True),
    Option("switches", "switches", COUNTED, "", option_values.switches),
    Option("segment", "segment", POSITIVE, "", number("segment_size")),
    Option("reboot", "reboot", FLAG, "", always("reboot", True), constant=True),
    Option("delay_boot", "delay-boot", DURATION, "", lambda written: {"delay_boot": option_values.in_seconds(written)}),
    Option("wait_all_nodes", "wait-all-nodes", ONE_ZERO, "", lambda written: {"wait_all_nodes": written == "1"}),
    # Tasks and processors
    Option("ntasks", "ntasks", POSITIVE, "n", number("tasks")),
    Option("ntasks_per_node", "ntasks-per-node", POSITIVE, "", number("tasks_per_node")),
    Option("ntasks_per_socket", "ntasks-per-socket", POSITIVE, "", number("tasks_per_socket")),
    Option("ntasks_per_core", "ntasks-per-core", POSITIVE, "", number("tasks_per_core")),
    Option("ntasks_per_gpu", "ntasks-per-gpu", POSITIVE, "", number("ntasks_per_tres")),
    Option("cpus_per_task", "cpus-per-task", POSITIVE, "c", number("cpus_per_task")),
    Option("cpus_per_gpu", "cpus-per-gpu", POSITIVE, "", generic_resource("cpus_per_tres")),
    Option("mincpus", "mincpus", POSITIVE, "", number("minimum_cpus_per_node")),
    Option("sockets_per_node", "sockets-per-node", POSITIVE, "", number("sockets_per_node")),
    Option("cores_per_socket", "cores-per-socket", POSITIVE, "", number("cores_per_socket"), rest_since=45),
    Option("threads_per_core", "threads-per-core", POSITIVE, "", number("threads_per_core")),
    Option("core_spec", "core-spec", COUNT, "S", number("core_specification")),
    Option("thread_spec", "thread-spec", COUNT, "", number("thread_specification")),
    Option("cpu_freq", "cpu-freq", TEXT, "", text("cpu_frequency")),
    Option("distribution", "distribution", TEXT, "m", text("distribution")),
    Option("hint", "hint", TEXT, ""),
    Option("network", "network", TEXT, "", text("network")),
    # Memory and disk
    Option("mem", "mem", MEMORY, "", megabytes("memory_per_node")),
    Option("mem_per_cpu", "mem-per-cpu", MEMORY, "", megabytes("memory_per_cpu")),
    Option(
        "mem_per_gpu",
        "mem-per-gpu",
        MEMORY,
        "",
        lambda written: {"memory_per_tres": f"gres/gpu:{option_values.in_megabytes(written)}"},
    ),
    Option("tmp", "tmp", MEMORY, "", lambda written: {"temporary_disk_per_node": option_values.in_megabytes(written)}),
    # GPUs and other resources
    Option("gpus", "gpus", COUNTED, "G", generic_resource("tres_per_job")),
    Option("gpus_per_node", "gpus-per-node", COUNTED, "", generic_resource("tres_per_node")),
    Option("gpus_per_task", "gpus-per-task", COUNTED, "", option_values.gpus_per_task),
    Option("gpus_per_socket", "gpus-per-socket", COUNTED, "", generic_resource("tres_per_socket")),
    Option("gpu_bind", "gpu-bind", TEXT, "", lambda written: {"tres_bind": f"gres/gpu:{written}"}),
    Option("gpu_freq", "gpu-freq", TEXT, "", lambda written: {"tres_freq": f"gpu:{written}"}),
    Option("gres", "gres", LIST, "", option_values.gres),
    Option("gres_flags", "gres-flags", LIST, "", option_values.gres_flags),
    Option("tres_per_task", "tres-per-task", LIST, "", text("tres_per_task")),
    Option("tres_bind", "tres-bind", TEXT, "", text("tres_bind")),
    Option("licenses", "licenses", LIST, "L", text("licenses")),
    Option("bb", "bb", TEXT, "", text("burst_buffer")),
    # When, and after what
    Option("time_limit", "time", DURATION, "t", minutes("time_limit")),
    Option("time_min", "time-min", DURATION, "", minutes("time_minimum")),
    Option("begin", "begin", MOMENT, "b", text("begin_time")),
    Option("deadline", "deadline", MOMENT, "", text("deadline")),
    Option("dependency", "dependency", DEPENDENCY, "d", text("dependency")),
    Option("kill_on_invalid_dep", "kill-on-invalid-dep", YES_NO, "", option_values.kill_on_invalid_dep),
    Option("array", "array", TEXT, "a", text("array")),
    Option("priority", "priority", PRIORITY, "", option_values.priority),
    Option("nice", "nice", NUMBER, "", number("nice"), bare=100),
    Option("hold", "hold", FLAG, "H", always("hold", True), constant=True),
    # What happens to it
    *_flags("requeue", "requeue", "no-requeue", (always("requeue", True), always("requeue", False))),
    Option("no_kill", "no-kill", TEXT, "k", always("kill_on_node_fail", False), bare=""),
    Option("signal", "signal", SIGNAL, "", option_values.signal),
    Option("mail_type", "mail-type", LIST, "", option_values.mail),
    Option("mail_user", "mail-user", TEXT, "", text("mail_user")),
    Option("profile", "profile", LIST, "", option_values.profile),
    Option("acctg_freq", "acctg-freq", TEXT, "", text("account_gather_frequency")),
    # Files and environment
    Option("output", "output", TEXT, "o", text("standard_output")),
    Option("error", "error", TEXT, "e", text("standard_error")),
    Option("input", "input", TEXT, "i", text("standard_input")),
    Option("open_mode", "open-mode", OPEN_MODE, "", lambda written: {"open_mode": [written.upper()]}),
    Option("chdir", "chdir", TEXT, "D", text("current_working_directory")),
    Option("export", "export", LIST, "", lambda written: {}),  # slurmrestd has only the environment itself
    # Containers: OCI of Slurm itself, then pyxis
    Option("container", "container", TEXT, "", text("container")),
    Option("container_id", "container-id", TEXT, "", text("container_id")),
    Option("container_image", "container-image", TEXT, "", pyxis("container-image")),
    Option("container_mounts", "container-mounts", LIST, "", pyxis("container-mounts")),
    Option("container_workdir", "container-workdir", TEXT, "", pyxis("container-workdir")),
    Option("container_name", "container-name", TEXT, "", pyxis("container-name")),
    Option("container_save", "container-save", TEXT, "", pyxis("container-save")),
    Option("container_env", "container-env", LIST, "", pyxis("container-env")),
    *_flags(
        "container_mount_home",
        "container-mount-home",
        "no-container-mount-home",
        (pyxis("container-mount-home"), pyxis("no-container-mount-home")),
    ),
    *_flags(
        "container_remap_root",
        "container-remap-root",
        "no-container-remap-root",
        (pyxis("container-remap-root"), pyxis("no-container-remap-root")),
    ),
    *_flags(
        "container_entrypoint",
        "container-entrypoint",
        "no-container-entrypoint",
        (pyxis("container-entrypoint"), pyxis("no-container-entrypoint")),
    ),
    *_flags(
        "container_writable",
        "container-writable",
        "container-readonly",
        (pyxis("container-writable"), pyxis("container-readonly")),
    ),
)

#: Options of sbatch without a field, for `extra_args`, and whether they take an argument.
UNTYPED: Mapping[str, str] = {
    **dict.fromkeys(("bbf", "cluster", "cluster-constraint", "context", "export-file", "extra-node-info"), "required"),
    **dict.fromkeys(("autocomplete", "gid", "mem-bind", "ntasks-per-tres", "uid", "wrap"), "required"),
    **dict.fromkeys(("get-user-env", "oom-kill-step", "propagate", "resv-ports", "x11"), "optional"),
    **dict.fromkeys(("help", "ignore-pbs", "parsable", "quiet", "stepmgr", "test-only", "usage", "verbose"), "no"),
    **dict.fromkeys(("version", "wait"), "no"),
}

_ALIASES = {"tasks-per-node": "ntasks-per-node", "jobname": "job-name"}
_UNTYPED_SHORT = {"B": "extra-node-info", "Q": "quiet", "V": "version", "W": "wait", "h": "help", "v": "verbose"}

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

_BY_LONG = {option.long: option for option in OPTIONS}
_BY_SHORT = {option.short: option for option in OPTIONS if option.short}
FIELDS: tuple[str, ...] = tuple(dict.fromkeys(option.field for option in OPTIONS))


def by_long(name: str) -> Option:
    return _BY_LONG[name]


def by_field(field: str, value: Any) -> Option:
    """The option for this value: a field may have one for true and one for false."""
    matching = [option for option in OPTIONS if option.field == field]
    return next((option for option in matching if option.constant == value), matching[0])


def resolve_long(name: str) -> tuple[str, str] | None:
    """An option's full name, and whether it takes an argument, from its name or, as in getopt, a unique prefix."""
    known = {long: option.takes_argument for long, option in _BY_LONG.items()} | dict(UNTYPED)
    known |= {alias: known[long] for alias, long in _ALIASES.items()}
    candidates = [name] if name in known else [long for long in known if long.startswith(name)]
    full = {_ALIASES.get(candidate, candidate) for candidate in candidates}
    if not name or len(full) != 1:
        return None
    long = full.pop()
    return long, known[long]


def resolve_short(letter: str) -> tuple[str, str] | None:
    if letter in _BY_SHORT:
        return _BY_SHORT[letter].long, _BY_SHORT[letter].takes_argument
    long = _UNTYPED_SHORT.get(letter)
    return (long, UNTYPED[long]) if long else None


def typed(long: str) -> Option | None:
    return _BY_LONG.get(long)


def said(values: Mapping[str, Any]) -> Iterator[tuple[Option, Any]]:
    """The options for a job's fields, in the table's order. A false flag without an option for "no" is left out."""
    for field in FIELDS:
        value = values.get(field)
        if value is None:
            continue
        option = by_field(field, value)
        if option.constant is not None and option.constant != value:
            continue
        if value is False and option.bare is True:  # exclusive=False
            continue
        yield option, value
