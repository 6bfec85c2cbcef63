"""Each key has one job, whatever is cut, restarted or killed, at any moment of a submission.

Beside the order in which things are done, this is a matter of luck: so there are many moments, and they lie close.
SOPERATOR_SUBMIT_KILLS says how many processes are to be killed; 200 of them take a minute and a half.
"""

from __future__ import annotations

import os
import random
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from airflow_provider_soperator.slurm.job import BatchJob
from airflow_provider_soperator.slurm.requests import Ping
from airflow_provider_soperator.slurm.requests.once import SubmitOnce
from airflow_provider_soperator.transports.ssh import SshTransport
from benchmarks.transports import Login
from tests.contract.transports import SyncWay, Way
from tests.forks import forked
from tests.integration.cluster import Cluster
from tests.submissions import ask_until_known, check_once, ids_of, new_jobs

DRAINED = "worker-cpu-0"
#: In all tests of this module together.
KILLS = int(os.environ.get("SOPERATOR_SUBMIT_KILLS", "80"))


@pytest.fixture(autouse=True)
def nothing_starts(cluster: Cluster) -> None:
    """The jobs want a node that takes none: what is tried here is submission, and hundreds would have to run."""
    cluster.run("scontrol", "update", f"nodename={DRAINED}", "state=drain", "reason=under fire")


def waiting_jobs(count: int, **fields: Any) -> tuple[BatchJob, ...]:
    return new_jobs(count, nodelist=DRAINED, **fields)


def over_ssh(cluster: Cluster) -> Way:
    """Without the hook of Airflow's SSH provider, which sleeps for seconds when a connection breaks as it is made."""
    return SyncWay(SshTransport(Login(cluster.sandbox, cluster.access["ssh"]).connect))


@pytest.fixture
def way(cluster: Cluster) -> Iterator[Way]:
    way = over_ssh(cluster)
    way.ask(Ping())
    yield way
    way.close()


def cut_at_random(cluster: Cluster, way: Way, cuts: int) -> None:
    dice, ids = random.Random(20), {}
    for _ in range(cuts):
        jobs = waiting_jobs(3)
        # A submission of three takes about 50 ms; the cut comes before, within, or after it.
        cut = threading.Timer(dice.uniform(0, 0.07), cluster.fault, ("login-cut",))
        cut.start()
        ids |= ids_of(jobs, ask_until_known(way, jobs))
        cut.join()
    check_once(cluster, ids)


@pytest.mark.any_slurm
def test_the_connection_is_cut_at_any_moment(cluster: Cluster, way: Way) -> None:
    cut_at_random(cluster, way, 50)


@pytest.mark.any_slurm("oldest")
def test_the_connection_of_a_loop_is_cut_at_any_moment(cluster: Cluster, connect: Callable[[str], Way]) -> None:
    cut_at_random(cluster, connect("ssh-async"), 10)


def stop_controller(cluster: Cluster) -> None:
    # Not killed: it would lose the jobs of the last five seconds, as it saves them no more often. Told to end, it does.
    cluster.sandbox.init.signal("slurmctld", signal.SIGTERM)
    cluster.wait("slurmctld has ended", lambda: not cluster.sandbox.init.processes()["slurmctld"]["pid"])


def kill_accounting(cluster: Cluster) -> None:
    # slurmctld keeps what is for it.
    cluster.fault("slurmdbd-down")


@pytest.mark.parametrize("stop", [stop_controller, kill_accounting])
def test_a_daemon_restarts(stop: Callable[[Cluster], None], cluster: Cluster, way: Way) -> None:
    ids: dict[str, str] = {}
    over = threading.Event()

    def submit() -> None:
        while not over.is_set():
            jobs = waiting_jobs(3)
            ids.update(ids_of(jobs, ask_until_known(way, jobs)))

    with ThreadPoolExecutor(1) as pool:
        work = pool.submit(submit)
        try:
            for _ in range(3):
                enough = len(ids) + 6
                cluster.wait("jobs are being submitted", lambda enough=enough: work.done() or len(ids) > enough)
                stop(cluster)
                cluster.sandbox.up()
        finally:
            over.set()
        work.result()
    check_once(cluster, ids)


class Worker:
    """Submits jobs in a process of its own, over a connection of its own."""

    def __init__(self, cluster: Cluster, jobs: tuple[BatchJob, ...], *, connected: bool) -> None:
        self._cluster, self._jobs, self._connected = cluster, jobs, connected
        self._says, self._word = os.pipe()

    def live(self) -> float:
        """To the end; the seconds that it takes, from when it says that it begins."""
        with self._at_work():
            began = time.monotonic()
            self._hear()
            return time.monotonic() - began

    def die_after(self, seconds: float) -> None:
        with self._at_work():
            time.sleep(seconds)

    @contextmanager
    def _at_work(self) -> Iterator[None]:
        with os.fdopen(self._says, "rb"), os.fdopen(self._word, "wb"), forked(self._submit):
            self._hear()
            yield

    def _hear(self) -> None:
        assert select.select([self._says], [], [], 60)[0], "the worker says nothing"
        os.read(self._says, 1)

    def _submit(self) -> None:
        own = over_ssh(self._cluster)
        if self._connected:
            own.ask(Ping())
        os.write(self._word, b"b")
        own.ask(SubmitOnce(jobs=self._jobs))
        os.write(self._word, b"e")


@pytest.mark.any_slurm("oldest")
@pytest.mark.parametrize(
    ("lines", "share", "connected"),
    [
        pytest.param(1, 0.5, True, id="submitting"),
        pytest.param(1, 0.2, False, id="connecting"),
        # As long as this, it can be killed when half of it is sent.
        pytest.param(20_000, 0.3, True, id="sending"),
    ],
)
def test_a_worker_is_killed_at_every_step(
    lines: int, share: float, connected: bool, cluster: Cluster, way: Way
) -> None:
    kills = round(KILLS * share)
    program = "#!/bin/sh\n" + "# one of the lines of a program\n" * lines
    ids: dict[str, str] = {}
    adopted = []
    whole = Worker(cluster, waiting_jobs(1, command=None, script=program), connected=connected).live()
    for step in range(kills):
        jobs = waiting_jobs(1, command=None, script=program)
        # The first steps lie closest: what has been sent as a whole is done on the cluster without the worker.
        Worker(cluster, jobs, connected=connected).die_after(2 * whole * (step / kills) ** 2)
        answers = ask_until_known(way, jobs)
        adopted += [one.adopted for one in answers]
        ids |= ids_of(jobs, answers)
    check_once(cluster, ids)
    # Else it was always too early, or too late.
    assert set(adopted) == {True, False}
    each = 'for job; do scontrol write batch_script "$job" - | sha256sum; done'
    assert len(set(cluster.run("bash", "-c", each, "each", *ids.values()).splitlines())) == 1, "not all of them whole"
