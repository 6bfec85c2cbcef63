"""What this version stores, as it was recorded: another version finds it in Airflow's database and on clusters."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_soperator.capacity.demand import Demand
from airflow_provider_soperator.capacity.lease_store import ShiftRecord
from airflow_provider_soperator.capacity.order import ShiftOrder
from airflow_provider_soperator.capacity.schedule import CapacitySchedule
from airflow_provider_soperator.pipelines.plan import Ahead, AheadJob
from airflow_provider_soperator.slurm.job import BatchJob, fields_of, job_of
from airflow_provider_soperator.terraform.runs import RunRecord
from airflow_provider_soperator.triggers.base import EventTrigger, SlurmTrigger, WatcherMemory
from airflow_provider_soperator.triggers.sbatch import LaterStartTrigger, SbatchStartTrigger, SbatchTrigger
from airflow_provider_soperator.triggers.shift import ShiftTrigger
from airflow_provider_soperator.triggers.work import WatchTrigger, WorkTrigger
from airflow_provider_soperator.work.protocols import Stored, Watch
from airflow_provider_soperator.work.sbatch import Chain
from tests.unit.capacity.test_lease import FULL
from tests.unit.triggers.test_capacity_watch import OVERRIDE, SCHEDULE, by_demand, order
from tests.unit.triggers.test_stored_triggers import TRIGGERS
from tests.unit.work.test_stored import VALUES

RECORDED = Path(__file__).with_name("stored_values.json")
JOB, CHAIN = BatchJob(command="python train.py", gpus="8", time_limit="1-0"), Chain(ahead="7", own=[6], follows=[["a"]])
#: Of watchers that remember more than whether they have told of an episode.
MEMORIES: dict[str, Any] = {
    "SlurmJobFinishedTrigger": {"horizon": 4102444800, "told": {"7": 4102444801}},
    "NodeUnhealthyTrigger": {"worker-0": True},
    "ActiveCheckFailedTrigger": ["11111111-2222-3333-4444-555555555555"],
    "CapacityDifferenceTrigger": {
        "wished": '{"training": [4, 4]}',
        "is_asked": True,
        "looked": 1795291200.0,
        "since": 1795291100.0,
        "told": 1795291000.0,
        "pause": 600,
        "stopped": False,
        "window": {"name": "night"},
        "demand": {"inference": 2},
    },
}


def trigger_of(said: dict[str, Any]) -> Any:
    module, _, name = said["class"].rpartition(".")
    return getattr(import_module(module), name)(**said["arguments"])


def written(trigger: SlurmTrigger) -> dict[str, Any]:
    path, arguments = trigger.serialize()
    return {"class": path, "arguments": arguments}


def with_memory(trigger: EventTrigger, memory: Any) -> dict[str, Any]:
    trigger.remember(memory)
    return {**written(trigger), "key": WatcherMemory(trigger)._key, "memory": trigger.memory()}


#: How this version reads what was stored; each writes it again.
READ: dict[str, Callable[[Any], Any]] = {
    "work": lambda said: Stored.read(said).write(),
    "trigger": lambda said: written(trigger_of(said)),
    "watcher": lambda said: with_memory(trigger_of(said), said["memory"]),
    "job": lambda said: fields_of(job_of(said)),
    "chain": lambda said: asdict(Chain.read(said)),
    "pipeline": lambda said: Ahead.read(said).write(),
    "order": lambda said: ShiftOrder.read(said).write(),
    "schedule": lambda said: CapacitySchedule.read(said).describe(),
    "demand": lambda said: Demand.read(said).write(),
    "lease": lambda said: json.loads(ShiftRecord.read(json.dumps(said)).write()),  # type: ignore[union-attr]
    "terraform": lambda said: RunRecord.read(said).write(),
}


def examples() -> Iterator[tuple[str, Any]]:
    """What this version stores, each with a name that begins with its kind."""
    for value in VALUES:
        yield f"work {type(value).__name__}", value.write()
        carried: Any = (WatchTrigger if isinstance(value, Watch) else WorkTrigger)(value.write(), made=1795291200.0)
        yield f"trigger {type(carried).__name__}", written(carried)
    for trigger in TRIGGERS:
        name = type(trigger).__name__
        yield f"watcher {name}", with_memory(trigger_of(written(trigger)), MEMORIES.get(name, True))
    sbatch = {"slurm_conn_id": "soperator_default", "job": fields_of(JOB), "keys": ["a", "b"], "chain": asdict(CHAIN)}
    for kind in (SbatchTrigger, SbatchStartTrigger):
        yield f"trigger {kind.__name__}", written(kind(**sbatch, made=1795291200.0))
    yield "trigger LaterStartTrigger", written(LaterStartTrigger(30.0))
    yield "trigger ShiftTrigger", written(ShiftTrigger(order().write(), 1795291200.0, False, made=1795291200.0))
    yield "job", fields_of(JOB)
    yield "chain", asdict(CHAIN)
    yield "pipeline", Ahead(1, {"fit": {-1: AheadJob("7", "abcdefghijkl", 1)}}).write()
    yield "order", order().write()
    yield "schedule", CapacitySchedule.read({**SCHEDULE.describe(), "overrides": [OVERRIDE]}).describe()
    yield "demand", json.loads(by_demand().demand)
    yield "lease", json.loads(FULL.write())
    yield "terraform", RunRecord("apply", ["terraform"], "host", "4026531836", "ann@host", 1795291200.5, 7).write()


def lacks(found: Any, said: Any) -> bool:
    """True if what was read does not have all that was said."""
    if isinstance(said, dict) and isinstance(found, dict):
        return any(name not in found or lacks(found[name], value) for name, value in said.items())
    return bool(found != said)


@pytest.mark.parametrize("name", json.loads(RECORDED.read_text()) if RECORDED.exists() else ())
def test_what_was_stored_is_read(name: str) -> None:
    said = json.loads(RECORDED.read_text())[name]
    try:
        found = json.loads(json.dumps(READ[name.partition(" ")[0]](said)))
    except Exception as error:
        found = error
    assert not lacks(found, said), (
        f"{name}: an upgrade would not read what is stored: {found}. Give a new field a default, and read an old name, "
        "too. If that cannot be, say so under Changed in CHANGELOG.md (docs/upgrades.md), remove this entry from "
        f"{RECORDED.name}, and record it anew: python -m tests.unit.test_stored_values"
    )


def test_each_kind_is_recorded() -> None:
    recorded = json.loads(RECORDED.read_text())
    missing = {name for name, _ in examples()} - set(recorded)
    assert not missing, "record them: python -m tests.unit.test_stored_values"

    def derived(kind: type) -> Iterator[type]:
        for one in kind.__subclasses__():
            yield one
            yield from derived(one)

    ours = {one for one in derived(SlurmTrigger) if one.__module__.startswith("airflow_provider_soperator.")}
    concrete = {one.__name__ for one in ours if not inspect.isabstract(one)}
    assert concrete <= {name.partition(" ")[2] for name in recorded}, "examples() has no trigger of this class"


if __name__ == "__main__":
    # What is there already stays as an older version has stored it.
    kept = {**dict(examples()), **(json.loads(RECORDED.read_text()) if RECORDED.exists() else {})}
    RECORDED.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n")
    print(f"wrote {RECORDED}", file=sys.stderr)
