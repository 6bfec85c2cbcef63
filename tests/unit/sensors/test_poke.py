"""Sensors that poke: a look that gets no answer is no failure."""

from __future__ import annotations

import re
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from airflow_provider_soperator.sensors.watch import WatchSensor
from airflow_provider_soperator.slurm.errors import UnknownNode
from airflow_provider_soperator.transports.transport_errors import ConnectFailed, ConnectionLost, Unreachable
from airflow_provider_soperator.work.protocols import Look, Watch, WorkRefused


@dataclass(kw_only=True)
class Told(Watch[None]):
    """A watch whose looks the test decides on."""

    acts: Any

    @asynccontextmanager
    async def open(self) -> Any:
        yield None

    async def look(self, client: None, max_age: float) -> Look:
        act = self.acts.pop(0)
        if isinstance(act, Exception):
            raise act
        return Look(act == "there", act, (str(act),))


class Sensor(WatchSensor):
    def __init__(self, *, acts: list[Any], **kwargs: Any) -> None:
        super().__init__(task_id="sensor", **kwargs)
        self.acts = acts

    def watch(self) -> Told:
        if not self.acts:
            raise ValueError("nothing to look at")
        return Told(acts=self.acts)


def test_a_look_without_an_answer_is_borne() -> None:
    sensor = Sensor(acts=[Unreachable("away"), "not yet", ConnectionLost("gone"), "there"])
    results = [sensor.poke({}) for _ in range(4)]
    assert [bool(result) for result in results] == [False, False, False, True]
    assert results[-1].xcom_value == "there"


@pytest.mark.parametrize(
    ("act", "error"),
    [
        (UnknownNode("there is no node worker-9"), AirflowFailException),
        (WorkRefused("it is drained"), AirflowFailException),
        (ConnectFailed("the login was refused"), AirflowException),
    ],
)
def test_what_no_waiting_mends_is_raised(act: Exception, error: type[Exception]) -> None:
    with pytest.raises(error, match=re.escape(str(act))) as raised:
        Sensor(acts=[act]).poke({})
    assert type(raised.value) is error


def test_what_can_never_be_is_refused() -> None:
    with pytest.raises(AirflowFailException, match="nothing to look at"):
        Sensor(acts=[]).execute({})
