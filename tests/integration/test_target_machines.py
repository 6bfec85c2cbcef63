"""Machines under targets, against the double of the Nebius API: which groups they are of, and how many were bought."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from nebius.api.nebius.mk8s.v1 import ReservationPolicy

from airflow_provider_soperator.capacity import connections
from airflow_provider_soperator.capacity.connections import TargetMachines
from airflow_provider_soperator.capacity.holdings import ProjectShare
from airflow_provider_soperator.capacity.targets.protocol import MachineClues, Session
from airflow_provider_soperator.errors import CapacityMistake
from airflow_provider_soperator.hooks.cluster_clients import ShiftClients
from airflow_provider_soperator.hooks.nebius import NebiusHook
from airflow_provider_soperator.nebius import node_groups
from airflow_provider_soperator.nebius.api import NebiusDenied, NebiusUnreachable
from sandbox.cloud.faults import ApiFault
from sandbox.nebius.catalogue import INFERENCE_PROJECT, PROJECT
from tests.sandbox.nebius_world import BLOCK, INFERENCE, TOKEN, TRAINING, World, world

GPUS = {"training": 8, "inference": 8}
POLICY = ReservationPolicy.Policy
AUTO = ReservationPolicy(policy=POLICY.AUTO, reservation_ids=[BLOCK])


class Target(Session):
    """A target of which nothing is asked but its machines."""

    def __init__(self, **clues: Any) -> None:
        self._clues = MachineClues(**clues)

    async def machines(self) -> MachineClues:
        return self._clues


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """Two machines of inference, and two of training, which fill the block."""
    with world(tmp_path / "ledger.jsonl") as made:
        address = {"host": made.server.host, "port": made.server.port, "password": TOKEN}
        said = {"conn_type": "nebius", **address, "extra": {"insecure": True}}
        monkeypatch.setenv("AIRFLOW_CONN_NEBIUS_WORLD", json.dumps(said))
        made.pending = {TRAINING: 2}
        made.advance(0)
        made.advance(1)
        yield made


class Seen:
    """A shift's look at the machines of its targets."""

    def __init__(self, **targets: Target) -> None:
        self.said: list[str] = []
        log = logging.Logger("shift")
        handler = logging.Handler()
        handler.emit = lambda record: self.said.append(record.getMessage())  # type: ignore[method-assign]
        log.addHandler(handler)
        self._targets = targets
        self._machines = TargetMachines(lambda: ShiftClients().nebius("nebius_world"), BLOCK, log)

    def bought(self) -> int | None:
        return asyncio.run(self._machines.bought(self._targets))

    def shares(self) -> list[ProjectShare]:
        return asyncio.run(self._machines.shares(self._targets))

    def check(self) -> list[str]:
        async def checked() -> list[str]:
            block = await NebiusHook("nebius_world").block(BLOCK)
            await self._machines.check(self._targets, GPUS, block)
            return self._machines._unchecked

        return asyncio.run(checked())


def machines(here: World, group: str) -> frozenset[str]:
    return frozenset(one.id for one in here.fleet.machines_of(group))


def policy(here: World, said: ReservationPolicy, group: str = TRAINING) -> None:
    spec = here.group(group).spec
    spec.template.reservation_policy = said
    here.update(spec, group=group)


def buys(here: World, count: int) -> None:
    """The group of training may buy, and its machines are no longer of the block alone."""
    policy(here, AUTO)
    here.pending = {TRAINING: count}
    here.busy = set(machines(here, TRAINING))
    here.advance(0)
    here.advance(1)


def named(**more: Any) -> Target:
    return Target(groups=frozenset({TRAINING}), count=2, are_units=True, **more)


# What was bought


def test_what_the_block_holds_was_not_bought(here: World) -> None:
    assert Seen(training=named(), inference=Target(groups=frozenset({INFERENCE}), count=0)).bought() == 0


def test_machines_that_the_block_does_not_hold_were_bought(here: World) -> None:
    buys(here, 2)
    assert here.fleet.payg == 2
    assert here.block.usage == 32
    assert Seen(training=named(), inference=Target(groups=frozenset({INFERENCE}), count=0)).bought() == 16


def test_machines_of_groups_that_are_no_target_do_not_count(here: World) -> None:
    buys(here, 2)
    assert Seen(inference=Target(groups=frozenset({INFERENCE}), count=0)).bought() == 0


def test_machines_that_a_target_buys_count(here: World) -> None:
    buys(here, 2)
    inference = Target(groups=frozenset({INFERENCE}), beside=frozenset({TRAINING}), count=0)
    assert Seen(inference=inference).bought() == 16


def test_groups_are_found_from_machines(here: World) -> None:
    buys(here, 2)
    one = next(iter(machines(here, TRAINING)))
    assert Seen(training=Target(machines=frozenset({one}))).bought() == 16


def test_a_machine_that_has_gone_does_not_hide_its_group(here: World) -> None:
    buys(here, 2)
    known = {min(machines(here, TRAINING)), "computeinstance-a", "computeinstance-b"}
    assert Seen(training=Target(machines=frozenset(known))).bought() == 16


