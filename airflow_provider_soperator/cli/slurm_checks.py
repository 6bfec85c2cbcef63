"""What the doctor looks at in Slurm: the way there, rights, partitions, a submission, files and Python."""

from __future__ import annotations

import asyncio
import re
import sys
from argparse import Namespace
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_provider_soperator.cli.verdicts import Verdict, judged
from airflow_provider_soperator.client.client import AsyncSlurmClient
from airflow_provider_soperator.client.pace import RetryPolicy
from airflow_provider_soperator.errors import name_remedy
from airflow_provider_soperator.hooks.check import NO_FILES, clock, if_supported, rights_of
from airflow_provider_soperator.hooks.slurm import Settings, open_transport
from airflow_provider_soperator.slurm.cluster_records import ClusterConfig, Node, Partition
from airflow_provider_soperator.slurm.errors import AccountingDisabled, ControllerUnreachable
from airflow_provider_soperator.slurm.files import FileRequest, JobFolder
from airflow_provider_soperator.slurm.hostlist import expand
from airflow_provider_soperator.slurm.node_conditions import WORDS
from airflow_provider_soperator.slurm.requests import (
    Command,
    CommandOutput,
    ListNodes,
    ListPartitions,
    Ping,
    ShowConfig,
    ShowRights,
    WhoAmI,
)
from airflow_provider_soperator.slurm.requests.commands import Order, run_steps_async
from airflow_provider_soperator.slurm.sbatch_arguments import by_bash
from airflow_provider_soperator.slurm.states import NodeBase, NodeFlag
from airflow_provider_soperator.transports.transport_errors import NotSupported

#: The oldest Slurm that this is tested with, and the oldest Python that can run a function.
_OLDEST_SLURM, _OLDEST_PYTHON = (24, 11), (3, 8)


async def slurm_checks(settings: Settings, wanted: Namespace) -> list[Verdict]:
    """All about Slurm behind a connection, as far as it can be reached, for jobs that ask for what is ``wanted``."""
    client = AsyncSlurmClient(open_transport(settings), RetryPolicy(tries=1))
    try:
        found = await judged("slurmctld", _controllers(client))
        is_silent = found[-1].state == "wrong"
        if is_silent and not any(words in found[-1].said for words in ("slurmctld", "no answer")):
            # All else is behind the same.
            return found
        checks = {} if is_silent else {"slurm": _settings(client, settings)}
        checks["accounting"] = _accounting(client, wanted)
        if not is_silent:
            checks |= {"gpus": _gpus(client), "partitions": _partitions(client, wanted)}
            checks["submission"] = _submission(client, wanted)
        checks["files"] = _files(client, wanted)
        made = await asyncio.gather(*(judged(subject, one) for subject, one in checks.items()))
        return [*found, *(verdict for of_subject in made for verdict in of_subject)]
    finally:
        await client.close()


async def _controllers(client: AsyncSlurmClient) -> AsyncIterator[Verdict]:
    for one in await client.ask(Ping()):
        if one.is_up:
            yield Verdict("slurmctld", f"{one.host} answers ({one.role})")
        else:
            yield Verdict("slurmctld", f"{one.host} is down ({one.role})", "start it: another one has its work", "note")


async def _settings(client: AsyncSlurmClient, settings: Settings) -> AsyncIterator[Verdict]:
    config: ClusterConfig | None = await run_steps_async(if_supported(ShowConfig()), client.ask)
    user = await client.ask(WhoAmI())
    slurm = f"Slurm {config.version}, cluster {config.cluster}" if config else "Slurm answers"
    yield Verdict("slurm", f"{slurm}, over {settings.transport} as {user}")
    if config and config.release < _OLDEST_SLURM:
        yield Verdict("slurm", f"Slurm {config.version} is older than what this was tested with", "upgrade it", "note")
    await run_steps_async(clock(), client.ask)
    yield Verdict("clock", "the clocks agree")


