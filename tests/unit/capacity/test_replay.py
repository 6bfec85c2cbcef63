"""The replay of a month: its world keeps count of nodes, GPUs and work, whatever it is told to do."""

from __future__ import annotations

import random
from dataclasses import replace

from airflow_provider_soperator.capacity.month import MonthJob
from airflow_provider_soperator.capacity.replay import CHECKPOINT, Replay
from benchmarks.trace.load import load
from benchmarks.trace.run import BLOCK, ways

GPUS = BLOCK.gpus


def test_no_node_gpu_or_work_is_lost_or_made() -> None:
    loaded = load(7, gpus=64, busy=0.8, peak=20.0, days=2)
    world, dice = Replay(replace(BLOCK, nodes=8, transfer=6), 2), random.Random(7)
    coming, ran, wanted = list(loaded.jobs), dict[int, int](), 2
    for now in range(2 * 24 * 60):
        while coming and coming[0].submitted <= now:
            world.submit(coming.pop(0), now)
        if dice.random() < 0.02:
            wanted = dice.randrange(7)
        world.tick(now, wanted, 2, ahead=dice.choice([0, 60]))
        assert len(world.nodes) + world.serving + len(world.to_serving) + len(world.to_slurm) == 8
        for node in world.nodes:
            assert GPUS - node.free == sum(min(job.gpus, GPUS) for job in node.jobs)
            assert node.free >= 0
        for job in {job for node in world.nodes for job in node.jobs}:
            assert sum(job in node.jobs for node in world.nodes) == max(1, job.gpus // GPUS)
            ran[job.id] = ran.get(job.id, 0) + 1
    found = world.figures
    assert found["moves"] > 20
    assert found["requeued"] > 5
    assert found["lost"] <= found["requeued"] * CHECKPOINT * 32
    # A minute each that it took, and what was lost again; but for the jobs that still run or wait.
    left = {job.id for node in world.nodes for job in node.jobs} | {job.id for job in world.pending()}
    done = [job for job in loaded.jobs if job.submitted < now and job.id not in left]
    assert len(done) > 1000
    assert all(ran[job.id] >= job.minutes for job in done)
    assert sum(ran[job.id] - job.minutes for job in done) <= found["requeued"] * (CHECKPOINT + BLOCK.grace)


def test_what_is_to_spare_leaves_room_for_the_largest_job_that_fits() -> None:
    jobs = [MonthJob(0, 0, gpus, 60, 60, may_requeue=False) for gpus in (1, 8, 32)]
    small, large = replace(BLOCK, nodes=8), BLOCK
    assert [small.most_served(jobs, 3, spare) for spare in (0, 1, 2)] == [3, 4, 4]
    # That one never fits beside the highest need.
    assert small.most_served(jobs, 5, 2) == 7
    assert large.most_served(jobs, 17, 2) == 19


def test_ways_are_compared_under_the_same_load() -> None:
    loaded = load(3, gpus=256, busy=0.62, peak=110.0, days=2)
    found = ways(loaded)
    assert found["demand"].usage > found["fixed split"].usage
    assert found["bound"].wait <= found["clairvoyant"].wait <= found["fixed split"].wait
    assert ways(loaded) == found
