"""What is special about slurmrestd: versions of its interface, tokens, and connections that break."""

from __future__ import annotations

import asyncio
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from types import SimpleNamespace
from typing import ClassVar

import jwt
import pytest

from airflow_provider_soperator.slurm.job import BatchJob
from airflow_provider_soperator.slurm.job_ids import JobId
from airflow_provider_soperator.slurm.requests import Accounting, ListJobs, ListNodes, MintToken, Ping
from airflow_provider_soperator.slurm.requests.submission import HELD, SubmitOnce, Submitted
from airflow_provider_soperator.slurm.rest.calls import RestAnswer, RestCall
from airflow_provider_soperator.slurm.states import JobBase
from airflow_provider_soperator.transports import rest
from airflow_provider_soperator.transports.local import LocalTransport
from airflow_provider_soperator.transports.rest import RestTransport, Tokens
from airflow_provider_soperator.transports.transport_errors import (
    ConnectFailed,
    ConnectionLost,
    ConnectRefused,
    NotSupported,
)
from tests.contract.transports import AsyncWay, Run, Way, inside, key_of, minted, url_of
from tests.integration.cluster import Cluster
from tests.submissions import Submit, new_jobs

pytestmark = pytest.mark.leaves("jobs")

Reach = Callable[..., Way]


@pytest.fixture
def reach(cluster: Cluster) -> Iterator[Reach]:
    """Opens ways to the sandbox's slurmrestd, or to another address, with any tokens."""
    opened: list[Way] = []

    def reach(tokens: Tokens | None = None, url: str = "", **options: object) -> Way:
        tokens, url = tokens or minted(cluster), url or url_of(cluster)
        opened.append(AsyncWay(lambda: RestTransport(url, tokens, **options)))  # type: ignore[arg-type]
        return opened[-1]

    yield reach
    for way in opened:
        way.close()


