"""The loop of Soperator's check controllers, apart from the steps of the world: it waits for Slurm's answers."""

from __future__ import annotations

import asyncio
import logging

from sandbox.cloud.check_runs import CheckRuns
from sandbox.cloud.node_checks import NodeChecks

_log = logging.getLogger(__name__)


class Checks:
    """Looks again and again, some time after the last look."""

    def __init__(self, nodes: NodeChecks, runs: CheckRuns, interval: float, *, on: bool) -> None:
        self._nodes, self.runs, self._interval = nodes, runs, interval
        #: False: drained nodes and conditions of Nodes are left to others. Checks can be run all the same.
        self.on = on

    async def run(self) -> None:
        last = ""
        # The checks of a new sandbox can be run at once; its nodes are looked at when Slurm answers.
        skip_nodes = True
        while True:
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
            await asyncio.sleep(self._interval)
