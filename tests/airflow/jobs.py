"""The jobs that tasks have submitted, as Slurm has them; and jobs that end when a test wants them to."""

from __future__ import annotations

from tests.airflow.stack import PATIENCE, Run
from tests.integration.cluster import Cluster, until

#: A script that runs until ``let_go``, and says that it has begun.
HELD = f"#!/bin/bash\\necho begun\\n{until('/root/go-$SLURM_JOB_ID')}\\necho let go\\n"


class Jobs:
    """Those of one task, in the order in which they were submitted."""

    def __init__(self, cluster: Cluster, run: Run, task_id: str) -> None:
        self._cluster, self._run = cluster, run
        self._name = f"{task_id}.{run.dag_id}.{run.run_id}"

    def states(self) -> dict[str, str]:
        """By their ids; the queue of this sandbox forgets none while a test runs."""
        said = self._cluster.run("squeue", "--noheader", "--all", "--states=all", "--format=%F|%T|%j")
        rows = [line.split("|") for line in said.splitlines()]
        found = {job: state for job, state, name in rows if name.startswith(self._name)}
        return dict(sorted(found.items(), key=lambda item: int(item[0])))

    def wait(self, *states: str, timeout: float = PATIENCE) -> list[str]:
        """Their ids, once they are in exactly these states."""
        found: dict[str, str] = {}

        def reached() -> bool:
            found.clear()
            found.update(self.states())
            return tuple(found.values()) == states

        try:
            self._run.stack.wait(f"the jobs of {self._name} are {states}", reached, timeout)
        except AssertionError as error:
            raise AssertionError(f"{error}\n--- the jobs are {found}") from None
        return list(found)

    def let_go(self) -> None:
        for job in self.states():
            self._cluster.let_go(job)

    def cancel(self) -> None:
        self._cluster.run("scancel", *self.states())
