"""How fast the jail is, the file system that is the root of every node, and from when on it is too slow."""

from __future__ import annotations

import inspect
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from airflow_provider_soperator.slurm import jail_probe
from airflow_provider_soperator.slurm.errors import UnreadableAnswer
from airflow_provider_soperator.slurm.files import FileError, FileRequest
from airflow_provider_soperator.slurm.requests import Command, CommandOutput

#: What the login node is called among the places that are measured.
LOGIN = "login node"
#: Seconds beyond the time for measuring in which a program has started, tidied up and ended.
_SLACK = 10.0
#: Nodes at once: each has a process of ``srun`` on the login node.
_AT_ONCE = 32
#: What `timeout` ends with when a program had to be ended, by SIGTERM and by SIGKILL.
_HAD_TO_BE_ENDED = (124, 137)
_PYTHON = ("python3", "-I", "-S", "-c")


@dataclass(frozen=True)
class Latency:
    """Seconds that an operation has taken: half of the times up to ``p50``, 19 of 20 up to ``p95``."""

    p50: float
    p95: float
    longest: float


@dataclass(frozen=True)
class JailLook:
    """What one place has seen of the jail."""

    place: str
    latencies: dict[str, Latency] = field(default_factory=dict)
    #: What had not ended when the time was over, and for how many seconds that had gone on.
    unfinished: str = ""
    waited: float = 0.0
    #: A folder that could not be removed.
    left: str = ""
    #: Why nothing was measured, though the file system may be well.
    missed: str = ""


@dataclass(frozen=True)
class _Probe:
    """How it is measured."""

    #: A folder in the jail; ``~`` is the user's home.
    folder: str = "~"
    rounds: int = 20
    #: Seconds for all of it.
    limit: float = 30.0

    def words(self) -> tuple[str, ...]:
        program = inspect.getsource(jail_probe)
        return (*_PYTHON, program, self.folder, str(self.rounds), f"{self.limit:g}")


@dataclass(frozen=True)
class ProbeJail(_Probe, FileRequest[JailLook]):
    """Measure the jail from where commands run: the login node.

    >>> ProbeJail(rounds=5).command().argv[-3:]
    ('~', '5', '30')
    """

    def command(self) -> Command:
        return Command(self.words(), timeout=self.limit + _SLACK)

    def again(self) -> None:
        """What has hung once would hang again."""

    def read(self, answer: CommandOutput) -> JailLook:
        if answer.status == 127:
            raise FileError("there is no python3 on the login node", "sh", "install it there: what measures is Python")
        said = answer.stderr.decode(errors="replace").strip()
        if answer.status:
            raise FileError(said or f"measuring ended with status {answer.status}", "python3")
        return _look(LOGIN, answer.text, said)


# One process for each node, so that one that hangs keeps no other waiting. What `timeout` ends, Slurm ends on the node;
# should srun itself have been stuck, its job is found by its name.
_EACH = """\
name=$1 limit=$2 at_once=$3; shift 3
nodes=(); while [ "$1" != -- ]; do nodes+=("$1"); shift; done; shift
for node in "${nodes[@]}"; do
    while [ "$(jobs -pr | wc -l)" -ge "$at_once" ]; do wait -n; done
    {
        said=$(timeout -k 5 "$limit" srun --job-name="$name" --nodelist="$node" "$@" 2>&1 </dev/null)
        printf '%s %d %s\\0' "$node" $? "${said:0:3000}"
    } &
done
wait
scancel --quiet --name="$name" >&2
exit 0
"""


