"""Has the machines under nodes replaced, some at a time, and waits until jobs can start on all of them."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import Any

from async_timeout import timeout

from airflow_provider_soperator.client.client import AsyncSlurmClient
from airflow_provider_soperator.health.replacing import (
    Replacement,
    Sight,
    Wanted,
    at_most,
    by_kubernetes,
    by_slurm,
    reason,
)
from airflow_provider_soperator.hooks.health import Witnesses
from airflow_provider_soperator.hooks.settings import NAMESPACE
from airflow_provider_soperator.hooks.slurm import SlurmHook
from airflow_provider_soperator.logger import Logger
from airflow_provider_soperator.slurm import hostlist
from airflow_provider_soperator.slurm.cluster_records import Node
from airflow_provider_soperator.slurm.errors import InvalidRequest, NotPermitted, SlurmError
from airflow_provider_soperator.slurm.job_records import Job
from airflow_provider_soperator.slurm.node_conditions import in_lines, is_draining, is_up, refuse_unknown
from airflow_provider_soperator.slurm.node_orders import NodeStep
from airflow_provider_soperator.slurm.requests import CancelJobs, ListJobs, ListMachines, ListNodes, RequeueJobs
from airflow_provider_soperator.triggers.killed import EndedWithItsTask
from airflow_provider_soperator.triggers.moves import NodesLost, whose
from airflow_provider_soperator.triggers.rounds import FAILURES, is_final, slurm_client, stepped

#: Seconds in which drains are taken back when a task ends early.
_UNDOING = 30.0


@dataclass(frozen=True, kw_only=True)
class Errand:
    """Whose machines are to be replaced, and how. Its fields are what JSON can carry."""

    nodes: tuple[str, ...]
    owner: str
    why: str = ""
    force: bool = False
    at_once: int | str = 1
    jobs: str = "wait"
    grace: float = 0
    react_within: float = 600
    kubernetes_conn_id: str | None = None
    namespace: str = NAMESPACE

    def __post_init__(self) -> None:
        # Whose drains there cannot be is to be known before the first.
        reason(self.owner, self.why)

    @classmethod
    def read(cls, written: Mapping[str, Any]) -> Errand:
        return cls(**{**written, "nodes": tuple(written["nodes"])})

    def write(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


@dataclass
class Rounds:
    """All nodes of an errand on their way. Another process that is given the same errand goes on from what it finds."""

    errand: Errand
    #: Machines that are newer are new.
    since: datetime
    log: Logger
    #: Where Kubernetes is asked; None until it is known whether it is, and without a connection it is not.
    _witnesses: Witnesses = field(default_factory=Witnesses)
    _replacements: dict[str, Replacement] = field(default_factory=dict)
    _steps: dict[str, NodeStep] = field(default_factory=dict)
    _told: dict[str, str] = field(default_factory=dict)
    _ended_jobs: set[str] = field(default_factory=set)

    async def step(self, slurm_conn_id: str, client: AsyncSlurmClient, most_age: float) -> dict[str, Any] | None:
        """Look, order what can be ordered now, and tell what is new; the result, once all are on new machines.

        Raises ``NodesLost`` for what cannot be done at the first look, before anything is ordered; later once no other
        node is on its way, as none is begun any more when one is lost.
        """
        first = not self._replacements
        if first:
            self._witnesses = await self._whom_to_ask(slurm_conn_id)
        sights = await self._look(client, most_age)
        if first:
            refuse_unknown(self.errand.nodes, sights)
            self._begin()
        self._steps = self._decide(sights)
        lost = {name: step.lost for name, step in self._steps.items() if step.lost}
        if lost and (first or not self._under_way(lost)):
            raise NodesLost("; ".join(in_lines(lost)))
        self._tell()
        await self._order(client, sights)
        return self._result() if all(one.is_over for one in self._replacements.values()) else None

    async def undo(self, client: AsyncSlurmClient) -> str:
        """Undrain those whose machines nobody has begun to replace; what has become of all, as sentences."""
        sights = await self._look(client, 0)
        undone = []
        for name, replacement in self._replacements.items():
            for order in replacement.undo(sights[name]):
                await client.ask(order)
                undone.append(name)
        left = [name for name, one in self._replacements.items() if one.is_under_way and name not in undone]
        untouched = [name for name, one in self._replacements.items() if not one.is_begun and not one.is_over]
        done = [name for name, one in self._replacements.items() if one.new and one.is_over]
        said = {
            "Replaced": done,
            "On their way, which they stay": left,
            "Their drains were taken back": undone,
            "Untouched": untouched,
        }
        return ". ".join(f"{what}: {hostlist.fold(names)}" for what, names in said.items() if names)

    @property
    def place(self) -> str:
        """Where the nodes are that are not on new machines yet."""
        waiting = {name: step.lost or step.waits for name, step in self._steps.items() if step.lost or step.waits}
        return "; ".join(in_lines(waiting)) or "nothing has been done"

    async def _whom_to_ask(self, slurm_conn_id: str) -> Witnesses:
        """Kubernetes by its own connection, or by that of the Soperator connection, if there is any."""
        settings = await SlurmHook(slurm_conn_id).async_settings()
        if self.errand.kubernetes_conn_id:
            return Witnesses(kubernetes_conn_id=self.errand.kubernetes_conn_id, namespace=self.errand.namespace)
        return Witnesses(kubernetes_conn_id=settings.kubernetes_conn_id or None, namespace=settings.namespace)

    def _begin(self) -> None:
        wanted = Wanted(
            owner=self.errand.owner,
            why=self.errand.why,
            force=self.errand.force,
            since=self.since,
            react_within=timedelta(seconds=self.errand.react_within),
        )
        self._replacements = {name: Replacement(wanted) for name in self.errand.nodes}

    async def _look(self, client: AsyncSlurmClient, most_age: float) -> dict[str, Sight]:
        seen, nodes = await asyncio.gather(self._witnesses.ask(), client.ask_shared(ListNodes(), most_age))
        known = {node.name: node for node in nodes}
        refuse_unknown(self.errand.nodes, known)
        wanted = [known[name] for name in self.errand.nodes]
        if seen.kubernetes is not None:
            return {node.name: by_kubernetes(node, seen.kubernetes.pods.get(node.name)) for node in wanted}
        machines = {machine.node: machine for machine in await client.ask(ListMachines(self.errand.nodes))}
        sights = {node.name: by_slurm(node, machines.get(node.name)) for node in wanted}
        if unknown := [node.name for node in wanted if is_up(node) and sights[node.name].machine is None]:
            raise InvalidRequest(
                f"Slurm has not learnt which machine {hostlist.fold(unknown)} is on: give kubernetes_conn_id"
            )
        return sights

    def _decide(self, sights: Mapping[str, Sight]) -> dict[str, NodeStep]:
        now, limit = datetime.now(timezone.utc), at_most(self.errand.at_once, len(self._replacements))
        is_lost = any(step.lost for step in self._steps.values())
        steps = {}
        # Only when those that are on their way have been looked at is it known how many more may begin.
        for name in sorted(sights, key=lambda name: not self._replacements[name].is_under_way):
            under_way = sum(one.is_under_way for one in self._replacements.values())
            may_begin = under_way < limit and not is_lost
            steps[name] = self._replacements[name].look(sights[name], now, may_begin=may_begin)
            is_lost = is_lost or bool(steps[name].lost)
        return steps

    def _under_way(self, lost: Mapping[str, str]) -> list[str]:
        return [name for name, one in self._replacements.items() if one.is_under_way and name not in lost]

    def _tell(self) -> None:
        waiting = {name: step.lost or step.waits for name, step in self._steps.items() if step.lost or step.waits}
        arrived = {
            name: f"is on {one.new}, in place of {one.old}" if one.old else f"is on {one.new} already"
            for name, one in self._replacements.items()
            if one.new and one.is_over
        }
        off = {
            name: "is off: there is nothing to replace, and a power up takes another machine"
            for name, one in self._replacements.items()
            if one.is_skipped
        }
        said = {**waiting, **arrived, **off}
        new = {name: text for name, text in said.items() if self._told.get(name) != text}
        for line in in_lines(new):
            self.log.info("%s", line)
        self._told = said

    async def _order(self, client: AsyncSlurmClient, sights: Mapping[str, Sight]) -> None:
        for step in self._steps.values():
            for order in step.orders:
                try:
                    await client.ask(order)
                except NotPermitted as error:
                    raise await whose(client, error) from error
        late = [sight.node for sight in sights.values() if self._is_late(sight.node)]
        if late and self.errand.jobs != "wait":
            await self._end_jobs(client, late)

    def _is_late(self, node: Node) -> bool:
        """Its jobs have had the time that they were given."""
        drained = node.reason_since if is_draining(node) and self._replacements[node.name].is_under_way else None
        return bool(drained and datetime.now(timezone.utc) - drained > timedelta(seconds=self.errand.grace))

    async def _end_jobs(self, client: AsyncSlurmClient, nodes: Sequence[Node]) -> None:
        names = [node.name for node in nodes]
        running = await client.ask(ListJobs(states=("RUNNING", "SUSPENDED")))
        for job in running:
            if str(job.id) in self._ended_jobs or not hostlist.intersect(names, [job.nodelist]):
                continue
            await self._end(client, job)
            # Not before: a connection that breaks meanwhile is no reason to let the job be.
            self._ended_jobs.add(str(job.id))

    async def _end(self, client: AsyncSlurmClient, job: Job) -> None:
        what = f"job {job.id} ({job.name} of {job.user}) on {job.nodelist}"
        try:
            await client.ask(RequeueJobs((job.id,)))
            self.log.warning("%s: requeued, as its time is over", what)
        except SlurmError as error:
            if self.errand.jobs == "requeue":
                self.log.warning("%s: cannot be requeued, and is waited for: %s", what, error)
                return
            await client.ask(CancelJobs(ids=(job.id,)))
            self.log.warning("%s: cancelled, as its time is over, and it could not be requeued", what)

    def _result(self) -> dict[str, Any]:
        return {
            name: {
                "old": one.old,
                "new": one.new,
                "seconds": round((one.ended - one.began).total_seconds(), 1) if one.ended and one.began else 0.0,
            }
            for name, one in self._replacements.items()
            if not one.is_skipped
        }


class ReplaceTrigger(EndedWithItsTask):
    """Fires with the ``result``; with ``late`` or ``lost``, which another try may mend, or with a ``mistake``.

    ``errand`` has the fields of an ``Errand``, ``since`` is when the work began, in whichever try, and ``deadline``
    when its time is over, in seconds since 1970.
    """

    def __init__(
        self,
        slurm_conn_id: str,
        errand: dict[str, Any],
        since: str,
        deadline: float,
        poll_interval: float,
        made: float | None = None,
    ) -> None:
        super().__init__(made)
        self.slurm_conn_id = slurm_conn_id
        self.errand = errand
        self.since = since
        self.deadline = deadline
        self.poll_interval = poll_interval
        self._rounds: Rounds | None = None
        self._fate = ". Nothing has been done"

    async def event(self) -> dict[str, Any]:
        rounds = self._rounds = Rounds(Errand.read(self.errand), datetime.fromisoformat(self.since), self.log)
        try:
            async with timeout(max(0.0, self.deadline - time.time())):
                return {"result": await self._travel(rounds)}
        except asyncio.TimeoutError:
            event = {"late": rounds.place}
        except NodesLost as error:
            event = {"lost": str(error)}
        except FAILURES as error:
            event = {"mistake" if is_final(error) else "lost": str(error)}
        await self.cancel()
        return {kind: said + self.fate for kind, said in event.items()}

    async def _travel(self, rounds: Rounds) -> dict[str, Any]:
        return await stepped(
            lambda: slurm_client(self.slurm_conn_id),
            lambda client: rounds.step(self.slurm_conn_id, client, self.poll_interval / 2),
            self.poll_interval,
            self.log,
        )

    async def cancel(self) -> None:
        """Nodes that are only drained yet are undrained: Soperator would replace them when nobody waits any more."""
        if self._rounds is None:
            return
        try:
            async with timeout(_UNDOING):
                self._fate = f". {await self._undo(self._rounds)}".rstrip(". ")
        except (*FAILURES, asyncio.TimeoutError) as error:
            self._fate = f". What was drained stays so, as the cluster cannot be asked: {error}"

    async def _undo(self, rounds: Rounds) -> str:
        async with slurm_client(self.slurm_conn_id) as client:
            return await rounds.undo(client)

    @property
    def fate(self) -> str:
        """What has become of the nodes."""
        return self._fate
