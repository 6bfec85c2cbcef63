"""What a test has left on a sandbox, found by one look at its end."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from sandbox.lifecycle import Sandbox

#: One command for all of it, with as few processes as there can be: each test ends with it.
_LOOK = """
set -e
squeue --noheader --all --states=PD,CF,R,CG,S,RQ --format='JobId=%i %j'
printf 'show nodes\\nshow reservations\\n' | scontrol --oneliner
for file in /root/.airflow-soperator/* /home/*/.airflow-soperator/*; do [ ! -e "$file" ] || echo "File=$file"; done
"""


@dataclass
class Leftovers:
    """Jobs that have not ended, changed nodes, reservations, and files of function calls."""

    #: Names of jobs by their ids, those of arrays and of heterogeneous jobs as one.
    jobs: dict[str, str] = field(default_factory=dict)
    #: The states of all nodes, of which only the drains are a leftover: nodes boot and go by themselves.
    states: dict[str, set[str]] = field(default_factory=dict)
    #: Reasons and comments of nodes, as Slurm, too, writes them.
    marks: dict[str, str] = field(default_factory=dict)
    #: Reasons of nodes that are drained.
    drained: dict[str, str] = field(default_factory=dict)
    reservations: list[str] = field(default_factory=list)
    files: list[str] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.jobs or self.drained or self.reservations or self.files)

    def __str__(self) -> str:
        return "; ".join(self._parts())

    def without(self, *, jobs: Collection[str], drained: Collection[str], kinds: Collection[str]) -> Leftovers:
        """Less what is accounted for: jobs and drains by their ids and nodes, or all of a kind."""
        found = Leftovers(reservations=self.reservations, files=[] if "files" in kinds else self.files)
        if "jobs" not in kinds:
            found.jobs = {job: name for job, name in self.jobs.items() if job not in jobs}
        if "drains" not in kinds:
            found.drained = {node: reason for node, reason in self.drained.items() if node not in drained}
        return found

    def _parts(self) -> Iterator[str]:
        if self.jobs:
            yield f"jobs {', '.join(f'{job} ({name})' for job, name in self.jobs.items())}"
        for node, reason in self.drained.items():
            yield f"{node} is drained: {reason!r}"
        if self.reservations:
            yield f"reservations {', '.join(self.reservations)}"
        if self.files:
            yield f"files {', '.join(self.files)}"


def look(sandbox: Sandbox) -> Leftovers:
    """What is there just now."""
    said = sandbox.init.run("sshd", ["sh", "-c", _LOOK])
    assert said.returncode == 0, said.stdout + said.stderr
    found = Leftovers()
    for line in said.stdout.splitlines():
        kind, _, rest = line.partition("=")
        name, _, shown = rest.partition(" ")
        if kind == "JobId":
            found.jobs[re.split("[_+]", name)[0]] = shown
        elif kind == "NodeName":
            _read_node(found, name, shown)
        elif kind == "ReservationName":
            found.reservations.append(name)
        elif kind == "File":
            found.files.append(rest)
    return found


def _read_node(found: Leftovers, name: str, shown: str) -> None:
    state = re.search(r" State=(\S+)", shown)
    assert state, shown
    found.states[name] = set(state[1].replace("*", "").split("+"))
    # Both are texts of many words; what may follow them is Slurm's own.
    texts = re.findall(r" (?:Reason|Comment)=(.*?)(?= Reason=| Comment=| InstanceId=|$)", shown)
    if texts:
        found.marks[name] = " ".join(texts)
    if "DRAIN" in found.states[name]:
        found.drained[name] = found.marks.get(name, "")
