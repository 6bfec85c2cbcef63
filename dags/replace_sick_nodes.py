"""Heal unhealthy nodes: replace the machine, run a trial job, and only then let other jobs start there again.

A watcher polls all nodes in Slurm, Kubernetes and Prometheus. The DAG runs when a node becomes unhealthy, when the
nightly health check has found one, or by hand for the nodes in its form. Problems that resolve themselves, such as
leftovers of a job, are only logged. Soperator's controllers replace a broken machine. A node that did not boot is
powered down and up again, which takes another machine. Meanwhile a reservation keeps other jobs off these nodes; it
stays if a node fails its trial.
"""

from __future__ import annotations

import re
from contextlib import suppress
from datetime import timedelta
from typing import Any

from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk import Asset, AssetWatcher, Param, dag, task
from airflow.sdk.exceptions import AirflowSkipException

from airflow_provider_soperator.operators.nodes import (
    CreateReservationOperator,
    DeleteReservationOperator,
    PowerDownNodesOperator,
    PowerUpNodesOperator,
    ReplaceNodesOperator,
)
from airflow_provider_soperator.operators.sbatch import SbatchOperator
from airflow_provider_soperator.sensors.health import NodeHealthSensor
from airflow_provider_soperator.triggers.events import NodeUnhealthyTrigger

# With True a person must approve all healing, on Airflow's page Required Actions; else only that of too many nodes.
APPROVE = False
WITNESSES = {
    "kubernetes_conn_id": "kubernetes_default",
    # Leave it out if no Prometheus has GPU metrics.
    "prometheus_conn_id": "prometheus_default",
}
# Findings for which this DAG replaces a machine. Soperator itself handles reboots and maintenance, and up to 4.1 it
# tests a node with a "node_problem" further; from 5.0 on, where it does not, add that.
NEEDS_ANOTHER_MACHINE = {"hardware_problem", "metric"}
# The most nodes that may be ill, a number or a share of the nodes that are on. If more are, the cause is mostly another
# one, such as the jail or the network, and a person is asked before anything is touched.
AT_MOST = "10%"

falls_ill = Asset(
    "node_falls_ill",
    watchers=[AssetWatcher(name="node_falls_ill", trigger=NodeUnhealthyTrigger(**WITNESSES, poll_interval=15))],
)
# nightly_health.py reports unhealthy nodes with it.
found_ill = Asset("nodes_found_ill")
falls_or_found: Any = falls_ill | found_ill
# From Airflow 3.4 on each event has a run of its own, unless one asks for all in one.
with suppress(ImportError):
    from airflow.sdk import AssetTriggeredTimetable

    falls_or_found = AssetTriggeredTimetable(falls_or_found, batch_asset_events=True)


