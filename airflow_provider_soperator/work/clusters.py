"""A cluster that comes up: the watch of a sensor, and the start after provisioning, with a test job per NodeSet."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, NamedTuple

from airflow_provider_soperator.client.client import AsyncSlurmClient
from airflow_provider_soperator.client.job_run import JobRun, Printed
from airflow_provider_soperator.errors import ClusterError, ConnectionMistake
from airflow_provider_soperator.hooks.cluster import SoperatorClusterHook
from airflow_provider_soperator.hooks.cluster_clients import ClusterConnections, ClusterSides
from airflow_provider_soperator.hooks.slurm import SlurmHook
from airflow_provider_soperator.logger import Logger
from airflow_provider_soperator.slurm.cluster_records import Node
from airflow_provider_soperator.slurm.job import job_of
from airflow_provider_soperator.slurm.job_description import InvalidJob
from airflow_provider_soperator.slurm.job_records import JobStatus
from airflow_provider_soperator.slurm.requests import ListNodes
from airflow_provider_soperator.slurm.submission_keys import SubmissionKey
from airflow_provider_soperator.soperator import readiness
from airflow_provider_soperator.soperator.clusters import ClusterSnapshot
from airflow_provider_soperator.soperator.readiness import Readiness, Wanted
from airflow_provider_soperator.transports.transport_errors import is_missing
from airflow_provider_soperator.work.polling import is_final
from airflow_provider_soperator.work.protocols import Look, Watch, Work, WorkFailed, WorkRefused

#: Seconds for which an apparently lasting fault is tolerated while a cluster comes up.
_FALSE_ALARM = 60.0
#: Partitions that Soperator creates for itself.
_OWN = ("hidden", "background")
#: The place of a start, as a line of the log.
_LINE = "The cluster is %s"
#: The default test job, with all GPUs of its node: Slurm starts each process there, with the devices it allocates. The
#: driver has to show them; where there is no nvidia-smi, their files have to open.
JOB: dict[str, Any] = {
    "script": """\
#!/bin/bash
srun bash -c '
hostname
if [ -z "$SLURM_GPUS_ON_NODE" ]; then
  exit
elif command -v nvidia-smi > /dev/null; then
  seen=$(nvidia-smi -L | grep -c "^GPU ")
else
  seen=0
  for file in /dev/nvidia[0-9]*; do (: < "$file") 2> /dev/null && seen=$((seen + 1)); done