class Door:
    """A TCP proxy before slurmrestd, which can cut what goes through it."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._pairs: list[socket.socket] = []
        threading.Thread(target=self._serve, daemon=True).start()

    def cut(self) -> None:
        pairs, self._pairs = self._pairs, []
        for one in pairs:
            try:
                one.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue

    def close(self) -> None:
        self._listener.close()
        self.cut()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self._port))
            self._pairs += [client, server]
            for source, target in ((client, server), (server, client)):
                threading.Thread(target=self._carry, args=(source, target), daemon=True).start()

    @staticmethod
    def _carry(source: socket.socket, target: socket.socket) -> None:
        try:
            while data := source.recv(65536):
                target.sendall(data)
        except OSError:
            pass
        for one in (source, target):
            one.close()


@pytest.fixture
def door(cluster: Cluster) -> Iterator[Door]:
    door = Door(cluster.access["ports"]["slurmrestd"])
    yield door
    door.close()


def a_token(cluster: Cluster, key: bytes = b"", **claims: object) -> str:
    now = int(time.time())
    return jwt.encode({"sun": "root", "iat": now, "exp": now + 600, **claims}, key or key_of(cluster), "HS256")


# Versions


@pytest.mark.each_slurm
@pytest.mark.parametrize("version", [41, 42, 43, 44, 45])
def test_every_version_that_the_server_has_is_spoken(version: int, reach: Reach, cluster: Cluster) -> None:
    way = reach(versions=(version,))
    if version not in {"24.11": (41, 42), "26.05": (42, 43, 44, 45)}[cluster.settings.slurm]:
        with pytest.raises(ConnectFailed, match="no slurmrestd of a supported version"):
            way.ask(Ping())
        return
    assert way.ask(Ping())[0].is_up
    job = way.ask(Submit(BatchJob(command="true", name="it's", comment="ü", array="1-3", hold=True)))
    [found] = way.ask(ListJobs(ids=(job,)))
    assert (found.name, found.comment, str(found.id)) == ("it's", "ü", f"{job}_[1-3]")
    assert len(way.ask(ListNodes())) == len(cluster.nodes())
    [done] = way.ask(SubmitOnce(jobs=new_jobs()))
    assert done.id is not None


def test_what_a_release_does_not_have_is_agreed_anew(reach: Reach, cluster: Cluster) -> None:
    # As if the server had been upgraded since.
    way = reach()
    transport = way._transport  # type: ignore[attr-defined]
    way.ask(Ping())
    agreed = transport._version
    transport._version = 99
    assert way.ask(ListNodes())
    assert transport._version == agreed


# Tokens


async def given(token: str) -> str:
    return token


@pytest.mark.each_slurm
def test_a_token_that_is_wrong_says_how(reach: Reach, cluster: Cluster) -> None:
    now = int(time.time())
    wrong = {
        "it is not a JWT": "secret-words",
        "expired at 20": a_token(cluster, exp=now - 5),
        "see whether its key is the cluster's": a_token(cluster, key=b"k" * 32),
    }
    for words, token in wrong.items():
        for question in (ListJobs(), Accounting(ids=(JobId(1),)), Ping()):
            with pytest.raises(ConnectFailed, match=words) as caught:
                reach(Tokens(partial(given, token))).ask(question)
            assert token not in repr(caught.value)
    assert reach(Tokens(partial(given, a_token(cluster)))).ask(ListNodes())


def test_a_token_that_is_refused_is_renewed_once(reach: Reach, cluster: Cluster) -> None:
    # As if the cluster had been given another key.
    tokens = [a_token(cluster, key=b"old" * 11), a_token(cluster), "no third one"]

    async def make() -> str:
        return tokens.pop(0)

    assert reach(Tokens(make)).ask(ListNodes())
    assert tokens == ["no third one"]


def test_tokens_are_used_again_until_near_their_end(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time()
    monkeypatch.setattr(rest, "time", SimpleNamespace(time=lambda: now))
    source = Tokens(partial(rest.minted, key_of(cluster), "root"))
    first = asyncio.run(source.token())
    now += 0.7 * rest.LIFESPAN.total_seconds()
    assert asyncio.run(source.token()) == first
    now += 0.2 * rest.LIFESPAN.total_seconds()
    assert asyncio.run(source.token()) != first


def test_tokens_are_fetched_over_another_way(cluster: Cluster) -> None:
    tokens = Tokens(partial(rest.fetched, lambda: LocalTransport(inside(cluster, "/bin/sh")), "alice"))
    way = AsyncWay(lambda: RestTransport(url_of(cluster), tokens))
    job = way.ask(Submit(BatchJob(command="true", hold=True)))
    [found] = way.ask(ListJobs(ids=(job,), mine=True))
    assert (found.user, found.workdir) == ("alice", "/home/alice")
    way.close()


# Users whom its host does not know


class Nameless(RestTransport):
    """The slurmrestd of a host that knows no user of the cluster; the names of the jobs that it is given."""

    submitted: ClassVar[list[str]] = []

    async def _exchange(self, call: RestCall, version: int) -> RestAnswer:
        if call.path == "slurm/job/submit":
            assert call.body is not None
            self.submitted.append(call.body["job"]["name"])
        answer = await super()._exchange(call, version)
        for job in answer.data.get("jobs", ()):
            job["user_name"] = ""
        return answer


@pytest.mark.each_slurm
def test_a_job_of_ones_own_is_told_from_one_of_the_same_name(reach: Reach, cluster: Cluster) -> None:
    Nameless.submitted.clear()
    job, other = new_jobs(2, hold=True)
    of_root = reach().ask(Submit(job))

    def submit(one: BatchJob) -> Submitted:
        """As a new process of alice's."""
        way = AsyncWay(lambda: Nameless(url_of(cluster), minted(cluster, "alice")))
        [submitted] = way.ask(SubmitOnce(jobs=(one,)))
        way.close()
        return submitted

    first, again, apart = submit(job), submit(job), submit(other)
    assert (first.adopted, again.adopted, apart.adopted) == (False, True, False)
    assert first.id == again.id != of_root
    # Only where a job may be one's own is another one needed, which is never run.
    assert Nameless.submitted == ["soperator.whose", job.name, "soperator.whose", other.name]
    assert reach().ask(ListJobs(names=("soperator.whose",), states=("PENDING", "RUNNING"))) == ()


# What slurmrestd cannot do


def test_what_it_cannot_do_says_what_can(reach: Reach) -> None:
    for request in (Run(("hostname",)), MintToken(timedelta(minutes=1))):
        with pytest.raises(NotSupported, match="ssh, kubernetes or local"):
            reach().ask(request)


# The way there


