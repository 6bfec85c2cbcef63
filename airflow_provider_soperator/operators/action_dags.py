"""DAGs with which people act on a cluster, from the page *Soperator* or by Airflow's trigger form."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from airflow.sdk import DAG, Param

from airflow_provider_soperator.board.offers import action_tag
from airflow_provider_soperator.operators.nodes import (
    DeleteReservationOperator,
    DrainNodesOperator,
    PowerDownNodesOperator,
    PowerUpNodesOperator,
    ReplaceNodesOperator,
    UndrainNodesOperator,
)
from airflow_provider_soperator.operators.queue import CancelJobsOperator

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow.sdk import BaseOperator


def _text(title: str, description: str, **more: Any) -> Param:
    return Param(type="string", title=title, description=description, **({"minLength": 1} | more))


def _yes(title: str, description: str) -> Param:
    return Param(False, type="boolean", title=title, description=description)


def _mode(*modes: str, description: str) -> Param:
    return Param(modes[0], type="string", enum=[*modes], title="When", description=description)


_NODES = _text("Nodes", "As worker-[0-3].", pattern=r"^[A-Za-z0-9_.,\[\]-]*$")
_WHY = _text("Reason", "Kept in Slurm, with your name.", maxLength=200)


class _Action(NamedTuple):
    """What a DAG does, by an operator whose parameters are those of the DAG."""

    operator: type[BaseOperator]
    what: str
    params: Mapping[str, Param]
    #: It may end jobs, or what a shift needs.
    is_risky: bool = False


_ACTIONS = {
    "drain": _Action(
        DrainNodesOperator,
        "Stop new jobs on nodes; those that run go on.",
        {
            "nodes": _NODES,
            "reason": _WHY,
            "wait_for_jobs": _yes("Wait for jobs", "The run ends once the jobs on the nodes have ended."),
        },
    ),
    "undrain": _Action(
        UndrainNodesOperator,
        "Let jobs start on nodes again.",
        {
            "nodes": _NODES,
            "drain_owner": Param(
                "",
                type="string",
                title="Drains of",
                description="Only these are undone. Left empty: all, also those of health checks and people.",
            ),
        },
    ),
    "power_up": _Action(
        PowerUpNodesOperator, "Power nodes up, and wait until jobs can start on them.", {"nodes": _NODES}
    ),
    "power_down": _Action(
        PowerDownNodesOperator,
        "Power nodes down, and wait until they are off.",
        {
            "nodes": _NODES,
            "mode": _mode(
                "asap",
                "idle",
                "force",
                description="asap: once their jobs have ended; idle: once no job runs, and jobs may start before; "
                "force: at once, their jobs are requeued or killed.",
            ),
            "stay_down": _yes("Stay down", "Drained as well, so that no job powers them up again."),
            "reason": _WHY,
        },
        is_risky=True,
    ),
    "replace": _Action(
        ReplaceNodesOperator,
        "Have Soperator replace the machines under nodes, and wait until jobs can start on the new ones.",
        {
            "nodes": _NODES,
            "mode": _mode(
                "asap",
                "requeue",
                "force",
                description="asap: once their jobs have ended; requeue: jobs are requeued, and those that cannot be "
                "are waited for; force: those are cancelled.",
            ),
            "any_owner": _yes("Also if another owner has drained them", "Else such nodes are refused."),
            "reason": _WHY,
        },
        is_risky=True,
    ),
    "cancel": _Action(
        CancelJobsOperator,
        "Cancel jobs, of any user.",
        {"job_ids": _text("Jobs", "Ids, with commas between.", pattern=r"^[0-9_+,\[\]%-]*$")},
        is_risky=True,
    ),
    "release": _Action(
        DeleteReservationOperator,
        "Delete a reservation that a run of this provider has left behind.",
        {"name": _text("Reservation", "Its name.", pattern=r"^airflow-.*$")},
        is_risky=True,
    ),
}


def _check(kubernetes_conn_id: str) -> _Action:
    from airflow_provider_soperator.operators.cluster import RunActiveCheckOperator

    return _Action(
        RunActiveCheckOperator,
        "Run an active check of Soperator now, and wait for its result on all nodes.",
        {
            "check": _text("Check", "Name of the ActiveCheck."),
            "on_failure": Param(
                "fail",
                type="string",
                enum=["fail", "drain"],
                title="Nodes that fail",
                description="fail: the run fails and names them; drain: they are drained.",
            ),
        },
    )


def action_dags(
    prefix: str = "cluster",
    *,
    slurm_conn_id: str = "soperator_default",
    kubernetes_conn_id: str | None = None,
    **dag_options: Any,
) -> dict[str, DAG]:
    """Make the DAGs by which people act on a cluster from the page *Soperator*, one for each action.

        action_dags(kubernetes_conn_id="kubernetes_default")

    They are ``cluster_drain``, ``cluster_undrain``, ``cluster_power_up``, ``cluster_power_down``, ``cluster_replace``,
    ``cluster_cancel``, ``cluster_release`` and, with ``kubernetes_conn_id``, ``cluster_check``. None has a schedule.
    Those that may end jobs, or delete a reservation that a shift needs, are paused when they are made. The users who
    may trigger a DAG have its button. Other arguments go to each DAG.

    :param prefix: beginning of the ids of the DAGs, and the owner of their drains
    :param slurm_conn_id: Airflow connection to Slurm
    :param kubernetes_conn_id: Airflow connection to the cluster's Kubernetes; without it there is no DAG for checks
    """
    actions = dict(_ACTIONS) | ({"check": _check(kubernetes_conn_id)} if kubernetes_conn_id else {})
    return {
        kind: _dag(kind, of, prefix, slurm_conn_id, kubernetes_conn_id, dag_options) for kind, of in actions.items()
    }


def _dag(
    kind: str, action: _Action, prefix: str, slurm_conn_id: str, kubernetes_conn_id: str | None, more: dict[str, Any]
) -> DAG:
    of_dag: dict[str, Any] = {
        "schedule": None,
        "description": action.what,
        "doc_md": action.what,
        "is_paused_upon_creation": action.is_risky or None,
        "params": dict(action.params),
    }
    tags = {"soperator", action_tag(kind, slurm_conn_id), *more.get("tags", ())}
    given: dict[str, Any] = {name: f"{{{{ params.{name} }}}}" for name in action.params}
    if "reason" in given:
        given["reason"] += "{{ ' (' ~ dag_run.triggering_user_name ~ ')' if dag_run.triggering_user_name }}"
    if kind in ("drain", "power_up", "power_down", "replace", "check"):
        given["drain_owner"] = prefix
    if kind == "undrain":
        given["any_owner"] = "{{ not params.drain_owner }}"
        given["drain_owner"] = f"{{{{ params.drain_owner or {prefix!r} }}}}"
    if kind in ("replace", "check") and kubernetes_conn_id:
        given["kubernetes_conn_id"] = kubernetes_conn_id
    with DAG(f"{prefix}_{kind}", **of_dag | more | {"tags": tags}) as dag:
        action.operator(task_id=kind, slurm_conn_id=slurm_conn_id, **given)
    return dag
