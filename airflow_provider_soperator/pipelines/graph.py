"""The graph of a pipeline: which stage waits for which, by edges or by names, and what can be submitted together."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from typing import Any

from airflow_provider_soperator.errors import name_remedy
from airflow_provider_soperator.slurm.dependencies import dependency_text
from airflow_provider_soperator.slurm.job_ids import array_text

#: Kinds of dependency: on the success, the end, the failure or the start of another stage, or per element of an array
#: on the success of the same element.
KINDS = ("afterok", "afterany", "afternotok", "after", "aftercorr")
#: Kinds that let a job begin while the other one runs.
EARLY = frozenset({"after", "aftercorr"})
#: Parameters by which a task waits for the DAG run before, as a job that is submitted ahead does not.
NO_PAST = {"depends_on_past": False, "wait_for_downstream": False}
_WANT_SUCCESS = frozenset({"afterok", "aftercorr"})
_FAILED = frozenset({"failed", "upstream_failed"})
_ENDED = _FAILED | {"success", "skipped", "removed"}

_TERM = re.compile(rf"({'|'.join(KINDS)})(?:\+(\d+))?")


class PipelineError(ValueError):
    """A mistake in the definition of a pipeline."""


@dataclass(frozen=True)
class Link:
    """A dependency of a stage on another.

    >>> str(Link("fit", "after", 10)), Link.parse("fit", "after+10") == Link("fit", "after", 10)
    ('after+10', True)
    """

    upstream: str
    kind: str = "afterok"
    minutes: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.minutes, int) or self.minutes < 0:
            raise PipelineError(f"minutes must be a whole number >= 0, got {self.minutes!r}")
        if self.minutes and self.kind != "after":
            raise PipelineError(f"only after takes minutes, {self.kind} does not")

    @classmethod
    def parse(cls, upstream: str, term: str) -> Link | None:
        """Parse the label of an edge; None if it is not a kind of dependency."""
        found = _TERM.fullmatch(term)
        return cls(upstream, found[1], int(found[2] or 0)) if found else None

    def __str__(self) -> str:
        return f"{self.kind}+{self.minutes}" if self.minutes else self.kind


@dataclass(frozen=True)
class Stage:
    """A task whose job is submitted ahead."""

    name: str
    #: The connection to its cluster.
    cluster: str
    links: tuple[Link, ...] = ()
    #: Direct upstream tasks other than stages: it cannot be submitted until they have succeeded.
    gates: frozenset[str] = frozenset()

    @property
    def kinds(self) -> frozenset[str]:
        return frozenset(link.kind for link in self.links)


@dataclass(frozen=True)
class Segment:
    """Stages that are submitted together: on one cluster, and after the same tasks."""

    cluster: str
    gates: frozenset[str]
    #: In order, each after those that it waits for.
    stages: tuple[str, ...]


@dataclass(frozen=True)
class Graph:
    """The stages of a pipeline.

    >>> late = Stage("d", "c", gates=frozenset({"x"}))
    >>> graph = Graph({"a": Stage("a", "c"), "b": Stage("b", "c", (Link("a"),)), "d": late})
    >>> [segment.stages for segment in graph.segments]
    [('a', 'b'), ('d',)]
    >>> graph.doomed_by("a")
    ('b',)
    """

    stages: Mapping[str, Stage] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Stage:
        return self.stages[name]

    @cached_property
    def order(self) -> tuple[str, ...]:
        """All stages, each after those that it waits for; ``PipelineError`` if they wait for each other in a circle."""
        return ordered({name: [link.upstream for link in stage.links] for name, stage in self.stages.items()})

    @cached_property
    def segments(self) -> tuple[Segment, ...]:
        """The segments, in an order in which they can be submitted."""
        gates: dict[str, frozenset[str]] = {}
        found: dict[tuple[str, frozenset[str]], list[str]] = {}
        for name in self.order:
            stage = self.stages[name]
            gates[name] = stage.gates.union(*(gates[link.upstream] for link in stage.links))
            found.setdefault((stage.cluster, gates[name]), []).append(name)
        return tuple(Segment(cluster, before, tuple(stages)) for (cluster, before), stages in found.items())

    def after(self, name: str) -> tuple[str, ...]:
        """The stages that wait for this one directly."""
        return tuple(one.name for one in self.stages.values() if name in {link.upstream for link in one.links})

    def doomed_by(self, name: str, state: str = "failed") -> tuple[str, ...]:
        """The stages that can never run once this one has ended this way, each before those that it follows."""
        states = {name: state}
        for one in self.order:
            links = [link for link in self.stages[one].links if link.upstream in states]
            unmet = next((link for link in links if not is_met(link.kind, states[link.upstream])), None)
            if unmet and one not in states:
                skips = states[unmet.upstream] == "skipped" or unmet.kind == "afternotok"
                states[one] = "skipped" if skips else "upstream_failed"
        return tuple(one for one in reversed(states) if one != name)


def ordered(upstream: Mapping[str, Iterable[str]]) -> tuple[str, ...]:
    """All names in their own order, but each right after those that it waits for; ``PipelineError`` for a circle."""
    try:
        TopologicalSorter(upstream).prepare()
    except CycleError as error:
        raise PipelineError(f"these wait for each other in a circle: {' >> '.join(error.args[1])}") from None
    found: dict[str, None] = {}
    begun: set[str] = set()
    left = [*reversed(list(upstream))]
    while left:
        name = left.pop()
        if name in begun:
            found[name] = None
        else:
            begun.add(name)
            left += [name, *reversed(list(upstream[name]))]
    return tuple(found)


def is_slurm_job(task: Any) -> bool:
    """True for tasks that run a Slurm job: they have a ``slurm_conn_id``, and ``prepare`` the job for another task."""
    return bool(getattr(task.operator_class, "is_slurm_job", False))


# States of its tasks

#: Maximum of tasks in one request, as its URL must not be too long.
_AT_ONCE = 50
_NUMBERS = re.compile(r"(?:_[0-9]+)*$")


def states_of(ti: Any, task_ids: Sequence[str]) -> dict[str, dict[int, str | None]]:
    """States of the instances of these tasks, by task and map index."""
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    states: dict[str, dict[int, str | None]] = {task_id: {} for task_id in task_ids}
    by_numbers: dict[int, list[str]] = {}
    for task_id in states:
        by_numbers.setdefault(_numbers(task_id), []).append(task_id)
    for numbers, names in by_numbers.items():
        for start in range(0, len(names), _AT_ONCE):
            some = names[start : start + _AT_ONCE]
            asked = RuntimeTaskInstance.get_task_states(dag_id=ti.dag_id, task_ids=some, run_ids=[ti.run_id])
            for name, state in asked.get(ti.run_id, {}).items():
                if _numbers(name) == numbers:
                    states[name][-1] = state
                else:
                    task_id, _, index = name.rpartition("_")
                    states[task_id][int(index)] = state
    return states


def _numbers(name: str) -> int:
    """How many numbers a name ends in.

    Airflow calls instance 1 of ``fit`` what a task may be called: ``fit_1``. It has one number more than its task, so
    tasks that are asked for together have the same.
    """
    ending = _NUMBERS.search(name)
    return ending[0].count("_") if ending else 0


def is_ended(state: str | None) -> bool:
    """True if a task in this state has ended, and runs again only once it is cleared."""
    return state in _ENDED


def is_met(kind: str, state: str | None) -> bool:
    """True if a task that has ended in this state meets a dependency of this kind.

    >>> is_met("afternotok", "upstream_failed"), is_met("afterok", "skipped")
    (True, False)
    """
    if kind in _WANT_SUCCESS:
        return state == "success"
    return state in _FAILED if kind == "afternotok" else True


def check_arrays(graph: Graph, arrays: Mapping[str, Collection[int]]) -> None:
    """Refuse ``aftercorr`` unless both jobs are arrays of the same indices.

    ``arrays`` has the indices of a stage's array where they are known, none for a job without one.
    """
    for stage in graph.stages.values():
        for link in stage.links:
            if link.kind != "aftercorr" or not {stage.name, link.upstream} <= arrays.keys():
                continue
            this, other = arrays[stage.name], arrays[link.upstream]
            for name, indices in ((stage.name, this), (link.upstream, other)):
                if not indices:
                    raise PipelineError(
                        f"aftercorr joins the elements of two arrays, but {name} is none: say afterok() or give it one"
                    )
            if set(this) != set(other):
                raise PipelineError(
                    f"aftercorr joins each element of {link.upstream} with that of the same index of {stage.name}, but "
                    f"the first has {array_text(other)} and the second {array_text(this)}: give both the same array="
                )


_ID = re.compile(r"\d+(?:_(?:\d+|\*))?")
#: Text between commas, or between colons, outside of templates.
_WORD, _PART = (re.compile(rf"(?:{{{{.*?}}}}|[^{separator}])+") for separator in ",:")


def read_links(stage: str, dependency: Any, stages: Collection[str]) -> tuple[str, list[Link]]:
    """Split a dependency into the part for Slurm as it is, and the links to other stages.

    >>> own, links = read_links("c", "afterok:a:77,after:b+5,singleton", ["a", "b", "c"])
    >>> own, [(link.upstream, str(link)) for link in links]
    ('afterok:77,singleton', [('a', 'afterok'), ('b', 'after+5')])
    """
    own: list[str] = []
    links: list[Link] = []
    text = dependency_text(dependency or "")
    if "?" in text:
        if any(job in stages for job in re.split(r"[?:+]", text)):
            raise PipelineError(
                f"{stage} waits for any of several ({text}), which a pipeline cannot tell: join all of them by commas"
            )
        return text, []
    for term in map(str.strip, _WORD.findall(text)):
        kind, *jobs = _PART.findall(term)
        ids = [job for job in jobs if _is_no_name(job, stages)]
        if ids or not jobs:
            own.append(":".join([kind, *ids]))
        links += [_link(stage, kind.lower(), job, stages) for job in jobs if job not in ids]
    return ",".join(own), links


def _is_no_name(job: str, stages: Collection[str]) -> bool:
    """True for an id, or a template that may become one."""
    return "{{" in job or (job not in stages and _ID.fullmatch(job.partition("+")[0]) is not None)


def _link(stage: str, kind: str, said: str, stages: Collection[str]) -> Link:
    name, _, minutes = (said, "", "") if said in stages else said.partition("+")
    if kind not in KINDS:
        raise PipelineError(f"{stage}: unknown kind of dependency {kind}: {name_remedy(kind, KINDS)}")
    if name not in stages:
        remedy = name_remedy(name, stages)
        raise PipelineError(f"{stage} waits for {name}, which is not a stage of the pipeline: {remedy}")
    if minutes and kind != "after":
        raise PipelineError(f"{stage} waits for {said} by {kind}, but only after takes minutes")
    if minutes and not minutes.isdecimal():
        raise PipelineError(f"{stage} waits for {said}, but {minutes!r} is not a whole number: write after:{name}+5")
    return Link(name, kind, int(minutes or 0))
