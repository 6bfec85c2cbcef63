"""Stories of shifts from the first seeds: whatever happens to a block, the rules of ``shifts`` hold."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_soperator.capacity import holdings, shift
from airflow_provider_soperator.capacity.order import ShiftOrder
from airflow_provider_soperator.capacity.targets import bought_nodes, slurm_session
from airflow_provider_soperator.slurm.requests import PowerDownMode
from tests.simulation.shifts import World
from tests.simulation.story import Violated, play, played

#: Seeds of a run of the suite, and those of one test; `make soak` plays thousands.
SEEDS, AT_ONCE = 60, 20
#: Those whose stories are the first to break some rule without what keeps it.
TELLING = (0, 1, 3, 4, 5, 23, 26, 71, 241)


@pytest.mark.parametrize("first", range(0, SEEDS, AT_ONCE))
def test_the_rules_hold(first: int) -> None:
    play(World, range(first, first + AT_ONCE))


def test_the_rules_hold_in_stories_that_tell_of_faults() -> None:
    play(World, set(TELLING) - set(range(SEEDS)))


def test_a_seed_tells_the_same_story_each_time() -> None:
    assert played(World(11)) == played(World(11))


def takes_what_others_keep(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(slurm_session.SlurmNodesSession, "_untouchable", lambda session, node, reserved: "")


def powers_nodes_down_under_their_jobs(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(slurm_session.NodeLoad, "is_busy", False)
    patch.setattr(
        slurm_session,
        "kept_off",
        lambda nodes, mode, reason, kept_off=slurm_session.kept_off: kept_off(
            nodes, PowerDownMode.FORCE, reason=reason
        ),
    )


def takes_what_is_not_free(patch: pytest.MonkeyPatch) -> None:
    def may_have(world: holdings.World, desired: Any) -> dict[str, int]:
        return dict(desired)

    patch.setattr(shift, "may_have", may_have)


def counts_what_cannot_be_moved(patch: pytest.MonkeyPatch) -> None:
    def goal(world: holdings.World, desired: Any) -> holdings.Goal:
        return holdings.Goal(dict(desired), dict(desired))

    patch.setattr(holdings.World, "goal", goal)


def forgets_its_reservations(patch: pytest.MonkeyPatch) -> None:
    async def finish(session: slurm_session.SlurmNodesSession) -> None: ...

    patch.setattr(slurm_session.SlurmNodesSession, "finish", finish)


def ends_jobs_at_once(patch: pytest.MonkeyPatch) -> None:
    before = ShiftOrder.release

    def release(order: ShiftOrder, now: Any, **how: Any) -> holdings.Release:
        said = before(order, now, **how)
        return said if said.mode is None else holdings.Release(leaves_at=said.leaves_at, mode=PowerDownMode.FORCE)

    patch.setattr(ShiftOrder, "release", release)


def forgets_who_is_left_out(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(slurm_session.SlurmNodesSession, "leave_out", lambda session, units: None)


def goes_on_when_it_is_told_to_stop(patch: pytest.MonkeyPatch) -> None:
    before = shift.Shift._heed

    async def heed(one: shift.Shift) -> str:
        await before(one)
        return ""

    patch.setattr(shift.Shift, "_heed", heed)


def leaves_its_comments_at_jobs(patch: pytest.MonkeyPatch) -> None:
    async def finish(session: slurm_session.SlurmNodesSession) -> None:
        await session._reservation.end()

    patch.setattr(slurm_session.SlurmNodesSession, "finish", finish)


def keeps_no_node_that_is_not_drained_yet(patch: pytest.MonkeyPatch) -> None:
    before = slurm_session.SlurmNodesSession._reserve

    async def reserve(
        session: slurm_session.SlurmNodesSession, loads: Any, leaving: Any, release: Any, *_: Any
    ) -> None:
        await before(session, loads, leaving, release)

    patch.setattr(slurm_session.SlurmNodesSession, "_reserve", reserve)


def buys_whatever_it_costs(patch: pytest.MonkeyPatch) -> None:
    before = bought_nodes.BoughtGroup.bring

    async def bring(group: bought_nodes.BoughtGroup, lacks: int, keeps: int, now: Any, until: Any) -> bool:
        said = group._said
        group._said = replace(said, gpu_hours=1000)
        try:
            return await before(group, lacks, keeps, now, until)
        finally:
            group._said = said

    patch.setattr(bought_nodes.BoughtGroup, "bring", bring)


def keeps_what_it_has_bought(patch: pytest.MonkeyPatch) -> None:
    before = bought_nodes.BoughtGroup.bring

    async def bring(group: bought_nodes.BoughtGroup, lacks: int, *more: Any) -> bool:
        return await before(group, lacks, *more) if lacks > 0 else True

    patch.setattr(bought_nodes.BoughtGroup, "bring", bring)


@pytest.mark.parametrize(
    ("without", "rule"),
    [
        (takes_what_others_keep, "nobody's drained or reserved node is taken"),
        (powers_nodes_down_under_their_jobs, "no job fails with its node"),
        (takes_what_is_not_free, "never more GPUs are claimed than are free"),
        (counts_what_cannot_be_moved, "what is possible comes"),
        (forgets_its_reservations, "nothing is left behind"),
        (ends_jobs_at_once, "no job is ended that need not be"),
        (forgets_who_is_left_out, "a node that is left out stays"),
        (goes_on_when_it_is_told_to_stop, "a shift that was told to stop moves nothing"),
        (leaves_its_comments_at_jobs, "nothing is left behind"),
        (keeps_no_node_that_is_not_drained_yet, "no job takes a node that has gone for a shift"),
        (buys_whatever_it_costs, "no window costs more than it may"),
        (keeps_what_it_has_bought, "nothing is left behind"),
    ],
)
def test_a_rule_is_broken_without_what_keeps_it(
    without: Callable[[pytest.MonkeyPatch], None], rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The proof that stories have what rules need to be broken."""
    without(monkeypatch)
    with pytest.raises(Violated, match=rf"{rule}.*\n(.*\n)*repeat: .* --shifts --seed [0-9]+"):
        play(World, [*TELLING, *range(200)])
