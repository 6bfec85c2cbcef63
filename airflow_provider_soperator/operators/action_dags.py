"""DAGs with which people act on a cluster, from the page *Soperator* or by Airflow's trigger form."""

from __future__ import annotations

from typing import Any, NamedTuple

from airflow.sdk import DAG, BaseOperator, Param

from airflow_provider_soperator.board.offers import action_tag
from airflow_provider_soperator.operators.cluster import RunActiveCheckOperator
from airflow_provider_soperator.operators.leftovers import ReleaseLeftOversOperator
from airflow_provider_soperator.operators.nodes import (
    DrainNodesOperator,
    PowerDownNodesOperator,
    PowerUpNodesOperator,
    ReplaceNodesOperator,
    UndrainNodesOperator,
)
from airflow_provider_soperator.operators.queue import CancelJobsOperator


class _Action(NamedTuple):
    """What a DAG does, by an operator, some parameters of which are those of the DAG."""

    operator: type[BaseOperator]
    what: str
    params: tuple[str, ...]
    modes: tuple[str, ...] = ()
    #: It may end jobs, or what a shift needs.
    is_risky: bool = False


_ACTIONS = {
    "drain": _Action(
        DrainNodesOperator, "Stop new jobs on nodes; those that run go on.", ("nodes", "reason", "wait_for_jobs")
    ),
    "undrain": _Action(UndrainNodesOperator, "Let jobs start on nodes again.", ("nodes", "drain_owner")),
    "power_up": _Action(PowerUpNodesOperator, "Power nodes up, and wait until jobs can start on them.", ("nodes",)),
    "power_down": _Action(
        PowerDownNodesOperator,
        "Power nodes down, and wait until they are off.",
        ("nodes", "mode", "stay_down", "reason"),
        ("asap", "idle", "force"),
        is_risky=True,
    ),
    "replace": _Action(
        ReplaceNodesOperator,
        "Have Soperator replace the machines under nodes, and wait until jobs can start on the new ones.",
        ("nodes", "mode", "any_owner", "reason"),
        ("asap", "requeue", "force"),
        is_risky=True,
    ),
    "check": _Action(
        RunActiveCheckOperator,
        "Run an active check of Soperator now, and wait for its result on all nodes.",
        ("check", "on_failure"),
    ),
    "cancel": _Action(CancelJobsOperator, "Cancel jobs, of any user.", ("job_ids",), is_risky=True),
    "release": _Action(
        ReleaseLeftOversOperator,
        "Delete what runs of this provider have left behind: a reservation, or old files of function calls.",
        ("name",),
        is_risky=True,
    ),
}
_MODES = {
    "asap": "once their jobs have ended",
    "idle": "once no job runs, and jobs may start before",
    "requeue": "their jobs are requeued, and those that cannot be are waited for",
    "force": "at once, their jobs are requeued or killed",
}


def _field(title: str, description: str, **schema: Any) -> Param:
    least: dict[str, Any] = {"type": "string", "minLength": 1}
    return Param(title=title, description=description, **(least | schema))


def _flag(title: str, description: str) -> Param:
    return Param(False, type="boolean", title=title, description=description)


#: Patterns are for browsers, too, which want an escaped hyphen.
_FIELDS = {
    "nodes": _field("Nodes", "As worker-[0-3].", pattern=r"^[A-Za-z0-9_.,\[\]\-]*$"),
    "reason": _field("Reason", "Kept in Slurm, with your name.", maxLength=200),
    "wait_for_jobs": _flag("Wait for jobs", "The run ends once the jobs on the nodes have ended."),
    "drain_owner": _field(
        "Drains of",
        "Only these are undone. Left empty: all, also those of health checks and people.",
        default="",
        minLength=0,
    ),
    "stay_down": _flag("Stay down", "Drained as well, so that no job powers them up again."),
    "any_owner": _flag("Also if another owner has drained them", "Else such nodes are refused."),
    "check": _field("Check", "Name of the ActiveCheck."),
    "on_failure": _field(
        "Nodes that fail",
        "fail: the run fails and names them; drain: they are drained.",
        enum=["fail", "drain"],
        default="fail",
    ),
    "job_ids": _field("Jobs", "Ids, with commas between.", pattern=r"^[0-9_+,\[\]%:\-]*$"),
    "name": _field("What is left", "A reservation, a file, or the folder of files.", pattern=r"^(airflow-|/).*$"),
}


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
    Those that may end jobs, or release what a shift needs, are paused when they are made. The users who
    may trigger a DAG have its button. Other arguments go to each DAG.

    :param prefix: beginning of the ids of the DAGs, and the owner of their drains
    :param slurm_conn_id: Airflow connection to Slurm
    :param kubernetes_conn_id: Airflow connection to the cluster's Kubernetes; without it there is no DAG for checks
    """
    kinds = [kind for kind in _ACTIONS if kind != "check" or kubernetes_conn_id]
    return {kind: _dag(kind, prefix, slurm_conn_id, kubernetes_conn_id, dag_options) for kind in kinds}


def _dag(kind: str, prefix: str, slurm_conn_id: str, kubernetes_conn_id: str | None, more: dict[str, Any]) -> DAG:
    action, fields = _ACTIONS[kind], _FIELDS
    if action.modes:
        how = "; ".join(f"{mode}: {_MODES[mode]}" for mode in action.modes)
        fields = _FIELDS | {"mode": _field("When", f"{how}.", enum=[*action.modes], default=action.modes[0])}
    options = {
        "schedule": None,
        "description": action.what,
        "doc_md": action.what,
        "is_paused_upon_creation": action.is_risky or None,
        "params": {name: fields[name] for name in action.params},
        **more,
        "tags": {"soperator", action_tag(kind, slurm_conn_id), *more.get("tags", ())},
    }
    given: dict[str, Any] = {name: f"{{{{ params.{name} }}}}" for name in action.params}
    if "reason" in given:
        given["reason"] += "{{ ' (' ~ dag_run.triggering_user_name ~ ')' if dag_run.triggering_user_name }}"
    if kind == "undrain":
        given["any_owner"] = "{{ not params.drain_owner }}"
        given["drain_owner"] = f"{{{{ params.drain_owner or {prefix!r} }}}}"
    elif kind not in ("cancel", "release"):
        given["drain_owner"] = prefix
    if kind in ("replace", "check") and kubernetes_conn_id:
        given["kubernetes_conn_id"] = kubernetes_conn_id
    with DAG(f"{prefix}_{kind}", **options) as dag:
        action.operator(task_id=kind, slurm_conn_id=slurm_conn_id, **given)
    return dag