async def _accounting(client: AsyncSlurmClient, wanted: Namespace) -> AsyncIterator[Verdict]:
    user = await client.ask(WhoAmI())
    try:
        rights = await client.ask(ShowRights(user))
    except AccountingDisabled as error:
        yield Verdict("accounting", "the cluster keeps no accounting", error.remedy, "note")
        return
    yield Verdict("accounting", f"slurmdbd answers; accounts of {user}: {', '.join(rights.accounts) or 'none'}")
    config, is_silent = None, False
    try:
        config = await run_steps_async(if_supported(ShowConfig()), client.ask)
    except ControllerUnreachable:
        is_silent = True
    asked = (("account", "associations", wanted.account, rights.accounts), ("QOS", "qos", wanted.qos, rights.qos))
    for what, rule, name, known in asked:
        if name and name not in known:
            said, is_enforced = f"{user} may not use the {what} {name}", config is None or config.enforces(rule)
            if not is_enforced:
                said += ", which Slurm does not enforce" + ": jobs count for the default account" * (what == "account")
            add = f"`sacctmgr add user {user} account={name}`" if what == "account" else _ADD_QOS.format(user, name)
            remedy = f"{name_remedy(name, known)}; {add} gives it to the user"
            yield Verdict("accounting", said, remedy, "wrong" if is_enforced else "note")
    if is_silent:
        return
    said, _, remedy = (await run_steps_async(rights_of(user, config), client.ask)).partition(", for which ")
    yield Verdict("rights", said, remedy, "note" if remedy else "ok")


async def _gpus(client: AsyncSlurmClient) -> AsyncIterator[Verdict]:
    config: ClusterConfig | None = await run_steps_async(if_supported(ShowConfig()), client.ask)
    if config and not config.counts_gpus and any(node.gpus for node in await client.ask(ListNodes())):
        said = "Slurm does not count the GPUs of jobs: figures, statistics, the page and a QueueLoad have none"
        remedy = "add gres/gpu to AccountingStorageTRES in slurm.conf, and restart slurmctld"
        if not config.has_accounting:
            remedy = f"enable accounting first, as slurmctld does not start with gres/gpu without it; {remedy}"
        yield Verdict("accounting", said, remedy, "note")


_ADD_QOS = "`sacctmgr modify user {} set qos+={}`"


async def _partitions(client: AsyncSlurmClient, wanted: Namespace) -> AsyncIterator[Verdict]:
    partitions, nodes = await asyncio.gather(client.ask(ListPartitions()), client.ask(ListNodes()))
    names = [one.name for one in partitions]
    if wanted.partition and wanted.partition not in names:
        said = f"there is no partition {wanted.partition}"
        yield Verdict("partitions", said, name_remedy(wanted.partition, names), "wrong")
    chosen = [one for one in partitions if (one.name == wanted.partition if wanted.partition else one.is_default)]
    if not wanted.partition and not chosen:
        remedy = f"name one in each task (partition=): {', '.join(names)}"
        yield Verdict("partitions", "the cluster has no default partition", remedy, "note")
    for one in chosen:
        yield _partition(one, nodes)


def _partition(partition: Partition, nodes: Sequence[Node]) -> Verdict:
    if partition.state != "UP":
        remedy = f"`scontrol update PartitionName={partition.name} State=UP`"
        return Verdict("partitions", f"partition {partition.name} is {partition.state}", remedy, "wrong")
    its = {*expand(partition.nodelist)}
    its_nodes = [node for node in nodes if node.name in its]
    bad = [node for node in its_nodes if not _takes_jobs(node)]
    if its_nodes and len(bad) < len(its_nodes):
        said = f"{len(its_nodes) - len(bad)} of {len(its_nodes)} nodes of {partition.name} can take jobs"
        return Verdict("partitions", said)
    why = "; ".join(sorted({node.reason or str(node.state) for node in bad})) or "there are none"
    said = f"none of the {len(its_nodes)} nodes of {partition.name} can take a job ({why})"
    undo = "`scontrol update NodeName=NODE State=RESUME` undoes it"
    return Verdict("partitions", said, f"`airflow soperator nodes` tells who has drained them; {undo}", "wrong")


def _takes_jobs(node: Node) -> bool:
    """True if Slurm starts jobs on the node, now, after those on it, or once it is up."""
    # UNKNOWN is a node that has not registered since slurmctld started, and FUTURE one that is not there yet.
    is_alive = node.state.base in (NodeBase.IDLE, NodeBase.ALLOCATED, NodeBase.MIXED)
    # Neither does a job power up such a node that is off.
    is_out = node.state.has(NodeFlag.DRAIN, NodeFlag.FAIL, NodeFlag.INVALID_REG)
    return is_alive and not is_out and (node.is_off or not WORDS["not responding"](node))


@dataclass(frozen=True)
class TrialSubmission(Order):
    """Ask whether Slurm would take a job, and submit none."""

    options: tuple[str, ...]

    def command(self) -> Command:
        return Command(("sbatch", "--test-only", "--time=1", *self.options, "--wrap=true"))


