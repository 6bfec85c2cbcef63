"""Node groups and machines: the block is never exceeded, and what can be reached is reached in its time."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from sandbox.cloud.block import CapacityBlock
from sandbox.cloud.fleet import (
    Autoscaling,
    Fixed,
    Fleet,
    Machine,
    MachineState,
    NodeGroup,
    Reservation,
    Size,
    Timing,
)

TIMING = Timing(boot=1, idle=8, removal=2)


class Site:
    """A fleet with a clock to turn and Pods to place."""

    def __init__(self, limit: int = 32, ledger: Path | None = None) -> None:
        self.clock = 0.0
        self.busy: set[str] = set()
        self.pending: dict[str, int] = {}
        self.block = CapacityBlock("block", limit, ledger=ledger, now=lambda: self.clock)
        self.fleet = Fleet(self.block, TIMING, now=lambda: self.clock)

    def group(self, name: str, size: Size, gpus: int = 8, **more: Reservation) -> NodeGroup:
        group = NodeGroup(name, name, "cluster", gpus, size, **more)
        self.fleet.add_group(group)
        return group

    def after(self, seconds: float) -> None:
        self.clock += seconds
        self.fleet.step(self.pending, self.busy)

    def machines(self, name: str, state: MachineState | None = None) -> list[Machine]:
        return [m for m in self.fleet.machines_of(name) if state in (None, m.state)]

    def running(self, name: str) -> int:
        return len(self.machines(name, MachineState.RUNNING))


@pytest.fixture
def site() -> Site:
    return Site()


def scaled(site: Site, count: int) -> list[Machine]:
    """A training group that has grown to ``count`` busy machines."""
    site.group("train", Autoscaling(0, 4))
    site.pending = {"train": count}
    site.after(0)
    site.after(1)
    site.pending = {}
    machines = site.machines("train", MachineState.RUNNING)
    assert len(machines) == count
    site.busy = {machine.id for machine in machines}
    site.after(0)
    return machines


def test_a_machine_holds_its_gpus_from_before_it_boots(site: Site) -> None:
    site.group("serve", Fixed(2))
    site.after(0)
    assert (site.running("serve"), site.block.usage) == (0, 16)
    assert not site.fleet.settled("serve")
    site.after(1)
    assert (site.running("serve"), site.block.usage) == (2, 16)
    assert site.fleet.settled("serve")


def test_a_machine_holds_its_gpus_until_it_is_gone(site: Site) -> None:
    site.group("serve", Fixed(2))
    site.after(0)
    site.after(1)
    site.fleet.resize("serve", Fixed(0))
    site.after(0)
    site.after(1.9)
    assert (site.running("serve"), site.block.usage) == (0, 16)
    assert not site.fleet.settled("serve")
    site.after(0.1)
    assert site.block.usage == 0
    assert site.fleet.settled("serve")


def test_growth_beyond_the_block_takes_what_there_is_and_waits_for_the_rest(site: Site) -> None:
    group = site.group("serve", Fixed(5))
    site.after(0)
    site.after(1)
    assert site.running("serve") == 4
    assert group.problem is not None
    assert "0 of 32 GPUs free, 8 are needed" in group.problem
    assert group.problem_since == 0.0
    assert not site.fleet.settled("serve")
    site.block.set_limit(40)
    site.after(0)
    site.after(1)
    assert (group.problem, group.problem_since) == (None, None)
    assert site.fleet.settled("serve")


def test_freed_gpus_go_to_the_group_that_waits_in_the_same_step(site: Site) -> None:
    site.group("serve", Fixed(2))
    donor = site.group("donor", Fixed(3))
    site.after(0)
    assert len(site.machines("donor")) == 2
    site.fleet.resize("serve", Fixed(1))
    site.after(0)
    site.after(2)
    assert len(site.machines("donor")) == 3
    assert donor.problem is None
    assert site.block.free == 0


@pytest.mark.parametrize("is_fixed", [True, False], ids=["fixed", "autoscaled"])
def test_a_fixed_group_loses_its_youngest_machines_and_an_autoscaled_one_those_that_are_empty(
    site: Site, is_fixed: bool
) -> None:
    def size(count: int) -> Size:
        return Fixed(count) if is_fixed else Autoscaling(0, count)

    site.group("serve", Fixed(1))
    site.after(0)
    site.fleet.resize("serve", Fixed(2))
    site.after(5)
    old, young = site.machines("serve")
    site.after(1)
    site.busy = {young.id}
    site.fleet.resize("serve", size(1))
    site.after(0)
    assert (young if is_fixed else old).state is MachineState.DELETING


def test_a_machine_that_dies_is_replaced_by_another(site: Site) -> None:
    site.group("serve", Fixed(1))
    site.after(0)
    (first,) = site.machines("serve")
    site.fleet.kill(first.id)
    assert site.block.usage == 0
    site.after(0)
    (second,) = site.machines("serve")
    assert second.id != first.id


def test_autoscaling_adds_a_machine_for_each_pod_without_room(site: Site) -> None:
    group = site.group("train", Autoscaling(0, 3))
    site.pending = {"train": 2}
    site.after(0)
    # The Pods are pending still: what boots for them is their room.
    site.after(0.5)
    assert (group.target, len(site.machines("train"))) == (2, 2)
    site.pending = {"train": 9}
    site.after(0)
    assert (group.target, len(site.machines("train"))) == (3, 3)


def test_autoscaling_keeps_its_minimum(site: Site) -> None:
    site.group("train", Autoscaling(1, 3))
    site.after(0)
    site.after(1)
    site.after(100)
    assert site.running("train") == 1


def test_a_machine_is_used_again_if_a_pod_comes_back_in_time(site: Site) -> None:
    (machine,) = scaled(site, 1)
    site.busy = set()
    site.after(1)
    site.after(7.9)
    assert machine.state is MachineState.RUNNING
    site.busy = {machine.id}
    site.after(1)
    site.busy = set()
    site.after(1)
    site.after(7.9)
    assert site.machines("train") == [machine]
    assert machine.state is MachineState.RUNNING


def test_an_empty_machine_is_kept_for_a_pod_that_is_about_to_use_it(site: Site) -> None:
    (machine,) = scaled(site, 1)
    site.busy = set()
    site.after(0)
    site.pending = {"train": 1}
    site.after(8)
    assert site.machines("train") == [machine]
    assert machine.state is MachineState.RUNNING


def test_a_donor_has_left_the_block_only_after_idle_and_removal(site: Site) -> None:
    machines = scaled(site, 2)
    site.busy = {machines[0].id}
    site.after(0)
    began = site.clock
    seen: dict[int, float] = {}
    while site.clock < began + 20:
        seen.setdefault(site.block.usage, site.clock - began)
        site.after(0.25)
    assert seen == {16: 0.0, 8: TIMING.idle + TIMING.removal}
    assert site.machines("train") == [machines[0]]


def test_the_machine_that_was_empty_for_longest_goes_first(site: Site) -> None:
    one, two = scaled(site, 2)
    site.busy = {one.id}
    site.after(1)
    site.busy = set()
    site.after(1)
    site.pending = {"train": 1}
    site.after(8)
    assert (one.state, two.state) == (MachineState.RUNNING, MachineState.DELETING)


def test_a_pod_that_gives_up_takes_the_claim_for_it_back(site: Site) -> None:
    site.group("serve", Fixed(4))
    group = site.group("train", Autoscaling(0, 2))
    site.pending = {"train": 1}
    site.after(0)
    assert group.problem is not None
    site.pending = {}
    site.after(0)
    assert (group.problem, group.target) == (None, 0)


def test_bounds_hold_however_the_group_moves_between_them(site: Site) -> None:
    scaled(site, 2)
    assert site.fleet.within_size("train")
    site.fleet.resize("train", Autoscaling(0, 1))
    assert not site.fleet.within_size("train")
    site.after(0)
    site.after(2)
    assert site.fleet.within_size("train")
    site.fleet.resize("train", Autoscaling(2, 2))
    assert not site.fleet.within_size("train")
    site.after(0)
    site.after(1)
    assert site.fleet.within_size("train")


@pytest.mark.parametrize(
    ("reservation", "machines", "payg", "usage"),
    [(Reservation.STRICT, 4, 0, 32), (Reservation.AUTO, 5, 1, 32), (Reservation.FORBID, 5, 5, 0)],
)
def test_only_a_strict_group_never_buys(
    tmp_path: Path, reservation: Reservation, machines: int, payg: int, usage: int
) -> None:
    ledger = tmp_path / "ledger.jsonl"
    site = Site(ledger=ledger)
    site.group("serve", Fixed(5), reservation=reservation)
    site.after(0)
    assert (len(site.machines("serve")), site.fleet.payg, site.block.usage) == (machines, payg, usage)
    entries = [json.loads(line)["entry"] for line in ledger.read_text().splitlines()]
    assert (entries.count("payg"), entries.count("declared")) == (
        (0, payg) if reservation is Reservation.FORBID else (payg, 0)
    )
    assert sum(not machine.reserved for machine in site.machines("serve")) == payg
    site.fleet.resize("serve", Fixed(0))
    site.after(0)
    site.after(2)
    assert (site.block.usage, site.fleet.payg) == (0, payg)


def test_each_machine_that_cannot_be_made_is_written_down_once(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.jsonl"
    site = Site(ledger=ledger)

    def refused() -> list[str]:
        entries = [json.loads(line) for line in ledger.read_text().splitlines()]
        return [entry["holder"] for entry in entries if entry["entry"] == "refused"]

    site.group("serve", Fixed(4))
    site.after(0)
    assert refused() == []
    site.group("more", Fixed(2))
    site.after(0)
    site.after(1)
    assert refused() == ["more", "more"]
    site.fleet.resize("more", Fixed(3))
    site.after(1)
    site.after(1)
    assert refused() == ["more"] * 3
    site.block.set_limit(56)
    site.after(0)
    site.fleet.resize("more", Fixed(4))
    site.after(0)
    assert refused() == ["more"] * 4


def test_machines_without_gpus_need_no_block(site: Site) -> None:
    site.group("login", Fixed(50), gpus=0)
    site.after(0)
    assert len(site.machines("login")) == 50
    assert (site.block.holders, site.fleet.payg) == ({}, 0)


@pytest.mark.parametrize("make", [lambda: Fixed(-1), lambda: Autoscaling(-1, 2), lambda: Autoscaling(3, 2)])
def test_a_size_that_cannot_be_is_an_error(make: type[Fixed]) -> None:
    with pytest.raises(ValueError, match="cannot have"):
        make()  # type: ignore[call-arg]


def test_a_fleet_survives_a_restart(site: Site) -> None:
    site.group("serve", Fixed(1), reservation=Reservation.AUTO)
    scaled(site, 3)
    site.fleet.resize("serve", Fixed(3))
    site.after(0)
    dumped = json.loads(json.dumps([site.fleet.dump(), site.block.dump()]))
    assert site.fleet.dump() == dumped[0]
    other = Site()
    other.clock, other.busy = site.clock, site.busy
    other.group("serve", Fixed(0), reservation=Reservation.AUTO)
    other.group("train", Autoscaling(0, 4))
    other.fleet.load(dumped[0])
    other.block.load(dumped[1])
    assert other.fleet.dump() == dumped[0]
    for each in (site, other):
        each.after(1)
        each.fleet.resize("serve", Fixed(4))
        each.after(0)
    assert other.fleet.dump() == site.fleet.dump()
    assert other.fleet.payg == 3


class Turmoil(RuleBasedStateMachine):
    """Anything may happen to two strict groups on one block, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.ledger = Path(self.folder.name) / "ledger.jsonl"
        self.ledger.touch()
        self.site = Site(ledger=self.ledger)
        self.site.group("serve", Fixed(0))
        self.site.group("train", Autoscaling(0, 4))

    @rule(count=st.integers(0, 6))
    def resize(self, count: int) -> None:
        self.site.fleet.resize("serve", Fixed(count))

    @rule(bounds=st.lists(st.integers(0, 6), min_size=2, max_size=2).map(sorted))
    def rebound(self, bounds: list[int]) -> None:
        self.site.fleet.resize("train", Autoscaling(*bounds))

    @rule(pods=st.integers(0, 6))
    def queue(self, pods: int) -> None:
        self.site.pending = {"train": pods}

    @rule(data=st.data())
    def place(self, data: st.DataObject) -> None:
        running = [m.id for m in self.site.fleet.machines.values() if m.state is MachineState.RUNNING]
        chosen = data.draw(st.sets(st.sampled_from(running))) if running else set()
        self.site.busy = chosen

    @rule(data=st.data())
    def kill(self, data: st.DataObject) -> None:
        if self.site.fleet.machines:
            self.site.fleet.kill(data.draw(st.sampled_from(sorted(self.site.fleet.machines))))

    @rule(limit=st.integers(0, 48))
    def rereserve(self, limit: int) -> None:
        self.site.block.set_limit(limit)

    @rule(seconds=st.floats(0, 12))
    def wait(self, seconds: float) -> None:
        self.site.after(seconds)

    @invariant()
    def the_block_gave_what_the_machines_have(self) -> None:
        machines = self.site.fleet.machines
        assert self.site.block.holders == {m.id: m.gpus for m in machines.values()}
        assert self.site.fleet.payg == 0

    @invariant()
    def bounds_are_kept(self) -> None:
        for group in self.site.fleet.groups.values():
            machines = self.site.machines(group.id)
            alive = [m for m in machines if m.state is not MachineState.DELETING]
            if group.problem is not None:
                assert len(alive) < group.target

    def teardown(self) -> None:
        try:
            self.reach_what_fits()
            self.give_all_back()
            self.check_ledger()
        finally:
            self.folder.cleanup()

    def reach_what_fits(self) -> None:
        self.site.block.set_limit(48)
        self.site.pending, self.site.busy = {}, set()
        self.site.fleet.resize("serve", Fixed(3))
        self.site.fleet.resize("train", Autoscaling(2, 3))
        for _ in range(4):
            self.site.after(12)
        for group_id, low, high in (("serve", 3, 3), ("train", 2, 3)):
            assert self.site.fleet.settled(group_id)
            assert self.site.fleet.within_size(group_id)
            assert low <= self.site.running(group_id) <= high

    def give_all_back(self) -> None:
        self.site.fleet.resize("serve", Fixed(0))
        self.site.fleet.resize("train", Autoscaling(0, 3))
        for _ in range(4):
            self.site.after(12)
        assert self.site.fleet.machines == {}
        assert self.site.block.usage == 0

    def check_ledger(self) -> None:
        held: dict[str, int] = {}
        for line in self.ledger.read_text().splitlines():
            entry = json.loads(line)
            assert entry["entry"] in {"claim", "release", "limit", "refused"}
            if entry["entry"] == "claim":
                assert entry["holder"] not in held
                held[entry["holder"]] = entry["gpus"]
                assert sum(held.values()) <= entry["limit"]
            elif entry["entry"] == "release":
                assert held.pop(entry["holder"]) == entry["gpus"]
            elif entry["entry"] == "refused":
                assert entry["gpus"] > entry["limit"] - sum(held.values())
            assert entry["usage"] == sum(held.values())
        assert held == {}


TestTurmoil = Turmoil.TestCase
TestTurmoil.settings = settings(max_examples=150, stateful_step_count=40, deadline=None, database=None)
