"""The commands for schedules: what is drawn, what two DAGs both want, and overrides."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.models.crypto import _NullFernet, _RealFernet
from airflow.models.variable import Variable
from cryptography.fernet import Fernet, MultiFernet

from airflow_provider_soperator.cli import rehearsal, schedules
from airflow_provider_soperator.client.client import AsyncSlurmClient
from airflow_provider_soperator.operators.capacity import ShiftCapacityOperator
from airflow_provider_soperator.slurm.errors import ControllerUnreachable
from tests.patience import PATIENCE
from tests.unit.cli.calls import called

DAG = """
from airflow_provider_soperator.capacity.schedule import CapacitySchedule, Window
from airflow_provider_soperator.capacity.targets import NebiusNodeGroupTarget, SlurmNodesTarget
from airflow_provider_soperator.operators.capacity_dag import capacity_dag

dag = capacity_dag(
    "{name}",
    CapacitySchedule(
        timezone="Europe/Amsterdam",
        windows=[Window("daily 20:00 - 08:00", {{"training": {night}, "inference": 0}}, name="night")],
        otherwise={{"training": 1, "inference": 3}},
        gpus_per_unit={{"training": 8, "inference": 8}},
        limit=32,
    ),
    [
        SlurmNodesTarget(name="training", nodes="{nodes}", gpus_per_unit=8),
        NebiusNodeGroupTarget(name="inference", node_group="{group}", gpus_per_unit=8),
    ],
    "capacityblockgroup-{block}",
)
"""


def written(folder: Path, name: str, **other: Any) -> str:
    """The file of a DAG."""
    file = folder / f"{name}.py"
    said = {"night": 4, "nodes": "worker-[0-3]", "group": "group-a", "block": "a"} | other
    file.write_text(DAG.format(name=name, **said))
    return str(file)


@pytest.fixture(autouse=True)
def variables(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The Airflow Variables."""
    kept: dict[str, str] = {}
    monkeypatch.setattr("airflow.sdk.Variable.get", lambda key, default=None: kept.get(key, default))
    monkeypatch.setattr("airflow.models.variable.Variable.set", lambda key, value: kept.update({key: value}))
    session = MagicMock()
    session.return_value.__enter__.return_value.scalar.return_value = None
    monkeypatch.setattr("airflow.utils.session.create_session", session)
    monkeypatch.setattr(schedules, "user", lambda: "ann")
    return kept


AT = "2026-11-25T12:00:00+01:00"


def test_without_airflows_database_overrides_are_unknown_and_not_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    away = MagicMock(side_effect=OSError("connection refused"))
    monkeypatch.setattr("airflow.utils.session.create_session", away)
    dag, why = written(tmp_path, "nights"), "Airflow's database cannot be read (connection refused)"
    drawn = called(capsys, "schedule", dag, "--at", AT)
    assert (drawn.status, drawn.err.count(f"Overrides of nights are unknown: {why}")) == (0, 1)
    for words in (["override", dag], ["override", dag, "training=2", "inference=2", "--yes"], ["shift", dag, "--plan"]):
        assert str(called(capsys, *words).status).startswith(why)


