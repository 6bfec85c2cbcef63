"""A pipeline of a run, as Airflow and as Slurm's accounting have it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from sandbox.airflow.api import ENDS
from tests.airflow.jobs import HELD as HELD_SCRIPT
from tests.airflow.stack import PATIENCE, Run
from tests.integration.cluster import Cluster

#: Each element of an array waits for its own sign.
_ID = "${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}${SLURM_ARRAY_TASK_ID:+_$SLURM_ARRAY_TASK_ID}"
HELD = HELD_SCRIPT.replace("$SLURM_JOB_ID", _ID)
HEAD = f"""
from airflow_provider_soperator.operators.pipeline import (
    SbatchPipeline, after, afterany, aftercorr, afternotok, afterok
)

HELD = "{HELD}"

def job(task_id, command="true", **options):
    body = {{"script": command}} if command.startswith("#!") else {{"command": command}}
    return SbatchOperator(task_id=task_id, **body, **options)

"""
OPTIONS = "default_args={'deferrable': True, 'poll_interval': 1}"


@dataclass(frozen=True)
class PastJob:
    """A job in accounting; of an array each element."""

    id: str
    state: str
    started: datetime
    ended: datetime
    submitted: datetime

    @property
    def whole(self) -> str:
        return re.split("[_+]", self.id)[0]


class Pipeline:
    """One group of a run."""

    def __init__(self, run: Run, cluster: Cluster, group: str) -> None:
        self.run, self._cluster, self.group = run, cluster, group

    def states(self) -> dict[str, str]:
        """Of the tasks, without those that the pipeline adds; of a mapped one each."""
        found: dict[str, str] = {}
        for (task_id, index), (state, _) in self.run.stack.states(self.run).items():
            group, _, name = task_id.rpartition(".")
            if group == self.group and not re.fullmatch(r"submit(ted)?(_\d+)?|cancel_rest", name):
                found[name if index < 0 else f"{name}[{index}]"] = state
        return found

    def wait_ends(self, timeout: float = PATIENCE) -> None:
        """Until all tasks of the group have ended, and what was left has been cancelled."""
        stack, last = self.run.stack, (f"{self.group}.cancel_rest", -1)
        stack.wait(
            f"all of {self.group} has ended",
            lambda: stack.states(self.run)[last][0] in ENDS and set(self.states().values()) <= set(ENDS),
            timeout,
        )

    def jobs(self, stage: str) -> list[PastJob]:
        """Those of a stage, in the order in which they were submitted."""
        name = f"{self.group}.{stage}."
        ahead = self._ahead(stage)
        said = self._cluster.run(
            "sacct", "--noheader", "--parsable2", "--allocations", "--duplicates", "--array", "--starttime=now-1hours",
            "--endtime=now", "--state=PD,R,CD,F,CA,TO,NF,PR,S", "--format=jobid,state,start,end,submit,jobname",
        )  # fmt: skip
        rows = [line.split("|") for line in said.splitlines()]
        jobs = [
            PastJob(job, state.partition(" ")[0], _moment(start), _moment(end), _moment(submitted))
            for job, state, start, end, submitted, job_name in rows
            if (job_name.startswith(name) and f".{self.run.dag_id}.{self.run.run_id}" in job_name) or job == ahead
        ]
        return sorted(jobs, key=lambda job: [int(part) for part in re.findall(r"\d+", job.id)])

    def let_go(self, job: str) -> None:
        self._cluster.let_go(job)

    def ahead_jobs(self, submit: str = "submit") -> dict[str, str]:
        """What a task has submitted ahead."""
        return {name.rpartition(".")[2]: job for name, job in self.run.xcom(f"{self.group}.{submit}").items()}

    def ahead(self, stage: str) -> str:
        return self.ahead_jobs()[stage]

    def began(self, stage: str) -> datetime:
        """When the task of a stage did, in the cluster's time."""
        return datetime.fromisoformat(self.run.task(f"{self.group}.{stage}")["start_date"]).replace(tzinfo=None)

    def waiting(self) -> list[str]:
        """Names of the pipeline's jobs that are in the queue."""
        said = self._cluster.run("squeue", "--noheader", "--all", "--format=%j")
        return [
            name for name in said.splitlines() if name.startswith(f"{self.group}.") and f".{self.run.dag_id}." in name
        ]

    def wait_job(self, stage: str, number: int, state: str) -> PastJob:
        """The job of this number of a stage, once accounting has it in a state."""

        def reached() -> PastJob | None:
            jobs = self.jobs(stage)
            return jobs[number] if len(jobs) > number and jobs[number].state == state else None

        return self.run.stack.wait(f"job {number} of {stage} is {state}", reached)

    def wait_jobs(self, states: Mapping[str, list[str]]) -> None:
        """Until accounting, which lags behind, has the jobs of each of these stages in exactly these states."""

        def found() -> dict[str, list[str]]:
            return {stage: [job.state for job in self.jobs(stage)] for stage in states}

        try:
            self.run.stack.wait(f"the jobs of {self.group} are {states}", lambda: found() == states)
        except AssertionError as error:
            raise AssertionError(f"{error}\n--- the jobs are {found()}") from None

    def _ahead(self, stage: str) -> str | None:
        """The job of a stage that was submitted ahead, whatever it is called."""
        pattern = rf"{self.group}\.submit(_\d+)?"
        submits = [
            task_id
            for (task_id, _), (state, _) in self.run.stack.states(self.run).items()
            if re.fullmatch(pattern, task_id) and state == "success"
        ]
        found = (self.run.xcom(task_id) for task_id in submits)
        return next((jobs[f"{self.group}.{stage}"] for jobs in found if f"{self.group}.{stage}" in jobs), None)


def _moment(text: str) -> datetime:
    return datetime.max if text in ("Unknown", "None") else datetime.fromisoformat(text)
