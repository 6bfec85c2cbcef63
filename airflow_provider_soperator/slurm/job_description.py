"""The fields of a batch job, independent of how and where it is submitted."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, TypeVar

from airflow_provider_soperator.slurm.dependencies import AnyOf, Dependency

#: A ``JobDescription`` or a subclass of it.
Job = TypeVar("Job", bound="JobDescription")

Words = str | Sequence[str]
Duration = timedelta | int | str
Moment = datetime | timedelta | str


@dataclass(frozen=True)
class ScriptFile:
    """A script from a local file, read when the job is made; its name becomes the job's.

    >>> ScriptFile("jobs/train.sh", "#!/bin/bash\\npython train.py\\n").name
    'jobs/train.sh'
    """

    name: str
    text: str


@dataclass(frozen=True, kw_only=True, repr=False)
class JobDescription:
    """One body, and sbatch's options under their own names.

    The methods are in ``BatchJob``.
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
    #: The user's own; Soperator's health checks may read it.
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
    #: Variables that the job gets from the submitting side, as for --export: ALL, NONE, NIL or names.
    export: Words | None = None
    #: The job's own variables, independent of `export`.
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
        """The fields that are set, without secrets: variables by name only, a script by its size."""
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
        """The same job with some fields changed."""
        return dataclasses.replace(self, **changes)


class InvalidJob(ValueError):
    """A job that Slurm would reject or misread, with all of its problems.

    >>> InvalidJob(["nodes: must be >= 0, got -1"]).problems
    ['nodes: must be >= 0, got -1']
    """

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = list(problems)
        super().__init__("; ".join(self.problems))


#: The signals whose names Slurm knows.
SIGNALS = frozenset(
    {
        *("HUP", "INT", "QUIT", "ABRT", "KILL", "ALRM", "TERM", "CHLD", "USR1", "USR2"),
        *("PIPE", "URG", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "XCPU"),
    }
)


@dataclass(frozen=True)
class Signal:
    """A signal that the job gets before its time is up.

    >>> str(Signal("USR1", seconds=120, batch_only=True))
    'B:USR1@120'
    """

    name: str | int
    seconds: int = 60
    #: Only to the batch script itself, not to its steps.
    batch_only: bool = False
    #: Also when a reservation that overlaps the job is about to begin.
    reservation: bool = False

    def __str__(self) -> str:
        prefix = "R" * self.reservation + "B" * self.batch_only
        return f"{prefix}{':' if prefix else ''}{str(self.name).upper().removeprefix('SIG')}@{self.seconds}"

    @classmethod
    def parse(cls, text: str) -> Signal:
        found = re.fullmatch(r"(?:(?P<flags>[BR]{1,2}):)?(?P<name>[A-Za-z0-9]+)(?:@(?P<seconds>\d+))?", text)
        if found is None:
            raise ValueError(f"{text!r} is not a signal: write [R][B:]NAME[@SECONDS], such as B:USR1@120")
        name = found["name"].upper().removeprefix("SIG")
        flags = found["flags"] or ""
        return cls(int(name) if name.isdecimal() else name, int(found["seconds"] or 60), "B" in flags, "R" in flags)

    def problems(self) -> list[str]:
        name = str(self.name).upper().removeprefix("SIG")
        found = []
        if not (0 < int(name) < 65 if name.isdecimal() else name in SIGNALS):
            found.append(f"{self.name!r} is not a signal that Slurm knows")
        if not 0 <= self.seconds <= 65_535:
            found.append(f"seconds must be between 0 and 65535, got {self.seconds}")
        return found


def array_text(indices: str | range | Iterable[int], limit: int | None = None) -> str:
    """The indices of an array, and the number of elements that may run at once, in Slurm's notation.

    >>> array_text(range(0, 10, 2)), array_text([1, 2, 3, 7], limit=2), array_text("5-9")
    ('0-8:2', '1-3,7%2', '5-9')
    """
    text = indices if isinstance(indices, str) else _compact(sorted(set(indices)))
    return f"{text}%{limit}" if limit is not None else text


def _compact(indices: list[int]) -> str:
    """Neighbours as ranges; three or more evenly spaced indices as one range with a step."""
    if len(indices) > 2:
        steps = {after - before for before, after in itertools.pairwise(indices)}
        if len(steps) == 1 and (step := steps.pop()) > 1:
            return f"{indices[0]}-{indices[-1]}:{step}"
    runs: list[list[int]] = []
    for index in indices:
        if runs and runs[-1][-1] == index - 1:
            runs[-1].append(index)
        else:
            runs.append([index])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def array_indices(text: str) -> list[int]:
    """The indices of an array in Slurm's notation; ValueError for anything else.

    >>> array_indices("1-10:4,3%2")
    [1, 3, 5, 9]
    """
    found: set[int] = set()
    for part in text.partition("%")[0].split(","):
        matched = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9})(?::(\d{1,9}))?)?", part)
        if matched is None:
            raise ValueError(f"{part!r} is not an index, a range or a range with a step (5, 0-9, 0-9:3)")
        first, last, step = int(matched[1]), int(matched[2] or matched[1]), int(matched[3] or 1)
        if last < first:
            raise ValueError(f"{part!r} runs backwards")
        if step < 1:
            raise ValueError(f"{part!r} has a step of 0")
        if (last - first) // step > 4_000_000:  # the largest MaxArraySize that Slurm allows is 4,000,001
            raise ValueError(f"{part!r} has more elements than any Slurm allows")
        found.update(range(first, last + 1, step))
    return sorted(found)


def as_words(value: Any) -> list[str]:
    """A list, which may be given as one text with commas."""
    return value.split(",") if isinstance(value, str) else [str(part) for part in value]
