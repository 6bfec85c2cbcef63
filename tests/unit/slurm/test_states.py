"""States: every notation leads to the same value, words are compared whole, and new words hurt nobody."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_soperator.slurm.states import JobBase, JobFlag, JobState, NodeBase, NodeFlag, NodeState

PENDING = "pending"
ACTIVE = "active"
FINISHED = "finished"


def standing(state: JobState) -> set[str]:
    said = {PENDING: state.is_pending, ACTIVE: state.is_active, FINISHED: state.is_finished}
    return {name for name, holds in said.items() if holds}


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("PENDING", PENDING),
        ("RUNNING", ACTIVE),
        ("SUSPENDED", ACTIVE),
        ("COMPLETING", ACTIVE),
        ("CONFIGURING", ACTIVE),
        ("EXPEDITING", ACTIVE),
        ("STOPPED", ACTIVE),
        ("SIGNALING", ACTIVE),
        ("RESIZING", ACTIVE),
        ("STAGE_OUT", ACTIVE),
        ("REQUEUED", PENDING),
        ("REQUEUE_HOLD", PENDING),
        ("REQUEUE_FED", PENDING),
        ("SPECIAL_EXIT", PENDING),
        ("RESV_DEL_HOLD", PENDING),
        ("COMPLETED", FINISHED),
        ("CANCELLED", FINISHED),
        ("CANCELLED by 1001", FINISHED),
        ("FAILED", FINISHED),
        ("TIMEOUT", FINISHED),
        ("NODE_FAIL", FINISHED),
        ("PREEMPTED", FINISHED),
        ("BOOT_FAIL", FINISHED),
        ("DEADLINE", FINISHED),
        ("OUT_OF_MEMORY", FINISHED),
        ("REVOKED", FINISHED),
    ],
)
def test_each_job_state_is_one_thing(said: str, expected: str) -> None:
    assert standing(JobState.parse(said)) == {expected}
    assert standing(JobState.parse([said])) == {expected}
    assert standing(JobState.parse(said.lower())) == {expected}


def test_only_completed_jobs_have_succeeded() -> None:
    succeeded = [base for base in JobBase if JobState(base).succeeded]
    assert succeeded == [JobBase.COMPLETED]
    assert not JobState.parse("COMPLETED+COMPLETING").succeeded
    assert not JobState.parse("COMPLETED+REQUEUED").succeeded
    assert not JobState.parse("").succeeded


def test_a_job_that_ends_and_comes_back_is_not_finished() -> None:
    going = JobState.parse(["PREEMPTED", "REQUEUED", "COMPLETING"])
    assert standing(going) == {ACTIVE}
    assert standing(JobState.parse(["NODE_FAIL", "REQUEUED"])) == {PENDING}


def test_who_cancelled_a_job() -> None:
    state = JobState.parse("CANCELLED by 1001")
    assert state.base is JobBase.CANCELLED
    assert state.cancelled_by == 1001
    assert state == JobState.parse("CANCELLED")


def test_json_and_text_agree() -> None:
    assert JobState.parse(["RUNNING", "CONFIGURING"]) == JobState.parse("RUNNING+CONFIGURING")


job_words = st.sampled_from([*(base.value for base in JobBase), *(flag.value for flag in JobFlag), "WARPING", "Q"])


@given(st.lists(job_words, max_size=5))
def test_any_words_are_a_job_state_that_can_be_written_and_read(words: list[str]) -> None:
    state = JobState.parse(words)
    assert JobState.parse(str(state)) == state or not words
    assert len(standing(state)) <= 1


@given(st.text(max_size=30))
def test_no_text_upsets_the_readers(text: str) -> None:
    JobState.parse(text)
    NodeState.parse(text)


def test_unknown_words_are_kept_beside_the_known() -> None:
    assert JobState.parse("RUNNING+WARPING") == JobState(JobBase.RUNNING, unknown=frozenset({"WARPING"}))
    node = NodeState.parse("IDLE+CLOUD+LEVITATING")
    assert node.base is NodeBase.IDLE
    assert node.unknown == {"LEVITATING"}
    assert str(node) == "IDLE+CLOUD+LEVITATING"


def test_powered_down_is_not_down() -> None:
    state = NodeState.parse("IDLE+CLOUD+POWERED_DOWN")
    assert state.base is NodeBase.IDLE
    assert state.has(NodeFlag.POWERED_DOWN)
    assert not state.has(NodeFlag.POWER_DOWN, NodeFlag.POWERING_DOWN)


@pytest.mark.parametrize(
    ("said", "base", "flags"),
    [
        ("DOWN+CLOUD+DRAIN+POWERED_DOWN", NodeBase.DOWN, {NodeFlag.CLOUD, NodeFlag.DRAIN, NodeFlag.POWERED_DOWN}),
        ("IDLE+POWER_DOWN_ASAP", NodeBase.IDLE, {NodeFlag.POWER_DOWN, NodeFlag.POWER_DRAIN}),
    ],
)
def test_notations_of_node_states(said: str, base: NodeBase | None, flags: set[NodeFlag]) -> None:
    assert NodeState.parse(said) == NodeState(base, frozenset(flags))


@given(st.sampled_from(NodeBase), st.sets(st.sampled_from(NodeFlag)))
def test_a_node_state_reads_the_same_from_every_notation(base: NodeBase, flags: set[NodeFlag]) -> None:
    state = NodeState(base, frozenset(flags))
    words = [base.value, *(flag.value for flag in flags)]
    assert NodeState.parse(words) == NodeState.parse("+".join(words)) == NodeState.parse(str(state).lower()) == state
