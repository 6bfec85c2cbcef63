"""Requests about Slurm itself: its settings, daemons and clock, and a token for slurmrestd."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from airflow_provider_soperator.slurm import hostlist, notations
from airflow_provider_soperator.slurm.cluster_records import ClusterConfig, Controller
from airflow_provider_soperator.slurm.errors import ControllerUnreachable, UnreadableAnswer
from airflow_provider_soperator.slurm.requests import commands
from airflow_provider_soperator.slurm.requests.commands import Command, CommandOutput, Request

_SETTING = re.compile(r"(\w+)\s*= ?(.*)")
_SECONDS = re.compile(r"(\d+)(?: sec)?")
_CONTROLLER = re.compile(r"Slurmctld\((\w+)\) at (\S+) is (\w+)")
_TOKEN = re.compile(r"SLURM_JWT=(\S+)")
_STAMP = re.compile(r"^sdiag output at.*\((\d+)\)", re.MULTILINE)


@dataclass(frozen=True)
class ShowConfig(Request[ClusterConfig]):
    """Get the settings of the cluster."""

    def command(self) -> Command:
        return Command(("scontrol", "show", "config"))

    def read(self, answer: CommandOutput) -> ClusterConfig:
        said: dict[str, str] = {}
        for line in self.check(answer).text.splitlines():
            # Plugins' own settings come after slurm.conf's, and may have the same names.
            if found := _SETTING.fullmatch(line.rstrip()):
                said.setdefault(found[1], found[2])
        if "SLURM_VERSION" not in said:
            raise UnreadableAnswer("no SLURM_VERSION among the settings", "scontrol")
        return read_config(said["SLURM_VERSION"], said)


def read_config(version: str, said: Mapping[str, str]) -> ClusterConfig:
    return ClusterConfig(
        version=version,
        cluster=said.get("ClusterName", ""),
        min_job_age=_seconds(said, "MinJobAge") or ClusterConfig.min_job_age,
        suspend_time=_seconds(said, "SuspendTime"),
        suspend_exc_nodes=notations.clean(said.get("SuspendExcNodes", "")),
        accounting_storage=notations.clean(said.get("AccountingStorageType", "")),
        slurm_user=said.get("SlurmUser", "").partition("(")[0],
        slurmctld_parameters=notations.listed(said.get("SlurmctldParameters", "")),
        settings=said,
    )


def _seconds(said: Mapping[str, str], name: str) -> timedelta | None:
    found = _SECONDS.fullmatch(said.get(name, ""))
    return timedelta(seconds=int(found[1])) if found else None


@dataclass(frozen=True)
class Ping(Request[tuple[Controller, ...]]):
    """Ping each slurmctld. ``ControllerUnreachable`` if none answers."""

    def command(self) -> Command:
        return Command(("scontrol", "ping"))

    def read(self, answer: CommandOutput) -> tuple[Controller, ...]:
        found = tuple(
            Controller(host=host, role=role, is_up=state == "UP")
            for role, host, state in _CONTROLLER.findall(answer.text)
        )
        if not found:
            self.check(answer)
            raise UnreadableAnswer(f"expected a controller, got {answer.text[:200]!r}", "scontrol")
        if not any(controller.is_up for controller in found):
            said = ", ".join(f"slurmctld at {controller.host} is down" for controller in found)
            raise ControllerUnreachable(said, "scontrol")
        return found


@dataclass(frozen=True)
class WhoAmI(Request[str]):
    """Get the user of the connection on the cluster."""

    def command(self) -> Command:
        return Command(("id", "-un"))

    def read(self, answer: CommandOutput) -> str:
        return self.check(answer).text.strip()


@dataclass(frozen=True)
class ReadClock(Request[datetime | None]):
    """Get the time of slurmctld's clock, in whole seconds."""

    def command(self) -> Command:
        return Command(("sdiag",))

    def read(self, answer: CommandOutput) -> datetime | None:
        stamp = _STAMP.search(self.check(answer).text)
        return notations.parse_time(stamp[1]) if stamp else None


@dataclass(frozen=True)
class ShowTopology(Request[dict[str, str]]):
    """Get the block or leaf switch of each node, by the nodes' names; empty without a topology."""

    def command(self) -> Command:
        return Command(("scontrol", "--oneliner", "show", "topology"))

    def read(self, answer: CommandOutput) -> dict[str, str]:
        lines = self.check(answer).text.splitlines()
        said = [dict(word.partition("=")[::2] for word in line.split()) for line in lines]
        return {
            node: name
            for fields in said
            # Switches above the leaves, and aggregated blocks, list all nodes below them.
            if (name := fields.get("BlockName") or fields.get("SwitchName")) and fields.get("Level", "0") == "0"
            for node in hostlist.expand(fields.get("Nodes", ""))
        }


@dataclass(frozen=True)
class MintToken(Request[str]):
    """Create a JWT for slurmrestd; only root and SlurmUser can create one for another user."""

    lifespan: timedelta
    user: str = ""

    def command(self) -> Command:
        user = [f"username={commands.plain_word('a user', self.user)}"] if self.user else []
        return Command(("scontrol", "token", f"lifespan={int(self.lifespan.total_seconds())}", *user))

    def read(self, answer: CommandOutput) -> str:
        found = _TOKEN.search(self.check(answer).text)
        if not found:
            raise UnreadableAnswer("no token in the answer", "scontrol")
        return found[1]