fi
echo "$seen of $SLURM_GPUS_ON_NODE GPUs"
[ "$seen" -ge "$SLURM_GPUS_ON_NODE" ]'
""",
    "time_limit": 10,
}


async def look(
    sides: ClusterSides, nodesets: Sequence[str], most_age: float, wanted: Wanted, *, may_come: bool = False
) -> tuple[ClusterSnapshot, Readiness]:
    """Look at a cluster for faults; Slurm is asked once Kubernetes shows none that prevents it."""
    seen, now = await sides.kubernetes.look(), datetime.now(timezone.utc)
    found = readiness.of_all(seen, now, nodesets=nodesets, may_come=may_come, wanted=wanted)
    if not found.is_ready:
        return seen, found
    try:
        slurm = await sides.nodes(most_age)
    except ClusterError as error:
        if is_final(error):
            raise
        # The login node of a new cluster comes up last.
        return seen, Readiness((f"Slurm cannot be asked: {error}",))
    return seen, readiness.of_all(seen, now, nodesets=nodesets, slurm=slurm, wanted=wanted)


async def is_known(kubernetes_conn_id: str, namespace: str, cluster: str, _: Logger) -> bool:
    """True if there is such a cluster; False also if Kubernetes cannot be asked."""
    # A new one does not answer yet, and may have no connection.
    with suppress(ClusterError, ConnectionMistake):
        async with SoperatorClusterHook(kubernetes_conn_id, namespace).soperator(cluster) as soperator:
            return bool(await soperator.cluster())
    return False


async def seen_by(kubernetes_conn_id: str, namespace: str, cluster: str, log: Logger) -> ClusterSnapshot | None:
    """A cluster as Kubernetes has it; None, with a warning, if it is not there, or cannot be asked at all."""
    try:
        async with SoperatorClusterHook(kubernetes_conn_id, namespace).soperator(cluster) as soperator:
            return await soperator.look()
    except (ClusterError, ConnectionMistake) as error:
        # One that was never finished does not answer, and may have no connection.
        if getattr(error, "retryable", False) and not is_missing(error):
            raise
        log.warning("Not checked which nodes are on, as Kubernetes cannot be asked: %s", error)
        return None


@dataclass(kw_only=True)
class ClusterWatch(Watch[ClusterSides]):
    """A watch of a cluster until it is ready."""

    where: ClusterConnections
    nodesets: tuple[str, ...] = ()
    version: str = ""

    def open(self) -> AbstractAsyncContextManager[ClusterSides]:
        return self.where.open(self.poll_interval / 2)

    async def look(self, client: ClusterSides, max_age: float) -> Look:
        client.kubernetes.objects.max_age = max_age
        seen, found = await look(client, self.nodesets, max_age, Wanted(self.version))
        if found.broken:
            raise WorkRefused(str(found))
        return Look(found.is_ready, seen.describe(), tuple(found.waiting))


class ClusterClients(NamedTuple):
    """The clients of both sides of a cluster, and of its Slurm alone, for the connections that are given."""

    sides: ClusterSides | None
    slurm: AsyncSlurmClient | None


@dataclass(kw_only=True)
class ClusterStart(Work[ClusterClients]):
    """The start of a cluster that was created or changed; then test jobs run on its NodeSets.

    Its objects are looked at if there is a ``kubernetes_conn_id``, Slurm's nodes if there is a ``slurm_conn_id``;
    without the latter no job runs.
    """

    kubernetes_conn_id: str | None
    namespace: str
    cluster: str
    wanted: Wanted
    slurm_conn_id: str | None
    #: The fields of the test job of a NodeSet; None for no job.
    smoke_job: dict[str, Any] | None
    #: Submission keys of all tries, the newest last, by NodeSet.
    keys: dict[str, tuple[str, ...]]
    #: Before this no try can have submitted a job.
    submitted_since: datetime | None

    def __post_init__(self) -> None:
        self.place = "nothing has answered yet"
        self._broken_since: float | None = None
        self._is_tried = False

    @asynccontextmanager
    async def open(self) -> AsyncIterator[ClusterClients]:
        async with AsyncExitStack() as opened:
            sides, slurm = None, None
            if self.kubernetes_conn_id:
                where = ClusterConnections(self.kubernetes_conn_id, self.namespace, self.cluster, self.slurm_conn_id)
                sides = await opened.enter_async_context(where.open())
                slurm = sides.slurm
            elif self.slurm_conn_id:
                slurm = await opened.enter_async_context(SlurmHook(self.slurm_conn_id).async_client())
            yield ClusterClients(sides, slurm)

    async def step(self, clients: ClusterClients) -> dict[str, Any] | None:
        sides, slurm = clients
        try:
            if sides and not self._is_tried and not await self._is_ready(sides):
                return None
            tried = await self._try(slurm) if slurm and self.smoke_job is not None else {}
        except ClusterError as error:
            # Before its objects exist even their kinds may be missing. A job that is refused stays refused.
            if self._is_tried and is_final(error):
                raise
            self._reach(f"no answer yet: {error}", _LINE)
            return None
        return {"seconds": self.seconds, "tried": tried}

    async def undo(self, clients: ClusterClients) -> str:
        """Cancel the test jobs."""
        if slurm := clients.slurm:
            # Another process may have submitted them.
            await slurm.cancel_keys([SubmissionKey(key) for keys in self.keys.values() for key in keys])
        return "The cluster stays, and comes up by itself"

    def left(self, error: Exception) -> str:
        return f"Jobs that try the cluster may still be in its queue, as they could not be ended: {error}"

    async def _is_ready(self, sides: ClusterSides) -> bool:
        # Flux checks only every few minutes whether to create NodeSets.
        found = (await look(sides, tuple(self.wanted.replicas), self.max_age, self.wanted, may_come=True))[1]
        self._reach("ready" if found.is_ready else f"not ready yet: {found}", _LINE)
        self._broken_since = (self._broken_since or time.monotonic()) if found.broken else None
        if self._broken_since and time.monotonic() - self._broken_since > _FALSE_ALARM:
            raise WorkRefused(f"the cluster is there, and does not come up by itself: {'; '.join(found.broken)}")
        return found.is_ready

    async def _try(self, slurm: AsyncSlurmClient) -> dict[str, str]:
        """Run a job on each NodeSet with a node that is on; for others Slurm would have to power one up.

        Returns the node of each job. Asked again after a failure, it finds the jobs that it has submitted.
        """
        self._is_tried = self.has_begun = True
        self._reach("ready, and tried by jobs", _LINE)
        nodes = await slurm.ask(ListNodes())
        chosen = self._chosen(nodes)
        try:
            runs = {name: await self._submit(slurm, name, node) for name, node in chosen.items()}
        except InvalidJob as error:
            raise WorkRefused(str(error)) from error
        followed = [asyncio.ensure_future(self._follow(*pair)) for pair in runs.items()]
        try:
            await asyncio.gather(*followed)
        finally:
            # Once one has failed, the others are not waited for.
            for one in followed:
                one.cancel()
        return {name: node.name for name, node in chosen.items()}

    def _chosen(self, nodes: Sequence[Node]) -> dict[str, Node]:
        chosen: dict[str, Node] = {}
        # One that is idle need not be waited for.
        for node in sorted(nodes, key=lambda node: node.is_busy):
            name, _, ordinal = node.name.rpartition("-")
            if name in self.keys and ordinal.isdecimal() and node.is_usable:
                chosen.setdefault(name, node)
        for name in self.keys:
            if name not in chosen:
                self._log.info("Node set %s has no node on, so no job tries it", name)
        return chosen

    async def _submit(self, slurm: AsyncSlurmClient, name: str, node: Node) -> JobRun:
        # Partitions that Soperator keeps for its own checks come last.
        partitions = sorted(node.partitions, key=_OWN.__contains__)
        where: dict[str, Any] = {"partition": partitions[0]} if partitions else {}
        given, gpus = self.smoke_job or {}, self.wanted.gpus.get(name, 0)
        if gpus and given.get("script") == JOB["script"]:
            where["gpus_per_node"] = gpus
        job = job_of({"name": f"smoke-{name}", **where, **given, "nodelist": node.name})
        keys = [SubmissionKey(key) for key in self.keys[name]]
        run = JobRun(slurm, job, keys, since=self.submitted_since, poll_interval=2.0)
        submitted = await run.submit()
        self._log.info("Job %s tries node set %s, on %s", submitted.id, name, node.name)
        return run

    async def _follow(self, name: str, run: JobRun) -> None:
        async for news in run.follow():
            if isinstance(news, Printed):
                for line in news.lines:
                    self._log.info("%s: %s", name, line)
            elif isinstance(news, JobStatus) and news.is_over and not news.succeeded:
                said = "\n".join(await run.diagnosis(news))
                raise WorkFailed(f"the job that tried node set {name} has ended {news.state}\n{said}")
