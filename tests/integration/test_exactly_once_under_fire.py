"""Each key has one job, whatever is cut, restarted or killed in the midst of a submission.

A few moments of each kind, spread over what a submission does; ``make soak`` tries hundreds, at random.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from airflow_provider_soperator.client import submissions
from airflow_provider_soperator.slurm.errors import SubmissionWithdrawn, TogetherRefused
from airflow_provider_soperator.slurm.requests import ListJobs, Ping
from airflow_provider_soperator.slurm.requests.commands import run_steps
from airflow_provider_soperator.slurm.requests.submission import SubmitOnce, Withdraw
from tests.contract.transports import Way
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
from tests.patience import PATIENCE
from tests.submissions import check_once, ids_of, is_submitting, withdrawn_keys

pytestmark = pytest.mark.leaves("jobs", "drains")


@pytest.fixture(autouse=True)
def nothing_starts(cluster: Cluster) -> None:
    let_nothing_start(cluster)


@pytest.fixture
def way(cluster: Cluster) -> Iterator[Way]:
    way = over_ssh(cluster)
    way.ask(Ping())
    yield way
    way.close()


def cut_at(moments: list[float], cluster: Cluster, way: Way) -> None:
    ids: dict[str, str] = {}
    for moment in moments:
        ids |= cut_after(moment, cluster, way, waiting_jobs(3))
    check_once(cluster, ids)


def test_the_connection_is_cut_at_any_moment(cluster: Cluster, way: Way) -> None:
    # A submission of three takes about 50 ms; the cut comes before, within, or after it.
    cut_at([step / 100 for step in range(8)], cluster, way)


def test_the_connection_of_a_loop_is_cut_at_any_moment(cluster: Cluster, connect: Callable[[str], Way]) -> None:
    cut_at([0.0, 0.02, 0.04], cluster, connect("ssh"))


@pytest.mark.parametrize("stop", [stop_controller, kill_accounting])
def test_a_daemon_restarts(stop: Callable[[Cluster], None], cluster: Cluster, way: Way) -> None:
    submitter = Submitter(way)
    under_restarts(cluster, submitter, [stop])
    check_once(cluster, submitter.ids)


@pytest.mark.parametrize(
    ("lines", "connected", "shares"),
    [
        # The first steps lie closest: what has been sent as a whole is done on the cluster without the worker.
        pytest.param(1, True, (0.0, 0.1, 0.3, 0.6), id="submitting"),
        pytest.param(1, False, (0.0, 0.3), id="connecting", marks=pytest.mark.soak),
        # As long as this, it can be killed when half of it is sent.
        pytest.param(20_000, True, (0.1, 0.3), id="sending"),
    ],
)
def test_a_worker_is_killed_at_every_step(
    lines: int, connected: bool, shares: tuple[float, ...], cluster: Cluster, way: Way
) -> None:
    program = scripts(lines)
    # The first one lives to the end, and dies before it has told of it.
    jobs = waiting_jobs(1, **program)
    whole = Worker(cluster, jobs, connected=connected).live()
    ids, answers = found_after(way, jobs)
    assert [one.adopted for one in answers] == [True]
    for share in shares:
        jobs = waiting_jobs(1, **program)
        Worker(cluster, jobs, connected=connected).die_after(whole * share)
        ids |= found_after(way, jobs)[0]
    check_once(cluster, ids)
    check_whole(cluster, list(ids.values()))


def test_a_submission_that_is_withdrawn_while_slurmctld_hangs_leaves_no_job(cluster: Cluster, way: Way) -> None:
    [ended, other] = waiting_jobs(2)
    keys = SubmitOnce(jobs=(ended,)).submission_keys()
    with cluster.commands_wait(100), ThreadPoolExecutor(1) as pool:
        cluster.fault("slurmctld-hung")
        submission = pool.submit(way.ask, SubmitOnce(jobs=(ended, other)))
        cluster.wait("its program has begun", lambda: is_submitting(cluster))
        way.ask(Withdraw(keys))
        cluster.fault("clear")
        withdrawn, submitted = submission.result(PATIENCE)
    assert isinstance(withdrawn.error, SubmissionWithdrawn)
    check_once(cluster, {str(other.name): str(submitted.id)})
    assert way.ask(ListJobs(name_suffixes=(keys[0].suffix,))) == ()


def test_what_is_taken_back_while_slurmctld_hangs_leaves_no_job(cluster: Cluster, way: Way) -> None:
    jobs = waiting_jobs(2)
    with cluster.commands_wait(100), ThreadPoolExecutor(2) as pool:
        cluster.fault("slurmctld-hung")
        submission = pool.submit(run_steps, submissions.submit_together(jobs, None, None), way.ask)
        cluster.wait("its program has begun", lambda: is_submitting(cluster))
        back = pool.submit(run_steps, submissions.take_back(jobs, None), way.ask)
        [*_, key] = SubmitOnce(jobs=jobs).submission_keys()
        cluster.wait("it is withdrawn", lambda: key.text in withdrawn_keys(cluster))
        cluster.fault("clear")
        back.result(PATIENCE)
        with pytest.raises(TogetherRefused) as refused:
            submission.result(PATIENCE)
    assert isinstance(refused.value.__cause__, SubmissionWithdrawn)
    names = tuple(str(job.name) for job in jobs)
    assert not [one for one in way.ask(ListJobs()) if one.name.startswith(names) and not one.state.is_finished]
    # The keys are free again.
    check_once(cluster, ids_of(jobs, run_steps(submissions.submit_together(jobs, None, None), way.ask)))


def test_what_nobody_lived_to_take_back_is_cancelled_and_can_be_submitted_anew(cluster: Cluster, way: Way) -> None:
    *jobs, other = waiting_jobs(3)
    first = run_steps(submissions.submit_together(jobs, None, None), way.ask)
    # The process ends after its first request.
    way.ask(next(submissions.take_back(jobs, None)))
    way.ask(SubmitOnce(jobs=(other,)))
    for one in first:
        cluster.wait_job(str(one.id), "CANCELLED")
    again = run_steps(submissions.submit_together(jobs, None, None), way.ask)
    assert [one.adopted for one in again] == [False] * 2


def test_what_nobody_lived_to_cancel_is_cancelled_by_the_next_submission(cluster: Cluster, way: Way) -> None:
    [ended, other] = waiting_jobs(2)
    [submitted] = way.ask(SubmitOnce(jobs=(ended,)))
    way.ask(Withdraw(SubmitOnce(jobs=(ended,)).submission_keys()))
    way.ask(SubmitOnce(jobs=(other,)))
    cluster.wait_job(str(submitted.id), "CANCELLED")
