"""The jobs of a pipeline that are submitted ahead: the plan of a run, and what is left of it for the tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_soperator.pipelines.graph import Graph, Link, Segment, is_ended, is_met
from airflow_provider_soperator.slurm.job_ids import SubmissionKey

#: States of tasks that have yet to run. One that was cleared as it ran is restarting.
_TO_RUN = frozenset({None, "scheduled", "restarting"})
#: Those of tasks that have a job. What one that waits for its turn or for another try knows is an earlier job.
_HAS_JOB = frozenset({"running", "deferred"})

#: For each of a task's instances, by map index, its state.
States = Mapping[int, str | None]


@dataclass(frozen=True)
class Term:
    """What a job waits for, in jobs that are submitted with it or are there."""

    kind: str
    minutes: int = 0
    #: Stage and map index of jobs that are submitted, too.
    new: tuple[tuple[str, int], ...] = ()
    #: Ids of jobs that are there.
    old: tuple[str, ...] = ()


@dataclass(frozen=True)
class Planned:
    """A stage whose jobs are to be submitted: one, or one for each of these map indices."""

    stage: str
    indices: tuple[int, ...]
    terms: tuple[Term, ...]


@dataclass
class Plan:
    """What is submitted, in order, what is under way, by stage and map index, and why the rest is not submitted."""

    submitted: list[Planned] = field(default_factory=list)
    running: list[tuple[str, int]] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)


def plan(
    graph: Graph,
    segment: Segment,
    states: Callable[[str], States],
    job_of: Callable[[str, int], str | None],
) -> Plan:
    """What of a segment is to be submitted.

    ``states`` has those of a stage's tasks, also of one in another segment; ``job_of`` the id of the job of one that is
    under way.
    """
    made = Plan()
    indices: dict[str, tuple[int, ...]] = {}
    for name in segment.stages:
        of_stage = states(name)
        to_run = tuple(index for index, state in of_stage.items() if state in _TO_RUN)
        made.running += [(name, index) for index, state in of_stage.items() if state in _HAS_JOB]
        if not to_run:
            made.left_out[name] = f"it is {_each(of_stage)}"
            continue
        terms: list[Term] = []
        reason = ""
        for link in graph[name].links:
            found = _term(link, states(link.upstream), indices.get(link.upstream, ()), job_of)
            if isinstance(found, str):
                reason = reason or found
            elif found is not None:
                terms.append(found)
        if reason:
            made.left_out[name] = reason
            continue
        indices[name] = to_run
        made.submitted.append(Planned(name, to_run, tuple(terms)))
    return made


def _term(
    link: Link, states: States, submitted: tuple[int, ...], job_of: Callable[[str, int], str | None]
) -> Term | str | None:
    """What a job waits for; None if it need not wait any more, a text if it cannot be said now."""
    new: list[tuple[str, int]] = []
    old: list[str] = []
    for index, state in states.items():
        if index in submitted:
            new.append((link.upstream, index))
        elif is_ended(state):
            if not is_met(link.kind, state):
                return f"{link.upstream}, which it was to follow ({link.kind}), is {state}"
        elif state in _HAS_JOB and (job := job_of(link.upstream, index)):
            old.append(job)
        else:
            return f"the job of {link.upstream} is not known yet"
    return Term(link.kind, link.minutes, tuple(new), tuple(old)) if new or old else None


def _each(states: States) -> str:
    return ", ".join(sorted({str(state) for state in states.values()}))


#: XCom's key for it.
AHEAD = "ahead"


@dataclass(frozen=True)
class AheadJob:
    """A job that was submitted ahead."""

    job: str
    key: str


@dataclass(frozen=True)
class Ahead:
    """The jobs that were submitted ahead when the run had been cleared so many times, by stage and map index.

    >>> left = Ahead(0, {"fit": {-1: AheadJob("7", "abcdefghijkl")}})
    >>> Ahead.read(left.describe()) == left
    True
    """

    cleared: int
    jobs: dict[str, dict[int, AheadJob]] = field(default_factory=dict)

    def describe(self) -> dict[str, Any]:
        """As plain values."""
        jobs = {
            stage: {str(index): [one.job, one.key] for index, one in of_stage.items()}
            for stage, of_stage in self.jobs.items()
        }
        return {"cleared": self.cleared, "jobs": jobs}

    @classmethod
    def read(cls, said: dict[str, Any]) -> Ahead:
        jobs = {
            stage: {int(index): AheadJob(*one) for index, one in of_stage.items()}
            for stage, of_stage in said["jobs"].items()
        }
        return cls(said["cleared"], jobs)

    def all(self) -> list[AheadJob]:
        return [one for of_stage in self.jobs.values() for one in of_stage.values()]

    def of(self, stages: Iterable[str]) -> Iterator[str]:
        """The ids of these stages' jobs."""
        return (one.job for stage in stages for one in self.jobs.get(stage, {}).values())


def ahead_key(dag_id: str, run_id: str, task_id: str, map_index: int, cleared: int) -> SubmissionKey:
    """That of a job that is submitted ahead: anew for each time that something of the run has been cleared."""
    return SubmissionKey.derive(dag_id, run_id, task_id, map_index, f"ahead {cleared}")
