"""Predicates on nodes, for the states that real nodes go through, and whose drains are whose."""

from __future__ import annotations

import pytest

from airflow_provider_soperator.slurm import node_conditions
from airflow_provider_soperator.slurm.cluster_records import Node
from airflow_provider_soperator.slurm.node_conditions import DrainReason, check_reason, explain
from airflow_provider_soperator.slurm.states import NodeState

QUESTIONS = ("usable", "up", "off", "going_off", "coming_up", "busy", "draining", "drained")


def node(state: str, reason: str = "") -> Node:
    return Node(name="worker-0", state=NodeState.parse(state), reason=reason)


@pytest.mark.parametrize(
    ("state", "is_"),
    [
        ("IDLE+CLOUD", {"usable", "up"}),
        ("MIXED+CLOUD", {"usable", "up", "busy"}),
        ("ALLOCATED+CLOUD", {"usable", "up", "busy"}),
        ("IDLE+CLOUD+COMPLETING", {"usable", "up", "busy"}),
        ("IDLE+CLOUD+RESERVED", {"usable", "up"}),
        ("IDLE+CLOUD+PLANNED", {"usable", "up"}),
        ("IDLE+CLOUD+MAINTENANCE", {"usable", "up"}),
        ("IDLE+CLOUD+POWERED_DOWN", {"off"}),
        ("IDLE+CLOUD+DRAIN+POWERED_DOWN", {"off", "drained"}),
        ("DOWN+CLOUD+POWERED_DOWN", {"off"}),
        ("IDLE+CLOUD+POWERING_DOWN", {"going_off"}),
        ("IDLE+CLOUD+POWERED_DOWN+POWER_DOWN", {"going_off"}),
        ("MIXED+CLOUD+POWER_DOWN", {"up", "busy", "going_off"}),
        ("MIXED+CLOUD+DRAIN+POWER_DOWN+POWER_DRAIN", {"up", "busy", "going_off", "draining"}),
        ("IDLE+CLOUD+POWERED_DOWN+POWER_UP", {"coming_up"}),
        # A job has been given the node, and slurmctld powers it up within seconds.
        ("MIXED+CLOUD+POWERED_DOWN", {"coming_up", "busy"}),
        ("IDLE+CLOUD+COMPLETING+POWERED_DOWN", {"off", "busy"}),
        # The Pod of an attempt that slurmctld had given up registered before the next order had its turn.
        ("IDLE+CLOUD+POWER_UP", {"usable", "up"}),
        ("ALLOCATED+CLOUD+NOT_RESPONDING+POWERING_UP", {"coming_up", "busy"}),
        ("IDLE+CLOUD+DRAIN", {"up", "drained"}),
        ("IDLE+CLOUD+DRAIN+COMPLETING", {"up", "busy", "draining"}),
        ("MIXED+CLOUD+DRAIN", {"up", "busy", "draining"}),
        ("DOWN+CLOUD+DRAIN", {"drained"}),
        ("IDLE+CLOUD+NOT_RESPONDING", set()),
        ("DOWN+CLOUD+NOT_RESPONDING", set()),
        ("IDLE+CLOUD+INVALID_REG+DRAIN", {"up", "drained"}),
        ("IDLE+CLOUD+FAIL", {"up"}),
        ("IDLE+CLOUD+REBOOT_ISSUED", {"up"}),
        ("IDLE+CLOUD+SOMETHING_NEW", {"usable", "up"}),
        ("SOMETHING_NEW", set()),
        ("UNKNOWN", set()),
        ("FUTURE", set()),
    ],
)
def test_what_people_mean(state: str, is_: set[str]) -> None:
    assert {name for name in QUESTIONS if getattr(node(state), f"is_{name}")} == is_


def test_a_node_that_did_not_boot() -> None:
    assert node("DOWN+CLOUD+POWERED_DOWN", "ResumeTimeout reached").failed_to_resume
    # 4.1 leaves the pod behind, and the node may still register.
    assert not node("IDLE+CLOUD", "ResumeTimeout reached").failed_to_resume
    assert not node("DOWN+CLOUD+POWERED_DOWN", "Not responding").failed_to_resume
    assert not node("DOWN+CLOUD+NOT_RESPONDING+POWERING_UP", "ResumeTimeout reached").failed_to_resume
    # Without accounting, Slurm up to 25.11 keeps a reason when the node is up again, and adds to it.
    assert not node("DOWN+CLOUD+NOT_RESPONDING", "ResumeTimeout reached : Not responding").failed_to_resume
    again = "ResumeTimeout reached : Not responding : ResumeTimeout reached"
    assert node("DOWN+CLOUD+POWERED_DOWN", again).failed_to_resume


