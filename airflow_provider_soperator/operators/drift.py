"""Compare a cluster with its description, on a schedule."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import Asset, AssetAlias
from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_soperator.operators.cluster_source import ClusterOperator, explained
from airflow_provider_soperator.provisioning.spec import ClusterSpec

if TYPE_CHECKING:
    from airflow.sdk.definitions.context import Context


class CompareClusterOperator(ClusterOperator):
    """Tell in what a cluster differs from its description; nothing is changed.

        CompareClusterOperator(task_id="compare", spec=research, source=recipe, outlets=[AssetAlias("research_drift")])

    It plans: with Terraform, or by a dry run of Kubernetes. What each plan of a recipe has, such as a step that runs
    each time, is no difference. If there is one, an ``AssetAlias`` among its ``outlets`` gets an event, for an asset of
    that name, with the summary and the changes.

    Returns the plan: its ``summary``, the ``changes``, and whether the cluster ``exists``.

    :param fail: fail the task if there is a difference
    """

    template_fields: Sequence[str] = ("spec", "nebius_conn_id")
    ui_color = "#e2e8f0"

    def __init__(self, *, fail: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.fail = fail

    def execute(self, context: Context) -> dict[str, Any]:
        with explained():
            spec = ClusterSpec.read(self.spec)
            with self._open(spec, context) as provisioner:
                planned = provisioner.plan()
        found = planned.write()
        if not planned.changes:
            self.log.info("The cluster %s is as described.", spec.name)
            return found
        told = ", ".join(f"{action} {address}" for address, action in planned.changes.items())
        self.log.warning("The cluster %s differs from its description (%s): %s", spec.name, planned.summary, told)
        for alias in self.outlets:
            if isinstance(alias, AssetAlias):
                context["outlet_events"][alias].add(Asset(alias.name), found)
        if self.fail:
            context["ti"].xcom_push("plan", found)
            raise AirflowFailException(f"the cluster {spec.name} differs from its description: {planned.summary}")
        return found
