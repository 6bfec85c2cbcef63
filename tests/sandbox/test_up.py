"""The command ``up`` on a sandbox that has an Airflow beside it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from sandbox import cli


class Started(Exception):
    """The Airflow is told to start."""


@pytest.mark.parametrize("exists", [True, False])
def test_an_airflow_that_was_there_starts_with_its_sandbox(exists: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[str] = []

    def up(progress: object) -> None:
        started.append("airflow")
        raise Started

    sandbox = SimpleNamespace(up=lambda progress: started.append("sandbox"), settings=None)
    monkeypatch.setattr(cli, "_requested", lambda options: sandbox)
    monkeypatch.setattr(cli, "Airflow", lambda sandbox: SimpleNamespace(exists=exists, up=up))

    def described(settings: object) -> None:
        raise Started

    # What comes after it is words alone.
    monkeypatch.setattr(cli.access, "describe", described)
    with pytest.raises(Started):
        cli._up(cli.parser().parse_args(["up"]))
    assert started == ["sandbox", "airflow"][: 1 + exists]
