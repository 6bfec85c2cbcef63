"""Make a Soperator cluster, or change it, by its Terraform recipe: a plan, somebody's consent, and jobs that try it.

The form says what the cluster is to be. Nothing is changed before somebody has agreed to the plan on Airflow's page of
required actions; what is applied then is that plan and nothing else. The task that applies it ends once the cluster is
available, Slurm's nodes are usable, and a job has run on each node set. Started again with another number of nodes, the
DAG changes the cluster; a plan by which something would end is refused.

As it stands it runs with the recipe in provision_cluster/recipe, which asks for the same as the published one and makes
nothing: the cluster that it then looks at is the sandbox.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk import Param, dag

from airflow_provider_soperator.operators.cluster import DestroyClusterOperator, ProvisionClusterOperator
from airflow_provider_soperator.operators.sbatch import SbatchOperator
from airflow_provider_soperator.provisioning import ClusterSpec, Connections, Filesystem, NodeSet, Recipe, Submount

# Yours is Recipe("https://github.com/nebius/nebius-solutions-library.git", ref="soperator-v4.1.7-1",
# subfolder="soperator/installations/example"), or the folder of an installation that is checked out.
recipe = Recipe(
    str(Path(__file__).parent / "provision_cluster/recipe"),
    subfolder="soperator",
    # What the recipe's .envrc sets. A worker that has it in its environment already needs none of it here.
    env={
        "TF_VAR_aws_access_key_id": "stub",
        "TF_VAR_aws_secret_access_key": "stub",
        "TF_VAR_o11y_iam_tenant_id": "tenant-e00stub",
        "TF_VAR_o11y_profile": "stub",
    },
)
spec = ClusterSpec(
    name="{{ params.name }}",
    operator_version="{{ params.version }}",
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
            # Slurm powers nodes up for jobs, and machines that are not needed go back to the block.
            ephemeral=True,
            initial=1,
            min_size=0,
            blocks=("capacityblockgroup-e00sandbox",),
        ),
        NodeSet("worker-cpu", 2, platform="cpu-d3", preset="16vcpu-64gb", min_size="all"),
    ),
    login_keys=("{{ params.login_key }}",),
    jail=Filesystem(size_gib=2048, type="NETWORK_SSD"),
    submounts=(Submount("data", "/data", Filesystem(size_gib=2048, type="NETWORK_SSD")),),
    accounting=True,
    rest=True,
    active_checks_scope="prod_quick",
)
# Both have to be there. Of a new cluster they can be written by the task itself, see docs/cluster.md.
connections = Connections(slurm="soperator_default", kubernetes="kubernetes_default")
common = {"spec": spec, "source": recipe, "connections": connections}
name = Param("research", type="string", title="Name", description="Terraform keeps a state for each name")
form = {
    "size": Param(8, type="integer", minimum=1, title="GPU nodes"),
    "version": Param("4.1.7", type="string", title="Soperator"),
    "login_key": Param(
        "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA nobody@example",
        type="string",
        title="Public key",
        description="Of who may log in; nobody has the private part of the one that is here",
    ),
}


@dag(
    schedule=None,
    params={"name": name, **form},
    # Two applies of one cluster would wait for each other.
    max_active_runs=1,
    # A try after a worker has died follows the apply that goes on without it.
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
        wait_ready=timedelta(hours=1),
        # The triggerer waits for the cluster, and for the jobs.
        deferrable=True,
        poll_interval=5,
        **common,
    )
    verify = SbatchOperator(task_id="verify", script="#!/bin/bash\nsinfo\nsrun hostname\n", time_limit="00:10:00")
    plan >> agree >> provision >> verify


@dag(
    schedule=None,
    params={
        "name": name,
        "confirm": Param("", type="string", title="Confirm", description="The name once more"),
        **form,
    },
    max_active_runs=1,
    doc_md="Make an end of a cluster that provision_cluster has made, with all that is on its file systems.",
    tags=["soperator", "example"],
)
def destroy_cluster() -> None:
    DestroyClusterOperator(task_id="destroy", confirm="{{ params.confirm }}", **common)


provision_cluster()
destroy_cluster()
