"""What of a pipeline is to be submitted: all of it, or in a run that was cleared in part what is to run again: pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from airflow_provider_soperator.pipelines.graph import Graph, Link, Segment, is_ended, is_met

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
