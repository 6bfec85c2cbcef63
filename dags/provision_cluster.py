"""Make or change a Soperator cluster with its Terraform recipe: plan, approval, apply, and jobs that test it.

Describe the cluster in the form. Nothing changes until a person has approved the plan on Airflow's page Required
Actions; then exactly that plan is applied. The task ends once the cluster is available, Slurm's nodes are usable, and
a job has run on each node set. Triggered again with another number of nodes, the DAG changes the cluster. A plan that
would destroy something is rejected.

As it is, the DAG uses the recipe in provision_cluster/recipe, which takes the variables of the published one and
creates nothing; the cluster that it waits for is the sandbox.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk import Param, dag

from airflow_provider_soperator.operators.cluster import DestroyClusterOperator, ProvisionClusterOperator
from airflow_provider_soperator.operators.sbatch import SbatchOperator
from airflow_provider_soperator.provisioning import ClusterSpec, Connections, Filesystem, NodeSet, Recipe, Submount

# Not in the form: a run for another size would set them back to its defaults.
RELEASE = "4.1.7"
#: Of those who may log in; this one is a placeholder without a private key.
LOGIN_KEYS = ("ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA placeholder@example",)

# For a real cluster: Recipe("https://github.com/nebius/nebius-solutions-library.git", ref="soperator-v4.1.7-1",
# subfolder="soperator/installations/example"), or the folder of a checked-out installation.
recipe = Recipe(
    str(Path(__file__).parent / "provision_cluster/recipe"),
    subfolder="soperator",
    # What the recipe's .envrc sets. Leave it out if the Airflow workers have it in their environment.
    env={
        "TF_VAR_aws_access_key_id": "stub",
        "TF_VAR_aws_secret_access_key": "stub",
        "TF_VAR_o11y_iam_tenant_id": "tenant-e00stub",
        "TF_VAR_o11y_profile": "stub",
    },
)
spec = ClusterSpec(
    name="{{ params.name }}",
    operator_version=RELEASE,
    region="eu-north1",
    tenant="tenant-e00stub",
    project="project-e00stub",
    subnet="vpcsubnet-e00stub",
    production=False,
    nodesets=(
        NodeSet(
            "worker",
            "{{ params.size }}",
            platform="gpu-h100-sxm",
            preset="8gpu-128vcpu-1600gb",
            fabric="fabric-3",
            # Slurm powers nodes up for jobs, and releases idle machines to the block.
            ephemeral=True,
            initial=1,
            min_size=0,
            blocks=("capacityblockgroup-e00sandbox",),
        ),
        NodeSet("worker-cpu", 2, platform="cpu-d3", preset="16vcpu-64gb", min_size="all"),
    ),
    login_keys=LOGIN_KEYS,
    jail=Filesystem(size_gib=2048, type="NETWORK_SSD"),
    submounts=(Submount("data", "/data", Filesystem(size_gib=2048, type="NETWORK_SSD")),),
    accounting=True,
    rest=True,
    active_checks_scope="prod_quick",
)
# Both must exist. For a new cluster the task can write them, see docs/cluster.md.
connections = Connections(slurm="soperator_default", kubernetes="kubernetes_default")
common = {"spec": spec, "source": recipe, "connections": connections}
name = Param("research", type="string", title="Name", description="Terraform keeps a state for each name")
size = Param(8, type="integer", minimum=1, title="GPU nodes")


@dag(
    description=__doc__.splitlines()[0],
    schedule=None,
    params={"name": name, "size": size},
    # Two applies to one cluster would wait for each other.
    max_active_runs=1,
    # If an Airflow worker dies, the retry follows the apply, which continues without it.
    default_args={"retries": 2, "retry_delay": timedelta(seconds=30)},
    doc_md=__doc__,
    tags=["soperator", "example"],
)
def provision_cluster() -> None:
    plan = ProvisionClusterOperator(task_id="plan", plan_only=True, **common)
    agree = ApprovalOperator(
        task_id="agree",
        subject="Cluster {{ params.name }}: {{ ti.xcom_pull('plan')['summary'] }}",
        body="{% for address, action in ti.xcom_pull('plan')['changes'].items() %}- {{ action }} {{ address }}\n"
        "{% endfor %}",
        retries=0,
    )
    provision = ProvisionClusterOperator(
        task_id="provision",
        approved_plan=plan.output,
        ready_timeout=timedelta(hours=1),
        # The triggerer waits for the cluster and the jobs.
        deferrable=True,
        poll_interval=5,
        **common,
    )
    verify = SbatchOperator(task_id="verify", script="#!/bin/bash\nsinfo\nsrun hostname\n", time_limit="00:10:00")
    plan >> agree >> provision >> verify


@dag(
    description="Destroy a cluster that provision_cluster has made; its file systems stay.",
    # One click would not do: it has to be switched on first, and its form wants the name twice.
    is_paused_upon_creation=True,
    schedule=None,
    params={
        "name": name,
        "confirm": Param("", type="string", title="Confirm", description="The name once more"),
        "size": size,
    },
    max_active_runs=1,
    doc_md="Destroy a cluster that provision_cluster has made. Its file systems stay, for the next one.",
    tags=["soperator", "example"],
)
def destroy_cluster() -> None:
    DestroyClusterOperator(task_id="destroy", confirm="{{ params.confirm }}", **common)


provision_cluster()
destroy_cluster()
