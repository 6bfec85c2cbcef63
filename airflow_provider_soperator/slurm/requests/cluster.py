"""Requests about Slurm itself: its settings, daemons and load, and a token for slurmrestd."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta

from airflow_provider_soperator.slurm import hostlist
from airflow_provider_soperator.slurm.cluster_records import ClusterConfig, Controller, RpcCount, SchedulerStats
from airflow_provider_soperator.slurm.errors import ControllerUnreachable, UnreadableAnswer
from airflow_provider_soperator.slurm.notations import parse_time
from airflow_provider_soperator.slurm.requests.commands import (
    Command,
    CommandOutput,
    Request,
    clean,
    listed,
    plain_word,
)

_SETTING = re.compile(r"(\w+)\s*= ?(.*)")
_SECONDS = re.compile(r"(\d+)(?: sec)?")
_CONTROLLER = re.compile(r"Slurmctld\((\w+)\) at (\S+) is (\w+)")
_TOKEN = re.compile(r"SLURM_JWT=(\S+)")
_STAMP = re.compile(r"\((\d+)\)")
_RPC = re.compile(r"\s+(\S+)\s+\(\s*\d+\)\s+count:(\d+)\s+ave_time:\d+\s+total_time:(\d+)")


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
        return ClusterConfig(
            version=said["SLURM_VERSION"],
            cluster=said.get("ClusterName", ""),
            min_job_age=_seconds(said, "MinJobAge") or ClusterConfig.min_job_age,
            suspend_time=_seconds(said, "SuspendTime"),
            suspend_exc_nodes=clean(said.get("SuspendExcNodes", "")),
            accounting_storage=clean(said.get("AccountingStorageType", "")),
            slurm_user=said.get("SlurmUser", "").partition("(")[0],
            slurmctld_parameters=listed(said.get("SlurmctldParameters", "")),
            settings=said,
        )


def _seconds(said: dict[str, str], name: str) -> timedelta | None:
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
class SchedulerDiagnostics(Request[SchedulerStats]):
    """Get the statistics of slurmctld."""

    def command(self) -> Command:
        return Command(("sdiag",))

    def read(self, answer: CommandOutput) -> SchedulerStats:
        said: dict[str, str] = {}
        rpcs: dict[str, list[RpcCount]] = {"type": [], "user": []}
        stamps: list[str] = []
        section = ""
        for line in self.check(answer).text.splitlines():
            if line.startswith("Remote Procedure Call statistics by "):
                section = line.split()[5]
            elif found := _RPC.match(line):
                if section == "message" or section == "user":
                    kind = "user" if section == "user" else "type"
                    total = timedelta(microseconds=int(found[3]))
                    rpcs[kind].append(RpcCount(found[1], int(found[2]), total))
            elif line.startswith(("sdiag output at", "Data since")) and (stamp := _STAMP.search(line)):
                stamps.append(stamp[1])
            elif ":" in line and not line.startswith((" ", "\t")):
                name, _, value = line.partition(":")
                said.setdefault(name.strip(), value.strip())
            elif line.strip():
                section = ""

        def count(name: str) -> int:
            return int(said.get(name, "0"))

        return SchedulerStats(
            at=parse_time(stamps[0]) if stamps else None,
            since=parse_time(stamps[1]) if len(stamps) > 1 else None,
            server_threads=count("Server thread count"),
            agent_queue=count("Agent queue size"),
            dbd_agent_queue=count("DBD Agent queue size"),
            jobs_pending=count("Jobs pending"),
            jobs_running=count("Jobs running"),
            rpcs=tuple(rpcs["type"]),
            rpcs_by_user=tuple(rpcs["user"]),
        )


@dataclass(frozen=True)
class ShowTopology(Request[dict[str, str]]):
    """Get the block or leaf switch of each node, by the nodes' names; empty without a topology."""

    def command(self) -> Command:
        return Command(("scontrol", "--oneliner", "show", "topology"))

    def read(self, answer: CommandOutput) -> dict[str, str]:
        lines = self.check(answer).text.splitlines()
        said = [dict(word.partition("=")[::2] for word in line.split()) for line in lines]
        # Switches above the leaves list all nodes below them.
        leaves = [fields for fields in said if fields.get("Level", "0") == "0" and fields.get("Nodes")]
        return {
            node: fields.get("BlockName") or fields.get("SwitchName", "")
            for fields in leaves
            for node in hostlist.expand(fields["Nodes"])
        }


@dataclass(frozen=True)
class MintToken(Request[str]):
    """Create a JWT for slurmrestd; only root and SlurmUser can create one for another user.

    >>> MintToken(timedelta(hours=1)).command().argv
    ('scontrol', 'token', 'lifespan=3600')
    """

    lifespan: timedelta
    user: str = ""

    def command(self) -> Command:
        user = [f"username={plain_word('a user', self.user)}"] if self.user else []
        return Command(("scontrol", "token", f"lifespan={int(self.lifespan.total_seconds())}", *user))

    def read(self, answer: CommandOutput) -> str:
        found = _TOKEN.search(self.check(answer).text)
        if not found:
            raise UnreadableAnswer("no token in the answer", "scontrol")
        return found[1]
