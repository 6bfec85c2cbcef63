"""Loads: what says how many units of a target are of use now, as values that DAG files make."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from airflow_provider_soperator.capacity.allocation import counted
from airflow_provider_soperator.capacity.holdings import Holding
from airflow_provider_soperator.capacity.targets import SlurmNodesTarget, Target
from airflow_provider_soperator.errors import CapacityMistake
from airflow_provider_soperator.slurm.hostlist import expand
from airflow_provider_soperator.slurm.job_ids import JobId
from airflow_provider_soperator.slurm.job_records import Job
from airflow_provider_soperator.slurm.pending_reasons import NODES_DOWN
from airflow_provider_soperator.slurm.queue_filter import QueueFilter

if TYPE_CHECKING:
    from airflow_provider_soperator.capacity.targets.protocol import Clients

#: Reasons for which a job waits that another node may end. Those of limits, dependencies and holds are none.
_NODES_HELP = frozenset({"", "None", "Priority", "Resources", "ReqNodeNotAvail", "NodeDown", NODES_DOWN})
#: Requests at a time beyond which the queueing model is not worth its time.
_MANY = 1e5


@dataclass(frozen=True)
class Need:
    """Units that are of use; None if that is unknown."""

    units: int | None
    because: str


@dataclass(frozen=True, kw_only=True)
class QueueLoad:
    """The queue of Slurm: a unit is of use if waiting jobs would keep it busy for a while.

        QueueLoad(target="training", partition="main", min_work=timedelta(hours=1))

    Its target has Slurm's nodes as units; those of them with jobs that have GPUs are needed. Of waiting jobs those
    count that another node may help, and that fit into the target's range.

    :param target: name of the target
    :param partition: jobs of this partition count; left out, all
    :param account: jobs of this account count
    :param qos: jobs of this QOS count
    :param min_wait: time that a job has to have waited to count
    :param min_work: work for one more unit, by the time limits of the jobs: a move has to be worth its price
    :param max_wait: time after which a job counts however short it is
    :param slurm_conn_id: Airflow connection to Slurm; left out, that of the target
    """

    target: str
    partition: str = ""
    account: str = ""
    qos: str = ""
    min_wait: timedelta = timedelta(minutes=5)
    min_work: timedelta = timedelta(hours=1)
    max_wait: timedelta = timedelta(hours=2)
    slurm_conn_id: str | None = None

    async def measure(
        self, clients: Clients, holding: Holding, gpus: int, most: int, now: datetime, on: Target | None = None
    ) -> Need:
        picked = QueueFilter(partition=self.partition, account=self.account, qos=self.qos)
        slurm_nodes = on if isinstance(on, SlurmNodesTarget) else None
        conn_id = self.slurm_conn_id or (slurm_nodes or SlurmNodesTarget).slurm_conn_id
        async with clients.slurm(conn_id) as slurm:
            found = await slurm.ask(picked.request())
            jobs = picked.picked(found, now)
            # Nodes on which any of them runs would seem to be of no use.
            if jobs and not any(job.gpus for job in jobs) and not (await slurm.config()).counts_gpus:
                return Need(None, "Slurm does not count the GPUs of jobs: the doctor has the remedy")
        return self.need(jobs, gpus, most, now, slurm_nodes.nodes if slurm_nodes else "")

    def need(self, jobs: Iterable[Job], gpus: int, most: int, now: datetime, nodes: str = "") -> Need:
        """The need by these jobs, with up to ``most`` units of so many GPUs, which are ``nodes`` if these are known."""
        running = waiting = count = 0
        own, busy, jobs = set(expand(nodes)), set[str](), list(jobs)
        overdue, late, pending, least = 0, timedelta(0), 0.0, self.min_work.total_seconds()
        # Slurm gives an array's own limit as the reason only once as many elements run: before, all seem to be helped.
        room = defaultdict[JobId, float](lambda: math.inf)
        room.update({job.id.whole: limit for job in jobs if (limit := job.id.limit) is not None})
        for job in sorted(jobs, key=lambda job: job.state.is_pending):
            number, has = int(min(job.count, max(0, room[job.id.whole]))), job.gpus
            if not job.state.is_pending:
                room[job.id.whole] -= 1
                on = expand(job.nodelist) if has else []
                # Static nodes of the same partition are no units, and none of theirs is of use.
                mine = own.intersection(on) if own else set(on)
                running += has * len(mine) // max(1, len(on))
                busy |= mine
                continue
            waited = job.waited(now)
            is_helped = not job.is_held and job.reason.split(",")[0] in _NODES_HELP and has <= most * gpus
            if not is_helped or waited < self.min_wait or not number:
                continue
            room[job.id.whole] -= number
            count, waiting, late = count + number, waiting + number * has, max(late, waited)
            # A job without a limit is worth a unit. In seconds: a year for each of a hundred thousand elements is more
            # than a timedelta can be.
            each = job.time_limit.total_seconds() if isinstance(job.time_limit, timedelta) else least
            # Elements that their array holds back keep the units of the others busy.
            pending += has * min(job.count * each, number * max(each, least))
            overdue += number * has * (waited >= self.max_wait)
        used = f"jobs use {running} GPUs of {counted(len(busy), 'nodes')}"
        if not count:
            return Need(len(busy), f"{used}, and none waits")
        work = gpus * least
        worth = int(pending / work) if work else math.ceil(waiting / gpus)
        more = min(math.ceil(waiting / gpus), max(worth, math.ceil(overdue / gpus)))
        hours, minutes = pending / 3600, late / timedelta(minutes=1)
        said = f"{counted(count, 'jobs')} with up to {hours:.1f} GPU-hours wait, for {minutes:.0f} min"
        return Need(len(busy) + more, f"{used}, and {said}")


@dataclass(frozen=True, kw_only=True)
class MetricLoad:
    """A metric of Prometheus, of which each unit bears a part, or which more units bring down.

        MetricLoad(target="inference", query="sum(vllm:num_requests_running + vllm:num_requests_waiting)", per_unit=64)
        MetricLoad(target="inference", query="max(vllm:kv_cache_usage_perc)", keep_at=0.7)

    :param target: name of the target
    :param query: a PromQL expression; the values of its series are added up
    :param per_unit: the part that one unit bears
    :param keep_at: the value to keep, in proportion to the units that there are: a share in use, a latency
    :param prometheus_conn_id: Airflow connection to Prometheus
    """

    target: str
    query: str
    per_unit: float | None = None
    keep_at: float | None = None
    prometheus_conn_id: str = "prometheus_default"

    def __post_init__(self) -> None:
        said = [number for number in (self.per_unit, self.keep_at) if number is not None]
        if len(said) != 1 or said[0] <= 0:
            raise CapacityMistake(
                f"the metric {self.query!r} needs per_unit or keep_at, a number above 0",
                "give per_unit for what adds up, as requests do, and keep_at for what does not",
            )

    async def measure(
        self, clients: Clients, holding: Holding, gpus: int, most: int, now: datetime, on: Target | None = None
    ) -> Need:
        value = await clients.metric(self.prometheus_conn_id, self.query)
        if value is None or value < 0:
            return Need(None, f"{self.query} has no value")
        if self.per_unit:
            return Need(math.ceil(value / self.per_unit), f"{value:g}, of which a unit bears {self.per_unit:g}")
        ratio = value / (self.keep_at or 1.0)
        # Those beside the block bear it, too.
        there = holding.there + holding.beside
        # As a HorizontalPodAutoscaler does it: a tenth more or less is no reason to move.
        units = there if abs(ratio - 1) <= 0.1 else math.ceil(there * ratio)
        # No unit bears nothing, and says nothing of what would have to be borne.
        return Need(max(1, units), f"{value:g} with {there}, to be {self.keep_at:g}")


@dataclass(frozen=True, kw_only=True)
class ServiceLoad:
    """Requests that arrive and are served: as many units as keep waits short, by a queueing model (Erlang C).

        ServiceLoad(
            target="inference",
            arrivals="sum(rate(vllm:request_success_total[5m]))",
            service_time=4.0,
            max_requests=32,
        )

    :param target: name of the target
    :param arrivals: a PromQL expression: requests per second
    :param service_time: seconds that one request takes, or a PromQL expression of it
    :param max_requests: requests that a unit serves at a time
    :param max_wait: longest wait of a request before it is served
    :param share: share of requests that wait no longer
    :param headroom: units more than that, for what comes while others are on their way
    :param prometheus_conn_id: Airflow connection to Prometheus
    """

    target: str
    arrivals: str
    service_time: float | str
    max_requests: int = 1
    max_wait: timedelta = timedelta(seconds=1)
    share: float = 0.99
    headroom: int = 0
    prometheus_conn_id: str = "prometheus_default"

    def __post_init__(self) -> None:
        if self.max_requests < 1:
            raise CapacityMistake(f"max_requests must be >= 1, got {self.max_requests}", "give those of one unit")
        if not 0 < self.share < 1:
            raise CapacityMistake(f"share must be between 0 and 1, got {self.share}", "write 0.99 for 99 of 100")

    async def measure(
        self, clients: Clients, holding: Holding, gpus: int, most: int, now: datetime, on: Target | None = None
    ) -> Need:
        rate = await clients.metric(self.prometheus_conn_id, self.arrivals)
        seconds: float | None = None
        if not isinstance(self.service_time, str):
            seconds = self.service_time
        # Where nothing was served, nothing is known of how long it takes.
        elif (seconds := await clients.metric(self.prometheus_conn_id, self.service_time)) is None and rate == 0:
            seconds = 0.0
        if rate is None or seconds is None or rate < 0 or seconds < 0:
            return Need(None, f"{self.arrivals if rate is None or rate < 0 else self.service_time} has no value")
        return self.need(rate, seconds)

    def need(self, rate: float, seconds: float) -> Need:
        """The need with so many requests a second, each of which takes so many seconds."""
        units = units_for(rate, seconds, self.max_requests, self.max_wait.total_seconds(), self.share) + self.headroom
        spare = f", and {self.headroom} to spare" if self.headroom else ""
        return Need(units, f"{rate:.3g} requests/s of {seconds:.3g} s each{spare}")


#: What says how many units are of use. In JSON each kind is told by fields that it alone has, and needs.
Load = ServiceLoad | MetricLoad | QueueLoad


def units_for(rate: float, seconds: float, max_requests: int, wait: float, share: float) -> int:
    """The fewest units with which that ``share`` of requests waits no longer than ``wait`` seconds (Erlang C).

    >>> units_for(10, 4, max_requests=32, wait=1, share=0.99), units_for(0, 4, max_requests=32, wait=1, share=0.99)
    (2, 0)
    """
    offered = rate * seconds
    if offered <= 0:
        return 0
    if offered > _MANY:
        # None of so many waits for long, and this runs in an event loop.
        return math.ceil((offered + 3 * math.sqrt(offered)) / max_requests)
    blocked, servers = 1.0, 0
    while True:
        servers += 1
        # Erlang B by its recurrence, which needs no factorials.
        blocked = offered * blocked / (servers + offered * blocked)
        if servers > offered:
            waits = blocked / (1 - offered / servers * (1 - blocked))
            if waits * math.exp(-(servers - offered) * wait / seconds) <= 1 - share:
                return math.ceil(servers / max_requests)
