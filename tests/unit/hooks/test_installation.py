"""Two Airflows are told apart, even if one is a copy of the other; the same one is always itself."""

from __future__ import annotations

from typing import Any

import pytest
from airflow.sdk import Variable, conf

from airflow_provider_soperator.hooks.cluster_clients import installation_id


class Airflow:
    """The Variables of an Airflow, and its address."""

    def __init__(self, address: str | None = "https://airflow.example.com", **variables: str) -> None:
        self.address, self.variables = address, variables

    def get(self, key: str, default: Any = "missing") -> Any:
        return self.variables.get(key, default)

    def set(self, key: str, value: str, description: str) -> None:
        assert description
        self.variables.setdefault(key, value)

    def id(self, monkeypatch: pytest.MonkeyPatch) -> str:
        monkeypatch.setattr(Variable, "get", self.get)
        monkeypatch.setattr(Variable, "set", self.set)
        monkeypatch.setattr(conf, "get", lambda section, key, **options: self.address)
        return installation_id()


def test_an_airflow_keeps_its_id(monkeypatch: pytest.MonkeyPatch) -> None:
    airflow = Airflow()
    first = airflow.id(monkeypatch)
    assert len(first) == 12
    assert airflow.id(monkeypatch) == first
    airflow.address = "https://airflow.example.com/"
    assert airflow.id(monkeypatch) == first


def test_two_airflows_have_two(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Airflow(None).id(monkeypatch) != Airflow(None).id(monkeypatch)


def test_a_copy_with_its_database_is_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    airflow = Airflow()
    known = airflow.id(monkeypatch)
    copy = Airflow("https://staging.example.com", **airflow.variables)
    assert copy.id(monkeypatch) != known


def test_of_two_tasks_that_make_it_at_one_moment_both_have_that_which_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    airflow = Airflow()
    late = Airflow()
    late.set = lambda key, value, description: late.variables.update(airflow.variables)  # type: ignore[method-assign]
    assert airflow.id(monkeypatch) == late.id(monkeypatch)