@dataclass(frozen=True)
class ProbeJailOnNodes(_Probe, FileRequest[tuple[JailLook, ...]]):
    """Measure the jail on nodes, in a job of one task on each; a node without room for it is missed.

    >>> ProbeJailOnNodes(nodes=("worker-0",)).command().argv[:2]
    ('bash', '-c')
    """

    nodes: tuple[str, ...] = ()
    #: Seconds for a job to start.
    patience: float = 30.0
    #: More options of srun.
    options: tuple[str, ...] = ()
    mark: str = field(default_factory=lambda: f"jail-check-{secrets.token_hex(6)}", compare=False, repr=False)

    def command(self) -> Command:
        limit = self.patience + self.limit + _SLACK
        task = ("--nodes=1", "--ntasks=1", "--cpus-per-task=1", "--mem=64M", "--quiet", "--chdir=/")
        bounds = (f"--immediate={self.patience:g}", f"--time={int(limit // 60) + 1}")
        groups = -(-len(self.nodes) // _AT_ONCE)
        each = (_EACH, "each", self.mark, f"{limit:g}", str(_AT_ONCE), *self.nodes, "--")
        return Command(
            ("bash", "-c", *each, *task, *bounds, *self.options, *self.words()), timeout=groups * (limit + _SLACK)
        )

    def again(self) -> None:
        """What has hung once would hang again."""

    def read(self, answer: CommandOutput) -> tuple[JailLook, ...]:
        if answer.status:
            raise self.error(answer)
        return tuple(self._look(entry) for entry in sorted(answer.text.split("\0")[:-1]))

    def _look(self, entry: str) -> JailLook:
        node, status, said = entry.split(" ", 2)
        if int(status) in _HAD_TO_BE_ENDED:
            return JailLook(node, unfinished="start of a process", waited=self.patience + self.limit + _SLACK)
        if int(status):
            return JailLook(node, missed=said.strip().replace("\n", "; ") or f"srun ended with status {status}")
        return _look(node, said, said.strip())


def _look(place: str, printed: str, said: str) -> JailLook:
    latencies: dict[str, Latency] = {}
    for line in printed.splitlines():
        word, _, rest = line.partition(" ")
        if word in jail_probe.OPERATIONS:
            latencies[word] = Latency(*map(float, rest.split()))
        elif word == "done":
            return JailLook(place, latencies)
        elif word == "failed":
            raise FileError(f"{place}: {rest}: {said}", "jail check", "see the folder, its rights and its quota")
        elif word == "stopped":
            doing, waited, left = rest.split(" ", 2)
            return JailLook(place, latencies, doing, float(waited), left)
    raise UnreadableAnswer(f"{place}: {printed[:200]!r}", "jail check")


def too_slow(looks: Iterable[JailLook], limit: float) -> list[str]:
    """Where the jail is slower than a limit in seconds, and in what, in people's words.

    >>> too_slow([JailLook("worker-0", {"stat": Latency(0.1, 0.5, 2.0)}, "create", 28.0)], 0.3)
    ['worker-0: create has not ended after 28 s', 'worker-0: stat takes 0.5 s (p95)']
    """
    found: list[str] = []
    for look in looks:
        if look.unfinished and look.waited > limit:
            left = f"; {look.left} is left behind, and is removed by a later check" if look.left else ""
            found.append(f"{look.place}: {look.unfinished} has not ended after {look.waited:.3g} s{left}")
        found += [
            f"{look.place}: {operation} takes {latency.p95:.3g} s (p95)"
            for operation, latency in look.latencies.items()
            if latency.p95 > limit
        ]
    return found


def table(looks: Sequence[JailLook]) -> str:
    """All that was measured, in milliseconds: median / p95 / longest.

    >>> print(table([JailLook("worker-0", {"stat": Latency(0.0001, 0.0005, 0.002)})]))
    milliseconds: p50 / p95 / longest
      worker-0    stat 0.1 / 0.5 / 2.0
    """
    lines = ["milliseconds: p50 / p95 / longest"]
    width = max((len(look.place) for look in looks), default=0) + 2
    for look in looks:
        said = [
            f"{operation} {' / '.join(f'{seconds * 1000:.1f}' for seconds in asdict(latency).values())}"
            for operation, latency in look.latencies.items()
        ]
        said += [f"{look.unfinished}: not ended after {look.waited:.3g} s"] if look.unfinished else []
        said += [f"not measured: {look.missed}"] if look.missed else []
        lines.append(f"  {look.place:{width}}  {', '.join(said)}")
    return "\n".join(lines)


def described(looks: Iterable[JailLook]) -> dict[str, Any]:
    """The latencies of each place that could be measured, as plain values."""
    return {
        look.place: {operation: asdict(latency) for operation, latency in look.latencies.items()}
        for look in looks
        if not look.missed
    }
