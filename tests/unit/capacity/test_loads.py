"""What says how many units are of use: the queue, a metric, and a queueing model."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from airflow_provider_soperator.capacity.holdings import Holding
from airflow_provider_soperator.capacity.loads import Load, MetricLoad, Need, QueueLoad, ServiceLoad, units_for
from airflow_provider_soperator.errors import CapacityMistake
from airflow_provider_soperator.slurm.job_ids import JobId
from airflow_provider_soperator.slurm.job_records import Job
from airflow_provider_soperator.slurm.notations import NoDuration
from airflow_provider_soperator.slurm.states import JobState
from tests.unit.slurm.test_pending_reasons import listed

NOW = datetime(2026, 11, 23, 12, tzinfo=timezone.utc)
HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)
QUEUE = QueueLoad(target="training")


def job(state: str = "PENDING", gpus: int = 8, waited: timedelta = HOUR, limit: Any = HOUR, **more: Any) -> Job:
    fields = {"id": JobId(1), "reason": "Resources" if state == "PENDING" else "", **more}
    tres = f"cpu=8,node=1,gres/gpu={gpus}"
    return Job(state=JobState.parse(state), submitted=NOW - waited, time_limit=limit, tres=tres, **fields)


def need(*jobs: Job, load: QueueLoad = QUEUE) -> int | None:
    return load.need(jobs, 8, 8, NOW).units


def test_running_jobs_need_what_they_have_and_waiting_ones_a_unit_that_they_keep_busy() -> None:
    assert need() == 0
    assert need(job("RUNNING", nodelist="w1"), job("RUNNING", gpus=1, nodelist="w[1-2]")) == 2
    assert need(job("RUNNING", nodelist="w1"), job(), job()) == 3
    # Four nodes' worth of GPUs for a quarter of an hour are one node's work of an hour.
    assert need(job(gpus=32, limit=15 * MINUTE)) == 1
    assert need(job(gpus=32, limit=14 * MINUTE)) == 0
    assert need(job(gpus=32, limit=24 * HOUR)) == 4
    assert need(job(limit=NoDuration.UNLIMITED)) == 1
    assert QUEUE.need([job("RUNNING", nodelist="w1"), job()], 8, 8, NOW).because == (
        "jobs use 8 GPUs of 1 node, and 1 job with up to 8.0 GPU-hours wait, for 60 min"
    )


def test_a_job_that_no_node_helps_needs_none() -> None:
    for reason in ("Dependency", "QOSMaxGRESPerUser", "AssocGrpGRES", "BeginTime", "JobHeldUser", "PartitionTimeLimit"):
        assert need(job(reason=reason)) == 0, reason
    assert need(job(waited=4 * MINUTE)) == 0
    assert need(job(reason="ReqNodeNotAvail, UnavailableNodes:worker-[2-3]")) == 1
    down = listed("Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions")
    assert need(job(reason=down.reason)) == 1


def test_nodes_with_one_small_job_each_are_all_needed_and_those_without_gpus_are_not() -> None:
    small = [job("RUNNING", gpus=1, nodelist=f"w{number}") for number in range(4)]
    assert need(*small) == 4
    assert need(*small, job("RUNNING", gpus=0, nodelist="cpu[0-3]")) == 4


def test_nodes_that_are_not_of_the_target_are_not_needed() -> None:
    static, across = job("RUNNING", gpus=32, nodelist="static-[0-3]"), job("RUNNING", gpus=16, nodelist="static-4,w0")
    found = QUEUE.need([static, across], 8, 8, NOW, "w[0-7]")
    assert (found.units, found.because) == (1, "jobs use 8 GPUs of 1 node, and none waits")


def test_a_job_that_never_fits_needs_nothing() -> None:
    assert need(job(gpus=64)) == 8
    assert need(job(gpus=65), job(gpus=8)) == 1


def test_a_short_job_is_not_left_waiting_for_ever() -> None:
    short = {"gpus": 1, "limit": MINUTE}
    assert need(job(**short)) == 0
    assert need(job(**short, waited=2 * HOUR)) == 1


def test_a_job_that_depended_on_another_waits_since_it_may_start() -> None:
    freed = {"gpus": 8, "waited": 9 * HOUR, "limit": MINUTE}
    assert [need(job(**freed, eligible=NOW - ago)) for ago in (MINUTE, HOUR, 2 * HOUR)] == [0, 0, 1]
    assert need(job(**freed | {"limit": HOUR}, eligible=NOW - 4 * MINUTE)) == 0
    # As the cluster has it, whose clock may be ahead.
    assert need(job(**freed, eligible=NOW + MINUTE)) == 0


def test_elements_of_an_array_count_each() -> None:
    assert need(job(id=JobId.parse("7_[0-9]"), gpus=1, limit=8 * HOUR)) == 2
    assert need(*[job(id=JobId.parse("7_[0-5]"), gpus=1, limit=80 * MINUTE)]) == 1
    # A queue of many long ones is counted, too.
    array = job(id=JobId.parse("7_[0-999]"), limit=365 * 24 * HOUR)
    assert need(*[array] * 500) == 500_000


def test_elements_that_their_array_holds_back_need_nothing() -> None:
    runs = [job("RUNNING", id=JobId.parse(f"7_{element}"), nodelist=f"w{element}") for element in range(2)]
    held_back = job(id=JobId.parse("7_[2-99%2]"))
    assert [need(held_back, *runs[:number]) for number in range(3)] == [2, 2, 2]
    # Elements that were requeued are entries of their own, and of another array as many count as before.
    assert need(job(id=JobId.parse("7_0")), held_back, job(id=JobId.parse("8_[0-1]"))) == 4
    assert need(job(id=JobId.parse("7_0"), reason="JobHeldUser"), held_back) == 2
    found = QUEUE.need([job(waited=10 * HOUR, id=JobId.parse("7_[2-99%2]")), *runs, job()], 8, 8, NOW)
    assert (found.units, found.because.partition(", and ")[2]) == (3, "1 job with up to 8.0 GPU-hours wait, for 60 min")
    # One after the other they are worth a unit, and no more.
    assert [need(job(id=JobId.parse(f"7_[0-{last}%1]"), limit=10 * MINUTE)) for last in (4, 5, 99)] == [0, 1, 1]


class Metrics:
    """Clients that have values of metrics, and no Slurm."""

    def __init__(self, **values: float | None) -> None:
        self.values = values

    def slurm(self, conn_id: str) -> Any:
        raise AssertionError(f"{conn_id} was asked")

    async def metric(self, conn_id: str, query: str) -> float | None:
        assert conn_id == "prometheus_default"
        return self.values[query]


def measured(load: Load, ready: int, **values: float | None) -> int | None:
    holding = Holding(allowed=ready, held=ready, ready=ready)
    return asyncio.run(load.measure(Metrics(**values), holding, 8, 8, NOW)).units


def test_what_adds_up_is_shared_by_units() -> None:
    load = MetricLoad(target="inference", query="requests", per_unit=64)
    assert [measured(load, 1, requests=value) for value in (0, 1, 64, 65)] == [0, 1, 1, 2]
    assert [measured(load, 1, requests=value) for value in (None, -1)] == [None, None]


def test_what_does_not_add_up_is_kept_at_a_value() -> None:
    load = MetricLoad(target="inference", query="cache", keep_at=0.7)
    assert [measured(load, 4, cache=value) for value in (0.7, 0.75, 0.9, 0.35, 0.0)] == [4, 4, 6, 2, 1]
    # Without a unit there is nothing to measure, so one has to come.
    assert measured(load, 0, cache=0.0) == 1


def test_a_value_is_of_all_units_that_are_there_also_beside_the_block_and_of_no_others() -> None:
    load = MetricLoad(target="inference", query="cache", keep_at=0.7)

    def kept(holding: Holding) -> int | None:
        return asyncio.run(load.measure(Metrics(cache=0.7), holding, 8, 8, NOW)).units

    assert kept(Holding(allowed=2, held=2, ready=2, bought=2)) == 4
    assert kept(Holding(allowed=2, held=2, ready=2, bought=2, to_come=2)) == 2
    # Of a group of two nodes whose autoscaler may add six.
    assert kept(Holding(allowed=8, held=2, ready=8)) == 2


def test_a_service_without_requests_needs_only_its_headroom() -> None:
    load = ServiceLoad(target="inference", arrivals="rate", service_time="took", max_requests=32, headroom=1)
    assert measured(load, 2, rate=0.0, took=None) == 1
    assert measured(load, 2, rate=10.0, took=4.0) == 3
    assert measured(load, 2, rate=10.0, took=None) is None
    assert measured(load, 2, rate=None, took=4.0) is None


def test_the_queueing_model_holds_against_a_simulated_service() -> None:
    """Requests that come at random, and take a random time: as the model has them."""
    for seed, (rate, seconds, wait) in enumerate([(2.0, 4.0, 1.0), (0.5, 10.0, 5.0), (8.0, 1.0, 0.2)]):
        servers = units_for(rate, seconds, 1, wait, 0.9)
        assert late_share(rate, seconds, servers, wait, seed) < 0.115
        assert late_share(rate, seconds, servers - 1, wait, seed) > 0.1


def late_share(rate: float, seconds: float, servers: int, wait: float, seed: int) -> float:
    dice, free, now, late, count = random.Random(seed), [0.0] * servers, 0.0, 0, 40_000
    for _ in range(count):
        now += dice.expovariate(rate)
        first = min(range(servers), key=free.__getitem__)
        begins = max(now, free[first])
        late += begins - now > wait
        free[first] = begins + dice.expovariate(1 / seconds)
    return late / count


def test_a_metric_in_another_unit_keeps_no_event_loop_busy() -> None:
    began = time.thread_time()
    assert units_for(1e9, 4, 32, 1, 0.99) == pytest.approx(4e9 / 32, rel=0.01)
    # It goes on from where the model ends.
    assert units_for(1e5 - 1, 1, 1, 1, 0.99) == pytest.approx(units_for(1e5 + 1, 1, 1, 1, 0.99), rel=0.01)
    # Others may keep the machine busy meanwhile.
    assert time.thread_time() - began < 5


def mistakes() -> Iterator[tuple[Any, str]]:
    yield lambda: MetricLoad(target="i", query="q"), "needs per_unit or keep_at"
    yield lambda: MetricLoad(target="i", query="q", per_unit=1, keep_at=1), "needs per_unit or keep_at"
    yield lambda: MetricLoad(target="i", query="q", per_unit=0), "above 0"
    yield lambda: ServiceLoad(target="i", arrivals="q", service_time=1, max_requests=0), "max_requests must be >= 1"
    yield lambda: ServiceLoad(target="i", arrivals="q", service_time=1, share=1), "between 0 and 1"


@pytest.mark.parametrize(("make", "said"), [*mistakes()])
def test_a_load_that_cannot_be_is_refused_when_it_is_made(make: Any, said: str) -> None:
    with pytest.raises(CapacityMistake, match=said):
        make()


def test_an_unknown_need_says_what_is_unknown() -> None:
    load = MetricLoad(target="inference", query="requests", per_unit=64)
    holding = Holding(allowed=1, held=1, ready=1)
    found = asyncio.run(load.measure(Metrics(requests=None), holding, 8, 8, NOW))
    assert found == Need(None, "requests has no value")
    service = ServiceLoad(target="inference", arrivals="rate", service_time="took")
    for rate, took, unknown in ((-1.0, 4.0, "rate"), (None, 4.0, "rate"), (1.0, -4.0, "took"), (1.0, None, "took")):
        found = asyncio.run(service.measure(Metrics(rate=rate, took=took), holding, 8, 8, NOW))
        assert found == Need(None, f"{unknown} has no value")
