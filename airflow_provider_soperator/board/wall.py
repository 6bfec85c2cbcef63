"""The nodes of a picture as a wall of tiles, by node set."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from airflow_provider_soperator.slurm import hostlist
from airflow_provider_soperator.slurm.cluster_records import Node
from airflow_provider_soperator.slurm.job_ids import JobId
from airflow_provider_soperator.slurm.job_records import Job
from airflow_provider_soperator.slurm.node_conditions import WORDS, DrainReason

#: The state of a tile: the first of these that holds. A node that is off may be drained as well.
STATES = (
    "failed to boot", "off", "going off", "booting", "not responding", "down", "draining", "drained", "failing", "busy",
    "blocked", "idle",
)  # fmt: skip
_NUMBER = re.compile(r"(.*?)-?(\d+)")


@dataclass(frozen=True, kw_only=True)
class Tile:
    """A node on the wall."""

    node: Node
    state: str
    jobs: tuple[JobId, ...] = ()

    @property
    def number(self) -> str:
        found = _NUMBER.fullmatch(self.node.name)
        return found[2] if found else self.node.name

    @property
    def drained_by(self) -> str:
        """Who has drained it: a DAG or shift of this provider, or a user of Slurm."""
        ours = DrainReason.parse(self.node.reason)
        return ours.owner if ours else self.node.reason_user

    @property
    def words(self) -> str:
        """All about it in a sentence, for the one who points at it."""
        said = f"{self.node.name}: {self.state}"
        if self.node.gpus:
            said += f", {self.node.gpus_used} of {self.node.gpus} GPUs in use"
        if self.jobs:
            said += f", {'job' if len(self.jobs) == 1 else 'jobs'} {', '.join(map(str, self.jobs))}"
        if self.node.reason:
            said += f", {self.node.reason}" + (f" (by {self.node.reason_user})" if self.node.reason_user else "")
        return said

    def fits(self, state: str, find: str) -> bool:
        """True if it is in the state, if one is asked for, and has all words that are looked for."""
        said = f"{self.words} {' '.join(self.node.partitions)} {self.node.instance}".lower() if find else ""
        return state in ("", self.state) and all(word in said for word in find.lower().split())


@dataclass(frozen=True)
class TileGroup:
    """The tiles of one node set."""

    name: str
    tiles: tuple[Tile, ...]

    @property
    def counts(self) -> dict[str, int]:
        counted = Counter(tile.state for tile in self.tiles)
        return {state: counted[state] for state in (*STATES, "unknown") if counted[state]}


def state_of_tile(node: Node) -> str:
    return next((state for state in STATES if WORDS[state](node)), "unknown")


def wall(nodes: Iterable[Node], jobs: Iterable[Job]) -> list[TileGroup]:
    """The nodes by node set, each in the order of their numbers."""
    running = jobs_by_node(jobs)
    groups: dict[str, list[Tile]] = {}
    for node in nodes:
        found = _NUMBER.fullmatch(node.name)
        tile = Tile(node=node, state=state_of_tile(node), jobs=tuple(running.get(node.name, ())))
        groups.setdefault(found[1] if found else node.name, []).append(tile)
    return [TileGroup(name, tuple(sorted(tiles, key=_order))) for name, tiles in sorted(groups.items())]


def jobs_by_node(jobs: Iterable[Job]) -> Mapping[str, Sequence[JobId]]:
    found: dict[str, list[JobId]] = {}
    for job in jobs:
        if job.state.is_active and not job.state.is_pending:
            for name in nodes_of(job):
                found.setdefault(name, []).append(job.id)
    return found


def nodes_of(job: Job) -> list[str]:
    """The nodes that a job has; none of a list that cannot be read, so that one odd job hides no other."""
    with suppress(hostlist.HostlistError):
        return hostlist.expand(job.nodelist)
    return []


def _order(tile: Tile) -> tuple[int, str]:
    return (int(tile.number) if tile.number.isdecimal() else 0, tile.node.name)
