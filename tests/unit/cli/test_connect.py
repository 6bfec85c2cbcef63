"""The command that makes a connection: what it asks, what it prints, and how it ends."""

from __future__ import annotations

import io
import json
import os
import shlex

import pytest

from tests.unit.cli.calls import called


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SOPERATOR_DEFAULT", "NEBIUS_DEFAULT", "OTHER"):
        # So that it is as before after the test, whatever the command sets.
        monkeypatch.setenv(f"AIRFLOW_CONN_{name}", "")


def test_a_connection_is_printed_for_the_environment(capsys: pytest.CaptureFixture[str]) -> None:
    fields = ("host=login.example.com", "port=2222", "login=ann", "key_file=/k", "ciphers=")
    said = called(capsys, "connection", *fields, "--conn-id", "other", "--no-test")
    name, _, value = shlex.split(said.out)[0].partition("=")
    assert name == "AIRFLOW_CONN_OTHER"
    assert json.loads(value) == {
        "conn_type": "soperator",
        "host": "login.example.com",
        "port": 2222,
        "login": "ann",
        "extra": {"key_file": "/k"},
    }
    assert said.status == 0


def test_one_that_does_not_work_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    said = called(capsys, "connection", "login=ann")
    assert (said.status, said.out.startswith("AIRFLOW_CONN_SOPERATOR_DEFAULT=")) == (1, True)
    assert "The connection does not say how to reach the cluster" in said.err
    nebius = called(capsys, "connection", "--type", "nebius", "host=a/b", "--json")
    assert (nebius.rows[0]["works"], nebius.status) == ("False", 1)
    assert "Nebius speaks gRPC" in nebius.err


def test_one_that_is_not_tested_is_not_said_to_work(capsys: pytest.CaptureFixture[str]) -> None:
    said = called(capsys, "connection", "host=a", "--no-test", "--json")
    assert (said.rows[0]["works"], said.err, said.status) == ("not tested", "", 0)


def test_fields_are_known_or_asked_for(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert "did you mean 'host'?" in str(called(capsys, "connection", "hst=a").status)
    assert called(capsys, "connection", "port=abc").status == "The port is abc: give a number."
    for bad in ("slurm-prod", "slurm.prod", "a b"):
        said = called(capsys, "connection", "host=a", "--conn-id", bad, "--no-test")
        assert (said.out, str(said.status).startswith("No shell takes a variable AIRFLOW_CONN_")) == ("", True)
    assert "No field is given" in str(called(capsys, "connection").status)
    answers = io.StringIO("kubernetes\nkubernetes_default\nann\n\nmine\n")
    monkeypatch.setattr(answers, "isatty", lambda: True)
    monkeypatch.setattr("sys.stdin", answers)
    said = called(capsys, "connection", "--no-test")
    assert json.loads(os.environ["AIRFLOW_CONN_SOPERATOR_DEFAULT"]) == {
        "conn_type": "soperator",
        "login": "ann",
        "extra": {"kubernetes_conn_id": "kubernetes_default", "cluster": "mine"},
    }
    assert said.status == 0
    # It may go to a file.
    assert said.out.startswith("AIRFLOW_CONN_SOPERATOR_DEFAULT=")
    assert "kubernetes_conn_id: " in said.err