@pytest.mark.parametrize("key", [Fernet.generate_key(), b""], ids=["another", "none"])
def test_overrides_that_cannot_be_decrypted_are_unknown_and_not_none(
    key: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    row = Variable("nights_overrides")
    row._val, row.is_encrypted = Fernet(Fernet.generate_key()).encrypt(b"[]").decode(), True
    fernet = _RealFernet(MultiFernet([Fernet(key)])) if key else _NullFernet()
    for module in ("crypto", "variable"):
        monkeypatch.setattr(f"airflow.models.{module}.get_fernet", lambda: fernet)
    session = MagicMock()
    session.return_value.__enter__.return_value.scalar.return_value = row
    monkeypatch.setattr("airflow.utils.session.create_session", session)
    dag = written(tmp_path, "nights")
    why = "he Airflow Variable nights_overrides cannot be decrypted: [core] fernet_key here is not Airflow's"
    drawn = called(capsys, "schedule", dag, "--at", AT)
    assert (drawn.status, drawn.err.count(f"Overrides of nights are unknown: t{why}")) == (0, 1)
    for words in (["override", dag], ["override", dag, "training=2", "inference=2", "--yes"], ["shift", dag, "--plan"]):
        assert str(called(capsys, *words).status) == f"T{why}."


def test_a_schedule_is_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    drawn = called(capsys, "schedule", written(tmp_path, "nights"), "--days", "1", "--at", AT)
    assert drawn.out.splitlines() == [
        "nights: block capacityblockgroup-a, times of Europe/Amsterdam",
        "  Wed 25 Nov 08:00 ████████▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒ training 1, inference 3 (otherwise)",
        "  Wed 25 Nov 20:00 ████████████████████████████████ training 4, inference 0 (night)",
        "  Thu 26 Nov 08:00 ████████▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒ training 1, inference 3 (otherwise)",
    ]
    assert drawn.status == 0
    # Times without a zone are of the schedule's.
    assert called(capsys, "schedule", written(tmp_path, "nights"), "--days", "1", "--at", AT[:-6]).out == drawn.out


@pytest.mark.parametrize(
    ("other", "conflicts"),
    [
        ({"night": 2}, ["both move training and inference, and wish for different sizes from Wed 25 Nov 20:00 on."]),
        ({"night": 4}, ["both move training and inference."]),
        ({"nodes": "worker-[4-7]", "group": "group-b"}, ["both move block capacityblockgroup-a."]),
        ({"nodes": "worker-[4-7]", "group": "group-b", "block": "b"}, []),
    ],
    ids=["sizes", "nodes", "block", "nothing"],
)
def test_what_two_dags_both_want_is_told(
    other: dict[str, Any], conflicts: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, two = written(tmp_path, "nights"), written(tmp_path, "more", **other)
    found = called(capsys, "schedule", one, two, "--days", "1", "--at", AT, "--json")
    told = [row["allocation"] for row in found.rows if row["window"] == "conflict"]
    assert len(told) == len(conflicts)
    assert all(said in line for said, line in zip(conflicts, told, strict=True))
    assert found.status == bool(conflicts)


def test_a_paused_dag_is_told_to_be_and_contradicts_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("airflow.models.DagModel.get_paused_dag_ids", lambda ids: {"more"} & {*ids})
    dags = written(tmp_path, "nights"), written(tmp_path, "more", night=2)
    found = called(capsys, "schedule", *dags, "--days", "1", "--at", AT)
    assert [line.rpartition(", ")[2] for line in found.out.splitlines() if "times of" in line] == [
        "times of Europe/Amsterdam",
        "paused",
    ]
    assert ("both move" in found.out, found.status) == (False, 0)


def test_what_two_dags_want_differently_is_looked_for_in_all_days_that_are_drawn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], variables: dict[str, str]
) -> None:
    late = {"when": "2030-01-09/2030-01-10", "allocation": {"training": 3, "inference": 0}}
    variables["more_overrides"] = json.dumps([late])
    dags = written(tmp_path, "nights"), written(tmp_path, "more")
    found = called(capsys, "schedule", *dags, "--days", "12", "--at", "2030-01-01T12:00:00+01:00")
    assert "wish for different sizes from Wed 09 Jan 00:00 on." in found.out


def test_a_file_that_cannot_be_read_is_told_to_be_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path, "nights")
    broken = tmp_path / "more.py"
    broken.write_text(f"{DAG}\n1 / 0")
    said = f"Left out, as it cannot be read: {broken}: "
    assert said in called(capsys, "schedule", str(tmp_path)).err
    monkeypatch.setattr(rehearsal, "bags", lambda names: [DagBag(tmp_path)])
    drawn = called(capsys, "schedule")
    assert (said in drawn.err, "nights" in drawn.out) == (True, True)
    # One that is not asked for is in the way of none.
    assert said not in called(capsys, "schedule", "nights").err


def test_an_override_is_shown_kept_and_removed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], variables: dict[str, str]
) -> None:
    file = written(tmp_path, "nights")
    asked = ("override", file, "training=2", "--since", "2030-01-05T08:00", "--until", "2030-01-06T08:00")
    shown = called(capsys, *asked, "--because", "the deadline")
    assert shown.out.splitlines()[0].startswith(
        "Added: training 2, inference 2, 2030-01-05T08:00:00/2030-01-06T08:00:00"
    )
    assert "Sat 05 Jan 08:00: training 2, inference 2" in shown.out.replace("  ", "") or "05 Jan 08:00" in shown.out
    assert (shown.status, variables) == ("Nothing was changed. Repeat it with --yes.", {})
    assert called(capsys, *asked, "--because", "the deadline", "--yes").status == 0
    [kept] = json.loads(variables["nights_overrides"])
    assert (kept["allocation"], kept["by"], kept["because"]) == ({"training": 2, "inference": 2}, "ann", "the deadline")
    [row] = called(capsys, "override", file, "--json").rows
    assert row["allocation"] == "training 2, inference 2"
    drawn = called(capsys, "schedule", file, "--at", "2030-01-05T12:00:00+01:00", "--days", "1").out
    assert "override by ann (the deadline)" in drawn
    assert called(capsys, "override", file, "--remove", "--yes").status == 0
    assert json.loads(variables["nights_overrides"]) == []


@pytest.mark.parametrize(
    "words", [["training=2", "--since", "2030-01-05T08:00"], ["--remove", "--until", "2020-01-05"]]
)
def test_an_override_far_from_now_is_shown(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], variables: dict[str, str]
) -> None:
    shown = called(capsys, "override", written(tmp_path, "nights"), *words, "--yes")
    assert shown.status == 0
    # Of the week from then on.
    lines = [line.strip() for line in shown.out.splitlines()[1:]]
    assert [line for line in lines if line.startswith("Fri 11 Jan 20:00")] == (
        ["Fri 11 Jan 20:00: training 4, inference 0 (night)"] if "--since" in words else []
    )


