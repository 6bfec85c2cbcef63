"""Event triggers as Airflow stores them: it tells by a hash whether a watcher is there already."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import field, make_dataclass
from datetime import timedelta

import pytest
from airflow.models.trigger import Trigger
from airflow.serialization.encoders import encode_trigger
from airflow.triggers.base import BaseEventTrigger

from airflow_provider_soperator.triggers.base import SlurmTrigger
from airflow_provider_soperator.triggers.capacity_watch import CapacityDifferenceTrigger
from airflow_provider_soperator.triggers.events import (
    ActiveCheckFailedTrigger,
    ClusterUnavailableTrigger,
    NodeUnhealthyTrigger,
    SlurmJobFinishedTrigger,
    SlurmQueueLongTrigger,
)

FIVE_MINUTES = timedelta(minutes=5)
TRIGGERS = [
    SlurmJobFinishedTrigger(),
    SlurmJobFinishedTrigger(name="train-*", states=("COMPLETED", "FAILED"), look_back=FIVE_MINUTES, poll_interval=10),
    SlurmQueueLongTrigger(min_jobs=101),
    NodeUnhealthyTrigger(),
    NodeUnhealthyTrigger("worker-[0-3]", kinds=("metric",), prometheus_conn_id="p", series={"cluster": "a"}),
    SlurmQueueLongTrigger(min_jobs=1, min_duration=90, states=["PENDING"], reason="Priority", partition="main"),
    ActiveCheckFailedTrigger(),
    ActiveCheckFailedTrigger(check="gpu-checks", look_back=FIVE_MINUTES, slurm_conn_id="soperator_default"),
    ClusterUnavailableTrigger(),
    ClusterUnavailableTrigger(min_duration=FIVE_MINUTES, cluster="soperator", poll_interval=60),
    CapacityDifferenceTrigger("shifts", '{"targets": []}', '{"windows": []}', "overrides"),
]


@pytest.mark.parametrize("trigger", TRIGGERS)
def test_a_watcher_that_is_read_again_is_the_same(trigger: SlurmTrigger) -> None:
    path, arguments = trigger.serialize()
    # As the scheduler has it, of a DAG in the database, and as the row of a trigger has it.
    encoded = json.loads(json.dumps(encode_trigger(trigger)))
    stored = Trigger(classpath=path, kwargs=encoded["kwargs"])
    hashes = {BaseEventTrigger.hash(path, kwargs) for kwargs in (arguments, encoded["kwargs"], stored.kwargs)}
    assert len(hashes) == 1
    assert type(trigger)(**stored.kwargs).serialize() == (path, arguments)


def test_watchers_of_different_things_are_different() -> None:
    assert len({BaseEventTrigger.hash(*trigger.serialize()) for trigger in TRIGGERS}) == len(TRIGGERS)


def test_a_release_with_one_more_parameter_goes_on_with_the_memories() -> None:
    told = []
    for trigger in TRIGGERS:
        fields = [("new", Sequence[str], field(default=()))]
        # Watchers keep a list for what is a tuple by default.
        prepare = {"prepare": lambda self: (type(self).__mro__[1].prepare(self), setattr(self, "new", list(self.new)))}
        later = make_dataclass(type(trigger).__name__, fields, bases=(type(trigger),), namespace=prepare, eq=False)
        identity = trigger.identity()
        assert later(**trigger.serialize()[1]).identity() == identity
        assert later(**trigger.serialize()[1], new=["x"]).identity() != identity or "dag_id" in identity
        told.append([trigger.serialize()[0], identity])
    assert all(told.count(one) == 1 for one in told)


def test_a_watcher_of_jobs_goes_on_with_the_memory_of_the_one_before() -> None:
    first, second = SlurmJobFinishedTrigger(look_back=timedelta(hours=2)), SlurmJobFinishedTrigger()
    memory = first.memory() | {"told": {"7": first.memory()["horizon"] + 60}}
    second.remember(memory)
    assert second.memory() == memory


def test_a_state_that_is_no_end_is_refused() -> None:
    with pytest.raises(ValueError, match="no job ends as RUNNING, DONE"):
        SlurmJobFinishedTrigger(states=["COMPLETED", "RUNNING", "DONE"])
