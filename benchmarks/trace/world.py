"""A block of nodes, some with Slurm and some with inference, minute by minute.

Slurm starts jobs in order and fills gaps (EASY backfill). A node that goes to inference leaves as a shift has it leave:
idle ones at once, then those whose jobs are requeued with the least loss after their grace, then as jobs end.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from dataclasses import dataclass, field

from benchmarks.trace.load import CHECKPOINT, Job

#: GPUs of a node, and minutes between the warning to a job and its requeue.
NODE, GRACE = 8, 2


@dataclass(eq=False, slots=True)
class Node:
    """A node of Slurm."""

    #: GPUs that no job has.
    free: int
    jobs: list[Job] = field(default_factory=list)
    #: It takes only jobs that end by then, as it is to leave.
    leaves: int | None = None
    #: When the jobs on it are requeued, which were warned.
    ends: int | None = None


@dataclass
class Figures:
    """What a month has come to."""

    used: float = 0.0
    served: float = 0.0
    below: int = 0
    moves: int = 0
    requeued: int = 0
    lost: float = 0.0
    limbo: float = 0.0
    minutes: int = 0


class World:
    """The block of nodes with so many ``gpus``; a machine needs ``boot`` minutes to come and ``gone`` to go."""

    def __init__(
        self, nodes: int, serving: int, *, boot: int, gone: int, gpus: int = NODE, checkpoint: int = CHECKPOINT
    ) -> None:
        self.size, self.gpus, self.boot, self.gone, self.checkpoint = nodes, gpus, boot, gone, checkpoint
        self.nodes = [Node(gpus) for _ in range(nodes - serving)]
        self.serving = serving
        #: Moments at which machines arrive on either side.
        self.to_serving: list[int] = []
        self.to_slurm: list[int] = []
        self.queues: dict[int, deque[Job]] = {}
        self.ends: list[tuple[int, int, int, Job, list[Node]]] = []
        self.figures = Figures()

    @property
    def has(self) -> dict[str, int]:
        """What each target has, as a shift counts it."""
        stays = sum(node.leaves is None for node in self.nodes)
        return {"training": stays + len(self.to_slurm), "inference": self.serving + len(self.to_serving)}

    def submit(self, job: Job, now: int) -> None:
        job.since = now
        self.queues.setdefault(job.gpus, deque()).append(job)

    def pending(self) -> list[Job]:
        return [job for queue in self.queues.values() for job in queue]

    def running(self) -> int:
        """GPUs of running jobs."""
        return sum(self.gpus - node.free for node in self.nodes)

    def tick(self, now: int, wanted: int, needed: int, ahead: int = 0) -> None:
        """A minute: machines arrive, jobs end and begin, nodes leave; inference is to have ``wanted`` units.

        ``ahead``: nodes leave only so many minutes later, and take jobs that have ended by then.
        """
        self._arrive(now)
        self._end_jobs(now)
        self._steer(now, wanted, ahead)
        self._leave(now)
        self._start_jobs(now)
        self._count(needed)

    def _arrive(self, now: int) -> None:
        while self.to_serving and self.to_serving[0] <= now:
            heapq.heappop(self.to_serving)
            self.serving += 1
        while self.to_slurm and self.to_slurm[0] <= now:
            heapq.heappop(self.to_slurm)
            self.nodes.append(Node(self.gpus))

    def _end_jobs(self, now: int) -> None:
        while self.ends and self.ends[0][0] <= now:
            _, _, started, job, nodes = heapq.heappop(self.ends)
            # It may have been requeued since.
            if job.started == started:
                self._take_off(job, nodes)

    def _take_off(self, job: Job, nodes: list[Node]) -> None:
        _, share = self._parts(job)
        for node in nodes:
            node.jobs.remove(job)
            node.free += share
        job.started = None

    def _steer(self, now: int, wanted: int, ahead: int) -> None:
        leaving = [node for node in self.nodes if node.leaves is not None]
        more = wanted - self.serving - len(self.to_serving) - len(leaving)
        if more < 0:
            # Those that have not gone stay first, then inference gives.
            for node in sorted(leaving, key=lambda one: (one.ends is not None, -len(one.jobs)))[:-more]:
                node.leaves = node.ends = None
                more += 1
            gives = min(-more, self.serving - wanted)
            for _ in range(max(0, gives)):
                self.serving -= 1
                self.figures.moves += 1
                heapq.heappush(self.to_slurm, now + self.gone + self.boot)
        elif more > 0:
            stays = [node for node in self.nodes if node.leaves is None]
            for node in sorted(stays, key=lambda one: self._cost(one, now))[:more]:
                node.leaves = now + ahead

    def _cost(self, node: Node, now: int) -> tuple[int, int]:
        """What a node costs that goes: nothing, work since a checkpoint, or time until its jobs have ended."""
        if not node.jobs:
            return (0, 0)
        if all(job.may_requeue for job in node.jobs):
            return (1, sum((now - (job.started or now)) % CHECKPOINT * self._parts(job)[1] for job in node.jobs))
        return (2, max((job.started or now) + job.limit for job in node.jobs))

    def _leave(self, now: int) -> None:
        for node in [node for node in self.nodes if node.leaves is not None and node.leaves <= now]:
            if node.jobs and all(job.may_requeue for job in node.jobs):
                node.ends = node.ends or now + GRACE
                if now >= node.ends:
                    for job in list(node.jobs):
                        self._requeue(job, now)
            if not node.jobs:
                self.nodes.remove(node)
                self.figures.moves += 1
                heapq.heappush(self.to_serving, now + self.gone + self.boot)

    def _requeue(self, job: Job, now: int) -> None:
        assert job.started is not None
        done = job.done + now - job.started
        kept = done - (now - job.started) % self.checkpoint
        self._take_off(job, [node for node in self.nodes if job in node.jobs])
        self.figures.requeued += 1
        self.figures.lost += (done - kept) * job.gpus
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

    def _parts(self, job: Job) -> tuple[int, int]:
        """Nodes of a job, and its GPUs on each."""
        count = math.ceil(job.gpus / self.gpus)
        return count, math.ceil(job.gpus / count)

    def _place(self, job: Job, now: int, held: set[int], shadow: int | None) -> list[Node]:
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

    def _reserve(self, job: Job, now: int) -> tuple[set[int], int]:
        count, share = self._parts(job)
        frees = sorted(
            (self._free_at(node, share, now), number) for number, node in enumerate(self.nodes) if node.leaves is None
        )[:count]
        return {id(self.nodes[number]) for _, number in frees}, max((at for at, _ in frees), default=now)

    def _free_at(self, node: Node, share: int, now: int) -> int:
        free, at = node.free, now
        for job in sorted(node.jobs, key=lambda one: (one.started or 0) + one.limit):
            if free >= share:
                break
            free, at = free + self._parts(job)[1], (job.started or 0) + job.limit
        return at

    def _start(self, job: Job, nodes: list[Node], now: int) -> None:
        job.waited += now - job.since
        job.started = now
        _, share = self._parts(job)
        for node in nodes:
            node.jobs.append(job)
            node.free -= share
        heapq.heappush(self.ends, (now + max(1, job.minutes - job.done), job.id, now, job, nodes))

    def _count(self, needed: int) -> None:
        found = self.figures
        found.minutes += 1
        found.used += self.running()
        found.served += min(self.serving, needed) * self.gpus
        found.below += self.serving < needed
        found.limbo += (len(self.to_serving) + len(self.to_slurm)) * self.gpus
