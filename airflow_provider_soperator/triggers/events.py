"""Events of a cluster as asset events, on which DAGs are scheduled.

Airflow's own shared streams are not used: they are for watchers only, and a watcher that comes later, or lags, loses
events in them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import Any

from airflow_provider_soperator.client.client import AsyncSlurmClient
from airflow_provider_soperator.client.finished_jobs import FURTHEST, FinishedJobs
from airflow_provider_soperator.health.assessment import Episodes, HealthQuery, told, unclear
from airflow_provider_soperator.health.findings import kinds_of
from airflow_provider_soperator.hooks.cluster import SoperatorClusterHook
from airflow_provider_soperator.hooks.cluster_clients import ClusterConnections, HealthSources, named
from airflow_provider_soperator.hooks.slurm import SlurmHook
from airflow_provider_soperator.slurm.errors import SlurmError
from airflow_provider_soperator.slurm.hostlist import names_of
from airflow_provider_soperator.slurm.job_reports import report_of
from airflow_provider_soperator.slurm.queue_filter import Lasting, QueueFilter
from airflow_provider_soperator.slurm.requests import ListNodes
from airflow_provider_soperator.slurm.requests.commands import run_steps_async
from airflow_provider_soperator.slurm.states import JobState
from airflow_provider_soperator.soperator.active_checks import CheckSeen, RunSeen
from airflow_provider_soperator.soperator.cluster_objects import ClusterObjects
from airflow_provider_soperator.triggers.base import POLL_INTERVAL, EventTrigger, SlurmEventTrigger
from airflow_provider_soperator.values import NAMESPACE, duration_of
from airflow_provider_soperator.work.checks import CheckClients, check_clients


def _seconds(name: str, duration: timedelta | float) -> float:
    """Seconds of a duration, for serialization."""
    return duration_of(name, duration).total_seconds()


def _conditions(trigger: SlurmEventTrigger) -> dict[str, Any]:
    """The conditions of a ``QueueFilter`` that a trigger has as arguments."""
    return {name: getattr(trigger, name) for name in ("name", "user", "account", "partition", "qos")}


@dataclass(eq=False, repr=False)
class SlurmJobFinishedTrigger(SlurmEventTrigger):
    """Fires once for each job that finishes, with the report that ``SbatchOperator`` returns.

        AssetWatcher(name="trained", trigger=SlurmJobFinishedTrigger(name="train-*", states=["COMPLETED"]))

    Without any conditions all jobs count. An array finishes as a whole.

    Jobs that ended while no watcher ran are found in accounting. Over a restart of the triggerer nothing is lost, but
    what finished in the seconds before may be reported twice, with the same ``job_id`` and ``ended``.

    :param name: name of the job, with ``*`` and ``?``
    :param states: end states of Slurm, such as ``["COMPLETED"]``; by default all
    :param user: user of the job
    :param account: account of the job
    :param partition: partition of the job
    :param qos: QOS of the job
    :param look_back: time before the first start, or seconds, of which jobs that ended are reported, too
    :param slurm_conn_id: Airflow connection to Slurm
    :param poll_interval: seconds between two polls
    """

    name: str = ""
    states: Sequence[str] = ()
    user: str = ""
    account: str = ""
    partition: str = ""
    qos: str = ""
    look_back: timedelta | float = 0
    slurm_conn_id: str = SlurmHook.default_conn_name
    poll_interval: float = POLL_INTERVAL

    def prepare(self) -> None:
        if not_ends := [state for state in self.states if not JobState.parse(state).is_finished]:
            raise ValueError(f"states: no job ends as {', '.join(not_ends)}")
        self.states = list(self.states)
        self.look_back = look_back = _seconds("look_back", self.look_back)
        self._trouble = ""
        since = datetime.now(timezone.utc) - timedelta(seconds=look_back)
        self._finished = FinishedJobs(QueueFilter(**_conditions(self)), since)

    async def look(self, client: AsyncSlurmClient) -> Sequence[dict[str, Any]]:
        ends = {JobState.parse(state).base for state in self.states}
        news = await run_steps_async(self._finished.round(), partial(self.shared, client))
        if self._finished.trouble != self._trouble:
            self._trouble = self._finished.trouble
            self.log.warning("While no watcher ran: %s", self._trouble)
        return [report_of(status) for status in news if not ends or status.state.base in ends]

    def memory(self) -> Any:
        return self._finished.memory()

    def remember(self, memory: Any) -> None:
        if memory:
            self._finished.remember(memory)


@dataclass(eq=False, repr=False)
class SlurmQueueLongTrigger(SlurmEventTrigger):
    """Fires when the queue has been long for some time, and not again before it was shorter.

        AssetWatcher(
            name="stuck",
            trigger=SlurmQueueLongTrigger(min_jobs=100, min_duration=timedelta(minutes=15), states=["PENDING"]),
        )

    The event has the ``count`` of jobs, their number in each of the ``states``, and ``since`` when the queue is long.

    :param min_jobs: number of jobs from which on the queue is long
    :param min_duration: time, or seconds, for which it must have been long
    :param states: states of the jobs that count; by default those that wait or run
    :param partition: partition of the jobs
    :param user: user of the jobs
    :param account: account of the jobs
    :param qos: QOS of the jobs
    :param name: name of the jobs, with ``*`` and ``?``
    :param reason: Slurm's reason why they wait, such as ``ReqNodeNotAvail``
    :param slurm_conn_id: Airflow connection to Slurm
    :param poll_interval: seconds between two polls
    """

    min_jobs: int
    min_duration: timedelta | float = 0
    states: Sequence[str] = ()
    partition: str = ""
    user: str = ""
    account: str = ""
    qos: str = ""
    name: str = ""
    reason: str = ""
    slurm_conn_id: str = SlurmHook.default_conn_name
    poll_interval: float = POLL_INTERVAL

    def prepare(self) -> None:
        self.min_duration = min_duration = _seconds("min_duration", self.min_duration)
        self.states = list(self.states)
        self._jobs = QueueFilter(states=tuple(self.states), reason=self.reason, **_conditions(self))
        self._episode = Lasting(timedelta(seconds=min_duration))

    async def look(self, client: AsyncSlurmClient) -> Sequence[dict[str, Any]]:
        jobs = await self.shared(client, self._jobs.request())
        now = datetime.now(timezone.utc)
        found = self._jobs.tally(jobs, now)
        is_long = found["count"] >= self.min_jobs
        is_new = self._episode.look(is_long, now) and not self._is_told
        self._is_told = is_long and (self._is_told or is_new)
        return [found | {"since": str(self._episode.since and self._episode.since.isoformat())}] if is_new else []


@dataclass(eq=False, repr=False)
class NodeUnhealthyTrigger(SlurmEventTrigger):
    """Fires once for each node that becomes unhealthy, and once more if its machine needs replacement.

        AssetWatcher(name="sick", trigger=NodeUnhealthyTrigger(partition="main", min_duration=timedelta(minutes=2)))

    The event has the ``node`` and its ``findings``, as ``NodeHealthSensor`` returns them. It does not fire again before
    a poll has found the node healthy.

    :param nodes: names of nodes as Slurm writes them; by default all
    :param partition: only nodes of this partition
    :param kinds: kinds of findings that count; by default all
    :param min_duration: time, or seconds, for which a node must have been unhealthy
    :param kubernetes_conn_id: Airflow connection to Kubernetes, for the state of Pods and machines
    :param namespace: namespace of the SlurmCluster
    :param prometheus_conn_id: Airflow connection to Prometheus, for metrics of the nodes
    :param series: labels that Prometheus' series must have, if it has several clusters
    :param node_labels: labels of the series that name the node
    :param checks: checks whose figures are compared with those of before and of the node's neighbours
    :param tolerance: share by which a figure may be worse
    :param slurm_conn_id: Airflow connection to Slurm
    :param poll_interval: seconds between two polls
    """

    nodes: str = ""
    partition: str = ""
    kinds: Sequence[str] = ()
    min_duration: timedelta | float = 0
    kubernetes_conn_id: str = ""
    namespace: str = NAMESPACE
    prometheus_conn_id: str = ""
    series: Mapping[str, str] | None = None
    node_labels: Sequence[str] = ()
    checks: Sequence[str] = ()
    tolerance: float = 0.1
    slurm_conn_id: str = SlurmHook.default_conn_name
    poll_interval: float = POLL_INTERVAL

    def prepare(self) -> None:
        self.kinds = [kind.value for kind in kinds_of(self.kinds)]
        self.min_duration = _seconds("min_duration", self.min_duration)
        self.series = dict(self.series or {})
        self.node_labels, self.checks = list(named(self.node_labels)), list(named(self.checks))
        self._watched = HealthQuery(
            nodes=names_of(self.nodes or None), partition=self.partition, kinds=tuple(self.kinds)
        )
        self._witnesses = HealthSources.named_by(self)
        self.remember({})
        self._warned = ""

    async def look(self, client: AsyncSlurmClient) -> Sequence[dict[str, Any]]:
        nodes, seen = await asyncio.gather(self.shared(client, ListNodes()), self._witnesses.ask(self.max_age))
        try:
            unhealthy, warning = self._watched.unhealthy(nodes, seen), unclear(nodes, seen)
        except SlurmError as error:
            # The nodes may exist tomorrow, and an unknown node does not count as healthy.
            unhealthy, warning = None, str(error)
        if warning != self._warned:
            self._warned = warning
            if warning:
                self.log.warning("%s", warning)
        if unhealthy is None:
            return []
        findings = told(unhealthy)
        return [{"node": name, "findings": findings[name]} for name in self._episodes.news(unhealthy)]

    def memory(self) -> Any:
        return self._episodes.told

    def remember(self, memory: Any) -> None:
        self._episodes = Episodes(_seconds("min_duration", self.min_duration), memory)


@dataclass(eq=False, repr=False)
class ClusterUnavailableTrigger(EventTrigger):
    """Fires when a cluster has not been available for some time, and not again before it was available.

        AssetWatcher(name="down", trigger=ClusterUnavailableTrigger(min_duration=timedelta(minutes=5)))

    A cluster in maintenance, or one that is being set up, fires no event. The event has the ``cluster``, its ``phase``,
    the ``conditions`` that are not met and why, and ``since`` when. Nothing is reported again over a restart of the
    triggerer.

    :param min_duration: time, or seconds, for which it must have been unavailable
    :param cluster: name of the SlurmCluster; by default the only one in the namespace
    :param namespace: namespace of the SlurmCluster
    :param kubernetes_conn_id: Airflow connection to the cluster's Kubernetes
    :param poll_interval: seconds between two polls
    """

    min_duration: timedelta | float = 0
    cluster: str = ""
    namespace: str = NAMESPACE
    kubernetes_conn_id: str = SoperatorClusterHook.default_conn_name
    poll_interval: float = POLL_INTERVAL

    def prepare(self) -> None:
        self.min_duration = _seconds("min_duration", self.min_duration)
        self._first_seen: datetime | None = None

    def open(self) -> AbstractAsyncContextManager[ClusterObjects]:
        hook = SoperatorClusterHook(self.kubernetes_conn_id, self.namespace)
        return hook.soperator(self.cluster or None, self.max_age)

    async def look(self, client: ClusterObjects) -> Sequence[dict[str, Any]]:
        cluster, now = await client.cluster(), datetime.now(timezone.utc)
        if not cluster.is_away:
            # What is set up, or in maintenance, is neither away nor available.
            self._first_seen, self._is_told = None, self._is_told and not cluster.is_available
            return []
        self._first_seen = self._first_seen or now
        since = cluster.away_since or self._first_seen
        if self._is_told or now - since < duration_of("min_duration", self.min_duration):
            return []
        self._is_told = True
        missing = {one.type: one.message or one.reason for one in cluster.missing}
        outage = {"cluster": cluster.name, "phase": cluster.phase, "conditions": missing}
        return [outage | {"since": since.isoformat()}]


@dataclass(eq=False, repr=False)
class ActiveCheckFailedTrigger(EventTrigger):
    """Fires once for each run of an active check that fails.

        AssetWatcher(name="sick", trigger=ActiveCheckFailedTrigger(check="gpu-checks", slurm_conn_id="soperator"))

    The event has the ``check``, its ``job``, ``state`` and ``failed_jobs``, as ``RunActiveCheckOperator`` returns them;
    with ``slurm_conn_id`` also ``nodes`` and those that are ``failing``.

    A run that failed while no watcher ran is reported as long as Kubernetes keeps its Job, and without Slurm only if no
    other run has been noted since.

    :param check: name of the ActiveCheck; by default all
    :param look_back: time before the first start, or seconds, of which runs that failed are reported, too
    :param kubernetes_conn_id: Airflow connection to the cluster's Kubernetes
    :param namespace: namespace of the SlurmCluster
    :param slurm_conn_id: Airflow connection to Slurm, by which jobs of the check are mapped to nodes
    :param poll_interval: seconds between two polls
    """

    check: str = ""
    look_back: timedelta | float = 0
    kubernetes_conn_id: str = SoperatorClusterHook.default_conn_name
    namespace: str = NAMESPACE
    slurm_conn_id: str = ""
    poll_interval: float = POLL_INTERVAL

    def prepare(self) -> None:
        self.look_back = look_back = _seconds("look_back", self.look_back)
        #: Runs that ended before this time are dealt with.
        self._since = datetime.now(timezone.utc) - timedelta(seconds=look_back)
        #: Runs that are dealt with, of those that Kubernetes still has. Their Jobs stay for a while after their end.
        self._over: set[str] = set()

    def open(self) -> AbstractAsyncContextManager[CheckClients]:
        where = ClusterConnections(self.kubernetes_conn_id, self.namespace, slurm_conn_id=self.slurm_conn_id or None)
        return check_clients(where, self.max_age)

    async def look(self, client: CheckClients) -> Sequence[dict[str, Any]]:
        found = [await client.checks.find(self.check)] if self.check else await client.checks.list_all()
        checks = {check.name: check for check in found}
        runs = [run for run in await client.checks.runs() if run.check in checks]
        self._over &= {run.uid for run in runs}
        ended = [run for run in runs if run.end and run.uid not in self._over]
        ended.sort(key=lambda run: (str(run.finished), run.name))
        reports = [await self._report(client, checks[run.check], run) for run in ended]
        return [report for report in reports if report]

    async def _report(self, client: CheckClients, check: CheckSeen, run: RunSeen) -> dict[str, Any] | None:
        outcome = await client.outcome(check, run)
        if not outcome.state.is_over:
            return None
        self._over.add(run.uid)
        # The Job of a run ends before the run does: a run that was still under way then is reported.
        if not outcome.state.is_bad or (run.finished and run.finished < self._since):
            return None
        return {"check": check.name, "job": run.name, **outcome.describe()}

    def memory(self) -> Any:
        return sorted(self._over)

    def remember(self, memory: Any) -> None:
        if memory is not None:
            self._over = set(memory)
            self._since = datetime.now(timezone.utc) - FURTHEST