def test_an_override_that_was_added_during_the_question_is_not_lost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], variables: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file, others = written(tmp_path, "nights"), {"when": "2030-02-01/2030-02-02", "allocation": {"training": 3}}
    monkeypatch.setattr(
        schedules, "agreed", lambda args, question: variables.update(nights_overrides=json.dumps([others]))
    )
    said = called(capsys, "override", file, "training=2", "--until", "2030-01-06T08:00").status
    assert "The overrides were changed meanwhile" in str(said)
    assert json.loads(variables["nights_overrides"]) == [others]


def test_an_override_that_is_over_may_be_of_an_earlier_schedule(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], variables: dict[str, str]
) -> None:
    file = written(tmp_path, "nights")
    past = {"when": "2020-01-05T08:00/2020-01-06T08:00", "allocation": {"serving": 2}}
    variables["nights_overrides"] = json.dumps([past])
    assert called(capsys, "schedule", file, "--days", "1", "--at", AT).status == 0
    assert called(capsys, "override", file, "training=2", "--until", "2030-01-06T08:00", "--yes").status == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["override", "{}", "training=9"], "but the block has 32"),
        (["override", "{}", "trainin=1"], "did you mean 'training'?"),
        (["override", "{}", "training="], "write training=2, or training='16 gpus'"),
        (["override", "{}", "training=1", "--remove", "--yes"], "--remove takes no sizes"),
        (["override", "{}", "training=1", "--since", "2020-01-01", "--yes"], "08:00:00 is over: give a later --until"),
        (["shift", "{}", "trainin=1", "--plan"], "did you mean 'training'?"),
        (["shift", "{}", "--until", "2030-01-06T08:00"], "--until is for sizes of targets: write training=2"),
        (["schedule", "{}", "--at", "noon"], "is not a date and time"),
        (["schedule", "{}", "--days", "-1"], "--days is -1"),
        (["schedule", "nowhere.d/"], "there is no DAG nowhere.d/"),
    ],
)
def test_a_mistake_is_told(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("airflow_provider_soperator.cli.rehearsal._bundles", lambda: [])
    file = written(tmp_path, "nights")
    status = called(capsys, *(word.format(file) for word in words)).status
    assert said.lower() in str(status).lower()


class Silent:
    """A way to a cluster whose slurmctld is down, for some seconds or at once."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    async def ask(self, request: Any) -> Any:
        await asyncio.sleep(self.seconds)
        raise ControllerUnreachable("slurmctld at controller-0 is down", "scontrol")

    async def close(self) -> None:
        pass


@pytest.mark.parametrize(
    ("seconds", "soon", "why"),
    [
        (0, PATIENCE, "scontrol: slurmctld at controller-0 is down. Check whether slurmctld is up"),
        (3600, 0.1, "No answer within 0.1 s."),
    ],
)
def test_a_shift_is_not_planned_while_slurm_is_silent(
    seconds: float,
    soon: float,
    why: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @asynccontextmanager
    async def client(self: Any) -> AsyncIterator[AsyncSlurmClient]:
        yield AsyncSlurmClient(Silent(seconds))  # type: ignore[arg-type]

    monkeypatch.setattr(schedules.SlurmHook, "async_client", client)
    monkeypatch.setattr(schedules, "_SOON", soon)
    status = str(called(capsys, "shift", written(tmp_path, "nights"), "--plan").status)
    assert status.startswith(f"The cluster soperator_default does not answer. {why}")


@pytest.mark.parametrize("paused", [True, False])
def test_a_run_of_a_paused_dag_is_told_to_wait(
    paused: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def silent(conn_ids: Any) -> dict[str, str]:
        return {}

    plan = {"text": "training goes from 4 to 2 nodes", "possible": True, "steps": []}
    monkeypatch.setattr(schedules, "_silent", silent)
    monkeypatch.setattr(ShiftCapacityOperator, "execute", lambda self, context: plan)
    monkeypatch.setattr("airflow.models.DagModel.get_paused_dag_ids", lambda ids: {*ids} if paused else set())
    client = MagicMock()
    client.trigger_dag.return_value = {"dag_run_id": "manual"}
    monkeypatch.setattr("airflow.api.client.get_current_api_client", lambda: client)
    err = called(capsys, "shift", written(tmp_path, "nights"), "training=2", "--yes").err
    assert ("nights is paused: the run waits for `airflow dags unpause nights`" in err) == paused
    assert "Started: run manual of nights" in err
    client.trigger_dag.return_value = None
    assert called(capsys, "shift", written(tmp_path, "nights"), "training=2", "--yes").status == "Not started."
