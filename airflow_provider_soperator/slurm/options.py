"""All options of sbatch, by name and by field."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from typing import Any

from airflow_provider_soperator.slurm.job_description import JobDescription, Option

OPTIONS: tuple[Option, ...] = tuple(
    replace(option, field=field.name, long=option.long or field.name.replace("_", "-"))
    for field in fields(JobDescription)
    for option in field.metadata.get("options", ())
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
