"""The sandbox's Slurm as the cloud reaches it: commands in the root, and slurm.conf kept in step with the NodeSets."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from async_timeout import timeout as time_limit

from sandbox import config
from sandbox.files import replace_text
from sandbox.settings import ENVIRONMENT, Settings

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Said:
    """What a command answered."""

    status: int
    out: str
    err: str


@dataclass(frozen=True)
class SlurmNode:
    """A node as slurmctld has it."""

    name: str
    state: frozenset[str]
    reason: str
    #: When the reason was given, in seconds since the epoch.
    reason_since: int
    comment: str
    gpus: int

    @classmethod
    def read(cls, shown: dict[str, Any]) -> SlurmNode:
        found = re.search(r"gpu:(?:[^:,(]+:)?(\d+)", shown["gres"])
        return cls(
            shown["name"],
            frozenset(shown["state"]),
            shown["reason"],
            shown["reason_changed_at"]["number"],
            shown["comment"],
            int(found[1]) if found else 0,
        )

    def is_drained_for(self, reason: str) -> bool:
        return "DRAIN" in self.state and self.reason == reason

    @property
    def is_fully_drained(self) -> bool:
        """Nothing runs on it any more, an epilog included."""
        return {"IDLE", "DRAIN"} <= self.state and "COMPLETING" not in self.state


@dataclass(frozen=True)
class AccountedJob:
    """A job as accounting has it, whether it has ended yet or not."""

    id: str
    name: str
    state: str
    reason: str
    #: As Kubernetes writes moments.
    submitted: str
    has_ended: bool
    nodes: str

    @classmethod
    def read(cls, line: str) -> AccountedJob:
        id_, name, state, reason, submitted, end, nodes = line.split("|")
        moment = datetime.fromtimestamp(int(submitted), timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        return cls(id_, name, state.split()[0], reason, moment, end.isdigit(), nodes)


class Slurm:
    """Runs Slurm's commands as root inside the sandbox's root, from this process' own namespaces."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._root = settings.paths.root
        self._rendered: dict[str, int] | None = None

    async def run(self, *argv: str, text: str = "", timeout: float = 30) -> Said:
        """The command's end; it reads ``text``."""
        process = await asyncio.create_subprocess_exec(
            "chroot",
            str(self._root),
            *argv,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=ENVIRONMENT,
        )
        try:
            async with time_limit(timeout):
                out, err = await process.communicate(text.encode())
        except BaseException:
            process.kill()
            await process.wait()
            raise
        return Said(process.returncode or 0, out.decode(errors="replace"), err.decode(errors="replace"))

    async def nodes(self) -> list[SlurmNode]:
        """All nodes; none while slurmctld does not answer."""
        said = await self.run("scontrol", "show", "nodes", "--json")
        return [] if said.status else [SlurmNode.read(shown) for shown in json.loads(said.out)["nodes"]]

    async def accounted(self, ids: list[str]) -> list[AccountedJob]:
        """These jobs, as far as accounting knows of them by now."""
        fields = "--format=JobIDRaw,JobName,State,Reason,Submit,End,NodeList"
        words = ("sacct", "--allocations", "--noheader", "--parsable2", f"--jobs={','.join(ids)}", fields)
        said = await self.run("env", "SLURM_TIME_FORMAT=%s", *words)
        return [AccountedJob.read(line) for line in said.out.splitlines()]

    async def sbatch(self, script: str, *options: str) -> Said:
        """Submit a script, whose output goes where those of checks go."""
        # Only these variables, not the options, may name the node in a pattern.
        output = f"{config.CHECK_OUTPUTS}/%N.%x.%j.out"
        words = ("env", f"SBATCH_OUTPUT={output}", f"SBATCH_ERROR={output}", "sbatch", "--parsable", *options)
        return await self.run(*words, text=script)

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
            # As a whole, as Soperator does: commands read it when they begin.
            replace_text(self._root / path, content)
        said = await self.run("scontrol", "reconfigure")
        _log.info("reconfigured for %s: %s", wanted, (said.out + said.err).strip() or "done")
