"""What there is to see of a DAG run just now: its tasks in Airflow, their jobs in Slurm, and the nodes under them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from graphlib import TopologicalSorter
from typing import Any

from ClusterShell.NodeSet import NodeSet

from sandbox.airflow.api import ENDS, DagRun, line
from sandbox.control import request
from sandbox.errors import SandboxError
from sandbox.lifecycle import Sandbox

_SEPARATOR = "|"
#: What sinfo adds to the state of a node whose power is not simply on.
_POWER = {"~": "off", "#": "powering up", "%": "powering down", "!": "powering down"}
#: Whose events in a task's log are about its job.
_PROVIDER = "airflow_provider_soperator"


@dataclass(frozen=True)
class TaskSeen:
    """One task, and its job if it has one."""

    name: str
    state: str
    job: str = ""
    slurm: str = ""
    nodes: str = ""
    said: str = ""


@dataclass(frozen=True)
class Seen:
    """All of a run at one moment."""

    state: str
    tasks: tuple[TaskSeen, ...]
    #: Names of nodes, by their state.
    nodes: dict[str, str] = field(default_factory=dict)
    block: str = ""


class Watched:
    """A run that is looked at again and again."""

    def __init__(self, run: DagRun, sandbox: Sandbox) -> None:
        self._run, self._sandbox = run, sandbox
        #: The place of each task, after those that it follows.
        self._places = {name: place for place, name in enumerate(_in_order(run))}
        #: The last line of each task that has ended: it does not change any more.
        self._said: dict[str, str] = {}

    def look(self) -> Seen:
        # The run's state first: what is seen of its tasks is then at least as new.
        state, jobs = self._run.state(), self._jobs()
        found = sorted(self._run.tasks(), key=lambda task: self._places[task["task_id"]])
        tasks = tuple(self._task(task, jobs) for task in found)
        return Seen(state, tasks, self._nodes(), self._block())

    def _task(self, task: dict[str, Any], jobs: dict[str, TaskSeen]) -> TaskSeen:
        name, state = task["task_id"], task["state"] or ""
        job = jobs.get(f"{name}.{self._run.dag_id}.{self._run.run_id}", TaskSeen("", ""))
        name += f"[{task['map_index']}]" if task["map_index"] >= 0 else ""
        if name not in self._said:
            said = self._last_line(task) if task["try_number"] else ""
            if state in ENDS:
                self._said[name] = said
        else:
            said = self._said[name]
        return TaskSeen(name, state, job.job, job.slurm, job.nodes, said)

    def _last_line(self, task: dict[str, Any]) -> str:
        """The last that its job has printed; of an array, with the element that has printed it."""
        said, is_folded = "", False
        for event in self._run.events(task["task_id"], task["map_index"], task["try_number"]):
            text = str(event["event"])
            if not str(event.get("logger", "")).startswith(_PROVIDER):
                continue
            if text.startswith("::group::"):
                # Its last line is its title.
                said, is_folded = text.removeprefix("::group::"), True
            elif text.startswith("::endgroup::"):
                is_folded = False
            # That is about the job, which has columns of its own; but for the progress of an element.
            elif not is_folded and not text.startswith("Job "):
                said = text.splitlines()[-1]
            elif not is_folded and "; " in text:
                said = text.partition("; ")[2]
        return said

    def log_of_failed(self, most: int) -> dict[str, list[str]]:
        """The last lines in the logs of the tasks that have failed, by their names."""
        failed = [task for task in self._run.tasks() if task["state"] == "failed"]
        return {
            task["task_id"]: [
                line(event)
                for event in self._run.events(task["task_id"], task["map_index"], task["try_number"])
                if not str(event["event"]).startswith("::")
            ][-most:]
            for task in failed
        }

    # Slurm and what is under it

    def _jobs(self) -> dict[str, TaskSeen]:
        """Those in the queue, by the part of their names that tells the task."""
        elements: dict[str, list[list[str]]] = defaultdict(list)
        for row in self._slurm("squeue", "--array", "--states=all", "--format=%j|%F|%T|%N"):
            elements[row[0].rpartition(".")[0]].append(row)
        return {name: _merged(rows) for name, rows in elements.items()}

    def _nodes(self) -> dict[str, str]:
        states: dict[str, list[str]] = defaultdict(list)
        for names, state in self._slurm("sinfo", "--partition=main", "--format=%N|%T"):
            states[_POWER.get(state[-1], state.rstrip("*"))].append(names)
        return {state: _folded(names) for state, names in states.items()}

    def _slurm(self, *command: str) -> list[list[str]]:
        said = self._sandbox.init.run("sshd", [*command, "--noheader"])
        if said.returncode:
            raise SandboxError(f"`{command[0]}` failed ({said.stderr.strip()})", "see `python -m sandbox status`")
        return [row.split(_SEPARATOR) for row in said.stdout.splitlines()]

    def _block(self) -> str:
        block = request(self._sandbox.paths.cloud_control, 10, do="describe")["block"]
        return f"{block['usage']} of {block['limit']} GPUs in use"


def _in_order(run: DagRun) -> Iterable[str]:
    """The tasks of a DAG, each after those that it follows."""
    order: TopologicalSorter[str] = TopologicalSorter()
    for task in run.api.call("GET", f"/dags/{run.dag_id}/tasks")["tasks"]:
        order.add(task["task_id"])
        for following in task["downstream_task_ids"]:
            order.add(following, task["task_id"])
    return order.static_order()


def _merged(rows: list[list[str]]) -> TaskSeen:
    """One job, whose elements may be in different states. Of several tries the last counts."""
    job = max((row[1] for row in rows), key=int)
    rows = [row for row in rows if row[1] == job]
    states = Counter(row[2] for row in rows)
    said = ", ".join(f"{count} {state}" if len(rows) > 1 else state for state, count in states.items())
    return TaskSeen("", "", job, said, _folded(row[3] for row in rows))


def _folded(names: Iterable[str]) -> str:
    return str(NodeSet(",".join(filter(None, names))))
