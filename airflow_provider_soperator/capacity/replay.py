"""A month played minute by minute on a block that Slurm and a service share, with the provider's own decisions."""

from __future__ import annotations

import heapq
import math
import statistics
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from functools import cached_property

from airflow_provider_soperator.capacity.allocation import Units, bounds_of
from airflow_provider_soperator.capacity.demand import Demand, DemandMemory, decide
from airflow_provider_soperator.capacity.loads import MetricLoad, Need, QueueLoad, ServiceLoad
from airflow_provider_soperator.capacity.month import DAY, Month, MonthJob
from airflow_provider_soperator.slurm.job_ids import JobId
from airflow_provider_soperator.slurm.job_records import Job
from airflow_provider_soperator.slurm.states import JobState

#: Minutes after which a job that may be requeued writes a checkpoint.
CHECKPOINT = 30
_PENDING, _RUNNING = JobState.parse("PENDING"), JobState.parse("RUNNING")
#: A moment to count from: the decision needs only what has passed.
_EPOCH = datetime(2026, 9, 7, tzinfo=timezone.utc)


@dataclass(frozen=True)
class SharedBlock:
    """Nodes with their GPUs, of which a machine needs ``transfer`` minutes from one side to the other.

    The demand has one load of the service, and one of Slurm's queue.
    """

    nodes: int
    gpus: int
    transfer: int
    demand: Demand
    #: Minutes between the warning to a job and its requeue.
    grace: int = 2
    #: Fewest nodes of the service: those that Slurm does not have.
    least: int = 0

    @cached_property
    def service(self) -> ServiceLoad | MetricLoad:
        return next(load for load in self.demand.loads if not isinstance(load, QueueLoad))

    @cached_property
    def queue(self) -> QueueLoad:
        return next(load for load in self.demand.loads if isinstance(load, QueueLoad))

    @property
    def headroom(self) -> int:
        """Units of the service to spare."""
        return self.service.headroom if isinstance(self.service, ServiceLoad) else 0

    @property
    def highest(self) -> int:
        """Most nodes of the service: an eighth of the block is left to Slurm."""
        return max(self.least, self.nodes - math.ceil(self.nodes / 8))

    def most_served(self, jobs: Iterable[MonthJob], most: int, headroom: int) -> int:
        """Most nodes of the service in a range: those of its highest need, and some to spare.

        The largest job that fits beside that need fits beside what is to spare, too: else it waits until a night.
        """
        sizes = {math.ceil(job.gpus / self.gpus) for job in jobs}
        largest = max((size for size in sizes if size <= self.nodes - most), default=0)
        return max(self.least, min(self.highest, most + headroom, max(most, self.nodes - largest)))


@dataclass(eq=False, slots=True)
class SharedNode:
    """A node of Slurm."""

    #: GPUs that no job has.
    free: int
    jobs: list[MonthJob] = field(default_factory=list)
    #: It takes only jobs that end by then, as it is to leave.
    leaves: int | None = None
    #: When the jobs on it are requeued, which were warned.
    ends: int | None = None


