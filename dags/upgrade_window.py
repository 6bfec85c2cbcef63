"""Upgrade a cluster in a maintenance window: keep jobs off, change it, verify it, and only then reopen it.

Choose the nodes, the start and the expected duration in the form. As soon as the run starts, Slurm starts no job on
these nodes that would run into the window. When the window opens, the DAG waits for the last jobs, has the jail backed
up unless that was done lately, and makes the change. Then root alone tests the nodes, in the reservation that holds
them. Nodes that others have drained when the window opens are reserved, too, but otherwise left alone. The reservation
has no end: a failure leaves the cluster closed, and the last task reports what is held, and how to continue or give up.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone
from typing import Any

from airflow.providers.standard.sensors.date_time import DateTimeSensor
from airflow.sdk import Param, dag, task, task_group
from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_soperator.hooks.slurm import SlurmHook
from airflow_provider_soperator.operators.cluster import BackupJailOperator, RunActiveCheckOperator
from airflow_provider_soperator.operators.nodes import (
    CreateReservationOperator,
    DeleteReservationOperator,
    DrainNodesOperator,
    UndrainNodesOperator,
)
from airflow_provider_soperator.operators.sbatch import SbatchOperator
from airflow_provider_soperator.operators.stats import SlurmStatsOperator
from airflow_provider_soperator.sensors.cluster import ClusterReadySensor
from airflow_provider_soperator.slurm import hostlist
from airflow_provider_soperator.slurm.node_conditions import chosen, in_lines, is_anothers, is_ours
from airflow_provider_soperator.slurm.node_orders import because
from airflow_provider_soperator.slurm.requests import ListNodes, ListReservations

CONNECTION = "soperator_default"
#: One for each run, so that a cleared run continues with its own.
RESERVATION = "upgrade-{{ ti.xcom_pull('window')['id'] }}"
NODES = "{{ params.nodes }}"
#: Those of them that the DAG drains, tests and undrains.
CHOSEN = "{{ ti.xcom_pull('choose')['nodes'] }}"
#: What only looks is tried again: Slurm that does not answer for a moment would end the window before it begins.
LOOKS = {"retries": 3, "retry_delay": timedelta(seconds=10)}
#: An older backup of the jail is not good enough for the change. Jobs write until the nodes are drained.
MAX_BACKUP_AGE = timedelta(hours=12)


@dag(
    description=__doc__.splitlines()[0],
    # It takes nodes from their users.
    is_paused_upon_creation=True,
    schedule=None,
    # Two windows at once would wait for each other's nodes.
    max_active_runs=1,
    params={
        "nodes": Param("worker-0,worker-cpu-[0-1]", type="string", title="Nodes", description="As Slurm writes them"),
        "starts": Param(
            None,
            type=["null", "string"],
            format="date-time",
            title="From",
            description="Empty: at once. The further ahead, the fewer jobs to wait for",
        ),
        "hours": Param(
            2, type="number", exclusiveMinimum=0, title="Hours", description="The duration that users should expect"
        ),
        "release": Param(
            "",
            type="string",
            title="Release",
            description="Of Soperator, which the cluster and its Pods must have before users return; empty: any",
        ),
        # It works in the jail, from a Pod, in each release from 3.0 to 5.0.
        "check": Param(
            "create-user-soperatorchecks",
            type="string",
            title="Active check",
            description="One of the release that comes, which does not need these nodes: checks leave out drained and "
            "reserved ones",
        ),
    },
    default_args={"slurm_conn_id": CONNECTION, "deferrable": True},
    doc_md=__doc__,
    tags=["soperator", "example"],
)
def upgrade_window() -> None:
    @task
    def window(params: dict[str, Any], dag_run: Any) -> dict[str, str]:
        """The start of the window and its expected end."""
        begun = dag_run.start_date or datetime.now(timezone.utc)
        starts = datetime.fromisoformat(params["starts"].replace("Z", "+00:00")) if params["starts"] else begun
        until = starts + timedelta(hours=params["hours"])
        # A run that is cleared begins at another moment, and has the id that it had.
        run = re.sub(r"\W", "", dag_run.run_id)
        return {"id": run, "starts": starts.isoformat(), "until": f"{until:%Y-%m-%d %H:%M %Z}"}

    reserve = CreateReservationOperator(
        task_id="reserve",
        name=RESERVATION,
        nodes=NODES,
        start="{{ params.starts }}",
        # Without an end, so that no clock opens a cluster that was not verified.
        users=["root"],
        comment="upgrade, expected to be over {{ ti.xcom_pull('window')['until'] }}",
    )
    before = SlurmStatsOperator(task_id="before", **LOOKS)
    begins = DateTimeSensor(
        task_id="begins",
        target_time="{{ ti.xcom_pull('window')['starts'] }}",
        # Not deferred: a window that begins at once would bring the task back into its queue before the scheduler knows
        # of that, which Airflow takes for a lost worker.
        mode="reschedule",
        timeout=timedelta(days=365).total_seconds(),
    )

    @task(**LOOKS)
    def choose(params: dict[str, Any], dag: Any) -> dict[str, Any]:
        """The nodes without those that others have drained, which only these may undrain at the end."""
        with SlurmHook(CONNECTION).client() as slurm:
            meant = chosen(slurm.ask(ListNodes()), hostlist.expand(params["nodes"]), "")
        left = {node.name: because(node, "is drained") for node in meant if is_anothers(node, dag.dag_id)}
        for line in in_lines(left):
            print(f"Left out, but for the reservation: {line}")
        if len(left) == len(meant):
            raise AirflowFailException("others have drained all of the nodes, and nothing is changed")
        return {"nodes": hostlist.fold(node.name for node in meant if node.name not in left), "left": left}

    drain = DrainNodesOperator(
        task_id="drain",
        nodes=CHOSEN,
        reason="upgrade",
        wait_for_jobs=True,
        timeout=timedelta(hours=24),
        poll_interval=5,
    )

    @task.sensor(mode="reschedule", poke_interval=30, timeout=timedelta(hours=24).total_seconds(), **LOOKS)
    def empty(params: dict[str, Any]) -> bool:
        """Wait for the last jobs on the nodes that are left out, too: all share the jail."""
        with SlurmHook(CONNECTION).client() as slurm:
            meant = chosen(slurm.ask(ListNodes()), hostlist.expand(params["nodes"]), "")
        busy = [node.name for node in meant if node.is_busy]
        print(f"Jobs are on {hostlist.fold(busy)}" if busy else "No job is on any of the nodes")
        return not busy

    # Only a backup undoes what a change does to the root that all nodes share.
    backup = BackupJailOperator(
        task_id="backup", max_backup_age=MAX_BACKUP_AGE, timeout=timedelta(hours=12), poll_interval=5
    )

    @task_group
    def change() -> None:
        """Your change goes here, as tasks; they can be retried, so make them idempotent."""

        @task
        def make_it() -> None:
            print("Nothing is changed: put an operator such as the following here")
            # newer = dataclasses.replace(spec, operator_version="5.0.0")
            # ProvisionClusterOperator(task_id="make_it", spec=newer, source=recipe, ready_timeout=None)
            # Its own wait would fail on the drained nodes; `verify` waits for the cluster.

        make_it()

    @task_group
    def verify() -> None:
        """Tests by root, while the reservation keeps all others off."""
        ready = ClusterReadySensor(
            task_id="ready",
            # Not in Slurm: the nodes are still drained.
            slurm_conn_id=None,
            # What applies the change may do so minutes later.
            operator_version="{{ params.release }}",
            poke_interval=5,
            timeout=timedelta(hours=1).total_seconds(),
        )
        check = RunActiveCheckOperator(
            task_id="check", check="{{ params.check }}", slurm_conn_id=None, timeout=timedelta(hours=1), poll_interval=5
        )
        undrain = UndrainNodesOperator(task_id="undrain", nodes=CHOSEN, poll_interval=5)
        smoke = SbatchOperator(
            task_id="smoke",
            script="#!/bin/bash\nsrun --ntasks-per-node=1 hostname\n",
            reservation=RESERVATION,
            nodelist=CHOSEN,
            time_limit=timedelta(minutes=30),
        )
        # Its figures are in the task log.
        jail = SbatchOperator(
            task_id="jail",
            script="nightly_health/jail.sbatch",
            env={"FAIL": "5"},
            reservation=RESERVATION,
            nodelist=CHOSEN,
            time_limit=timedelta(minutes=5),
        )
        # The check is one of the release that has come.
        ready >> check >> undrain >> smoke >> jail

    after = SlurmStatsOperator(task_id="after", **LOOKS)
    reopen = DeleteReservationOperator(task_id="reopen", name=RESERVATION)

    @task
    def tell(params: dict[str, Any], ti: Any, dag: Any) -> None:
        """Report what is still held. A teardown, so it also runs after a failure, if anything was reserved."""
        name = f"upgrade-{ti.xcom_pull('window')['id']}"
        with SlurmHook(CONNECTION).client() as slurm:
            is_reserved = any(one.name == name for one in slurm.ask(ListReservations()))
            drained = [node.name for node in slurm.ask(ListNodes()) if is_ours(node, dag.dag_id)]
        for line in in_lines((ti.xcom_pull("choose") or {"left": {}})["left"]):
            print(f"Left out since the window began: {line}")
        if not is_reserved:
            print(f"{params['nodes']} are open to all again")
            return
        print(f"STILL CLOSED: reservation {name} holds {params['nodes']}, and has no end")
        if drained:
            print(f"Drained by this DAG, too: {hostlist.fold(drained)}")
        print("To go on, clear the task that has failed, or was skipped. To give up, and open what may be broken:")
        print(f"  scontrol delete reservationname={name}")
        if drained:
            print(f"  scontrol update nodename={hostlist.fold(drained)} state=undrain")

    changed, verified, told = change(), verify(), tell()
    window() >> reserve >> before >> begins >> choose() >> drain >> empty() >> backup
    backup >> changed >> verified >> after >> reopen >> told
    told.as_teardown(setups=reserve.as_setup())


upgrade_window()
