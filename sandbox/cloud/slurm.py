"""The sandbox's Slurm as the cloud reaches it: commands in the root, and slurm.conf kept in step with the NodeSets."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

from sandbox import config
from sandbox.settings import ENVIRONMENT, Settings

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Said:
    """What a command answered."""

    status: int
    out: str
    err: str


class Slurm:
    """Runs Slurm's commands as root inside the sandbox's root, from this process' own namespaces."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._root = settings.paths.root
        self._rendered: dict[str, int] | None = None

    async def run(self, *argv: str, timeout: float = 30) -> Said:
        process = await asyncio.create_subprocess_exec(
            "chroot",
            str(self._root),
            *argv,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=ENVIRONMENT,
        )
        try:
            out, err = await asyncio.wait_for(process.communicate(), timeout)
        except BaseException:
            process.kill()
            await process.wait()
            raise
        return Said(process.returncode or 0, out.decode(errors="replace"), err.decode(errors="replace"))

    async def wait_controller(self) -> None:
        while (await self.run("scontrol", "ping")).status:
            await asyncio.sleep(0.2)

    async def render(self, replicas: dict[str, int]) -> None:
        """Write slurm.conf for these replicas and have it read, unless that is what it says already."""
        if self._rendered is None:
            # What was written before the sandbox came up is what its options ask for.
            self._rendered = {shape.name: shape.replicas for shape in config.shapes(self._settings)}
        wanted = {name: count for name, count in replicas.items() if count}
        if wanted == self._rendered:
            return
        self._rendered = wanted
        shapes = config.shapes(self._settings, replicas)
        for path, content in config.slurm_files(self._settings, shapes).items():
            (self._root / path).write_text(content)
        said = await self.run("scontrol", "reconfigure")
        _log.info("reconfigured for %s: %s", wanted, (said.out + said.err).strip() or "done")
