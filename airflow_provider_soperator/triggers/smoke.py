"""A job on each node set of a cluster that was just made, which shows that jobs run there."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from airflow_provider_soperator.client.client import AsyncSlurmClient
from airflow_provider_soperator.client.job_run import JobRun, Printed
from airflow_provider_soperator.logger import Logger
from airflow_provider_soperator.slurm.cluster_records import Node
from airflow_provider_soperator.slurm.job import BatchJob, job_of
from airflow_provider_soperator.slurm.job_ids import SubmissionKey
from airflow_provider_soperator.slurm.node_conditions import is_usable

#: Partitions that Soperator makes for itself.
_OWN = ("hidden", "background")
#: What runs if nothing else is said: every process is started by Slurm, on the node that it gives.
JOB: dict[str, Any] = {"script": "#!/bin/bash\nsrun hostname\n", "time_limit": 10}


class SmokeFailed(Exception):
    """A cluster whose objects are well has not run a job."""


@dataclass(frozen=True)
class SmokeTest:
    """One job for each node set that has a node on; others would power one up, and wait for its machine."""

    job: Mapping[str, Any]
    #: Those of all tries, the newest last, by node set.
    keys: Mapping[str, Sequence[str]]
    since: datetime | None
    log: Logger
    runs: list[JobRun] = field(default_factory=list)

    async def run(self, client: AsyncSlurmClient, nodes: Iterable[Node]) -> dict[str, str]:
        """The node that the job of each set has run on."""
        chosen = self._chosen(nodes)
        self.runs.clear()
        for name, node in chosen.items():
            run = JobRun(client, self._job(name, node), self._keys(name), since=self.since, poll_interval=2.0)
            self.runs.append(run)
            submitted = await run.submit()
            self.log.info("Job %s tries node set %s, on %s", submitted.id, name, node.name)
        followed = [asyncio.ensure_future(self._follow(name, run)) for name, run in zip(chosen, self.runs, strict=True)]
        try:
            await asyncio.gather(*followed)
        finally:
            # Once one has failed, nobody waits for the others.
            for one in followed:
                one.cancel()
        return {name: node.name for name, node in chosen.items()}

    async def cancel(self, client: AsyncSlurmClient) -> None:
        """Nothing of it is left in the queue."""
        await client.cancel_many([run.submitted.id for run in self.runs if run.submitted and run.submitted.id])

    def _chosen(self, nodes: Iterable[Node]) -> dict[str, Node]:
        chosen: dict[str, Node] = {}
        for node in nodes:
            name, _, ordinal = node.name.rpartition("-")
            if name in self.keys and ordinal.isdecimal() and is_usable(node):
                chosen.setdefault(name, node)
        for name in self.keys:
            if name not in chosen:
                self.log.info("Node set %s has no node on, so no job tries it", name)
        return chosen

    def _job(self, name: str, node: Node) -> BatchJob:
        # Those that Soperator keeps for its own checks come last.
        partitions = sorted(node.partitions, key=_OWN.__contains__)
        where = {"partition": partitions[0]} if partitions else {}
        return job_of({"name": f"smoke-{name}", **where, **self.job, "nodelist": node.name})

    def _keys(self, name: str) -> list[SubmissionKey]:
        return [SubmissionKey(key) for key in self.keys[name]]

    async def _follow(self, name: str, run: JobRun) -> None:
        async for news in run.follow():
            if isinstance(news, Printed):
                for line in news.lines:
                    self.log.info("%s: %s", name, line)
            elif news.is_over and not news.succeeded:
                said = "\n".join(await run.diagnosis(news))
                raise SmokeFailed(f"the job that tried node set {name} has ended {news.state}\n{said}")