async def _submission(client: AsyncSlurmClient, wanted: Namespace) -> AsyncIterator[Verdict]:
    options = (f"--{name}={value}" for name in ("partition", "account", "qos") if (value := getattr(wanted, name)))
    try:
        await client.ask(TrialSubmission(tuple(options)))
    except NotSupported:
        return
    yield Verdict("submission", "Slurm would take a job")


#: Writes to the folders in which jobs write, as their first lines could fail for it, and asks Python who it is.
_PROBE = """\
printf 'user=%s\\n' "$(id -un 2>/dev/null || id -u)"
for folder in "$1" "$1/airflow" "$1/.airflow-soperator"; do
    [ -e "$folder" ] || [ "$folder" = "$1" ] || continue
    if said=$(mktemp "$folder/.airflow-doctor.XXXXXX" 2>&1); then
        made=$said said=
        { head -c 65536 /dev/zero >"$made"; } 2>/dev/null || said="$folder: No space left on device"
        rm -f "$made"
    fi
    printf 'folder=%s\\nsaid=%s\\n' "$folder" "${said##*: failed to create }"
done
who='import sys; print("%d.%d %s" % (sys.version_info[:2] + (sys.executable,)))'
printf 'python=%s\\n' "$("$2" -c "$who" 2>&1 | tail -n1)"
"""


@dataclass(frozen=True)
class ProbeFolder(FileRequest[dict[str, Any]]):
    """Ask whether jobs can write where they run, and which Python is there."""

    doing = "writing a file"
    folder: str
    python: str

    def command(self) -> Command:
        return Command(by_bash(_PROBE, "probe", self.folder, self.python))

    def read(self, answer: CommandOutput) -> dict[str, Any]:
        lines = self.check(answer).text.splitlines()
        told = re.findall(r"^folder=(.*)\nsaid=(.*)$", "\n".join(lines), re.MULTILINE)
        user, python = lines[0].removeprefix("user="), lines[-1].removeprefix("python=")
        return {"user": user, "folders": dict(told), "python": python}


async def _files(client: AsyncSlurmClient, wanted: Namespace) -> AsyncIterator[Verdict]:
    try:
        folder = await client.ask(JobFolder()) / wanted.folder
        probe = await client.ask(ProbeFolder(str(folder), wanted.python or "python3"))
    except NotSupported:
        said, _, remedy = NO_FILES.partition(": ")
        yield Verdict("files", said, remedy, "note")
        return
    user = await run_steps_async(if_supported(WhoAmI()), client.ask) or probe["user"]
    if user != probe["user"]:
        said = f"files are written as {probe['user']}, and jobs run as {user}"
        yield Verdict("files", said, "have both be one user, or see that each can use the files of the other", "note")
    for folder, said in probe["folders"].items():
        if said:
            yield _folder(folder, said)
        elif user == probe["user"]:
            yield Verdict("files", f"jobs can write to {folder}")
    yield _python(wanted.python or "python3", probe["python"])


def _folder(folder: str, said: str) -> Verdict:
    if "space" in said or "quota" in said:
        remedy = f"free space there (`df -h {folder}`), or raise the quota"
    elif "denied" in said:
        remedy = f"`chown` it to the user of the connection (`ls -ld {folder}`), or have jobs run elsewhere (chdir=)"
    else:
        remedy = "create it on the root that all nodes share, or have jobs run elsewhere (chdir=)"
    return Verdict("files", f"jobs cannot write to {folder} ({said})", remedy, "wrong")


def _python(name: str, said: str) -> Verdict:
    here = sys.version_info[:2]
    found = re.fullmatch(r"(\d+)\.(\d+) (.*)", said)
    ours = f"python{here[0]}.{here[1]}"
    if not found:
        remedy = f"install {ours} on the root of all nodes, or name another one in @task.sbatch (python=, venv=)"
        return Verdict("python", f"there is no Python {name} on the cluster ({said})", remedy, "wrong")
    there, path = (int(found[1]), int(found[2])), found[3]
    told = f"Python {there[0]}.{there[1]} ({path})"
    if there < _OLDEST_PYTHON:
        remedy = f"@task.sbatch needs 3.8 or newer: name another one (python=, venv=), best {ours}"
        return Verdict("python", f"{told} is too old", remedy, "wrong")
    if there != here:
        remedy = f"functions go there as source, which some cannot: name {ours} in @task.sbatch (python=, venv=)"
        return Verdict("python", f"{told} differs from Airflow's {here[0]}.{here[1]}", remedy, "note")
    return Verdict("python", f"{told}, as Airflow's")