@dag(
    description=__doc__.splitlines()[0],
    schedule=falls_or_found,
    catchup=False,
    # Nodes that become unhealthy in the meantime wait for the next run.
    max_active_runs=1,
    # When switched on, it drains nodes and replaces machines without asking.
    is_paused_upon_creation=True,
    params={
        "nodes": Param("", type="string", title="Nodes", description="As worker-[0-3]. Healthy ones are left alone."),
    },
    default_args={
        "slurm_conn_id": "soperator_default",
        # The triggerer waits for jobs and machines, so this holds no Airflow worker.
        "deferrable": True,
        # Seconds. For machines that take minutes the default of 10 is enough.
        "poll_interval": 2,
    },
    doc_md=__doc__,
    tags=["soperator", "example"],
)
def replace_sick_nodes() -> None:
    @task
    def meant(params: dict[str, Any], triggering_asset_events: Any) -> dict[str, list[str]]:
        """The nodes of the form, and those of the events."""
        form, told = params["nodes"].replace(", ", ",").split(), []
        for event in [event for events in triggering_asset_events.values() for event in events]:
            told += event.extra.get("nodes", [])
            told += [event.extra["payload"]["node"]] if "payload" in event.extra else []
        if not form and not told:
            raise AirflowSkipException("neither the form nor an event names a node")
        return {"form": form, "events": told}

    # All nodes: if many are ill, the cause is one that they share. Some that an event names may have recovered by now.
    look = NodeHealthSensor(task_id="look", target_state="any", deferrable=False, poke_interval=10, **WITNESSES)

    @task(multiple_outputs=True)
    def judge(named: dict[str, list[str]], found: dict[str, list[dict[str, Any]]], run_id: str) -> dict[str, Any]:
        """Sort the nodes: replace the machine, power up again, or only log; and see whether too many are ill."""
        from airflow_provider_soperator.hooks.slurm import SlurmHook
        from airflow_provider_soperator.slurm import hostlist
        from airflow_provider_soperator.slurm.node_conditions import refuse_unknown
        from airflow_provider_soperator.slurm.requests import ListNodes
        from airflow_provider_soperator.values import number_or_share

        form, told = ({name for one in named[of] for name in hostlist.expand(one)} for of in ("form", "events"))
        with SlurmHook("soperator_default").client() as slurm:
            known = slurm.ask(ListNodes())
        names = {node.name for node in known}
        refuse_unknown(form, names)
        # The watcher tells of the others of this run only once.
        if gone := told - names:
            print(f"{hostlist.fold(sorted(gone))}: not in Slurm any more")
        meant = form | told & names
        broken = [
            name
            for name, findings in found.items()
            if any(one["kind"] in NEEDS_ANOTHER_MACHINE and one["takes_machine"] for one in findings)
        ]
        stuck = [name for name, findings in found.items() if any(one["kind"] == "boot_failed" for one in findings)]
        for name in sorted(meant & found.keys()):
            print(f"{name}: {'; '.join(one['what'] for one in found[name])}")
            if name not in [*broken, *stuck]:
                heals = all(one["heals"] for one in found[name])
                print(f"{name}: {'resolves itself' if heals else 'needs attention by a person'}")
        on, ill = sum(not node.is_off for node in known), {*broken, *stuck}
        return {
            "broken": [name for name in broken if name in meant],
            "stuck": [name for name in stuck if name in meant],
            "treated": sorted(ill & meant),
            "are_too_many": len(ill) > number_or_share("AT_MOST", AT_MOST, on),
            "ill": f"{len(ill)} of {on} nodes are ill ({hostlist.fold(sorted(ill))})",
            "reservation": "heal-" + re.sub(r"\W", "", run_id),
        }

    judged = judge(meant(), look.output)

    @task.branch
    def decide(judged: dict[str, Any]) -> str | None:
        """Heal at once, or ask a person; if no node is to be healed, neither."""
        if not judged["treated"]:
            return None
        return "ask" if APPROVE or judged["are_too_many"] else "reserve"

    # Until there is an answer, nothing is touched.
    ask = ApprovalOperator(
        task_id="ask",
        subject="Heal {{ ti.xcom_pull('judge')['treated'] | join(', ') }}? {{ ti.xcom_pull('judge')['ill'] }}",
        body="{% if ti.xcom_pull('judge')['are_too_many'] %}These are more than AT_MOST. Look for a common cause "
        "first, such as the jail, the network or a check.{% endif %}",
    )

    @task.short_circuit(ignore_downstream_trigger_rules=False)
    def any_of(names: list[str]) -> bool:
        return bool(names)

    reserve = CreateReservationOperator(
        task_id="reserve",
        name=judged["reservation"],
        nodes=judged["treated"],
        users=["root"],
        duration=timedelta(days=1),
        comment="nodes that are being healed",
        # Without a question, its task is skipped.
        trigger_rule="none_failed_min_one_success",
    )
    replace = ReplaceNodesOperator(
        task_id="replace",
        nodes=judged["broken"],
        reason="found ill",
        # Until a person has approved it, Soperator may have replaced some.
        since="{{ dag_run.start_date }}",
        # At most this share of the broken nodes is replaced at a time.
        max_parallel="25%",
        kubernetes_conn_id="kubernetes_default",
        timeout=timedelta(hours=6),
    )
    # One that has come up after all may have jobs by now, which are waited for.
    power_down = PowerDownNodesOperator(task_id="power_down", nodes=judged["stuck"], mode="asap")
    power_up = PowerUpNodesOperator(task_id="power_up", nodes=judged["stuck"], timeout=timedelta(hours=1))
    healed = NodeHealthSensor(
        task_id="healed",
        # Not by judged[...]: it is to follow the two branches alone.
        nodes="{{ ti.xcom_pull('judge')['treated'] | join(',') }}",
        kubernetes_conn_id="kubernetes_default",
        poke_interval=5,
        timeout=timedelta(minutes=15).total_seconds(),
        # One of the two branches may be skipped.
        trigger_rule="none_failed_min_one_success",
    )
    trial = SbatchOperator(
        task_id="trial",
        # On GPU nodes: nvidia-smi, a short NCCL test, or anything that your jobs rely on, with gpus_per_node=8.
        command="srun hostname",
        partition="main",
        nodelist=judged["treated"],
        nodes="{{ ti.xcom_pull('judge')['treated'] | length }}",
        reservation=judged["reservation"],
        time_limit=timedelta(minutes=10),
    )
    release = DeleteReservationOperator(task_id="release", name=judged["reservation"])

    decide(judged) >> [ask, reserve]
    ask >> reserve
    reserve >> any_of.override(task_id="any_broken")(judged["broken"]) >> replace >> healed
    reserve >> any_of.override(task_id="any_stuck")(judged["stuck"]) >> power_down >> power_up >> healed
    healed >> trial >> release


replace_sick_nodes()
