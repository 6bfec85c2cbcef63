"""The jobs of a pipeline that are submitted ahead: the plan of a run, and the record of it for the tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_soperator.pipelines.graph import Graph, Link, Segment, is_ended, is_met
from airflow_provider_soperator.slurm.submission_keys import SubmissionKey, region_of
from airflow_provider_soperator.values import Plain

#: States of tasks that have yet to run. One that was cleared as it ran is restarting.
_TO_RUN = frozenset({None, "restarting"})
#: States of tasks whose turn has come: one may begin at any moment, and goes on with the job that it has.
BEGINNING = frozenset({"scheduled", "queued"})
#: States of tasks that have told of their job. One that is queued or up for retry has told of an earlier one.
HAS_JOB = frozenset({"running", "deferred"})
UNDER_WAY = HAS_JOB | BEGINNING

#: A stage and the map index of one of its instances.
Place = tuple[str, int]
#: States of a task's instances, by map index.
States = Mapping[int, str | None]


@dataclass(frozen=True)
class Term:
    """A dependency of a job, on jobs that are submitted with it or exist already."""

    kind: str
    minutes: int = 0
    #: Stage and map index of jobs that are submitted with it.
    new: tuple[Place, ...] = ()
    #: Ids of jobs that exist already.
    old: tuple[str, ...] = ()

    def __str__(self) -> str:
        names = dict.fromkeys(stage for stage, _ in self.new)
        return f"{self.kind} {', '.join([*names, *(f'job {job}' for job in self.old)])}"


@dataclass(frozen=True)
class PlannedJob:
    """A job that will be submitted: that of a stage, or of one of its instances."""

    stage: str
    index: int = -1
    terms: tuple[Term, ...] = ()

    def __str__(self) -> str:
        return self.stage if self.index < 0 else f"{self.stage}[{self.index}]"


@dataclass
class Plan:
    """Jobs to submit, in order, and reasons why the rest is left out."""

    submitted: list[PlannedJob] = field(default_factory=list)
    #: Jobs that are left to their tasks, as what they follow is not known yet, or not met.
    later: list[PlannedJob] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)


def plan(
    graph: Graph, segment: Segment, states: Callable[[str], States], job_of: Callable[[str, int], str | None]
) -> Plan:
    """Plan which jobs of a segment to submit.

    ``states`` gives the states of a stage's tasks, also of one in another segment; ``job_of`` the id of the job of a
    task that runs, or is about to.
    """
    made = Plan()
    indices: dict[str, tuple[int, ...]] = {}
    for name in segment.stages:
        of_stage = states(name)
        to_run = tuple(index for index, state in of_stage.items() if state in _TO_RUN)
        if not to_run:
            made.left_out[name] = f"it is {', '.join(sorted(set(map(str, of_stage.values()))))}"
            continue
        found = [
            _term(link, states(link.upstream), indices.get(link.upstream, ()), job_of) for link in graph[name].links
        ]
        if reason := next((one for one in found if isinstance(one, str)), ""):
            made.left_out[name] = reason
            made.later += [PlannedJob(name, index) for index in to_run]
            continue
        indices[name] = to_run
        terms = tuple(one for one in found if isinstance(one, Term))
        made.submitted += [PlannedJob(name, index, terms) for index in to_run]
    return made


def _term(
    link: Link, states: States, submitted: tuple[int, ...], job_of: Callable[[str, int], str | None]
) -> Term | str | None:
    """The dependency of a job; None if it is met, a text with the reason if it cannot be expressed now."""
    new: list[Place] = []
    old: list[str] = []
    for index, state in states.items():
        if index in submitted:
            new.append((link.upstream, index))
        elif is_ended(state):
            if not is_met(link.kind, state):
                return f"{link.upstream}, which it was to follow ({link.kind}), is {state}"
        elif state in UNDER_WAY and (job := job_of(link.upstream, index)):
            old.append(job)
        else:
            return f"the job of {link.upstream} is not known yet"
    return Term(link.kind, link.minutes, tuple(new), tuple(old)) if new or old else None


#: Keys of the XCom with the jobs submitted ahead, and of that with the number of a stage's newest try.
AHEAD, TRY = "ahead", "try"


@dataclass(frozen=True)
class AheadJob:
    """A job that was submitted ahead, its submission key, and how many tries its task had had by then.

    Airflow 3.4 removes the task's XComs at a clear: to a job that is submitted after one it gives no tries.
    """

    job: str
    key: str
    tries: int = 0


@dataclass(frozen=True)
class Ahead(Plain):
    """The jobs submitted ahead after this number of clears of the run, by stage and map index.

    >>> left = Ahead(0, {"fit": {-1: AheadJob("7", "abcdefghijkl")}})
    >>> Ahead.read(left.write()) == left
    True
    """

    cleared: int
    jobs: dict[str, dict[int, AheadJob]] = field(default_factory=dict)
    #: When they were submitted, in seconds.
    at: float = 0.0

    def add(self, stage: str, index: int, job: AheadJob) -> None:
        self.jobs.setdefault(stage, {})[index] = job

    def of(self, stages: Iterable[str]) -> list[AheadJob]:
        """These stages' jobs."""
        return [one for stage in stages for one in self.jobs.get(stage, {}).values()]


#: Of a run that was cleared more often, older jobs are not looked for.
_MOST_CLEARED = 20


def ahead_keys(ti: Any, run: Any, stage: str, index: int) -> list[SubmissionKey]:
    """The keys of the jobs that are submitted ahead for a stage: a new one after each clear in the run, the last now.

    ``ti`` is any task of the run, in a loop of the same iteration.
    """
    region, cleared = region_of(ti), run.clear_number or 0
    place = f"{region}{ti.region_index}/{index}" if region else index
    return [
        SubmissionKey.derive(ti.dag_id, ti.run_id, stage, place, f"ahead {number}", begun=run.start_date)
        for number in range(max(0, cleared - _MOST_CLEARED), cleared + 1)
    ]