class Replay:
    """A block whose service has so many nodes at first."""

    def __init__(self, block: SharedBlock, serving: int, *, checkpoint: int = CHECKPOINT) -> None:
        self.block, self.gpus, self.checkpoint = block, block.gpus, checkpoint
        self.nodes = [SharedNode(self.gpus) for _ in range(block.nodes - serving)]
        self.serving = serving
        #: Moments at which machines arrive on either side.
        self.to_serving: list[int] = []
        self.to_slurm: list[int] = []
        self.queues: dict[int, deque[MonthJob]] = {}
        self.ends: list[tuple[int, int, int, MonthJob, list[SharedNode]]] = []
        #: Sums over the minutes, of GPUs, nodes and jobs.
        self.figures: Counter[str] = Counter()

    @property
    def has(self) -> dict[str, int]:
        """What each target has, as a shift counts it."""
        stays = sum(node.leaves is None for node in self.nodes)
        trained, served = stays + len(self.to_slurm), self.serving + len(self.to_serving)
        return {self.block.queue.target: trained, self.block.service.target: served}

    def submit(self, job: MonthJob, now: int) -> None:
        job.since = now
        self.queues.setdefault(job.gpus, deque()).append(job)

    def pending(self) -> list[MonthJob]:
        return [job for queue in self.queues.values() for job in queue]

    def running(self) -> int:
        """GPUs of running jobs."""
        return sum(self.gpus - node.free for node in self.nodes)

    def tick(self, now: int, wanted: int, needed: int, ahead: int = 0) -> None:
        """A minute: machines arrive, jobs end and begin, nodes leave; the service is to have ``wanted`` units.

        ``ahead``: nodes leave only so many minutes later, and take jobs that have ended by then.
        """
        self._arrive(now)
        self._end_jobs(now)
        self._steer(now, wanted, ahead)
        self._leave(now)
        self._start_jobs(now)
        figures = self.figures
        figures["used"] += self.running()
        figures["served"] += min(self.serving, needed) * self.gpus
        figures["below"] += self.serving < needed
        figures["limbo"] += (len(self.to_serving) + len(self.to_slurm)) * self.gpus

    def _arrive(self, now: int) -> None:
        while self.to_serving and self.to_serving[0] <= now:
            heapq.heappop(self.to_serving)
            self.serving += 1
        while self.to_slurm and self.to_slurm[0] <= now:
            heapq.heappop(self.to_slurm)
            self.nodes.append(SharedNode(self.gpus))

    def _end_jobs(self, now: int) -> None:
        while self.ends and self.ends[0][0] <= now:
            _, _, started, job, nodes = heapq.heappop(self.ends)
            # It may have been requeued since.
            if job.started == started:
                self._take_off(job, nodes)

    def _take_off(self, job: MonthJob, nodes: list[SharedNode]) -> None:
        _, share = self._parts(job)
        for node in nodes:
            node.jobs.remove(job)
            node.free += share
        job.started = None

    def _steer(self, now: int, wanted: int, ahead: int) -> None:
        leaving = [node for node in self.nodes if node.leaves is not None]
        more = wanted - self.serving - len(self.to_serving) - len(leaving)
        if more < 0:
            # Those that have not gone stay first, then the service gives.
            for node in sorted(leaving, key=lambda one: (one.ends is not None, -len(one.jobs)))[:-more]:
                node.leaves = node.ends = None
                more += 1
            gives = min(-more, self.serving - wanted)
            for _ in range(max(0, gives)):
                self.serving -= 1
                self.figures["moves"] += 1
                heapq.heappush(self.to_slurm, now + self.block.transfer)
        elif more > 0:
            stays = [node for node in self.nodes if node.leaves is None]
            for node in sorted(stays, key=lambda one: self._cost(one, now))[:more]:
                node.leaves = now + ahead

    def _cost(self, node: SharedNode, now: int) -> tuple[int, int]:
        """What a node costs that goes: nothing, work since a checkpoint, or time until its jobs have ended."""
        if not node.jobs:
            return (0, 0)
        if all(job.may_requeue for job in node.jobs):
            return (1, sum((now - (job.started or now)) % CHECKPOINT * self._parts(job)[1] for job in node.jobs))
        return (2, max((job.started or now) + job.limit for job in node.jobs))

    def _leave(self, now: int) -> None:
        for node in [node for node in self.nodes if node.leaves is not None and node.leaves <= now]:
            if node.jobs and all(job.may_requeue for job in node.jobs):
                node.ends = node.ends or now + self.block.grace
                if now >= node.ends:
                    for job in list(node.jobs):
                        self._requeue(job, now)
            if not node.jobs:
                self.nodes.remove(node)
                self.figures["moves"] += 1
                heapq.heappush(self.to_serving, now + self.block.transfer)

    def _requeue(self, job: MonthJob, now: int) -> None:
        assert job.started is not None
        done = job.done + now - job.started
        kept = done - (now - job.started) % self.checkpoint
        self._take_off(job, [node for node in self.nodes if job in node.jobs])
        self.figures["requeued"] += 1
        self.figures["lost"] += (done - kept) * job.gpus
        job.done = kept
        job.since = now
        self.queues.setdefault(job.gpus, deque()).appendleft(job)

    def _start_jobs(self, now: int) -> None:
        heads = sorted((queue[0].since, gpus) for gpus, queue in self.queues.items() if queue)
        held: set[int] = set()
        shadow = None
        while heads:
            _, gpus = heads.pop(0)
            queue = self.queues[gpus]
            nodes = self._place(queue[0], now, held, shadow)
            if nodes:
                self._start(queue.popleft(), nodes, now)
                if queue:
                    heads.append((queue[0].since, gpus))
                    heads.sort()
            elif shadow is None:
                # The first that cannot start gets the nodes that are free soonest; others may use them until then.
                held, shadow = self._reserve(queue[0], now)

    def _parts(self, job: MonthJob) -> tuple[int, int]:
        """Nodes of a job, and its GPUs on each."""
        count = math.ceil(job.gpus / self.gpus)
        return count, math.ceil(job.gpus / count)

    def _place(self, job: MonthJob, now: int, held: set[int], shadow: int | None) -> list[SharedNode]:
        end = now + job.limit
        count, share = self._parts(job)
        fits = [
            node
            for node in self.nodes
            if node.free >= share
            and (node.leaves is None or end <= node.leaves)
            and (id(node) not in held or (shadow is not None and end <= shadow))
        ]
        return sorted(fits, key=lambda node: node.free)[:count] if len(fits) >= count else []

    def _reserve(self, job: MonthJob, now: int) -> tuple[set[int], int]:
        count, share = self._parts(job)
        frees = sorted(
            (self._free_at(node, share, now), number) for number, node in enumerate(self.nodes) if node.leaves is None
        )[:count]
        return {id(self.nodes[number]) for _, number in frees}, max((at for at, _ in frees), default=now)

    def _free_at(self, node: SharedNode, share: int, now: int) -> int:
        free, at = node.free, now
        for job in sorted(node.jobs, key=lambda one: (one.started or 0) + one.limit):
            if free >= share:
                break
            free, at = free + self._parts(job)[1], (job.started or 0) + job.limit
        return at

    def _start(self, job: MonthJob, nodes: list[SharedNode], now: int) -> None:
        job.waited += now - job.since
        job.started = now
        _, share = self._parts(job)
        for node in nodes:
            node.jobs.append(job)
            node.free -= share
        heapq.heappush(self.ends, (now + max(1, job.minutes - job.done), job.id, now, job, nodes))


