"""What strikes those who submit jobs: connections that are cut, daemons that restart, processes that are killed."""

from __future__ import annotations

import os
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from airflow_provider_soperator.slurm.job import BatchJob
from airflow_provider_soperator.slurm.requests import Ping
from airflow_provider_soperator.slurm.requests.submission import SubmitOnce, Submitted
from airflow_provider_soperator.transports.ssh import SshTransport
from benchmarks.transports import Login
from tests.contract.transports import AsyncWay, Way
from tests.forks import forked
from tests.integration.cluster import Cluster
from tests.patience import PATIENCE
from tests.submissions import ask_until_known, ids_of, new_jobs

DRAINED = "worker-cpu-0"


def let_nothing_start(cluster: Cluster) -> None:
    """The jobs want a node that takes none: what is tried here is submission, and hundreds would have to run."""
    cluster.run("scontrol", "update", f"nodename={DRAINED}", "state=drain", "reason=under fire")


def waiting_jobs(count: int, **fields: Any) -> tuple[BatchJob, ...]:
    return new_jobs(count, nodelist=DRAINED, **fields)


def over_ssh(cluster: Cluster) -> Way:
    """Without the hook of Airflow's SSH provider, which sleeps for seconds when a connection breaks as it is made."""
    return AsyncWay(lambda: SshTransport(Login(cluster.sandbox, cluster.access["ssh"]).connector))


def stop_controller(cluster: Cluster) -> None:
    # Not killed: it would lose the jobs of the last five seconds, as it saves them no more often. Told to end, it does.
    cluster.sandbox.init.signal("slurmctld", signal.SIGTERM)
    cluster.wait("slurmctld has ended", lambda: not cluster.sandbox.init.processes()["slurmctld"]["pid"])


def kill_accounting(cluster: Cluster) -> None:
    # slurmctld keeps what is for it.
    cluster.fault("slurmdbd-down")


def cut_after(seconds: float, cluster: Cluster, way: Way, jobs: tuple[BatchJob, ...]) -> dict[str, str]:
    """Cut all connections so long after a submission has begun; the ids of its jobs in the end."""
    cut = threading.Timer(seconds, cluster.fault, ("login-cut",))
    cut.start()
    try:
        return ids_of(jobs, ask_until_known(way, jobs))
    finally:
        cut.join()


class Submitter:
    """Submits jobs in a thread, a few at a time, while something else happens."""

    def __init__(self, way: Way, at_once: int = 3) -> None:
        self.ids: dict[str, str] = {}
        self._way, self._at_once = way, at_once
        self._over = threading.Event()

    @contextmanager
    def at_work(self) -> Iterator[Future[None]]:
        with ThreadPoolExecutor(1) as pool:
            work = pool.submit(self._submit)
            try:
                yield work
            finally:
                self._over.set()
            work.result()

    def _submit(self) -> None:
        while not self._over.is_set():
            jobs = waiting_jobs(self._at_once)
            self.ids.update(ids_of(jobs, ask_until_known(self._way, jobs)))


def under_restarts(cluster: Cluster, submitter: Submitter, stops: Sequence[Callable[[Cluster], None]]) -> None:
    """Stop something, and start it again, each time in the midst of submissions."""
    with submitter.at_work() as work:
        for stop in stops:
            enough = len(submitter.ids) + 6
            cluster.wait("jobs are being submitted", lambda e=enough: work.done() or len(submitter.ids) > e)
            stop(cluster)
            cluster.sandbox.up()


class Worker:
    """Submits jobs in a process of its own, over a connection of its own."""

    def __init__(self, cluster: Cluster, jobs: tuple[BatchJob, ...], *, connected: bool) -> None:
        self._cluster, self._jobs, self._connected = cluster, jobs, connected
        self._says, self._word = os.pipe()

    def live(self) -> float:
        """To the end, and no longer; the seconds that it takes, from when it says that it begins."""
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
        assert select.select([self._says], [], [], PATIENCE)[0], "the worker says nothing"
        os.read(self._says, 1)

    def _submit(self) -> None:
        own = over_ssh(self._cluster)
        if self._connected:
            own.ask(Ping())
        os.write(self._word, b"b")
        own.ask(SubmitOnce(jobs=self._jobs))
        os.write(self._word, b"e")


def scripts(lines: int) -> dict[str, Any]:
    """What makes the script of a job so long."""
    return {"command": None, "script": "#!/bin/sh\n" + "# one of the lines of a program\n" * lines}


def found_after(way: Way, jobs: tuple[BatchJob, ...]) -> tuple[dict[str, str], list[Submitted]]:
    """What is known of jobs, once another has gone on with them: their ids, and whether they were there already."""
    answers = ask_until_known(way, jobs)
    return ids_of(jobs, answers), list(answers)


def check_whole(cluster: Cluster, ids: Sequence[str]) -> None:
    """That these jobs, which were submitted with one script, all have it, as a whole."""
    each = 'for job; do scontrol write batch_script "$job" - | sha256sum; done'
    assert len(set(cluster.run("bash", "-c", each, "each", *ids).splitlines())) == 1, "not all of them whole"
