"""What the doctor tells of SlurmExecutor without waiting."""

from __future__ import annotations

import asyncio
import json
from argparse import Namespace
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from importlib import metadata
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.executors.executor_utils import ExecutorName

from airflow_provider_soperator.cli import executor_checks
from airflow_provider_soperator.cli.verdicts import of_error
from airflow_provider_soperator.slurm.errors import ControllerUnreachable
from airflow_provider_soperator.slurm.files import FileError
from tests.patience import PATIENCE


class Away:
    """A way to a cluster whose slurmctld is down."""

    async def ask_now(self, request: Any) -> Any:
        raise ControllerUnreachable("slurmctld at controller-0 is down", "scontrol")


def test_a_cluster_that_is_away_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    @asynccontextmanager
    async def lent(conn_id: str) -> AsyncIterator[Away]:
        asked.append(conn_id)
        yield Away()

    name = ExecutorName("airflow_provider_soperator.executors.SlurmExecutor", "SlurmExecutor")
    loader = "airflow.executors.executor_loader.ExecutorLoader.get_executor_names"
    monkeypatch.setattr(loader, lambda **asked: [name])
    monkeypatch.setenv("AIRFLOW__SOPERATOR__EXECUTOR_CONN_ID", "nodes")
    monkeypatch.setattr(executor_checks, "lent", lent)
    [verdict] = asyncio.run(executor_checks.executor_checks(Namespace(partition="")))
    assert (verdict.state, asked) == ("wrong", ["nodes"])
    assert "slurmctld at controller-0 is down" in verdict.said


def test_why_a_venv_cannot_be_made_is_told_before_what_to_do() -> None:
    error = FileError("no venv: set executor_python")
    error.lines = ("mysqlclient", "needs headers")
    assert of_error("executor", error).said == "mysqlclient\nneeds headers\nno venv: set executor_python"


def test_of_several_copies_of_a_package_the_one_that_python_imports_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    copies = [SimpleNamespace(name="numpy", version=version) for version in ("2", "1")]
    monkeypatch.setattr(metadata, "distributions", lambda: iter(copies))
    exec(executor_checks._LOOK, {})
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["packages"] == {"numpy": "2"}


def test_a_package_is_the_same_however_its_name_is_written(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    there = [SimpleNamespace(name=name, version="1+CPU") for name in ("zope-interface", "own_dags")]
    monkeypatch.setattr(metadata, "distributions", lambda: iter(there))
    exec(executor_checks._LOOK, {})
    monkeypatch.setattr(executor_checks, "installed_packages", lambda: ("Zope.Interface==1+CPU",))
    monkeypatch.setattr(executor_checks, "local_packages", lambda: {"Own.DAGs"})
    packages = json.loads(capsys.readouterr().out.splitlines()[-1])["packages"]
    [verdict] = executor_checks._packages(packages)
    assert (verdict.state, verdict.said) == ("ok", "the nodes have all 1 packages of the scheduler")


def test_nodes_that_have_the_secret_of_the_api_server_are_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def told(of_nodes: str, ours: str) -> list[str]:
        monkeypatch.setenv("AIRFLOW__API_AUTH__JWT_SECRET", of_nodes)
        exec(executor_checks._LOOK, {})
        printed = capsys.readouterr().out
        assert "secret of ours" not in printed
        monkeypatch.setenv("AIRFLOW__API_AUTH__JWT_SECRET", ours)
        return [one.state for one in executor_checks._secrets(json.loads(printed.splitlines()[-1])["secret"])]

    assert told("a secret of ours", "a secret of ours") == ["wrong"]
    assert told("another", "a secret of ours") == told("", "") == []


def test_a_trial_that_is_interrupted_leaves_no_job() -> None:
    done: list[Any] = []

    class Keeper:
        async def submit(self, tasks: Any) -> None:
            done.append([task.leg for task in tasks])

        async def drop(self, legs: Any) -> None:
            done.append(legs)

    @dataclass(frozen=True)
    class Task:
        leg: str
        workload: dict[str, str] = field(default_factory=dict)

    async def interrupted() -> None:
        conf = SimpleNamespace(get=lambda *where, fallback: fallback)
        made = SimpleNamespace(
            conf=conf, keeper=Keeper(), news=list, queued_task=lambda said: Task(str(said.ti.map_index))
        )
        trial = asyncio.ensure_future(executor_checks.trial(made, {}, PATIENCE))  # type: ignore[arg-type]
        while not done:
            await asyncio.sleep(0)
        # As Ctrl-C does.
        trial.cancel()
        await asyncio.wait([trial])
        assert trial.cancelled()

    asyncio.run(interrupted())
    assert done == [["0", "1"], ["0", "1"]]