@dataclass(frozen=True)
class ReplayOutcome:
    """The figures of a month: shares of GPUs and of time, minutes that a job waits, moves a day, and GPU-hours."""

    usage: float
    wait: float
    below: float
    moves: float
    requeued: int
    lost: float
    limbo: float


#: The units of the service in a minute, and the minutes ahead of which nodes are chosen.
Way = Callable[[Replay, int], tuple[int, int]]


def play(month: Month, way: Way, replay: Replay) -> ReplayOutcome:
    """Play a month."""
    jobs = [replace(job) for job in month.jobs]
    coming = iter(jobs)
    following = next(coming, None)
    for now, needed in enumerate(month.needs):
        while following and following.submitted <= now:
            replay.submit(following, now)
            following = next(coming, None)
        wanted, ahead = way(replay, now)
        replay.tick(now, max(wanted, replay.block.least), needed, ahead)
    end, found = len(month.needs), replay.figures
    for job in replay.pending():
        job.waited += end - job.since
    return ReplayOutcome(
        usage=(found["used"] + found["served"]) / (replay.block.nodes * replay.gpus * end),
        wait=statistics.fmean(job.waited for job in jobs) if jobs else 0.0,
        below=found["below"] / end,
        moves=found["moves"] / (end / DAY),
        requeued=found["requeued"],
        lost=found["lost"] / 60,
        limbo=found["limbo"] / 60,
    )


def by_schedule(levels: Sequence[int], lead: int, transfer: int) -> Way:
    """Nodes are chosen a lead before a handover, and leave a transfer before it."""

    def way(replay: Replay, now: int) -> tuple[int, int]:
        then = levels[min(now + lead, len(levels) - 1)]
        return (then, lead - transfer) if then > levels[now] else (levels[now], 0)

    return way


class ByDemand:
    """The provider's decision, each minute, within what is wished for; ``needs`` are those that its metric shows."""

    def __init__(self, block: SharedBlock, needs: Sequence[int], wished: Callable[[int], Mapping[str, Units]]) -> None:
        self.block, self.needs, self.wished = block, needs, wished
        self.gpus = {block.queue.target: block.gpus, block.service.target: block.gpus}
        self.memory = DemandMemory()

    def __call__(self, replay: Replay, now: int) -> tuple[int, int]:
        block, at, wished = self.block, _EPOCH + timedelta(minutes=now), self.wished(now)
        served, trained = block.service.target, block.queue.target
        needs = {
            served: Need(self.needs[now] + block.headroom, ""),
            trained: block.queue.need(self._queue(replay, now), block.gpus, bounds_of(wished[trained])[1], at),
        }
        limit = block.nodes * block.gpus
        decision = decide(block.demand, needs, wished, replay.has, self.gpus, limit, self.memory, at)
        self.memory = decision.memory
        return decision.units[served], 0

    def _queue(self, replay: Replay, now: int) -> Iterable[Job]:
        """The jobs that count; those that count alike are elements of one array, which reads as quickly as one job."""
        if busy := sum(bool(node.jobs) for node in replay.nodes):
            yield Job(id=JobId(1), state=_RUNNING, tres=f"gres/gpu={replay.running()}", nodelist=f"n[1-{busy}]")
        load = self.block.queue
        soon, late = (int(some.total_seconds()) // 60 for some in (load.min_wait, load.max_wait))
        #: Their number and minutes, by GPUs and wait.
        alike: dict[tuple[int, int], list[int]] = {}
        for job in replay.pending():
            if (waited := now - job.since) >= soon:
                seen = alike.setdefault((job.gpus, late if waited >= late else soon), [0, 0])
                seen[0] += 1
                seen[1] += job.limit
        for number, ((gpus, waited), (count, minutes)) in enumerate(alike.items(), 2):
            # Of whole minutes, so that their sum is exact.
            limit, longer = divmod(minutes, count)
            for elements, each in ((longer, limit + 1), (count - longer, limit)):
                if elements:
                    yield Job(
                        id=JobId(number, elements=f"1-{elements}"),
                        state=_PENDING,
                        reason="Resources",
                        submitted=_EPOCH + timedelta(minutes=now - waited),
                        time_limit=timedelta(minutes=each),
                        tres=f"gres/gpu={gpus}",
                    )
