"""What the doctor says of partitions, of GPUs that Slurm does not count, and of files."""

from __future__ import annotations

import asyncio
from argparse import Namespace
from pathlib import PurePosixPath
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_soperator.cli import slurm_checks
from airflow_provider_soperator.cli.slurm_checks import ProbeFolder, _accounting, _files, _gpus, _partition
from airflow_provider_soperator.slurm.cluster_records import (
    Association,
    ClusterConfig,
    Controller,
    Node,
    Partition,
    UserRights,
)
from airflow_provider_soperator.slurm.errors import AccountingDisabled
from airflow_provider_soperator.slurm.files import JobFolder
from airflow_provider_soperator.slurm.requests import ListNodes, Ping, ShowConfig, ShowRights, WhoAmI
from airflow_provider_soperator.slurm.states import NodeState


@pytest.mark.parametrize(
    ("state", "verdict"),
    [
        ("IDLE+CLOUD", "ok"),
        ("DOWN+DRAIN", "wrong"),
        # A job powers up the one, and the other is kept off.
        ("IDLE+CLOUD+POWERED_DOWN", "ok"),
        ("IDLE+CLOUD+DRAIN+POWERED_DOWN", "wrong"),
        # Of the one no order is needed, and the other waits for a job.
        ("IDLE+CLOUD+POWERING_UP+NOT_RESPONDING", "ok"),
        ("IDLE+CLOUD+BLOCKED", "ok"),
        ("IDLE+CLOUD+NOT_RESPONDING", "wrong"),
        ("IDLE+CLOUD+FAIL", "wrong"),
        ("MIXED+CLOUD+FAIL", "wrong"),
        ("IDLE+CLOUD+FAIL+POWERED_DOWN", "wrong"),
        # It did not boot in time, and no job powers it up.
        ("DOWN+CLOUD+POWERED_DOWN", "wrong"),
        ("IDLE+CLOUD+INVALID_REG", "wrong"),
        ("UNKNOWN+CLOUD", "wrong"),
        ("FUTURE", "wrong"),
    ],
)
def test_a_partition_is_well_if_one_of_its_nodes_can_take_jobs(state: str, verdict: str) -> None:
    nodes = [Node(name="worker-0", state=NodeState.parse(state), reason="airflow:capacity/b: lent (gpu_shifts)")]
    said = _partition(Partition(name="main", nodelist="worker-0", state="UP"), nodes)
    assert said.state == verdict
    if verdict == "wrong":
        assert "airflow:capacity/b: lent (gpu_shifts)" in said.said


def test_of_a_node_without_a_reason_its_state_is_told() -> None:
    nodes = [Node(name="worker-0", state=NodeState.parse("UNKNOWN+CLOUD"))]
    said = _partition(Partition(name="main", nodelist="worker-0", state="UP"), nodes)
    assert said.said == "none of the 1 nodes of main can take a job (UNKNOWN+CLOUD)"


@pytest.mark.parametrize(
    ("counted", "gres", "notes"),
    [("cpu,mem,node", "gpu:h100:8", 1), ("cpu,mem,node", "", 0), ("cpu,mem,node,gres/gpu", "gpu:h100:8", 0)],
)
def test_gpus_that_slurm_does_not_count_are_noted(counted: str, gres: str, notes: int) -> None:
    def told(storage: str) -> list[str]:
        settings = {"AccountingStorageTRES": counted}
        config = ClusterConfig(version="25.11.3", accounting_storage=storage, settings=settings)

        class Cluster:
            async def ask(self, request: Any) -> Any:
                node = Node(name="worker-0", state=NodeState.parse("IDLE"), gres=gres)
                return config if isinstance(request, ShowConfig) else (node,)

        async def all_of_it() -> list[str]:
            return [f"{one.state}: {one.remedy}" async for one in _gpus(Cluster())]  # type: ignore[arg-type]

        return asyncio.run(all_of_it())

    add = "add gres/gpu to AccountingStorageTRES in slurm.conf, and restart slurmctld"
    assert told("accounting_storage/slurmdbd") == [f"note: {add}"] * notes
    first = "enable accounting first, as slurmctld does not start with gres/gpu without it"
    assert told("") == [f"note: {first}; {add}"] * notes