def test_groups_of_nodesets_are_found_from_other_machines_of_the_cluster(here: World) -> None:
    """As of nodes that are off, or that Slurm does not know the machines of."""
    spec = here.group(TRAINING).spec
    spec.template.metadata.labels["slurm.nebius.ai/nodeset-name"] = "worker"
    here.update(spec, group=TRAINING)
    buys(here, 2)
    neighbours = tuple(machines(here, TRAINING))
    assert Seen(training=Target(neighbours=neighbours, nodesets=frozenset({"worker"}))).bought() == 16
    other = Seen(training=Target(neighbours=neighbours, nodesets=frozenset({"other"})))
    assert other.bought() is None


def test_what_cannot_be_measured_is_unknown_and_said(here: World) -> None:
    seen = Seen(inference=Target(machines=frozenset({"gke-node-1"})))
    assert seen.bought() is None
    assert seen.said == [
        "It is unknown if GPUs were bought: the targets have 1 machines, and the cloud knows 0 in no node group"
    ]


def test_machines_in_groups_that_were_not_found_are_unknown(here: World) -> None:
    found = machines(here, TRAINING)
    assert Seen(training=Target(machines=found, count=2)).bought() == 0
    assert Seen(training=Target(machines=found, count=3)).bought() is None


def test_who_has_no_machine_has_bought_none(here: World) -> None:
    assert Seen(training=named(), inference=Target(count=0)).bought() == 0


def test_without_the_right_to_look_it_is_unknown(here: World, monkeypatch: pytest.MonkeyPatch) -> None:
    deny(monkeypatch, "listed")
    seen = Seen(training=named())
    assert seen.bought() is None
    assert seen.said == ["It is unknown if GPUs were bought: the account may not list machines"]


def deny(monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    async def denied(*_: object) -> None:
        raise NebiusDenied("the account may not list machines")

    monkeypatch.setattr(node_groups, call, denied)


# Whether they may be


def test_a_group_that_is_found_and_could_buy_is_refused(here: World) -> None:
    on = Target(machines=machines(here, TRAINING), are_units=True)
    assert Seen(training=on).check() == []
    policy(here, AUTO)
    with pytest.raises(CapacityMistake, match=f"node group {TRAINING} has the reservation policy AUTO: it buys"):
        Seen(training=on).check()
    # One that is named was checked by its target.
    assert Seen(training=named()).check() == []


def test_a_group_that_is_found_has_to_let_its_machines_go(here: World) -> None:
    on = Target(machines=machines(here, INFERENCE), are_units=True)
    with pytest.raises(CapacityMistake, match=f"node group {INFERENCE} always has 2 nodes: its machines keep"):
        Seen(training=on).check()


def test_a_group_under_a_workload_may_not_buy_either(here: World) -> None:
    on = Target(machines=machines(here, INFERENCE))
    [note] = Seen(inference=on).check()
    assert note == f"node group {INFERENCE} always has 2 nodes: their GPUs are not free when nothing runs on them"
    policy(here, AUTO, INFERENCE)
    with pytest.raises(CapacityMistake, match=f"node group {INFERENCE} has the reservation policy AUTO"):
        Seen(inference=on).check()


def test_a_group_that_cannot_be_found_is_said(here: World, monkeypatch: pytest.MonkeyPatch) -> None:
    [note] = Seen(training=Target()).check()
    assert note == (
        "it is unknown if machines of training can be bought: their node groups are unknown, as it has no machine that "
        "the cloud knows"
    )
    deny(monkeypatch, "answer")
    [note] = Seen(training=Target(machines=machines(here, TRAINING))).check()
    assert note.endswith("their node groups are unknown, the account may not list machines")


# What their projects may have


def test_targets_share_what_their_project_may_have(here: World) -> None:
    here.block.allow(INFERENCE_PROJECT, 24)
    inference = Target(groups=frozenset({INFERENCE}))
    seen = Seen(training=Target(machines=machines(here, TRAINING)), inference=inference, other=inference)
    assert seen.shares() == [ProjectShare(INFERENCE_PROJECT, frozenset({"inference", "other"}), limit=24, usage=16)]
    here.block.allow(PROJECT, 16)
    assert ProjectShare(PROJECT, frozenset({"training"}), limit=16, usage=16) in seen.shares()


def test_of_a_target_whose_machines_nobody_knows_no_share_is_known(here: World) -> None:
    here.block.allow(INFERENCE_PROJECT, 24)
    seen = Seen(training=Target())
    assert seen.shares() == []


def test_who_may_not_read_them_moves_capacity_without(here: World, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    async def denied(sdk: object, block: str) -> None:
        asked.append(block)
        raise NebiusDenied("the account may not list allowances", "give it a role")

    monkeypatch.setattr(connections, "read_allowances", denied)
    seen = Seen(inference=Target(groups=frozenset({INFERENCE})))
    assert (seen.shares(), seen.shares()) == ([], [])
    assert asked == [BLOCK]
    (said,) = seen.said
    assert said.startswith("It is unknown how much of the block each project may have: the account may not list")


def test_an_outage_is_not_taken_for_a_right_that_is_missing(here: World) -> None:
    here.faults.add(ApiFault("nebius", "error", "CapacityAllowanceService/*", count=None))
    with pytest.raises(NebiusUnreachable):
        Seen(inference=Target(groups=frozenset({INFERENCE}))).shares()
