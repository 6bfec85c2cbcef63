"""What a batch job asks for, as a value: everything that is submitted, and nothing of how or where."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, TypeVar

from airflow_provider_soperator.slurm.terms import AnyOf, Dependency, Signal

#: One of these, or of those that derive from it.
Job = TypeVar("Job", bound="JobDescription")

Words = str | Sequence[str]
Duration = timedelta | int | str
Moment = datetime | timedelta | str


@dataclass(frozen=True)
class ScriptFile:
    """A script from a file of the project, read by whoever makes the job; its name becomes the job's.

    >>> ScriptFile("jobs/train.sh", "#!/bin/bash\\npython train.py\\n").name
    'jobs/train.sh'
    """

    name: str
    text: str


@dataclass(frozen=True, kw_only=True, repr=False)
class JobDescription:
    """One body, and what it asks for, under sbatch's own names.

    What can be done with it are the methods of ``BatchJob``.
    """

    # The body: exactly one of these
    script: str | None = None
    #: A text is a line of shell, as for --wrap; a sequence is the words of one command.
    command: Words | None = None
    script_file: ScriptFile | None = None
    #: A path on the cluster.
    remote_script: str | None = None
    #: Arguments of the script.
    args: Sequence[str] = ()

    # What it is and where it goes
    name: str | None = None
    account: str | None = None
    partition: Words | None = None
    qos: str | None = None
    reservation: Words | None = None
    wckey: str | None = None
    #: The user's own; to Soperator's health checks it can mean something.
    comment: str | None = None
    mcs_label: str | None = None
    extra: str | None = None
    clusters: Words | None = None

    # Nodes
    nodes: int | str | None = None
    nodelist: Words | None = None
    exclude: Words | None = None
    constraint: str | None = None
    prefer: str | None = None
    batch: str | None = None
    contiguous: bool | None = None
    exclusive: bool | str | None = None
    oversubscribe: bool | None = None
    overcommit: bool | None = None
    spread_job: bool | None = None
    use_min_nodes: bool | None = None
    switches: int | str | None = None
    segment: int | None = None
    reboot: bool | None = None
    delay_boot: Duration | None = None
    wait_all_nodes: bool | None = None

    # Tasks and processors
    ntasks: int | None = None
    ntasks_per_node: int | None = None
    ntasks_per_socket: int | None = None
    ntasks_per_core: int | None = None
    ntasks_per_gpu: int | None = None
    cpus_per_task: int | None = None
    cpus_per_gpu: int | None = None
    mincpus: int | None = None
    sockets_per_node: int | None = None
    cores_per_socket: int | None = None
    threads_per_core: int | None = None
    core_spec: int | None = None
    thread_spec: int | None = None
    cpu_freq: str | None = None
    distribution: str | None = None
    hint: str | None = None
    network: str | None = None

    # Memory and disk: a number is megabytes, a text is like "16G"
    mem: int | str | None = None
    mem_per_cpu: int | str | None = None
    mem_per_gpu: int | str | None = None
    tmp: int | str | None = None

    # GPUs and other resources
    gpus: int | str | None = None
    gpus_per_node: int | str | None = None
    gpus_per_task: int | str | None = None
    gpus_per_socket: int | str | None = None
    #: The type of all GPUs that are given as plain numbers.
    gpu_type: str | None = None
    gpu_bind: str | None = None
    gpu_freq: str | None = None
    gres: Words | None = None
    gres_flags: Words | None = None
    tres_per_task: Words | None = None
    tres_bind: str | None = None
    licenses: Words | None = None
    bb: str | None = None

    # When, and after what. A number is minutes.
    time_limit: Duration | None = None
    time_min: Duration | None = None
    begin: Moment | None = None
    deadline: Moment | None = None
    #: A sequence means all of them.
    dependency: Dependency | AnyOf | Sequence[Dependency | str] | str | None = None
    kill_on_invalid_dep: bool | None = None
    array: str | range | Sequence[int] | None = None
    #: How many elements of the array may run at once.
    array_limit: int | None = None
    priority: int | str | None = None
    nice: int | None = None
    hold: bool | None = None

    # What happens to it
    requeue: bool | None = None
    #: "" keeps the job when a node fails, "off" does not.
    no_kill: str | None = None
    signal: Signal | str | None = None
    mail_type: Words | None = None
    mail_user: str | None = None
    profile: Words | None = None
    acctg_freq: str | None = None

    # Files and environment
    output: str | None = None
    error: str | None = None
    input: str | None = None
    open_mode: str | None = None
    chdir: str | None = None
    #: Which of the submitting side's variables the job gets, as for --export: ALL, NONE, NIL or names.
    export: Words | None = None
    #: The job's own variables, whatever `export` says.
    env: Mapping[str, str] = field(default_factory=dict)

    # Containers: OCI of Slurm itself, then pyxis
    container: str | None = None
    container_id: str | None = None
    container_image: str | None = None
    container_mounts: Words | None = None
    container_workdir: str | None = None
    container_name: str | None = None
    container_save: str | None = None
    #: Names of the variables that override the image's.
    container_env: Words | None = None
    container_mount_home: bool | None = None
    container_remap_root: bool | None = None
    container_entrypoint: bool | None = None
    container_writable: bool | None = None

    #: Any other options of sbatch, as words of a command line: `["--bbf=/x", "--propagate=NONE"]`.
    extra_args: Sequence[str] = ()
    #: The further components of a heterogeneous job: jobs without a body.
    het: Sequence[JobDescription] = ()

    def __repr__(self) -> str:
        """What is set, and nothing secret: variables by name only, a script by its size."""
        shown = []
        for each in dataclasses.fields(self):
            value = getattr(self, each.name)
            if value is None or (not value and each.name in ("args", "env", "extra_args", "het")):
                continue
            if each.name == "env":
                shown.append(f"env=<{', '.join(value)}>")
            elif each.name in ("script", "script_file"):
                text = value if isinstance(value, str) else value.text
                shown.append(f"{each.name}=<{len(text)} characters>")
            else:
                shown.append(f"{each.name}={value!r}")
        return f"{type(self).__name__}({', '.join(shown)})"

    def replace(self: Job, **changes: Any) -> Job:
        """The same job but for some fields."""
        return dataclasses.replace(self, **changes)
