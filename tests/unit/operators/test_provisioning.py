"""Tasks that make clusters: what is refused when DAGs are parsed, and what waits for its rendering."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_soperator.operators.cluster import DestroyClusterOperator, ProvisionClusterOperator
from airflow_provider_soperator.provisioning.fields import SpecMistake
from airflow_provider_soperator.provisioning.provisioner import ProvisioningPlan
from airflow_provider_soperator.provisioning.spec import Connections, KubernetesObjects, Recipe
from tests.unit.provisioning.clusters import cluster, workers

RECIPE = Recipe("/opt/recipe")


@pytest.mark.parametrize(
    ("operator", "options", "said"),
    [
        (ProvisionClusterOperator, {"source": "/opt/recipe"}, "name a Recipe or KubernetesObjects"),
        (ProvisionClusterOperator, {"spec": {"name": "a"}}, "spec is incomplete"),
        (ProvisionClusterOperator, {"if_exists": "replace"}, "can be 'update' or 'fail'"),
        (ProvisionClusterOperator, {"smoke_job": {"nodes": -1}}, "smoke_job cannot be submitted: .*nodes"),
        (ProvisionClusterOperator, {"smoke_job": {"gpu_per_node": 8}}, "smoke_job cannot be submitted: .*gpu_per_node"),
        (DestroyClusterOperator, {"confirm": "", "remove_connections": True}, "name its connection as airflow_conn_id"),
    ],
)
def test_what_is_refused_when_the_dag_is_parsed(operator: type[Any], options: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecMistake, match=said):
        operator(**{"task_id": "task", "spec": cluster(), "source": RECIPE, **options})


def test_a_description_is_rendered_and_may_come_from_a_file() -> None:
    said = cluster(name="{{ params.name }}", nodesets=(workers(size="{{ params.size }}"),)).write()
    with DAG("provisioning", schedule=None):
        task = ProvisionClusterOperator(task_id="task", spec=said, source=RECIPE)
    task.render_template_fields({"params": {"name": "research", "size": 4}})  # type: ignore[arg-type,typeddict-item]
    assert (task.spec["name"], task.spec["nodesets"][0]["size"]) == ("research", "4")


def test_a_value_that_a_template_has_made_is_checked() -> None:
    task = ProvisionClusterOperator(task_id="task", spec=cluster(name="{{ params.name }}"), source=RECIPE)
    task.spec["name"] = "My Research"
    with pytest.raises(AirflowFailException, match="'My Research' is not a name of a cluster"):
        task.execute({})  # type: ignore[arg-type,typeddict-item]


@pytest.mark.parametrize("given", [None, ""])
def test_a_consent_that_has_not_come_is_none(given: Any) -> None:
    task = ProvisionClusterOperator(
        task_id="task", spec=cluster(), source=RECIPE, approved_plan="{{ ti.xcom_pull('plan') }}"
    )
    task.approved_plan = given
    planned = ProvisioningPlan("1 to create", {"a": "create"})
    # It has nothing with which a plan is applied.
    provisioner: Any = SimpleNamespace(plan=lambda destroy: planned, guard=lambda allowed: None)
    context: Any = {"ti": SimpleNamespace(xcom_push=lambda key, value: None)}
    with pytest.raises(SpecMistake, match="must be the result of a task with plan_only=True"):
        task._carry_out(context, provisioner, "owner")


def test_the_place_of_a_cluster_is_that_of_its_way() -> None:
    def place(source: Any) -> tuple[str, str]:
        return ProvisionClusterOperator(task_id="task", spec=cluster(), source=source)._place

    assert place(RECIPE) == ("soperator", "soperator")
    assert place(KubernetesObjects(namespace="mine")) == ("research", "mine")


def test_connections_are_named_as_a_whole() -> None:
    with pytest.raises(SpecMistake, match="needs another one as transport"):
        Connections(slurm="research", airflow_conn_id="airflow_api")
