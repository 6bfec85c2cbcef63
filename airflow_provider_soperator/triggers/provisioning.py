"""Waits until a cluster that was made, or changed, is there, and tries it; in the triggerer or in the worker."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from async_timeout import timeout

from airflow_provider_soperator.client.client import AsyncSlurmClient
from airflow_provider_soperator.errors import ConnectionMistake
from airflow_provider_soperator.hooks.sides import Sides, Where
from airflow_provider_soperator.slurm.errors import SlurmError
from airflow_provider_soperator.slurm.job_description import InvalidJob
from airflow_provider_soperator.slurm.requests import ListNodes
from airflow_provider_soperator.soperator.readiness import Readiness
from airflow_provider_soperator.transports.transport_errors import TransportError
from airflow_provider_soperator.triggers.clusters import look
from airflow_provider_soperator.triggers.killed import EndedWithItsTask
from airflow_provider_soperator.triggers.rounds import FAILURES, is_final, rounds, rounds_with, slurm_client
from airflow_provider_soperator.triggers.smoke import SmokeFailed, SmokeTest

#: Seconds for which something may look as if it would not mend while a cluster comes up.
_FALSE_ALARM = 60.0


class ClusterMadeTrigger(EndedWithItsTask):
    """Fires with the ``result``, or with how it went wrong: ``late``, ``lost`` (another try may help), ``mistake``.

    Without ``kubernetes_conn_id`` the objects are not looked at, without ``slurm_conn_id`` neither are Slurm's nodes,
    and no job is run. ``smoke`` has the fields of that, ``keys`` those of all tries by node set.
    """

    def __init__(
        self,
        kubernetes_conn_id: str | None,
        namespace: str,
        cluster: str,
        nodesets: Sequence[str],
        slurm_conn_id: str | None,
        smoke: dict[str, Any] | None,
        keys: Mapping[str, Sequence[str]],
        since: str | None,
        deadline: float,
        poll_interval: float,
        made: float | None = None,
    ) -> None:
        super().__init__(made)
        self.kubernetes_conn_id = kubernetes_conn_id
        self.namespace = namespace
        self.cluster = cluster
        self.nodesets = list(nodesets)
        self.slurm_conn_id = slurm_conn_id
        self.smoke = smoke
        self.keys = {name: list(keys) for name, keys in keys.items()}
        self.since = since
        self.deadline = deadline
        self.poll_interval = poll_interval
        self._place = "nobody has answered yet"
        self._broken_since: float | None = None
        self._test: SmokeTest | None = None

    async def event(self) -> dict[str, Any]:
        """What the task goes on with."""
        try:
            async with timeout(max(0.0, self.deadline - time.time())):
                return {"result": await self._result()}
        except asyncio.TimeoutError:
            await self.cancel()
            return {"late": self._place}
        except (ConnectionMistake, InvalidJob, _Broken) as error:
            return {"mistake": str(error)}
        except (SlurmError, TransportError, SmokeFailed) as error:
            await self.cancel()
            return {"lost": str(error)}

    async def cancel(self) -> None:
        """The cluster stays as it is; jobs that try it do not."""
        if not self._test or not self._test.runs or not self.slurm_conn_id:
            return
        try:
            # The client that submitted them was given back with the end of the waiting.
            async with slurm_client(self.slurm_conn_id) as client:
                await self._test.cancel(client)
        except FAILURES as error:
            self.log.warning("Jobs that try the cluster may be in its queue yet, as they could not be ended: %s", error)

    @property
    def fate(self) -> str:
        """What becomes of the cluster of a task that was killed."""
        return f"; the cluster stays, and comes up by itself. Last seen: {self._place}"

    async def _result(self) -> dict[str, Any]:
        if self.kubernetes_conn_id:
            await self._objects_ready(self.kubernetes_conn_id)
        tried: dict[str, str] = {}
        if self.slurm_conn_id and self.smoke is not None:
            tried = await self._try(self.slurm_conn_id, self.smoke)
        return {"seconds": round(time.time() - self.made, 1), "tried": tried}

    async def _objects_ready(self, kubernetes_conn_id: str) -> None:
        where = Where(kubernetes_conn_id, self.namespace, self.cluster, self.slurm_conn_id)

        async def ask(sides: Sides) -> Readiness:
            # Flux looks every few minutes only whether there are NodeSets to be made.
            return (await look(sides, self.nodesets, self.poll_interval / 2, may_come=True))[1]

        # The cluster, and even the kinds of its objects, may be some minutes away.
        async for found in rounds_with(where.open, ask, self.poll_interval, self.log, must_work=False):
            self._tell(found)
            if found.is_ready:
                return

    def _tell(self, found: Readiness) -> None:
        if str(found) != self._place:
            self._place = str(found)
            self.log.info("The cluster is %s", "ready" if found.is_ready else f"not ready yet: {found}")
        if not found.broken:
            self._broken_since = None
            return
        self._broken_since = self._broken_since or time.monotonic()
        if time.monotonic() - self._broken_since > _FALSE_ALARM:
            raise _Broken(f"the cluster is there, and does not come up by itself: {'; '.join(found.broken)}")

    async def _try(self, slurm_conn_id: str, smoke: dict[str, Any]) -> dict[str, str]:
        since = datetime.fromisoformat(self.since) if self.since else None
        test = self._test = SmokeTest(smoke, self.keys, since, self.log)

        async def run(client: AsyncSlurmClient) -> dict[str, str] | SlurmError:
            self._place = "ready, and being tried by jobs"
            nodes = await client.ask(ListNodes())
            try:
                return await test.run(client, nodes)
            except SlurmError as error:
                # A job that Slurm does not want, it will not want in the next round either.
                if not is_final(error):
                    raise
                return error

        # Asked again, it finds the jobs that it has submitted.
        async for tried in rounds(slurm_conn_id, run, self.poll_interval, self.log, must_work=False):
            if isinstance(tried, SlurmError):
                raise tried
            return tried
        raise AssertionError("rounds have no end")


class _Broken(Exception):
    """Waiting does not help."""
