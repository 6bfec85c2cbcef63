"""How a node gets another machine, look by look: what is ordered, what is waited for, and when it is given up."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pytest

from airflow_provider_soperator.health.machine_replacement import (
    NodeSnapshot,
    Replacement,
    ReplacementOptions,
    by_kubernetes,
    by_slurm,
)
from airflow_provider_soperator.slurm.cluster_records import Node
from airflow_provider_soperator.slurm.node_orders import NodeStep
from airflow_provider_soperator.slurm.requests import Drain, Undrain
from airflow_provider_soperator.slurm.states import NodeState
from airflow_provider_soperator.soperator.conditions import Condition
from airflow_provider_soperator.soperator.workloads import Host, Pod
from airflow_provider_soperator.work.machines import MachineReplacement

NOON = datetime(2026, 11, 22, 12, tzinfo=timezone.utc)
OURS = "[hardware_problem] airflow:nights: NVLink"
AGAIN = f"{OURS} (was drained before)"
SOPERATORS = "[compute_maintenance] node replacement process"
OLD = Host("computeinstance-old", NOON - timedelta(days=9))
NEW = Host("computeinstance-new", NOON + timedelta(minutes=5))
WANTED = ReplacementOptions(owner="nights", reason="NVLink", since=NOON)


def node(state: str, reason: str = "", since: datetime | None = NOON) -> Node:
    return Node(name="worker-0", state=NodeState.parse(state), reason=reason, reason_since=since, reason_user="root")


def on_old(node: Node) -> NodeSnapshot:
    return by_slurm(replace(node, instance=OLD.name, booted_at=OLD.created))


def sight(state: str, machine: Host | None = OLD, reason: str = "", acted: str = "") -> NodeSnapshot:
    return NodeSnapshot(node(state, reason), machine, acted)


class Story:
    """One node, looked at again and again."""

    def __init__(self, wanted: ReplacementOptions = WANTED) -> None:
        self.replacement = Replacement(wanted)
        self.minutes = 0.0

    def see(self, seen: NodeSnapshot, *, after: float = 1, may_begin: bool = True) -> NodeStep:
        self.minutes += after
        return self.replacement.look(seen, NOON + timedelta(minutes=self.minutes), may_begin=may_begin)


def test_of_many_nodes_so_many_are_under_way_and_each_is_asked_for_that_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    names, asked = tuple(f"worker-{number}" for number in range(20)), list[Replacement]()
    span = {"since": NOON, "deadline": NOON + timedelta(days=1)}
    work = MachineReplacement(slurm_conn_id="c", nodes=names, owner="nights", max_parallel="25%", **span)  # type: ignore[arg-type]
    work._replacements, work._lost = {name: Replacement(WANTED) for name in names}, {}
    was = Replacement.is_under_way.fget
    assert was
    monkeypatch.setattr(Replacement, "is_under_way", property(lambda one: asked.append(one) or was(one)))
    for _ in range(2):
        move = work._decide(dict.fromkeys(names, sight("IDLE+CLOUD")))
        begun = [name for name, why in move.waiting.items() if why == "is being drained"]
        assert (begun, len(asked)) == (list(names[:5]), 40)
        asked.clear()


def test_a_node_is_drained_waited_for_and_found_on_another_machine() -> None:
    story = Story()
    assert story.see(sight("MIXED+CLOUD")) == NodeStep((Drain(("worker-0",), OURS),), waits="is being drained")
    assert story.see(sight("MIXED+CLOUD+DRAIN", reason=OURS)) == NodeStep(waits="has jobs")
    assert story.see(sight("IDLE+CLOUD+DRAIN", reason=OURS)).waits == "is drained, waiting for Soperator"
    # It writes a reason of its own over ours, and has the machine removed.
    assert (
        story.see(sight("IDLE+CLOUD+DRAIN", reason=SOPERATORS, acted="is being replaced")).waits == "is being replaced"
    )
    assert story.see(sight("DOWN+CLOUD+DRAIN", None, SOPERATORS)).waits == "is on an unknown machine"
    there = story.see(sight("DOWN+CLOUD+DRAIN+NOT_RESPONDING", NEW, SOPERATORS))
    assert there.waits == "boots on computeinstance-new"
    assert story.see(sight("IDLE+CLOUD+DRAIN", NEW, SOPERATORS)).waits.endswith(", waiting for Soperator to undrain it")
    assert story.see(sight("IDLE+CLOUD", NEW)) == NodeStep()
    done = story.replacement
    assert (done.is_over, done.old, done.new) == (True, OLD.name, NEW.name)


def test_a_drain_of_an_owner_with_a_longer_name_is_not_taken_back() -> None:
    story = Story(ReplacementOptions(owner="night", since=NOON))
    story.see(sight("IDLE+CLOUD+DRAIN", reason=OURS))
    assert story.replacement.undo(sight("IDLE+CLOUD+DRAIN", reason=OURS)) == ()


def test_a_node_whose_slurmd_is_not_there_yet_is_not_usable() -> None:
    story = Story()
    story.see(sight("IDLE+CLOUD"))
    # slurmctld has heard of the old one a moment ago.
    boots = by_kubernetes(node("IDLE+CLOUD"), Pod("Running", False, Host(NEW.name, NEW.created)))
    assert story.see(boots).waits == "boots on computeinstance-new"
    story.see(by_kubernetes(node("IDLE+CLOUD"), Pod("Running", True, Host(NEW.name, NEW.created))))
    assert story.replacement.is_over


def test_a_drain_that_is_left_is_undone_when_soperator_has_had_its_time() -> None:
    story = Story()
    story.see(sight("IDLE+CLOUD"))
    story.see(sight("IDLE+CLOUD+DRAIN", NEW, OURS))
    assert story.see(sight("IDLE+CLOUD+DRAIN", NEW, OURS), after=9).orders == ()
    assert story.see(sight("IDLE+CLOUD+DRAIN", NEW, OURS), after=1).orders == (Undrain(("worker-0",)),)
    story.see(sight("IDLE+CLOUD", NEW))
    assert story.replacement.is_over


def test_nobody_acts() -> None:
    story = Story()
    story.see(sight("IDLE+CLOUD"))
    drained = sight("IDLE+CLOUD+DRAIN", reason=OURS)
    assert story.see(drained).lost == ""
    # The time that jobs take is not Soperator's.
    story.see(sight("MIXED+CLOUD+DRAIN", reason=OURS))
    assert story.see(drained, after=8).lost == ""
    lost = story.see(replace(drained, node=replace(drained.node, instance=OLD.name)), after=1).lost
    assert "Soperator did not react within 0:10:00: check that soperatorchecks runs" in lost
    # Soperator finds it by what Slurm knows.
    assert "`scontrol update nodename=worker-0 instanceid=computeinstance-old`" in story.see(drained).lost
    assert story.replacement.undo(drained) == (Undrain(("worker-0",)),)


@pytest.mark.parametrize("reason", ["[user_problem] boot_disk_full: 99%", "new cables", "airflow:day: lent", ""])
def test_who_was_drained_by_others_is_left_alone_unless_forced(reason: str) -> None:
    drained = sight("IDLE+CLOUD+DRAIN", reason=reason)
    assert "any_owner=True" in Story().see(drained).lost
    forced = Story(replace(WANTED, any_owner=True))
    ours = AGAIN if reason else OURS
    assert forced.see(drained).orders == (Drain(("worker-0",), ours),)
    # And gets its reason back.
    undone = forced.replacement.undo(sight("IDLE+CLOUD+DRAIN", reason=ours))
    assert undone == ((Drain(("worker-0",), reason),) if reason else (Undrain(("worker-0",)),))


def test_who_goes_on_does_not_open_a_node_that_somebody_had_drained() -> None:
    other = Story(replace(WANTED, any_owner=True))
    drained = sight("IDLE+CLOUD+DRAIN", reason=AGAIN)
    assert other.see(drained).waits == "is drained, waiting for Soperator"
    assert other.replacement.undo(drained) == ()


@pytest.mark.parametrize("reason", ["airflow:nights: something else", "[node_problem] gpu_health_check: XID 94"])
def test_what_asks_for_it_is_taken(reason: str) -> None:
    assert Story().see(sight("IDLE+CLOUD+DRAIN", reason=reason)).orders == (Drain(("worker-0",), AGAIN),)


@pytest.mark.parametrize("reason", ["[hardware_problem] gpu_health_check: XID 79", SOPERATORS, OURS])
def test_a_replacement_that_is_under_way_is_joined(reason: str) -> None:
    story = Story()
    assert story.see(sight("IDLE+CLOUD+DRAIN", reason=reason), may_begin=False).orders == ()
    assert story.replacement.is_under_way
    story.see(sight("IDLE+CLOUD", NEW))
    assert story.replacement.is_over
    # Only our own drains are taken back.
    joined = Story()
    joined.see(sight("IDLE+CLOUD+DRAIN", reason=reason))
    assert bool(joined.replacement.undo(sight("IDLE+CLOUD+DRAIN", reason=reason))) == (reason == OURS)


def test_a_machine_that_is_newer_than_the_drain_is_not_replaced_once_more() -> None:
    host = Host("computeinstance-2", NOON - timedelta(minutes=1), (Condition("Ready", "True"),))
    drained = node("IDLE+CLOUD+DRAIN", "[hardware_problem] x", NOON - timedelta(hours=1))
    story = Story()
    assert story.see(by_kubernetes(drained, Pod("Running", True, host))).waits.endswith(
        "waiting for Soperator to undrain it"
    )
    story.see(by_kubernetes(node("IDLE+CLOUD"), Pod("Running", True, host)))
    assert (story.replacement.is_over, story.replacement.old) == (True, None)


def test_another_try_takes_what_is_new_for_done() -> None:
    story = Story()
    there = sight("IDLE+CLOUD", NEW)
    # It must not be drained once more before its slurmd is there.
    assert story.see(replace(there, is_there=False)) == NodeStep(waits="boots on computeinstance-new")
    assert story.see(there) == NodeStep()
    assert (story.replacement.is_over, story.replacement.old, story.replacement.new) == (True, None, NEW.name)


def test_a_pod_that_does_not_run_on_the_new_machine_is_named_and_has_its_time_once() -> None:
    story = Story()
    story.see(sight("IDLE+CLOUD"))
    story.see(sight("DOWN+CLOUD", None, SOPERATORS, acted="has no Pod"), after=60)
    why = "boots on computeinstance-new (container slurmd waits (CrashLoopBackOff: back-off))"
    there = sight("DOWN+CLOUD+NOT_RESPONDING", NEW)
    waits = replace(there, is_there=False, problems=("container slurmd waits (CrashLoopBackOff: back-off)",))
    assert story.see(waits) == story.see(waits, after=8) == NodeStep(waits=why)
    assert story.see(replace(waits, problems=())) == NodeStep(waits="boots on computeinstance-new")
    assert story.see(waits).lost == f"{why} since 2026-11-22 13:02 UTC: correct what its Pod waits for"


def test_another_try_goes_on_where_the_machine_is_gone() -> None:
    story = Story()
    story.see(sight("IDLE+CLOUD+DRAIN", None, SOPERATORS, acted="has no Pod"))
    story.see(sight("IDLE+CLOUD", NEW))
    assert (story.replacement.is_over, story.replacement.new) == (True, NEW.name)


@pytest.mark.parametrize("state", ["IDLE+CLOUD+POWERED_DOWN", "IDLE+CLOUD+POWERING_DOWN", "MIXED+CLOUD+POWER_DOWN"])
def test_what_is_off_needs_nothing(state: str) -> None:
    story = Story()
    assert story.see(sight(state, None)) == NodeStep()
    assert (story.replacement.is_skipped, story.replacement.is_over) == (True, True)


def test_a_node_that_did_not_boot_is_no_case_for_it() -> None:
    failed = NodeSnapshot(node("DOWN+CLOUD+POWERED_DOWN", "ResumeTimeout reached"))
    assert "power it down and up again" in Story().see(failed).lost
    story = Story()
    story.see(sight("IDLE+CLOUD"))
    assert "did not boot on computeinstance-new" in story.see(replace(failed, machine=NEW)).lost


def test_a_dead_node_is_drained_and_waited_for() -> None:
    story = Story()
    dead = on_old(node("DOWN+CLOUD+NOT_RESPONDING", "Not responding"))
    assert story.see(dead).orders == (Drain(("worker-0",), OURS),)
    held = on_old(node("DOWN+CLOUD+DRAIN+NOT_RESPONDING", OURS))
    assert story.see(held).waits == "is DOWN+CLOUD+DRAIN+NOT_RESPONDING"
    assert story.see(held, after=60).lost == ""


@pytest.mark.parametrize(("machine", "is_lost"), [("True", True), ("Unknown", False)])
def test_nothing_acts_on_a_machine_that_answers_while_its_slurmd_does_not(machine: str, is_lost: bool) -> None:
    story = Story()
    host = replace(OLD, conditions=(Condition("Ready", machine),))
    story.see(on(host, "DOWN+CLOUD+NOT_RESPONDING"))
    held = on(host, "DOWN+CLOUD+DRAIN+NOT_RESPONDING", OURS)
    assert story.see(held).lost == ""
    lost = "is DOWN+CLOUD+DRAIN+NOT_RESPONDING, and Soperator acts on drained nodes only that are idle"
    assert story.see(held, after=60).lost == lost * is_lost


def test_nothing_acts_on_a_pod_that_does_not_run_on_a_machine_that_answers() -> None:
    story = Story()
    host = replace(OLD, conditions=(Condition("Ready", "True"),))
    pod = Pod("Running", False, host, ("container slurmd waits (CrashLoopBackOff: back-off)",))
    story.see(by_kubernetes(node("DOWN+CLOUD+NOT_RESPONDING"), pod))
    held = by_kubernetes(node("DOWN+CLOUD+DRAIN+NOT_RESPONDING", OURS), pod)
    assert story.see(held) == NodeStep(waits="is drained, waiting for its Pod")
    # Each start of it undrains the node, up to Soperator 4.1.
    undrained = by_kubernetes(node("DOWN+CLOUD+NOT_RESPONDING"), pod)
    assert story.see(undrained).orders == (Drain(("worker-0",), OURS),)
    # Soperator has its time from when the Pod runs, and a Pod that comes and goes has its own once.
    runs = on(host, "IDLE+CLOUD+DRAIN", OURS)
    assert story.see(runs, after=8).waits == "is drained, waiting for Soperator"
    assert story.see(runs, after=9).waits == "is drained, waiting for Soperator"
    assert story.see(held, after=0).lost == (
        "is DOWN+CLOUD+DRAIN+NOT_RESPONDING; container slurmd waits (CrashLoopBackOff: back-off), "
        "and Soperator acts on drained nodes only that are idle"
    )
    # What says why it is down stays.
    assert story.replacement.undo(held) == (Undrain(("worker-0",), reason=""),)


def test_a_pod_that_starts_again_on_its_machine_undrains_its_node() -> None:
    story = Story()
    story.see(on(OLD, "IDLE+CLOUD"))
    story.see(on(OLD, "IDLE+CLOUD+DRAIN", OURS))
    starts = by_kubernetes(node("DOWN+CLOUD+NOT_RESPONDING"), Pod("Running", False, OLD))
    assert story.see(starts).orders == (Drain(("worker-0",), OURS),)
    assert story.see(on(OLD, "IDLE+CLOUD")).orders == (Drain(("worker-0",), OURS),)


def test_a_node_waits_until_it_may() -> None:
    story = Story()
    assert story.see(sight("IDLE+CLOUD"), may_begin=False) == NodeStep(waits="waits for other replacements")
    assert not story.replacement.is_under_way
    assert story.see(sight("IDLE+CLOUD")).orders


def test_somebody_undrains_it_on_the_way() -> None:
    story = Story()
    story.see(sight("MIXED+CLOUD"))
    # slurmctld may show an order a moment later.
    assert story.see(sight("MIXED+CLOUD")).orders == (Drain(("worker-0",), OURS),)
    story.see(sight("MIXED+CLOUD+DRAIN", reason=OURS))
    assert story.see(sight("MIXED+CLOUD")).lost == "was undrained by others while still on computeinstance-old"


def test_a_reboot_on_the_way_undrains_it() -> None:
    story = Story()
    story.see(sight("IDLE+CLOUD"))
    story.see(sight("IDLE+CLOUD+DRAIN", reason=OURS))
    story.see(sight("IDLE+CLOUD+DRAIN", reason=OURS, acted="has a machine with SlurmNodeReboot"))
    assert story.see(sight("IDLE+CLOUD")).orders == (Drain(("worker-0",), OURS),)


@pytest.mark.parametrize(("reason", "heals"), [("[user_problem] boot_disk_full", True), ("new cables", False)])
def test_the_new_machine_is_ill_as_well(reason: str, heals: bool) -> None:
    story = Story()
    story.see(sight("IDLE+CLOUD"))
    step = story.see(sight("IDLE+CLOUD+DRAIN", NEW, reason))
    assert bool(step.waits) == heals
    assert f"is on computeinstance-new, and is drained: {reason}" in (step.waits or step.lost)


@pytest.mark.parametrize(
    "seen",
    [
        sight("IDLE+CLOUD+DRAIN", NEW, OURS),
        sight("IDLE+CLOUD+DRAIN", OLD, OURS, acted="has a machine with HardwareIssuesSuspected"),
        sight("IDLE+CLOUD+DRAIN", OLD, "[hardware_problem] gpu_health_check: x"),
        sight("IDLE+CLOUD", OLD),
    ],
)
def test_what_is_not_taken_back(seen: NodeSnapshot) -> None:
    story = Story()
    story.see(sight("IDLE+CLOUD"))
    assert story.replacement.undo(seen) == ()


def on(machine: Host, state: str, reason: str = "", since: datetime | None = NOON) -> NodeSnapshot:
    return by_kubernetes(node(state, reason, since), Pod("Running", True, machine))


NEXT = Host("computeinstance-next", NOON + timedelta(hours=3))


@pytest.mark.parametrize("reason", ["[hardware_problem] gpu_health_check: XID 79", OURS, SOPERATORS])
def test_a_drain_of_the_new_machine_is_not_undone(reason: str) -> None:
    story = Story()
    story.see(on(OLD, "IDLE+CLOUD"))
    ill = on(NEW, "IDLE+CLOUD+DRAIN", reason, NOON + timedelta(hours=2))
    step = story.see(ill)
    assert step.waits.startswith(f"is on computeinstance-new, and is drained: {reason} (")
    assert story.see(ill, after=60) == step
    story.see(on(NEXT, "IDLE+CLOUD"))
    assert (story.replacement.is_over, story.replacement.new) == (True, NEXT.name)


def test_another_try_waits_for_the_replacement_of_a_new_machine_that_is_drained_as_well() -> None:
    story = Story()
    drained = "[hardware_problem] gpu_health_check: XID 79", NOON + timedelta(hours=2)
    assert story.see(on(NEW, "MIXED+CLOUD+DRAIN", *drained)).waits == "has jobs"
    assert story.see(on(NEW, "IDLE+CLOUD+DRAIN", *drained)).waits == "is drained, waiting for Soperator"
    story.see(on(NEXT, "IDLE+CLOUD"))
    assert (story.replacement.is_over, story.replacement.old) == (True, NEW.name)


def test_a_machine_that_has_come_for_the_drain_before_this_began_is_the_new_one() -> None:
    """Its Pod starts some minutes later."""
    story = Story()
    hour = timedelta(hours=1)
    assert story.see(by_kubernetes(node("DOWN+CLOUD+DRAIN", SOPERATORS, NOON - hour), None)).waits == "has no Pod"
    come = Host(NEW.name, NOON - timedelta(minutes=1))
    waits = story.see(on(come, "IDLE+CLOUD+DRAIN", SOPERATORS, NOON - hour)).waits
    assert waits == "is on computeinstance-new, waiting for Soperator to undrain it"
    story.see(on(come, "IDLE+CLOUD"))
    assert (story.replacement.is_over, story.replacement.new) == (True, NEW.name)


#: It was made before the work began.
COME = Host("computeinstance-come", NOON - timedelta(minutes=1))


@pytest.mark.parametrize("going", [replace(OLD, is_leaving=True), Host(OLD.name, is_gone=True)])
def test_a_machine_that_goes_already_is_not_the_cause_of_a_drain_of_the_next_one(going: Host) -> None:
    story = Story()
    assert story.see(on(going, "IDLE+CLOUD")) == NodeStep(waits="has a machine that goes (computeinstance-old)")
    assert story.replacement.undo(on(going, "IDLE+CLOUD")) == ()
    assert story.see(on(COME, "DOWN+CLOUD")).waits == "boots on computeinstance-come"
    story.see(on(COME, "IDLE+CLOUD"))
    assert (story.replacement.is_over, story.replacement.old, story.replacement.new) == (True, OLD.name, COME.name)


def test_a_node_on_no_machine_is_drained_once_it_is_known_which_it_is_on() -> None:
    story = Story()
    assert story.see(by_kubernetes(node("DOWN+CLOUD"), None)) == NodeStep(waits="has no Pod")
    assert not story.replacement.is_begun
    assert story.see(on(OLD, "IDLE+CLOUD")).orders == (Drain(("worker-0",), OURS),)
    story = Story()
    story.see(by_kubernetes(node("DOWN+CLOUD"), Pod("Pending")))
    story.see(on(NEW, "IDLE+CLOUD"))
    assert (story.replacement.is_over, story.replacement.new) == (True, NEW.name)


def test_a_machine_that_has_come_for_a_failed_check_is_not_replaced_once_more() -> None:
    story, hour = Story(), timedelta(hours=1)
    seen = on(COME, "IDLE+CLOUD+DRAIN", "[node_problem] gpu_health_check: XID 94", NOON - hour)
    assert story.see(seen) == NodeStep(waits="is on computeinstance-come, waiting for Soperator to undrain it")
    assert story.see(seen, after=10).orders == (Undrain(("worker-0",)),)
    # The check has failed on this one as well.
    ill = on(COME, "IDLE+CLOUD+DRAIN", "[node_problem] gpu_health_check: XID 94", NOON)
    assert Story().see(ill).orders == (Drain(("worker-0",), AGAIN),)


def test_an_order_that_did_not_arrive_is_repeated_for_a_node_that_was_drained_before() -> None:
    story = Story()
    seen = sight("IDLE+CLOUD+DRAIN", reason="[node_problem] gpu_health_check: XID 94")
    asked = story.see(seen)
    assert asked.orders == (Drain(("worker-0",), AGAIN),)
    assert story.see(seen, after=60) == asked
    assert story.see(sight("IDLE+CLOUD+DRAIN", reason=AGAIN)).waits == "is drained, waiting for Soperator"


def test_jobs_are_ended_a_while_after_the_first_drain_which_soperator_renews() -> None:
    now, minute = datetime.now(timezone.utc), timedelta(minutes=1)
    span = {"since": now, "deadline": now + timedelta(days=1), "grace": 10 * minute}
    work = MachineReplacement(slurm_conn_id="c", nodes=("worker-0",), owner="nights", mode="force", **span)  # type: ignore[arg-type]
    work._replacements = {"worker-0": (one := Replacement(WANTED))}
    for ago, is_late in ((11 * minute, True), (minute, True)):
        draining = node("MIXED+CLOUD+DRAIN", SOPERATORS, now - ago)
        for _ in range(2):
            one.look(NodeSnapshot(draining, OLD), now, may_begin=True)
        assert work._is_late(draining) is is_late
    # The one that was there before is not that of the replacement.
    work._replacements = {"worker-0": (one := Replacement(WANTED))}
    before, ours = (node("MIXED+CLOUD+DRAIN", *said) for said in (("[node_problem] x", NOON), (AGAIN, now)))
    for seen in (before, before, ours):
        one.look(NodeSnapshot(seen, OLD), now, may_begin=True)
    assert not work._is_late(ours)


def test_jobs_on_the_new_machine_are_not_ended() -> None:
    span = {"since": NOON, "deadline": NOON + timedelta(days=1)}
    work = MachineReplacement(slurm_conn_id="c", nodes=("worker-0",), owner="nights", mode="force", **span)  # type: ignore[arg-type]
    work._replacements = {"worker-0": (one := Replacement(WANTED))}
    draining = node("MIXED+CLOUD+DRAIN", OURS)
    one.look(NodeSnapshot(draining, OLD), NOON, may_begin=True)
    assert work._is_late(draining)
    one.look(NodeSnapshot(draining, NEW), NOON, may_begin=True)
    assert not work._is_late(draining)
