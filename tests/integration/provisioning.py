"""Tasks that make clusters, executed as a worker would, in this process or in one that can be killed."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from airflow_provider_soperator.operators.cluster import DestroyClusterOperator, ProvisionClusterOperator
from airflow_provider_soperator.provisioning.parts import Filesystem, NodeSet
from airflow_provider_soperator.provisioning.spec import ClusterSpec, Recipe
from tests.integration.terraforming import RECIPES
from tests.unit.provisioning.clusters import public_key

#: What the recipe wants of the environment.
ENVIRONMENT = {
    "TF_VAR_aws_access_key_id": "not-told-either",
    "TF_VAR_aws_secret_access_key": "not-told",
    "TF_VAR_o11y_iam_tenant_id": "tenant-e00o11y",
    "TF_VAR_o11y_profile": "telemetry",
}
CPU = {"platform": "cpu-d3", "preset": "16vcpu-64gb"}
GPU = {"platform": "gpu-h100-sxm", "preset": "8gpu-128vcpu-1600gb"}

#: Of all tries of a task.
_BEGUN = datetime.now(timezone.utc)


@dataclass
class TaskInstance:
    """As much of one as the operators ask for."""

    run_id: str = "run"
    try_number: int = 1
    dag_id: str = "provisioning"
    task_id: str = "task"
    map_index: int = -1
    max_tries: int = 0
    xcoms: dict[str, Any] = field(default_factory=dict)

    def xcom_push(self, key: str, value: Any) -> None:
        self.xcoms[key] = json.loads(json.dumps(value))

    def xcom_pull(self, *, task_ids: str, key: str, map_indexes: int) -> Any:
        return self.xcoms[key]

    @property
    def context(self) -> dict[str, Any]:
        run = type("DagRun", (), {"start_date": _BEGUN})
        return {"ti": self, "dag_run": run}


def spec(**changed: Any) -> ClusterSpec:
    """Node sets of the names and sizes that the sandbox has, so that it can be the cluster that was made."""
    said: dict[str, Any] = {
        "name": "research",
        "operator_version": "4.1.7",
        "region": "eu-north1",
        "tenant": "tenant-e00stub",
        "project": "project-e00stub",
        "subnet": "vpcsubnet-e00stub",
        "production": False,
        "nodesets": (
            NodeSet("worker", 4, ephemeral=True, initial=1, min_size=0, **GPU),
            NodeSet("worker-cpu", 2, min_size="all", **CPU),
        ),
        "login_keys": (public_key(),),
        "jail": Filesystem(size_gib=2048),
        "extra": {"allow_empty_jail_submounts": True},
    }
    return ClusterSpec(**{**said, **changed})


def recipe(home: Path, source: Path | str = RECIPES, subfolder: str = "soperator", **changed: Any) -> Recipe:
    """The stub, which notes what it makes in ``home/ledger`` and waits for files in ``home/held`` to go."""
    (home / "held").mkdir(exist_ok=True)
    stub = {"STUB_LEDGER": str(home / "ledger"), "STUB_HOLD": str(home / "held")}
    env = {**ENVIRONMENT, **stub, **changed.pop("env", {})}
    return Recipe(str(source), subfolder, home=str(home / "workspaces"), env=env, **changed)


def ledger(home: Path) -> list[str]:
    path = home / "ledger"
    return path.read_text().splitlines() if path.exists() else []


def is_made(home: Path, name: str) -> bool:
    """Whether Terraform itself has said that something is there."""
    said = f'{name}\\"].terraform_data.this: Creation complete'
    return any(said in out.read_text() for out in home.glob("workspaces/*/runs/*-apply/out"))


def provision(source: Any, ti: TaskInstance | None = None, **options: Any) -> Any:
    """Execute the task; waits for no cluster unless told to."""
    common = {"task_id": "task", "spec": spec(), "nebius_conn_id": None, "ready_timeout": None, "poll_interval": 0.5}
    task = ProvisionClusterOperator(source=source, **{**common, **options})
    return task.execute((ti or TaskInstance()).context)


def destroy(source: Any, ti: TaskInstance | None = None, **options: Any) -> Any:
    common = {"task_id": "task", "spec": spec(), "nebius_conn_id": None, "confirm": "research"}
    return DestroyClusterOperator(source=source, **{**common, **options}).execute((ti or TaskInstance()).context)


if __name__ == "__main__":
    provision(recipe(Path(sys.argv[1])))
