"""What the task that submits ahead leaves for the tasks whose jobs it has submitted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_soperator.slurm.job_ids import SubmissionKey

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
