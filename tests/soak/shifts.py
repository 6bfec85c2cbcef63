"""Shifts under a queue of jobs, whose processes are killed and whose world fails: each gets there, nothing is lost."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import pytest

from airflow_provider_soperator.capacity.order import ShiftOrder, Timeouts
from airflow_provider_soperator.capacity.targets import KubernetesScaleTarget
from sandbox.cloud.landscape import INFERENCE_NAMESPACE, REMOTE_INFERENCE_GROUP
from tests.integration.doomed import USUAL, Life, Step, alive, check_arrived
from tests.integration.shifts import Queue, Shifts
from tests.soak import troubles, worlds
from tests.soak.rounds import Round
from tests.soak.troubles import Trouble

#: Times there and back in a round, and deaths on each way at the most.
TURNS = 2
DEATHS = 6
#: A round in so many has a third target, replicas in a Kubernetes cluster of their own.
THREE = 3
#: Seconds that a process lives at the most that is killed at any moment: a whole shift takes two or three.
LIFE = 3.0
QUEUED = 900
#: Nothing of what goes wrong is to last so long that a shift gives up.
TIMEOUTS = Timeouts(**dict.fromkeys(("release", "free", "ready", "out_of_reach"), timedelta(minutes=5)))
#: Seconds for all that trouble and dead processes have left to be sorted out.
PATIENCE = 600

HOME = {"training": 4, "inference": 0}
GOALS = ({"training": 2, "inference": 2}, {"training": 3, "inference": 1}, {"training": 0, "inference": 4})
GOALS_OF_THREE = (
    {"training": 1, "inference": 2, "far": 1},
    {"training": 2, "inference": 1, "far": 1},
    {"training": 2, "inference": 0, "far": 2},
)
#: Orders that are given on the way to inference, and on the way back.
THERE = sorted(USUAL - {"PowerUp", "Undrain"})
BACK = sorted(USUAL - {"PowerDown", "Drain"})

ARRIVED = "shifts that got where they were to go, with nothing reserved, leased or drained that should not be"
UNHARMED = "queues of which no job was killed or requeued"


def play(round_: Round) -> None:
    settings = {"workers": 4, "initial": 4, "static": 1}
    round_.counts.update(dict.fromkeys((_killed(side, kind) for side in ("before", "after") for kind in USUAL), 0))
    with worlds.sandbox(round_, **settings) as cluster, pytest.MonkeyPatch.context() as patch:
        shifts = Shifts(cluster, patch)
        dice = round_.dice("goals")
        three = dice.randrange(THREE) == 0
        with Nights(round_, shifts).begun(three) as nights:
            for _ in range(TURNS):
                nights.move(dice.choice(GOALS_OF_THREE if three else GOALS))
                nights.move(HOME | ({"far": 0} if three else {}))
        nights.check_ledger()


@dataclass
class Plan:
    """What becomes of a process that carries out a shift."""

    step: Step | None = None
    killed_after: float | None = None
    trouble: Trouble | None = None


class Nights:
    """Shifts there and back, each by one process after the other."""

    def __init__(self, round_: Round, shifts: Shifts) -> None:
        self._round, self._shifts, self._cluster = round_, shifts, shifts.cluster
        self._lives = 0
        self._may_be_refused = False

    @contextmanager
    def begun(self, three: bool) -> Iterator[Nights]:
        """Under a queue, which mostly is longer than the round."""
        self._targets = [self._shifts.training(), self._shifts.inference()]
        if three:
            far = {"resource": "vllm", "namespace": INFERENCE_NAMESPACE, "kubernetes_conn_id": "kubernetes_inference"}
            self._targets.append(KubernetesScaleTarget(name="far", gpus_per_unit=8, **far))
            with self._shifts.autoscaled(REMOTE_INFERENCE_GROUP, most=4):
                yield from self._under_a_queue()
            self._round.counts["rounds with three targets"] += 1
        else:
            yield from self._under_a_queue()

    def _under_a_queue(self) -> Iterator[Nights]:
        queue = Queue(self._shifts, QUEUED)
        queue.let_go()
        yield self
        self._cluster.run("scancel", "--state=PENDING", queue.array)
        self._cluster.wait("no job is left", lambda: not self._cluster.active_jobs())
        fates = self._shifts.fates([queue.array, *queue.held.values()])
        begun = {job: fate for job, fate in fates.items() if fate[0] != "CANCELLED"}
        assert set(begun.values()) == {("COMPLETED", 0)}, {
            job: fate for job, fate in begun.items() if fate != ("COMPLETED", 0)
        }
        self._round.counts["jobs under shifts"] += len(begun)
        self._round.checked[UNHARMED] += 1

    def move(self, desired: Mapping[str, int]) -> None:
        order = self._shifts.order(0, 0, targets=tuple(self._targets), desired=dict(desired), timeouts=TIMEOUTS)
        deaths = self._round.dice(f"deaths of {self._lives}").randint(1, DEATHS)
        killed = 0
        while (life := self._live(order, is_last=killed >= deaths)).was_killed:
            killed += 1
        check_arrived(life, order)
        self._shifts.check(desired["training"], same_cluster=desired["inference"], own_cluster=desired.get("far", 0))
        self._round.checked[ARRIVED] += 1

    def _live(self, order: ShiftOrder, *, is_last: bool) -> Life:
        plan = self._plan(order, is_last=is_last)
        with alive(order, self._shifts.connections, plan.step) as life:
            life.begin()
            try:
                self._strike(life, plan)
            finally:
                if plan.trouble:
                    troubles.end(self._cluster)
            assert life.end(PATIENCE), f"it does not end: {plan}"
        if life.was_killed:
            if plan.step:
                self._round.counts[_killed("after" if plan.step.done else "before", life.died_at)] += 1
            else:
                self._round.counts["shifts killed at any moment"] += 1
        return life

    def _plan(self, order: ShiftOrder, *, is_last: bool) -> Plan:
        """The dice of a process are its own, however long those before it have taken."""
        dice = self._round.dice(f"life {self._lives}")
        self._lives += 1
        plan = Plan()
        if not is_last:
            if dice.random() < 0.7:
                kinds = BACK if order.desired["training"] == HOME["training"] else THERE
                # At the first order of some kinds: a single kind may have been given for good by those before it.
                some = frozenset(dice.sample(kinds, dice.randint(1, 3)))
                plan.step = Step(done=dice.random() < 0.5, kinds=some, number=dice.choice((1, 1, 1, 2)))
            else:
                plan.killed_after = dice.uniform(0, LIFE)
        if dice.random() < 0.4:
            plan.trouble = troubles.draw(dice)
            self._may_be_refused |= plan.trouble.name.startswith("block")
        return plan

    def _strike(self, life: Life, plan: Plan) -> None:
        began = time.monotonic()
        if plan.trouble:
            plan.trouble.pass_by(self._cluster)
            self._round.counts[f"trouble, {plan.trouble.name}"] += 1
        if plan.killed_after is not None:
            left = max(0.0, plan.killed_after - (time.monotonic() - began))
            if not life.end(left):
                life.process.kill()

    def check_ledger(self) -> None:
        """Machines were refused only in the block's own trouble: shifts ask for what there is."""
        entries = {entry["entry"] for entry in self._cluster.ledger()}
        assert entries <= {"claim", "release"} | ({"refused"} if self._may_be_refused else set())


def _killed(side: str, kind: str) -> str:
    return f"shifts killed {side} {kind}"
