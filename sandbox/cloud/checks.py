"""The loop of Soperator's check controllers, apart from the steps of the world: it waits for Slurm's answers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from sandbox.cloud.check_runs import CheckRuns
from sandbox.cloud.node_checks import NodeChecks
from sandbox.cloud.slurm import SlurmNode
from sandbox.kube.store import ObjectStore

_log = logging.getLogger(__name__)


class Checks:
    """Looks again and again, some time after the last look, and less often while nothing changes."""

    def __init__(self, store: ObjectStore, nodes: NodeChecks, runs: CheckRuns, interval: float, *, on: bool) -> None:
        self._store, self._nodes, self.runs, self._interval = store, nodes, runs, interval
        #: False: drained nodes and conditions of Nodes are left to others. Checks can be run all the same.
        self.on = on

    async def run(self) -> None:
        last, pause = "", self._interval
        # The checks of a new sandbox can be run at once; its nodes are looked at when Slurm answers.
        skip_nodes = True
        while True:
            before = self._seen()
            try:
                if self.on and not skip_nodes:
                    await self._nodes.look()
                await self.runs.look()
                last = ""
            except Exception as error:
                # A daemon may be down, or an object gone since it was looked at: the next look may be better.
                if str(error) != last:
                    _log.exception("this look could not be finished")
                last = str(error)
            skip_nodes = False
            # Each look at the nodes is a command.
            pause = min(1.5 * pause, 3 * self._interval) if self._seen() == before else self._interval
            await asyncio.sleep(pause)

    def _seen(self) -> tuple[int, Mapping[str, SlurmNode]]:
        return self._store.resource_version, self._nodes.seen