@pytest.mark.each_slurm
def test_an_address_that_is_wrong_says_how(reach: Reach, cluster: Cluster) -> None:
    ports = cluster.access["ports"]
    wrong = {
        "the host name in .* is unknown": "http://no-such-host.invalid:6820",
        "does not speak TLS": url_of(cluster).replace("http:", "https:"),
        "is not trusted": f"https://127.0.0.1:{ports['kubernetes']}",
        "or not at this path": f"{url_of(cluster)}/proxied",
    }
    for words, url in wrong.items():
        with pytest.raises(ConnectFailed, match=words):
            reach(url=url).ask(Ping())


def test_a_slurmrestd_that_is_gone_is_found_again(reach: Reach, cluster: Cluster) -> None:
    way = reach()
    assert way.ask(Ping())
    cluster.fault("slurmrestd-down")

    def nobody_listens() -> bool:
        with pytest.raises((ConnectionLost, ConnectRefused)) as caught:
            way.ask(Ping())
        return "nothing listens" in str(caught.value)

    # The connection that was kept breaks first.
    cluster.wait("it is told that slurmrestd is gone", nobody_listens)
    cluster.sandbox.up()
    assert way.ask(Ping())


# Exactly once


@pytest.mark.soak
@pytest.mark.oldest_slurm
def test_a_connection_cut_at_any_moment_neither_loses_nor_doubles_a_job(
    reach: Reach, cluster: Cluster, door: Door
) -> None:
    dice = random.Random(20)
    way, sure = reach(url=door.url), reach()
    for _ in range(6):
        jobs = new_jobs(4)
        cut = threading.Timer(dice.uniform(0, 0.06), door.cut)
        cut.start()
        for _ in range(20):
            try:
                answers = way.ask(SubmitOnce(jobs=jobs))
                break
            except ConnectionLost:
                continue
        cut.join()
        # What was submitted while the connection broke may have been cancelled before it could start.
        found = sure.ask(ListJobs(names=tuple(str(job.name) for job in jobs)))
        assert not any(job.nodelist for job in found if job.state.base is JobBase.CANCELLED)
        found = tuple(job for job in found if job.state.base is not JobBase.CANCELLED)
        assert sorted(job.id for job in found) == sorted(one.id for one in answers if one.id)
        assert not any(job.is_held or job.comment == HELD for job in found)


@pytest.mark.each_slurm
def test_jobs_that_nobody_let_go_are_let_go_by_the_next(reach: Reach, cluster: Cluster) -> None:
    way = reach()
    jobs = (
        *new_jobs(comment="mine"),
        *new_jobs(array="1-3"),
        *new_jobs(het=(BatchJob(nodes=1),)),
        *new_jobs(hold=True),
    )
    # As whoever dies between submitting them and letting them go leaves them behind.
    left = [way.ask(Submit(job.replace(hold=True, comment=HELD))) for job in jobs]
    done = way.ask(SubmitOnce(jobs=jobs))
    assert [(one.id, one.adopted) for one in done] == [(job, True) for job in left]
    for job in left[:3]:
        cluster.wait("it ran", lambda job=job: all(one.state.succeeded for one in way.ask(ListJobs(ids=(job,)))))
    assert {job.comment for job in way.ask(ListJobs(ids=tuple(left)))} == {"mine", ""}
    assert way.ask(ListJobs(ids=(left[3],)))[0].is_held


@pytest.mark.each_slurm
def test_of_two_jobs_with_one_key_the_first_stays(reach: Reach, cluster: Cluster) -> None:
    way = reach()
    [job] = new_jobs()
    first, second = (way.ask(Submit(job.replace(hold=True, comment=HELD))) for _ in range(2))
    [done] = way.ask(SubmitOnce(jobs=(job,)))
    assert done.id == first
    cluster.wait_job(str(first), "COMPLETED")
    cluster.wait_job(str(second), "CANCELLED")
    assert way.ask(ListJobs(ids=(second,)))[0].nodelist == ""


@pytest.mark.soak
@pytest.mark.oldest_slurm
def test_five_hundred_at_once(reach: Reach) -> None:
    way = reach()
    jobs = new_jobs(500, hold=True)
    done = way.ask(SubmitOnce(jobs=jobs))
    assert len({one.id for one in done}) == 500
    assert [one.id for one in way.ask(SubmitOnce(jobs=jobs))] == [one.id for one in done]
