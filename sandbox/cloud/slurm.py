"""The sandbox's Slurm as the cloud reaches it: commands in the root, and its files kept in step with the objects."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from async_timeout import timeout as time_limit

from sandbox import config
from sandbox.files import replace_text
from sandbox.settings import ENVIRONMENT, Settings

#: Seconds after which a configuration that could not be read is tried again.
_BETWEEN_TRIES = 3.0

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
        self._written: dict[str, str] = {}
        #: Whether slurmctld has what is in the files; at the start it does, as it reads them then.
        self._is_read = True
        self._read_again = 0.0

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

    async def configure(self, files: dict[str, str], running: set[str]) -> None:
        """Write what has changed, and have it read: through slurmrestd, and so not at all while none runs."""
        if not self._written:
            there = {path: self._root / path for path in files}
            self._written = {path: file.read_text() for path, file in there.items() if file.exists()}
        # What others have edited stays until there is a change, which rewrites all.
        if files != self._written:
            for path, content in files.items():
                # As a whole, as Soperator does: commands read it when they begin.
                replace_text(self._root / path, content)
            self._written, self._is_read, self._read_again = files, False, 0.0
        if "slurmctld" not in running:
            # It reads them when it starts.
            self._is_read = True
        if self._is_read or "slurmrestd" not in running or time.monotonic() < self._read_again:
            return
        said = await self.run("scontrol", "reconfigure")
        answer = (said.out + said.err).strip()
        _log.info("reconfigured: %s", answer or "done")
        self._is_read = not said.status
        self._read_again = time.monotonic() + _BETWEEN_TRIES if said.status else 0.0
