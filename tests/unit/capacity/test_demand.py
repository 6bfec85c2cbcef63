"""How many units each target is to have by demand: the rules, from examples and for all."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_soperator.capacity.allocation import Units
from airflow_provider_soperator.capacity.demand import Decision, Demand, DemandMemory, decide
from airflow_provider_soperator.capacity.holdings import Holding, World
from airflow_provider_soperator.capacity.loads import MetricLoad, Need, QueueLoad, ServiceLoad
from airflow_provider_soperator.capacity.targets import SlurmNodesTarget
from airflow_provider_soperator.errors import CapacityMistake, ConnectionMistake
from airflow_provider_soperator.nebius.capacity_blocks import CapacityBlock
from airflow_provider_soperator.slurm.cluster_records import ClusterConfig
from airflow_provider_soperator.slurm.job_ids import JobId
from airflow_provider_soperator.slurm.job_records import Job
from airflow_provider_soperator.slurm.states import JobState
from airflow_provider_soperator.transports.transport_errors import Unreachable
from airflow_provider_soperator.values import storable

NOON = datetime(2026, 11, 23, 12, tzinfo=timezone.utc)
MINUTE = timedelta(minutes=1)
LOADS = (
    ServiceLoad(target="inference", arrivals="rate", service_time=4.0, max_requests=32),
    QueueLoad(target="training"),
)
RANGES: Mapping[str, Units] = {"training": {"min": 1, "max": 7}, "inference": {"min": 1, "max": 6}}
GPUS = {"training": 8, "inference": 8}


class Watch:
    """Looks a minute apart at a block of 8 units, whose targets have at once what was decided."""

    def __init__(self, demand: Demand, training: int = 4, inference: int = 4) -> None:
        self.demand, self.now = demand, NOON
        self.has = {"training": training, "inference": inference}
        self.moves, self._memory = 0, "{}"

    def look(
        self, inference: int | None, training: int | None, minutes: int = 1, wished: Mapping[str, Units] = RANGES
    ) -> Decision:
        needs = {"inference": Need(inference, "requests"), "training": Need(training, "jobs")}
        for _ in range(minutes):
            memory = DemandMemory.read(json.loads(self._memory))
            decision = decide(self.demand, needs, wished, self.has, GPUS, 64, memory, self.now)
            self._memory = json.dumps(decision.memory.write())
            self.now += MINUTE
            self.moves += decision.is_new
            self.has = dict(decision.units)
        return decision


def test_units_go_where_they_are_of_use_once_the_other_has_not_needed_them_for_a_while() -> None:
    watch = Watch(Demand(LOADS))
    assert watch.look(2, 7, 15).units == {"training": 4, "inference": 4}
    decision = watch.look(2, 7)
    assert decision.units == {"training": 6, "inference": 2}
    assert str(decision) == "training 6, inference 2: inference needs 2: requests; training needs 7: jobs"


def test_the_first_gets_units_at_once() -> None:
    watch = Watch(Demand(LOADS), training=6, inference=2)
    watch.look(2, 7, 30)
    assert watch.look(5, 7).units == {"training": 3, "inference": 5}
    # A lull shorter than the calm takes nothing.
    assert watch.look(2, 7, 15).units == {"training": 3, "inference": 5}
    assert watch.look(5, 7).units == {"training": 3, "inference": 5}
    assert watch.look(2, 7).because[0] == "inference needs 2 (lately 5): requests"
    assert watch.look(2, 7, 15).units == {"training": 6, "inference": 2}


def test_what_is_of_no_use_stays_where_it_is() -> None:
    watch = Watch(Demand(LOADS))
    assert watch.look(0, 0, 600).units == {"training": 4, "inference": 4}
    assert watch.moves == 0


def test_a_need_beyond_all_numbers_of_airflow_is_remembered_as_one_that_it_can_pass_on() -> None:
    needs, memory = {"inference": Need(1 << 64, "requests"), "training": Need(0, "jobs")}, DemandMemory()
    decided = decide(Demand(LOADS), needs, RANGES, {"training": 4, "inference": 4}, GPUS, 64, memory, NOON)
    assert decided.units == {"training": 2, "inference": 6}
    assert storable(decided.memory.write()) == decided.memory.write()


def test_a_target_without_a_load_takes_what_is_left() -> None:
    watch = Watch(Demand(LOADS[:1]))
    assert watch.look(2, 0, 16).units == {"training": 6, "inference": 2}
    assert watch.look(5, 0).units == {"training": 3, "inference": 5}


def test_the_range_holds_whatever_is_needed() -> None:
    watch = Watch(Demand(LOADS))
    assert watch.look(99, 99, 60).units == {"training": 2, "inference": 6}
    assert watch.look(0, 99, 60).units == {"training": 7, "inference": 1}
    fixed: Mapping[str, Units] = {"training": 3, "inference": {"min": 0, "max": 8}}
    assert watch.look(99, 99, wished=fixed).units == {"training": 3, "inference": 5}


def test_an_unknown_need_is_not_a_low_one() -> None:
    watch = Watch(Demand(LOADS))
    decision = watch.look(None, 7, 600)
    assert decision.units == {"training": 4, "inference": 4}
    assert decision.because[0] == "inference needs an unknown number, and keeps what it has: requests"
    # Even where nothing is known of the queue, the first gets what it needs.
    assert watch.look(6, None).units == {"training": 2, "inference": 6}


def test_what_was_bought_of_what_was_decided_is_kept_while_the_need_is_unknown() -> None:
    memory = DemandMemory()

    def look(inference: int | None, minute: int, bought: int = 0) -> int:
        nonlocal memory
        needs = {"inference": Need(inference, "requests"), "training": Need(0, "jobs")}
        has, now = {"training": 4, "inference": 2}, NOON + minute * MINUTE
        decided = decide(Demand(LOADS), needs, RANGES, has, GPUS, 64, memory, now, {"inference": bought})
        memory = decided.memory
        return decided.units["inference"]

    assert look(4, 0) == 4
    # Others have two units of the block, so two are bought.
    assert {look(None, minute, bought=2) for minute in range(1, 60)} == {4}
    assert look(2, 60, bought=2) == 2


def test_after_an_outage_of_the_watcher_needs_are_seen_anew() -> None:
    watch = Watch(Demand(LOADS))
    watch.look(4, 7, 60)
    watch.now += timedelta(hours=1)
    assert watch.look(1, 7, 15).units == {"training": 4, "inference": 4}
    assert watch.look(1, 7).units == {"training": 7, "inference": 1}


def test_beyond_the_moves_of_a_day_only_the_first_gets_more() -> None:
    watch = Watch(Demand(LOADS, max_moves=4, calm=MINUTE))
    for _ in range(2):
        watch.look(1, 7, 3)
        watch.look(6, 7, 3)
    assert watch.moves == 4
    decision = watch.look(1, 7, 60)
    assert decision.units == {"training": 2, "inference": 6}
    assert decision.because[-1] == "4 moves in a day are the most, so only inference gets more"
    watch.now += timedelta(days=1)
    watch.look(1, 7, 3)
    assert watch.has == {"training": 7, "inference": 1}


def test_the_last_move_of_a_day_is_carried_out() -> None:
    watch = Watch(Demand(LOADS, max_moves=1, calm=MINUTE))
    assert watch.look(1, 6, 3).units == {"training": 6, "inference": 2}
    # Its machines are still on their way.
    watch.has = {"training": 4, "inference": 4}
    assert watch.look(1, 7).units == {"training": 6, "inference": 2}


def test_beyond_the_moves_of_a_day_nothing_flaps_while_units_are_on_their_way() -> None:
    watch = Watch(Demand(LOADS, max_moves=2, calm=MINUTE))
    for inference in (6, 5) * 30:
        for _ in range(3):
            watch.look(inference, 0)
            # Its nodes leave as jobs end.
            watch.has = {"training": 4, "inference": 4}
    # Those of the day, and one more of the first target.
    assert watch.moves == 3


needs = st.none() | st.integers(0, 12)
steps = st.lists(st.tuples(needs, needs, st.integers(1, 40)), max_size=30)
low, span = st.integers(0, 4), st.integers(0, 8)


@settings(max_examples=60, deadline=None)
@given(steps, low, span, low, span, st.integers(0, 8), st.integers(1, 6))
def test_rules_that_hold_for_all_needs(
    story: list[Any], low1: int, span1: int, low2: int, span2: int, first: int, most: int
) -> None:
    wished = {"training": {"min": low1, "max": low1 + span1}, "inference": {"min": low2, "max": low2 + span2}}
    watch = Watch(Demand(LOADS, max_moves=most), training=8 - first, inference=first)
    watch.look(None, None, wished=wished)
    begun, moved = watch.now, watch.moves
    for inference, training, minutes in story:
        for _ in range(minutes):
            before = dict(watch.has)
            units = watch.look(inference, training, wished=wished).units
            assert low1 <= units["training"] <= low1 + span1
            assert low2 <= units["inference"] <= low2 + span2
            assert sum(units.values()) <= 8
            # The first has what it needs, as far as the others' minimum leaves it.
            if inference is not None:
                assert units["inference"] >= min(inference, low2 + span2, 8 - low1)
            # Nothing goes for an unknown need of the first, and nothing goes that was not needed elsewhere.
            if inference is None:
                assert units["inference"] >= min(before["inference"], low2 + span2)
            if units["inference"] < before["inference"] and training is not None:
                assert units["training"] > before["training"]
    days = (watch.now - begun) / timedelta(days=1) + 1
    # Each growth of the first beyond the limit needs one of the others before it.
    assert watch.moves - moved <= 2 * most * days + 1


def test_demand_is_read_as_it_was_written() -> None:
    cache = MetricLoad(target="inference", query="cache", keep_at=0.7)
    demand = Demand([*LOADS, cache], calm=timedelta(minutes=20), observe=True)
    assert Demand.read(json.loads(json.dumps(demand.write()))) == demand


def test_the_highest_of_several_loads_counts_and_one_without_an_answer_might_be_that() -> None:
    class Clients:
        values: Mapping[str, float | None] = {"rate": 10.0, "cache": 0.9}

        def slurm(self, conn_id: str) -> Any:
            raise Unreachable("the login node does not answer", "")

        async def metric(self, conn_id: str, query: str) -> float | None:
            return self.values[query]

    holdings = {name: Holding(allowed=4, held=4, ready=4) for name in GPUS}
    world = World(CapacityBlock(id="b", limit=64, usage=64), holdings, GPUS)
    demand = Demand([*LOADS, MetricLoad(target="inference", query="cache", keep_at=0.7)])
    found = asyncio.run(demand.measure(world, RANGES, Clients(), NOON))
    assert {name: need.units for name, need in found.items()} == {"inference": 6, "training": None}
    Clients.values = {"rate": 10.0, "cache": None}
    assert asyncio.run(demand.measure(world, RANGES, Clients(), NOON))["inference"].units is None


def test_a_queue_is_measured_on_the_nodes_and_over_the_connection_of_its_target() -> None:
    running = Job(id=JobId(1), state=JobState.parse("RUNNING"), nodelist="static-[0-3]", tres="gres/gpu=32")
    asked: list[str] = []

    class Clients:
        @asynccontextmanager
        async def slurm(self, conn_id: str) -> AsyncIterator[Any]:
            asked.append(conn_id)

            async def ask(request: Any) -> list[Job]:
                return [running]

            yield SimpleNamespace(ask=ask)

    holdings = {name: Holding(allowed=4, held=4, ready=4) for name in GPUS}
    world, demand = World(CapacityBlock(id="b", limit=64, usage=64), holdings, GPUS), Demand([LOADS[1]])
    for nodes, needed in (("worker-[0-7]", 0), ("static-[2-9]", 2)):
        targets = [SlurmNodesTarget(name="training", nodes=nodes, slurm_conn_id="gpus")]
        found = asyncio.run(demand.measure(world, RANGES, Clients(), NOON, targets))  # type: ignore[arg-type]
        assert found["training"].units == needed
    elsewhere = Demand([QueueLoad(target="training", slurm_conn_id="login")])
    asyncio.run(elsewhere.measure(world, RANGES, Clients(), NOON, targets))  # type: ignore[arg-type]
    # In the cluster of its target, if it names none.
    assert asked == ["gpus", "gpus", "login"]


@pytest.mark.parametrize(("counted", "units"), [("cpu,mem,node", None), ("cpu,mem,node,gres/gpu", 0)])
def test_a_queue_whose_gpus_slurm_does_not_count_has_an_unknown_need(counted: str, units: int | None) -> None:
    class Slurm:
        jobs = (Job(id=JobId(1), state=JobState.parse("RUNNING"), nodelist="worker-[0-3]", tres="cpu=128,node=4"),)

        async def ask(self, request: Any) -> Any:
            return self.jobs

        async def config(self) -> ClusterConfig:
            return ClusterConfig(version="25.11.3", settings={"AccountingStorageTRES": counted})

    class Clients:
        @asynccontextmanager
        async def slurm(self, conn_id: str) -> AsyncIterator[Any]:
            yield Slurm()

    holdings = {name: Holding(allowed=4, held=4, ready=4) for name in GPUS}
    world, demand = World(CapacityBlock(id="b", limit=64, usage=64), holdings, GPUS), Demand([LOADS[1]])
    assert asyncio.run(demand.measure(world, RANGES, Clients(), NOON))["training"].units == units  # type: ignore[arg-type]
    Slurm.jobs = ()
    assert asyncio.run(demand.measure(world, RANGES, Clients(), NOON))["training"].units == 0  # type: ignore[arg-type]


def test_a_connection_that_cannot_be_used_leaves_a_need_unknown() -> None:
    class Clients:
        def slurm(self, conn_id: str) -> Any:
            raise ConnectionMistake("the extra is no JSON")

        async def metric(self, conn_id: str, query: str) -> float | None:
            return 10.0

    holdings = {name: Holding(allowed=4, held=4, ready=4) for name in GPUS}
    found = asyncio.run(
        Demand(LOADS).measure(World(CapacityBlock(id="b", limit=64, usage=64), holdings, GPUS), RANGES, Clients(), NOON)
    )
    assert found == {"inference": Need(2, "10 requests/s of 4 s each"), "training": Need(None, "the extra is no JSON")}


@pytest.mark.parametrize(
    "load",
    [
        MetricLoad(target="inference", query="rate", per_unit=0.01),
        MetricLoad(target="inference", query="rate", keep_at=0.01),
        ServiceLoad(target="inference", arrivals="rate", service_time="seconds"),
    ],
)
def test_a_value_that_cannot_be_counted_leaves_a_need_unknown(load: MetricLoad | ServiceLoad) -> None:
    class Clients:
        async def metric(self, conn_id: str, query: str) -> float | None:
            return 1e308

    for ready in (0, 4):
        holdings = {name: Holding(allowed=4, held=4, ready=ready) for name in GPUS}
        world = World(CapacityBlock(id="b", limit=64, usage=64), holdings, GPUS)
        found = asyncio.run(Demand([load]).measure(world, RANGES, Clients(), NOON))
        assert found["inference"].units is None


def test_a_mistake_is_told_when_the_dag_is_read() -> None:
    with pytest.raises(CapacityMistake, match="unknown target inference"):
        Demand(LOADS).check(["training", "serving"])
    with pytest.raises(CapacityMistake, match="at least one load"):
        Demand([])
    with pytest.raises(CapacityMistake, match="'cache' is not a load"):
        Demand(["cache"])  # type: ignore[list-item]