def test_our_drains() -> None:
    reason = DrainReason("shifts/night", "lent until 08:00: a = b")
    assert DrainReason.parse(str(reason)) == reason
    assert DrainReason.parse(str(DrainReason("me"))) == DrainReason("me")
    # Slurm adds to a reason when the node does not respond for a while.
    assert DrainReason.parse(f"{DrainReason('me')} : Not responding") == DrainReason("me", "Not responding")
    drained = node("IDLE+CLOUD+DRAIN+POWERED_DOWN", str(reason))
    assert node_conditions.is_ours(drained)
    assert node_conditions.is_ours(drained, "shifts/night")
    assert not node_conditions.is_ours(drained, "shifts/day")


def test_a_drain_that_has_the_machine_replaced_has_an_owner_and_ends_by_itself() -> None:
    drained = node("IDLE+CLOUD+DRAIN", "[hardware_problem] airflow:nights: NVLink")
    assert DrainReason.parse(drained.reason) == DrainReason("nights", "NVLink")
    assert node_conditions.is_drained_by_us(drained, "nights")
    assert not node_conditions.is_drained_by_us(drained, "days")
    assert not node_conditions.is_ours(drained)
    assert node_conditions.ends_by_itself(drained)


@pytest.mark.parametrize(
    "reason", ["", "airflow", "airflow:", "airflow: by hand", "Airflow:me: x", "see airflow:me: x", "[user_problem] x"]
)
def test_what_is_not_ours(reason: str) -> None:
    assert not node_conditions.is_ours(node("IDLE+DRAIN", reason))


def test_a_reason_outlives_the_drain_and_makes_nothing_ours() -> None:
    assert not node_conditions.is_ours(node("IDLE+CLOUD", str(DrainReason("me"))))


@pytest.mark.parametrize("owner", ["", "a b", "a:b", "a\n"])
def test_owners_are_one_word(owner: str) -> None:
    with pytest.raises(ValueError, match="cannot own"):
        DrainReason(owner)


def test_no_reason_of_ours_is_one_that_soperator_acts_on() -> None:
    assert node_conditions.explain(str(DrainReason("me", "x"))) is None


@pytest.mark.parametrize(
    ("reason", "takes_machine", "heals"),
    [
        ("[hardware_problem] gpu_health_check: XID 79 [prolog]", True, True),
        ("[compute_maintenance] node replacement process", True, True),
        ("Kill task failed", True, True),
        ("[user_problem] alloc_gpus_busy: pid 12 [hc_program]", False, True),
        ("ResumeTimeout reached", False, False),
        ("ResumeTimeout reached : Not responding", False, True),
        ("Not responding : ResumeTimeout reached", False, False),
        ("[software_problem] x", False, False),
    ],
)
def test_reasons_that_others_give(reason: str, takes_machine: bool, heals: bool) -> None:
    known = node_conditions.explain(reason)
    assert known is not None
    assert (known.takes_machine, known.heals) == (takes_machine, heals)


@pytest.mark.parametrize("why", ["after Kill task failed", "see [node_problem] of May", "[user_problem]"])
def test_a_reason_that_soperator_would_act_on_is_refused(why: str) -> None:
    with pytest.raises(ValueError, match="on which Soperator reboots or replaces the machine"):
        check_reason(why)


@pytest.mark.parametrize("why", ["a\nb", "a\xa0b", "ü" * 400])
def test_a_reason_that_slurm_or_its_readers_could_not_have_is_refused(why: str) -> None:
    with pytest.raises(ValueError, match="must be one printable line of at most 768 bytes"):
        check_reason(why)


def test_other_reasons_are_not_refused() -> None:
    check_reason("a new driver; tasks that were killed have failed")


def test_what_is_found_first_by_soperator_counts() -> None:
    known = explain("[hardware_problem] gpu: Kill task failed")
    assert known is not None
    assert known.kind == "reboot"
    known = explain("[hardware_problem] gpu: after a [node_problem]")
    assert known is not None
    assert known.kind == "node_problem"
