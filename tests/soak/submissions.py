"""Jobs are submitted under fire, at hundreds of moments: each key has exactly one job, and its script is whole."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing

import pytest

from airflow_provider_soperator.slurm.requests import Ping
from tests.contract.transports import WAYS, Way, connection_id
from tests.integration.cluster import Cluster
from tests.integration.fire import (
    Submitter,
    Worker,
    check_whole,
    cut_after,
    found_after,
    kill_accounting,
    let_nothing_start,
    over_ssh,
    scripts,
    stop_controller,
    under_restarts,
    waiting_jobs,
)
from tests.soak import worlds
from tests.soak.rounds import Round
from tests.submissions import check_once

CUTS = 24
CUTS_OF_A_LOOP = 8
STOPS = 6
KILLS = 10
#: Lines of a script, and whether its worker is connected before it counts: what a worker is killed at.
STEPS = {"submitting": (1, True), "connecting": (1, False), "sending": (20_000, True)}

ONCE = "keys that have exactly one job, in the queue and in accounting"
WHOLE = "jobs whose script is whole"


def play(round_: Round) -> None:
    # With a time-out of Slurm's that a controller which hangs for some seconds outlasts.
    settings = {"workers": 1, "static": 1, "checks": "off", "message_timeout": 3}
    with worlds.sandbox(round_, **settings) as cluster, pytest.MonkeyPatch.context() as patch:
        uri = cluster.access["airflow_connections"]["AIRFLOW_CONN_SSH_DEFAULT"]
        patch.setenv(f"AIRFLOW_CONN_{connection_id(cluster).upper()}", uri)
        let_nothing_start(cluster)
        with closing(over_ssh(cluster)) as way:
            way.ask(Ping())
            fire = Fire(round_, cluster, way)
            fire.cut(way, CUTS, "cuts")
            # Its thread is gone by the time that workers are forked.
            with closing(WAYS["ssh"](cluster)) as loop:
                fire.cut(loop, CUTS_OF_A_LOOP, "cuts of a loop's connection")
            fire.restart()
            for step in STEPS:
                fire.kill(step)
            fire.check()


class Fire:
    """One round: blows one after the other, and at the end the proof over all jobs of it."""

    def __init__(self, round_: Round, cluster: Cluster, way: Way) -> None:
        self._round, self._cluster, self._way = round_, cluster, way
        self._ids: dict[str, str] = {}

    def cut(self, way: Way, cuts: int, what: str) -> None:
        dice = self._round.dice(what)
        for _ in range(cuts):
            count = dice.randint(1, 5)
            self._ids |= cut_after(dice.uniform(0, 0.03 + 0.015 * count), self._cluster, way, waiting_jobs(count))
            self._round.counts[what] += 1

    def restart(self) -> None:
        dice = self._round.dice("restarts")
        stops = [dice.choice(list(STOPPING)) for _ in range(STOPS)]
        submitter = Submitter(self._way, dice.randint(1, 5))
        under_restarts(self._cluster, submitter, [STOPPING[name](dice) for name in stops])
        self._ids |= submitter.ids
        self._round.counts += Counter(stops)

    def kill(self, step: str) -> None:
        dice, counts = self._round.dice(step), self._round.counts
        lines, connected = STEPS[step]
        program = scripts(lines)
        ids: dict[str, str] = {}
        jobs = waiting_jobs(1, **program)
        whole = Worker(self._cluster, jobs, connected=connected).live()
        ids |= found_after(self._way, jobs)[0]
        for _ in range(KILLS):
            jobs = waiting_jobs(1, **program)
            # The first moments lie closest: what has been sent as a whole is done on the cluster without the worker.
            Worker(self._cluster, jobs, connected=connected).die_after(1.5 * whole * dice.random() ** 2)
            known, answers = found_after(self._way, jobs)
            ids |= known
            counts[f"workers killed while {step}"] += 1
            counts["jobs of killed workers that were there already"] += sum(one.adopted for one in answers)
        check_whole(self._cluster, list(ids.values()))
        self._round.checked[WHOLE] += len(ids)
        self._ids |= ids

    def check(self) -> None:
        check_once(self._cluster, self._ids)
        self._round.checked[ONCE] += len(self._ids)
        self._round.counts["jobs"] += len(self._ids)


Stop = Callable[[Cluster], None]


def controller_restarts(dice: random.Random) -> Stop:
    return stop_controller


def accounting_restarts(dice: random.Random) -> Stop:
    return kill_accounting


def controller_hangs(dice: random.Random) -> Stop:
    """It does nothing for a while, shorter or longer than others wait for it, and then all that it was asked for."""
    seconds = dice.uniform(0.1, 5)

    def stop(cluster: Cluster) -> None:
        cluster.fault("slurmctld-hung")
        time.sleep(seconds)

    return stop


def both_restart(dice: random.Random) -> Stop:
    def stop(cluster: Cluster) -> None:
        kill_accounting(cluster)
        stop_controller(cluster)

    return stop


STOPPING: dict[str, Callable[[random.Random], Stop]] = {
    "restarts of slurmctld": controller_restarts,
    "restarts of slurmdbd": accounting_restarts,
    "restarts of both": both_restart,
    "times that slurmctld hung": controller_hangs,
}