def test_gpus_that_slurm_does_not_count_are_noted_without_accounting_too(monkeypatch: pytest.MonkeyPatch) -> None:
    class Cluster:
        async def ask(self, request: Any) -> Any:
            if isinstance(request, ShowRights):
                raise AccountingDisabled("Slurm accounting storage is disabled", "sacctmgr")
            answers = {
                Ping: (Controller(host="controller-0", role="primary", is_up=True),),
                ShowConfig: ClusterConfig(version="25.11.3", settings={"AccountingStorageTRES": "cpu,mem,node"}),
                ListNodes: (Node(name="worker-0", state=NodeState.parse("IDLE"), gres="gpu:h100:8"),),
                WhoAmI: "root",
            }
            return answers.get(type(request), ())

        async def close(self) -> None:
            pass

    monkeypatch.setattr(slurm_checks, "AsyncSlurmClient", lambda *how: Cluster())
    monkeypatch.setattr(slurm_checks, "open_transport", lambda settings: None)
    wanted = Namespace(account="", qos="", partition="", folder="", python="")
    found = asyncio.run(slurm_checks.slurm_checks(SimpleNamespace(transport="ssh"), wanted))  # type: ignore[arg-type]
    said = [one.said.partition(":")[0] for one in found if one.subject == "accounting"]
    assert said == ["the cluster keeps no accounting", "Slurm does not count the GPUs of jobs"]


_NOT = ", which Slurm does not enforce"


@pytest.mark.parametrize(
    ("enforced", "told"),
    [
        (None, ["wrong: account physics", "wrong: QOS high"]),
        ("associations,limits,qos", ["wrong: account physics", "wrong: QOS high"]),
        ("associations", ["wrong: account physics", f"note: QOS high{_NOT}"]),
        ("none", [f"note: account physics{_NOT}: jobs count for the default account", f"note: QOS high{_NOT}"]),
    ],
)
def test_rights_that_slurm_does_not_enforce_are_noted(enforced: str | None, told: list[str]) -> None:
    settings = {} if enforced is None else {"AccountingStorageEnforce": enforced}

    class Cluster:
        async def ask(self, request: Any) -> Any:
            rights = UserRights(user="ann", associations=(Association("chemistry", "", ("normal",)),))
            answers = {
                WhoAmI: "ann",
                ShowRights: rights,
                ShowConfig: ClusterConfig(version="25.11.3", settings=settings),
            }
            return answers[type(request)]

    async def said() -> list[str]:
        wanted = Namespace(account="physics", qos="high")
        found = [one async for one in _accounting(Cluster(), wanted)]  # type: ignore[arg-type]
        return [f"{one.state}: {one.said.removeprefix(no)}" for one in found if one.said.startswith(no)]

    no = "ann may not use the "
    assert asyncio.run(said()) == told


@pytest.mark.parametrize(
    ("user", "told"),
    [("bob", "jobs can write to /home/bob/runs"), ("root", "files are written as root, and jobs run as bob")],
)
def test_where_files_are_those_of_another_user_it_is_noted_and_not_that_jobs_can_write(user: str, told: str) -> None:
    class Split:
        async def ask(self, request: Any) -> Any:
            if isinstance(request, ProbeFolder):
                return {"user": user, "folders": {request.folder: ""}, "python": "3.12 /usr/bin/python3"}
            return PurePosixPath("/home/bob") if isinstance(request, JobFolder) else "bob"

    async def said() -> list[str]:
        wanted = Namespace(folder="runs", python="")
        return [one.said async for one in _files(Split(), wanted) if one.subject == "files"]  # type: ignore[arg-type]

    assert asyncio.run(said()) == [told]
