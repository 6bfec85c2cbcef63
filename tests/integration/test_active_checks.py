"""Active checks on demand against a sandbox, whose Slurm runs their jobs: without Airflow's processes."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowException, AirflowFailException
from airflow.triggers.base import TriggerEvent
from async_timeout import timeout

from airflow_provider_soperator.hooks.cluster_clients import ClusterConnections
from airflow_provider_soperator.operators.cluster import CheckFailed, RunActiveCheckOperator
from airflow_provider_soperator.sensors.health import ActiveCheckSensor
from airflow_provider_soperator.triggers.events import ActiveCheckFailedTrigger
from airflow_provider_soperator.triggers.work import WatchTrigger, WorkTrigger
from airflow_provider_soperator.work.checks import CheckWatch
from airflow_provider_soperator.work.protocols import WorkTimeout
from sandbox.cloud.active_checks import WITHOUT_JOBS
from sandbox.lifecycle import Sandbox
from sandbox.settings import CLUSTER, NAMESPACE
from tests.integration.cluster import SOPERATOR, Cluster
from tests.integration.connections import Connections
from tests.patience import PATIENCE

pytestmark = pytest.mark.leaves("drains")

#: Nodes that fail it are drained by nobody else.
QUIET = "quiet-check"
_NUMBERS = itertools.count()


class Checks:
    """Tasks that run checks, as a worker would perform them, and what the cluster has of their runs."""

    def __init__(self, cluster: Cluster, connections: Connections) -> None:
        self.cluster, self.connections = cluster, connections
        self.slurm_conn_id = connections.login_node().slurm_conn_id
        self.number = next(_NUMBERS)
        self.by_hand = f"by-hand-{self.number}"
        self._earlier: list[str] = []
        self._earlier = self.jobs()

    def operator(self, check: str = QUIET, **options: Any) -> RunActiveCheckOperator:
        said = {"slurm_conn_id": self.slurm_conn_id, "poll_interval": 0.2, "retries": 3, "deferrable": False, **options}
        return RunActiveCheckOperator(task_id="check", check=check, **said)

    def perform(self, check: str = QUIET, *, attempt: int = 1, **options: Any) -> Any:
        return self.operator(check, **options).execute(self.context(attempt))

    def context(self, attempt: int = 1) -> Any:
        names = {"dag_id": "nightly", "run_id": f"run-{self.number}", "task_id": "check", "map_index": -1}
        ti = SimpleNamespace(**names, try_number=attempt, max_tries=3)
        return {"ti": ti, "dag_run": SimpleNamespace(start_date=None)}

    async def interrupt(self, **options: Any) -> WorkTrigger:
        """What a task waits with is torn away from it while its jobs are in the queue."""
        trigger = WorkTrigger(self.operator(**options).work(self.context()).write())
        work = asyncio.ensure_future(trigger.event())

        def knows_its_jobs() -> bool:
            return "waits for its jobs in Slurm" in trigger._work.place

        await asyncio.to_thread(self.cluster.wait, "the jobs are in the queue", knows_its_jobs)
        work.cancel()
        await asyncio.wait([work])
        return trigger

    async def kill(self, **options: Any) -> str:
        """What becomes of the run of a task that is told to end."""
        trigger = await self.interrupt(**options)
        await trigger.cancel()
        return trigger.fate

    def jobs(self) -> list[str]:
        """The Jobs that this test has begun."""
        listed = self.cluster.custom_objects.list_namespaced_custom_object("batch", "v1", NAMESPACE, "jobs")["items"]
        return [name for job in listed if (name := job["metadata"]["name"]) not in self._earlier]

    def begin_by_hand(self, name: str) -> None:
        self.cluster.kubectl("create", "job", f"--from=cronjob/{QUIET}", name, f"--namespace={NAMESPACE}")

    def in_queue(self) -> list[str]:
        return self.cluster.run("squeue", "--noheader", "--all", f"--name={QUIET}", "--format=%i").split()

    def wait_queued(self) -> None:
        self.cluster.wait("the check has a job in the queue", self.in_queue)


@pytest.fixture(scope="module")
def quiet(sandbox: Sandbox) -> Iterator[None]:
    """A check to which Soperator has no reactions."""
    spec = {
        "name": QUIET,
        "slurmClusterRefName": CLUSTER,
        "checkType": "slurmJob",
        "runAfterCreation": False,
        "slurmJobSpec": {"eachWorkerJobs": True, "sbatchScript": "#!/bin/bash\n#SBATCH --gpus-per-node=1\ntrue\n"},
    }
    made = {"apiVersion": "slurm.nebius.ai/v1alpha1", "kind": "ActiveCheck", "metadata": {"name": QUIET}, "spec": spec}
    cluster = Cluster(sandbox)
    cluster.custom_objects.create_namespaced_custom_object(*SOPERATOR, "activechecks", made)
    cron_jobs = ("get", "cronjobs", f"--namespace={NAMESPACE}", "--output=name")
    cluster.wait("the check has a CronJob", lambda: QUIET in cluster.kubectl(*cron_jobs))
    yield
    cluster.kubectl("delete", "activecheck", QUIET, f"--namespace={NAMESPACE}")
    cluster.close()


@pytest.fixture
def checks(quiet: None, cluster: Cluster, connections: Connections) -> Checks:
    return Checks(cluster, connections)


@pytest.fixture
def busy(cluster: Cluster) -> Iterator[Callable[[], None]]:
    """The only GPU node is taken, so that checks wait in the queue until it is given back."""
    job = cluster.held_job("--nodelist=worker-0", "--gpus-per-node=8")
    cluster.wait_job(job, "RUNNING")
    yield lambda: cluster.let_go(job)
    cluster.let_go(job)


@pytest.fixture
def aside() -> Iterator[Callable[..., Future[Any]]]:
    with ThreadPoolExecutor() as threads:
        yield threads.submit


def test_a_check_that_finds_nothing(checks: Checks) -> None:
    result = checks.perform()
    assert (result["check"], result["state"], result["failing"], result["drained"]) == (QUIET, "Complete", [], [])
    assert (list(result["nodes"]), result["nodes"]["worker-0"]["state"]) == (["worker-0"], "COMPLETED")
    assert [result["job"]] == checks.jobs()
    # The same try again finds it done; without Slurm its nodes are not known.
    again = checks.perform(slurm_conn_id=None)
    assert (again["job"], again["state"], again["nodes"]) == (result["job"], "Complete", {})


def test_one_node_of_two_fails(checks: Checks, cluster: Cluster) -> None:
    cluster.power_up("worker-1")
    cluster.fault("check-fails", check=QUIET, node="worker-1")
    with pytest.raises(CheckFailed, match=rf"{QUIET}: Failed: worker-1: job \d+ \(FAILED, NonZeroExitCode\)$"):
        checks.perform()
    told = checks.perform(on_failure="report", slurm_conn_id=None)
    assert (told["state"], told["nodes"], len(told["failed_jobs"])) == ("Failed", {}, 1)
    assert "DRAIN" not in cluster.node("worker-1").state
    # The next try runs it again, as the node may have been mended.
    result = checks.perform(attempt=2, on_failure="drain", drain_owner="night")
    states = {node: end["state"] for node, end in result["nodes"].items()}
    assert states == {"worker-0": "COMPLETED", "worker-1": "FAILED"}
    assert (result["failing"], result["drained"], len(checks.jobs())) == (["worker-1"], ["worker-1"], 2)
    assert cluster.node("worker-1").reason == f"airflow:night: {QUIET} failed"
    assert "DRAIN" not in cluster.node("worker-0").state


def test_a_worker_that_dies_leaves_one_run_to_the_next(
    checks: Checks, busy: Callable[[], None], aside: Callable[..., Future[Any]]
) -> None:
    asyncio.run(checks.interrupt())
    [begun] = checks.jobs()
    going_on = aside(checks.perform, attempt=2)
    busy()
    assert going_on.result(PATIENCE)["job"] == begun
    # That it has succeeded is good enough for a third try, too.
    assert checks.perform(attempt=3)["job"] == begun
    assert checks.jobs() == [begun]


def test_a_check_that_runs_already(checks: Checks, busy: Callable[[], None]) -> None:
    checks.begin_by_hand(checks.by_hand)
    checks.wait_queued()
    with pytest.raises(AirflowException, match=rf"{checks.by_hand}: the check is under way, and two runs disturb each"):
        checks.perform(if_running="fail")
    with pytest.raises(WorkTimeout):
        checks.perform(timeout=timedelta(seconds=1))
    # Those who have begun it go on with it.
    assert checks.jobs() == [checks.by_hand]
    operators = [checks.operator(if_running=choice) for choice in ("join", "wait")]
    triggers = [WorkTrigger(operator.work(checks.context()).write()) for operator in operators]

    async def main() -> list[dict[str, Any]]:
        going = asyncio.gather(*(trigger.event() for trigger in triggers))

        def have_looked() -> bool:
            return all(checks.by_hand in trigger._work.place for trigger in triggers)

        await asyncio.to_thread(checks.cluster.wait, "both know of the run", have_looked)
        busy()
        return await going

    joined, waited = asyncio.run(main())
    assert joined["result"]["job"] == checks.by_hand
    assert {waited["result"]["job"], checks.by_hand} == {*checks.jobs()}


def test_who_is_killed_leaves_nothing_behind(checks: Checks, busy: Callable[[], None]) -> None:
    fate = asyncio.run(checks.kill())
    assert fate.endswith(" was deleted, and its jobs in Slurm cancelled")
    assert checks.jobs() == []
    checks.cluster.wait("nothing is in the queue", lambda: not checks.in_queue())
    fate = asyncio.run(checks.kill(slurm_conn_id=None))
    assert fate.endswith(f"its jobs in Slurm ({','.join(checks.in_queue())}) go on: slurm_conn_id has them cancelled")
    assert checks.jobs() == []


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"namespace": "elsewhere"}, f"there is no check {QUIET}, and no other check: the namespace is elsewhere"),
        ({"kubernetes_conn_id": "no_such_id"}, "there is no connection no_such_id: add it"),
    ],
)
def test_what_can_never_be_is_not_tried_again(checks: Checks, options: dict[str, Any], says: str) -> None:
    with pytest.raises(AirflowException) as refused:
        checks.perform(**{"check": QUIET, **options})
    assert says in str(refused.value)


def test_an_unknown_check_is_refused_with_the_nearest_name(checks: Checks) -> None:
    known = checks.cluster.node_check
    wrong = known[:-1]
    with pytest.raises(AirflowException, match=f"there is no check {wrong}: did you mean '{known}'. There are "):
        checks.perform(check=wrong)


def test_who_may_only_read_is_told_what_is_missing(checks: Checks, connections: Connections) -> None:
    with pytest.raises(AirflowFailException, match=r"no right to create Job .*: bind a Role with .* delete on jobs"):
        checks.perform(kubernetes_conn_id=connections.viewer())


# Sensor and events


def sense(**options: Any) -> Any:
    return ActiveCheckSensor(task_id="sense", poke_interval=0.2, timeout=2, deferrable=False, **options).execute({})


def test_a_check_of_kubernetes_alone(checks: Checks) -> None:
    began = datetime.now(timezone.utc) - timedelta(seconds=1)
    result = checks.perform(WITHOUT_JOBS)
    assert (result["state"], result["nodes"]) == ("Complete", {})
    assert sense(check=WITHOUT_JOBS, since=began)["job"] == result["job"]
    checks.cluster.fault("check-fails", check=WITHOUT_JOBS, node="")
    with pytest.raises(CheckFailed, match=f"{WITHOUT_JOBS}: Failed: BackoffLimitExceeded"):
        checks.perform(WITHOUT_JOBS, attempt=2, retries=0)
    with pytest.raises(AirflowException, match="BackoffLimitExceeded"):
        sense(check=WITHOUT_JOBS, fail_fast=True)
    assert sense(check=WITHOUT_JOBS, target_state="ended")["state"] == "Failed"
    with pytest.raises(
        AirflowFailException, match=f"there is no check {WITHOUT_JOBS[:-1]}: did you mean {WITHOUT_JOBS!r}"
    ):
        sense(check=WITHOUT_JOBS[:-1])


async def first_event(trigger: Any) -> Any:
    events: AsyncIterator[TriggerEvent] = trigger.run()
    async with timeout(PATIENCE):
        return (await anext(events)).payload


def test_a_run_that_fails_is_an_event_and_ends_a_wait(checks: Checks, cluster: Cluster) -> None:
    cluster.fault("check-fails", check=QUIET, node="")
    # What failed before the watcher began is not told.
    checks.perform(on_failure="report")
    watcher = ActiveCheckFailedTrigger(check=QUIET, slurm_conn_id=checks.slurm_conn_id, poll_interval=0.2)
    since = datetime.now(timezone.utc).replace(microsecond=0) + timedelta(seconds=1)
    where = ClusterConnections("kubernetes_default", NAMESPACE)
    watch = CheckWatch(where=where, check=QUIET, state="failed", since=since, poll_interval=0.2)
    waiter = WatchTrigger(watch.write())

    async def main() -> Any:
        told = asyncio.gather(first_event(watcher), first_event(waiter))
        await asyncio.to_thread(cluster.wait, "that second is over", lambda: datetime.now(timezone.utc) > since)
        await asyncio.to_thread(checks.begin_by_hand, checks.by_hand)
        return await told

    event, found = asyncio.run(main())
    assert (event["check"], event["job"], event["state"]) == (QUIET, checks.by_hand, "Failed")
    assert (event["failing"], event["nodes"]["worker-0"]["reason"]) == (["worker-0"], "NonZeroExitCode")
    assert (found["result"]["job"], found["result"]["state"]) == (checks.by_hand, "Failed")
