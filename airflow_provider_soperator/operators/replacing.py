"""Replace the machines under nodes, as a task that ends when jobs can start on the new ones."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

from airflow_provider_soperator.hooks.settings import NAMESPACE
from airflow_provider_soperator.operators.moving import NodesOperator
from airflow_provider_soperator.operators.node_lists import names_of
from airflow_provider_soperator.values import is_on, is_template

if TYPE_CHECKING:
    from airflow.sdk.definitions.context import Context

    from airflow_provider_soperator.triggers.replacing import ReplaceTrigger


class ReplaceNodesOperator(NodesOperator):
    """Have the machines under nodes replaced by Soperator, and wait until jobs can start on the new ones.

        ReplaceNodesOperator(task_id="replace", nodes="worker-3", reason="NVLink errors", at_once=1)

    Each node is drained for a reason that Soperator acts upon once its jobs have ended. ``at_once`` are on their way at
    a time: a number, or a part of them such as ``"25%"``. ``jobs`` that run there are waited for; or, ``grace`` after
    the drain, they are requeued where they can be (``"requeue"``), or cancelled otherwise (``"end"``). A node that
    somebody else has drained is taken if that asks for another machine, or with ``force``. If Soperator does not act
    for ``react_within``, or the task is ended, nodes whose machines are still there are undrained.

    Which machine a node is on is known to Kubernetes, or, without ``kubernetes_conn_id`` here or in the Soperator
    connection, to Slurm. Returns ``{"worker-3": {"old": ..., "new": ..., "seconds": ...}}``; nodes that are off are not
    in it, as there is nothing to replace.
    """

    template_fields: Sequence[str] = (
        "slurm_conn_id", "nodes", "drain_owner", "reason", "at_once", "jobs", "force", "kubernetes_conn_id",
        "namespace",
    )  # fmt: skip

    def __init__(
        self,
        *,
        nodes: str | Sequence[str],
        reason: str = "",
        at_once: int | str = 1,
        jobs: str = "wait",
        grace: timedelta = timedelta(0),
        react_within: timedelta = timedelta(minutes=10),
        force: bool | str = False,
        kubernetes_conn_id: str | None = None,
        namespace: str = NAMESPACE,
        **kwargs: Any,
    ) -> None:
        super().__init__(nodes=nodes, **kwargs)
        if not is_template(at_once):
            _check_at_once(at_once)
        if not is_template(jobs):
            _check_jobs(jobs)
        self.reason = reason
        self.at_once, self.jobs, self.grace = at_once, jobs, grace
        self.react_within = react_within
        self.force = force
        self.kubernetes_conn_id, self.namespace = kubernetes_conn_id, namespace

    def trigger(self, context: Context) -> ReplaceTrigger:
        from airflow_provider_soperator.triggers.replacing import Errand, ReplaceTrigger

        _check_at_once(self.at_once)
        _check_jobs(self.jobs)
        errand = Errand(
            nodes=names_of(self.nodes),
            owner=self.drain_owner or self.dag_id,
            why=self.reason,
            force=is_on(self.force),
            at_once=self.at_once,
            jobs=self.jobs,
            grace=self.grace.total_seconds(),
            react_within=self.react_within.total_seconds(),
            kubernetes_conn_id=self.kubernetes_conn_id or None,
            namespace=self.namespace,
        )
        return ReplaceTrigger(
            self.slurm_conn_id,
            errand.write(),
            _begun(context).isoformat(),
            time.time() + self.timeout.total_seconds(),
            self.poll_interval,
        )


def _begun(context: Context) -> datetime:
    """When the work began. Of an earlier try it is not known when, but not before the run of the DAG."""
    ti = context["ti"]
    run_began: datetime | None = context["dag_run"].start_date if ti and ti.try_number > 1 else None
    return run_began or datetime.now(timezone.utc)


def _check_at_once(said: int | str) -> None:
    from airflow_provider_soperator.health.machine_replacement import at_most

    at_most(said, 1)


def _check_jobs(said: str) -> None:
    if said not in ("wait", "requeue", "end"):
        raise ValueError(f"jobs={said!r} is none of 'wait', 'requeue' and 'end'")
