"""NodeSets get other sizes, among jobs and others who scale them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from airflow_provider_soperator.hooks.cluster_clients import ClusterConnections, ClusterSides
from airflow_provider_soperator.operators.cluster import ScaleNodeSetOperator
from airflow_provider_soperator.soperator.resize import Resize
from airflow_provider_soperator.work.nodesets import NodeSetResize
from airflow_provider_soperator.work.protocols import WorkFailed
from sandbox.settings import EPHEMERAL_SET, NAMESPACE, STATIC_SET
from tests.integration.cluster import NOT_UP, OFF, Cluster
from tests.integration.connections import Connections
from tests.integration.late import too_late
from tests.patience import PATIENCE

FIRST, LAST = (f"{STATIC_SET}-{ordinal}" for ordinal in range(2))
Scale = Callable[..., Any]


@pytest.fixture
def conn_id(connections: Connections) -> str:
    return connections.login_node().slurm_conn_id


@pytest.fixture
def scale(conn_id: str) -> Scale:
    """Executes a task as a worker would."""

    def scale(**options: Any) -> Any:
        said = {"nodeset": STATIC_SET, "slurm_conn_id": conn_id, "poll_interval": 0.2, **options}
        return ScaleNodeSetOperator(task_id="task", **said).execute({"ti": None})  # type: ignore[typeddict-item]

    return scale


@pytest.fixture
def sized(cluster: Cluster) -> Iterator[None]:
    """Whatever a test makes of the NodeSets, they have their sizes again in the end."""
    sizes = {EPHEMERAL_SET: cluster.settings.workers, STATIC_SET: cluster.settings.static}
    yield
    for name, replicas in sizes.items():
        cluster.kubectl("scale", "nodeset", name, f"--replicas={replicas}")
    names = [f"{name}-{ordinal}" for name, replicas in sizes.items() for ordinal in range(replicas)]
    for name in names:
        cluster.wait_known(name, known=True)
    cluster.wait_node(LAST, lacks=NOT_UP - {"DRAIN"})


def replicas_of(cluster: Cluster, nodeset: str) -> int:
    return int(cluster.custom("nodesets", nodeset)["spec"]["replicas"])


class Steps:
    """A change of size, one step at a time."""

    def __init__(self, conn_id: str, **wanted: Any) -> None:
        now = datetime.now(timezone.utc)
        self._work = NodeSetResize(
            where=ClusterConnections("kubernetes_default", NAMESPACE, None, conn_id),
            resize=Resize(nodeset=STATIC_SET, owner="night", **wanted),
            since=now,
            deadline=now + timedelta(hours=1),
            poll_interval=0,
        ).begin(logging.getLogger("resizing"))

    def __call__(self) -> dict[str, Any] | None:
        done: dict[str, Any] | None = self._do(self._work.step)
        return done

    def undo(self) -> str:
        return str(self._do(self._work.undo))

    def _do(self, step: Callable[[ClusterSides], Any]) -> Any:
        async def run() -> Any:
            async with self._work.where.open() as sides:
                return await step(sides)

        return asyncio.run(run())


# Static


def test_the_highest_node_goes_once_its_job_has_ended_and_comes_back(
    cluster: Cluster, scale: Scale, sized: None
) -> None:
    job = cluster.held_job(f"--nodelist={LAST}")
    cluster.wait_job(job, "RUNNING")
    with ThreadPoolExecutor(1) as worker:
        shrunk: Future[Any] = worker.submit(scale, replicas=1, reason="less")
        cluster.wait_node(LAST, has={"DRAIN"})
        assert (cluster.job_state(job), replicas_of(cluster, STATIC_SET)) == ("RUNNING", 2)
        assert cluster.node(LAST).reason.endswith(f"/{STATIC_SET}: less")
        cluster.let_go(job)
        assert shrunk.result(PATIENCE)["nodes"] == [FIRST]
    assert (cluster.job_state(job), cluster.pod(LAST)) == ("COMPLETED", None)
    assert LAST not in cluster.nodes()

    grown = scale(replicas="2")
    assert grown["nodes"] == [FIRST, LAST]
    assert not cluster.node(LAST).state & NOT_UP
    # What has its size already is done at once.
    assert scale(replicas=2)["replicas"] == 2


def test_force_puts_jobs_back_into_the_queue_or_cancels_them(cluster: Cluster, scale: Scale, sized: None) -> None:
    # Not by its name: a job that waits for a node that Slurm no longer has fails with NODE_FAIL.
    cluster.run("scontrol", "update", f"nodename={FIRST}", "state=drain", "reason=for now")
    patient = cluster.held_job("--exclude=worker-[0-3]", "--requeue")
    cluster.wait_job(patient, "RUNNING")
    cluster.run("scontrol", "update", f"nodename={FIRST}", "state=undrain")
    hasty = cluster.held_job(f"--nodelist={LAST}", "--no-requeue")
    cluster.wait_job(hasty, "RUNNING")
    plan = scale(replicas=1, plan_only=True)
    assert (plan["leaving"], plan["jobs"], plan["before"]) == ([LAST], [patient, hasty], 2)
    assert "fluxcd-nodesets resets the number of replicas" in plan["warning"]
    assert "DRAIN" not in cluster.node(LAST).state

    scale(replicas=1, mode="force")
    assert cluster.job_state(hasty) == "CANCELLED"
    assert cluster.job(patient)["restart_cnt"] == 1
    cluster.start_soon(patient)
    cluster.wait_job(patient, "RUNNING")
    assert cluster.job(patient)["nodes"] == FIRST
    cluster.let_go(patient)


def test_who_is_late_leaves_all_as_it_was(cluster: Cluster, scale: Scale, sized: None) -> None:
    job = cluster.held_job(f"--nodelist={LAST}")
    cluster.wait_job(job, "RUNNING")
    stays = f"{LAST} has jobs. NodeSet {STATIC_SET} keeps its 2 replicas, and {LAST}"
    too_late(lambda within: scale(replicas=1, timeout=timedelta(seconds=within)), stays)
    assert "DRAIN" not in cluster.node(LAST).state
    assert (cluster.job_state(job), replicas_of(cluster, STATIC_SET)) == ("RUNNING", 2)
    cluster.let_go(job)


def test_another_process_goes_on_and_who_scales_at_the_same_time_is_told(
    cluster: Cluster, conn_id: str, sized: None
) -> None:
    job = cluster.held_job(f"--nodelist={LAST}")
    cluster.wait_job(job, "RUNNING")
    first, second = Steps(conn_id, replicas=1), Steps(conn_id, replicas=1)
    assert first() is None
    assert cluster.node(LAST).reason.startswith("airflow:night:")
    assert second() is None
    # The first has died. The API refuses the change as somebody was quicker, and it is made at the next look.
    cluster.fault("api", api="kubernetes", effect="conflict", matching="PATCH nodesets/*/scale", count=1)
    cluster.let_go(job)
    cluster.wait("the second has changed it", lambda: (second(), replicas_of(cluster, STATIC_SET))[1] == 1)
    assert "goes on towards that" in second.undo()
    # Its slurmd has to begin anew: one that goes on does not tell a slurmctld that has forgotten it, and is off there.
    cluster.wait_gone(LAST)
    cluster.wait_known(LAST, known=False)
    cluster.kubectl("scale", "nodeset", STATIC_SET, "--replicas=2")
    with pytest.raises(WorkFailed, match=f"has set NodeSet {STATIC_SET} to 2 replicas, while it goes to 1"):
        second()
    # As its trigger does then.
    assert "keeps its 2 replicas" in second.undo()


# Ephemeral


def test_of_an_ephemeral_nodeset_only_nodes_that_are_off_can_go(cluster: Cluster, scale: Scale, sized: None) -> None:
    cluster.power_up("worker-1")
    with pytest.raises(AirflowFailException, match=r"worker-1 of the ephemeral NodeSet worker are on: power them down"):
        scale(nodeset=EPHEMERAL_SET, replicas=1)
    assert scale(nodeset=EPHEMERAL_SET, replicas=2)["nodes"] == ["worker-0", "worker-1"]
    assert not {"worker-2", "worker-3"} & cluster.nodes().keys()
    scale(nodeset=EPHEMERAL_SET, replicas=4)
    assert cluster.node("worker-3").state == OFF


# Mistakes


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"nodeset": "wrker"}, "there is no NodeSet wrker in namespace soperator: there are worker, worker-cpu"),
        ({"namespace": "nowhere"}, "there is no namespace nowhere"),
        ({"namespace": "inference"}, "there is no SlurmCluster in namespace inference"),
        ({"cluster": "other"}, "there is no SlurmCluster other in namespace soperator: there is soperator"),
        ({"slurm_conn_id": None}, "without slurm_conn_id, jobs on worker-cpu-1 cannot be seen"),
    ],
)
def test_what_can_never_be_is_not_tried_again(scale: Scale, options: dict[str, Any], says: str) -> None:
    with pytest.raises((AirflowFailException, AirflowException)) as refused:
        scale(**{"replicas": 1, **options})
    assert says in str(refused.value)


def test_a_missing_right_is_named_before_anything_is_drained(
    cluster: Cluster, scale: Scale, connections: Connections
) -> None:
    with pytest.raises(AirflowFailException, match=r"no right to scale NodeSet worker-cpu .*: bind a Role with get, "):
        scale(replicas=1, kubernetes_conn_id=connections.viewer())
    assert "DRAIN" not in cluster.node(LAST).state
