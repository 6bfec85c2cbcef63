"""Arguments that another version of this provider has stored, and that this one cannot use."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime, timezone
from typing import Any

import pytest

from airflow_provider_soperator.triggers import capacity_watch, events, sbatch, shift, work
from airflow_provider_soperator.triggers.base import SlurmTrigger
from airflow_provider_soperator.triggers.work import WorkTrigger

NOW = datetime.now(timezone.utc).isoformat()
MODULES = [capacity_watch, events, sbatch, shift, work]
TRIGGERS = {one for module in MODULES for one in vars(module).values() if inspect.isclass(one)}
FOREIGN: list[Any] = [None, -1, "new", ["NEW"], {"new": "NEW"}]


def arguments() -> Iterator[tuple[type[SlurmTrigger], str]]:
    for trigger in sorted((one for one in TRIGGERS if issubclass(one, SlurmTrigger)), key=lambda one: one.__name__):
        for name in list(inspect.signature(trigger.__init__).parameters)[1:]:
            yield trigger, name


@pytest.mark.parametrize(("trigger", "name"), arguments())
def test_no_stored_argument_ends_the_triggerer(trigger: type[SlurmTrigger], name: str) -> None:
    needed = {
        one.name: ""
        for one in inspect.signature(trigger).parameters.values()
        if one.default is one.empty and one.kind is one.POSITIONAL_OR_KEYWORD
    }
    for value in FOREIGN:
        # The only error of a constructor for which Airflow 3.3 fails the task, and goes on.
        with suppress(TypeError):
            trigger(**{**needed, name: value})


@pytest.mark.parametrize(
    "said",
    [
        {"class": "airflow_provider_soperator.work.moved.NodeChange"},
        {"class": "airflow_provider_soperator.work.nodes.Renamed"},
        {"class": "airflow_provider_soperator.work.nodes.NodeChange", "since": NOW, "deadline": NOW},
        {},
    ],
)
def test_work_that_cannot_be_read_says_where_it_is_from(said: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match="stored by another version of this provider: "):
        WorkTrigger(said)
