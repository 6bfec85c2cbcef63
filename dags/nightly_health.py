"""Every night, check the health of a cluster: its statistics, its file system, its nodes, and its active checks.

The result is one report. Unhealthy nodes are reported in an event that starts replace_sick_nodes.py; with REPLACE
their machines are replaced here, after a person has approved it.
"""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import Any

from airflow.sdk import Asset, Param, dag, task
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from airflow_provider_soperator.health.figures import keep_figures
from airflow_provider_soperator.hooks.slurm import SlurmHook
from airflow_provider_soperator.operators.cluster import RunActiveCheckOperator
from airflow_provider_soperator.operators.nodes import ReplaceNodesOperator
from airflow_provider_soperator.operators.sbatch import SbatchOperator
from airflow_provider_soperator.operators.stats import SlurmStatsOperator
from airflow_provider_soperator.sensors.health import NodeHealthSensor

REPLACE = False
#: Seconds within which 19 of 20 operations on a file have to end.
SLOWEST = 1.0
#: It starts replace_sick_nodes.py.
found_ill = Asset("nodes_found_ill")


@dag(
    description=__doc__.splitlines()[0],
    schedule="0 2 * * *",
    catchup=False,
    max_active_runs=1,
    params={
        "checks": Param(
            # Each release has it, and it needs no GPUs: it tries the jail.
            ["create-user-soperatorchecks"],
            type="array",
            items={"type": "string"},
            title="Active checks",
            description="Each runs now, independent of its schedule; `kubectl get activechecks` lists them.",
        ),
    },
    default_args={"slurm_conn_id": "soperator_default"},
    doc_md=__doc__,
    tags=["soperator", "example"],
)
def nightly_health() -> None:
    stats = SlurmStatsOperator(task_id="stats", top=5)
    # All nodes depend on their shared file system.
    jail = SbatchOperator(task_id="jail", script="nightly_health/jail.sbatch", time_limit=timedelta(minutes=5))

    @task
    def jail_figures(job: dict[str, Any]) -> list[dict[str, Any]]:
        """The job's output, one line for each node, also as Airflow metrics."""
        from airflow.providers.common.compat.sdk import Stats

        with SlurmHook().client() as slurm:
            figures = [json.loads(line) for line in slurm.read_file(job["output"]).splitlines() if line[:1] == b"{"]
        for of_node in figures:
            for operation, seconds in of_node["seconds"].items():
                tags = {"place": of_node["node"], "operation": operation}
                for name, value in seconds.items():
                    Stats.gauge(f"soperator.jail.seconds.{name}", value, tags=tags)
        medians = {
            one["node"]: {f"{operation}_seconds": seconds["p50"] for operation, seconds in one["seconds"].items()}
            for one in figures
        }
        # More than twice the time of the nights before, or of the other nodes. A retry keeps them once.
        for node, words in keep_figures("jail", medians, 1.0, datetime.fromisoformat(job["ended"])).items():
            print(f"{node} is slow: {words}")
        slow = [
            f"{operation} on {one['node']} takes {seconds['p95']} s"
            for one in figures
            for operation, seconds in one["seconds"].items()
            if seconds["p95"] > SLOWEST
        ]
        if slow:
            # Now, as the figures of a bad night count, too.
            raise AirflowFailException(f"{', '.join(slow)} (p95), and may take {SLOWEST} s")
        return figures

    @task
    def which_checks(params: dict[str, Any]) -> list[str]:
        return list(params["checks"])

    checks = RunActiveCheckOperator.partial(
        task_id="check",
        kubernetes_conn_id="kubernetes_default",
        # Checks on the same nodes disturb each other.
        max_active_tis_per_dagrun=1,
        on_failure="report",
        timeout=timedelta(hours=1),
        deferrable=True,
        poll_interval=2,
    ).expand(check=which_checks())
    health = NodeHealthSensor(
        task_id="health",
        # Check once, without waiting.
        target_state="any",
        kubernetes_conn_id="kubernetes_default",
        # Leave it out if no Prometheus has GPU metrics.
        prometheus_conn_id="prometheus_default",
        # Also if a check could not run.
        trigger_rule="all_done",
    )

    @task(trigger_rule="all_done")
    def report(
        ill: dict[str, Any] | None, checked: Any, jail: list[Any] | None, figures: dict[str, Any] | None
    ) -> dict[str, Any]:
        """All results in one place; None for each part that has failed."""
        if ill is None:
            raise AirflowFailException("the health of the nodes is unknown: see the log of the task health")
        checks = [check for check in checked or [] if check]
        lines = [f"{len(ill)} nodes are ill" if ill else "no node is ill"]
        lines += [f"  {name}: {'; '.join(one['what'] for one in findings)}" for name, findings in ill.items()]
        lines += [f"check {check['check']}: {check['state']}" for check in checks]
        lines += [f"  {name} is slow: {words}" for check in checks for name, words in check["slow"].items()]
        if jail is None:
            lines.append(
                "the shared file system is too slow, or could not be measured: see the logs of jail and jail_figures"
            )
        print("\n".join(lines))
        failing = sorted({*ill, *(name for check in checks for name in check["failing"])})
        return {"ill": ill, "failing": failing, "checks": checks, "jail": jail, "figures": figures}

    reported = report(ill=health.output, checked=checks.output, jail=jail_figures(jail.output), figures=stats.output)

    @task(outlets=[found_ill])
    def tell(said: dict[str, Any], outlet_events: Any) -> None:
        if not said["failing"]:
            raise AirflowSkipException("no node is unhealthy")
        outlet_events[found_ill].extra = {"nodes": said["failing"]}

    @task
    def needs_another_machine(said: dict[str, Any]) -> list[str]:
        healable = {name for name, found in said["ill"].items() if not any(one["takes_machine"] for one in found)}
        if not (names := [name for name in said["failing"] if name not in healable]):
            raise AirflowSkipException("no node needs another machine")
        return names

    # Checks first: what they find is then a drain reason that the health sensor sees.
    checks >> health
    if REPLACE:
        from airflow.providers.standard.operators.hitl import ApprovalOperator

        nodes = needs_another_machine(reported)
        approve = ApprovalOperator(
            task_id="approve", subject="Replace {{ ti.xcom_pull('needs_another_machine') | join(', ') }}?"
        )
        replace = ReplaceNodesOperator(task_id="replace", nodes=nodes, kubernetes_conn_id="kubernetes_default")
        nodes >> approve >> replace
    else:
        tell(reported)


nightly_health()
