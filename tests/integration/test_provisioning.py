"""Clusters by the recipe, with the real Terraform: made once, changed, refused, destroyed. They are the sandbox."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from airflow_provider_soperator.operators.cluster import ProvisionClusterOperator
from airflow_provider_soperator.provisioning.parts import NodeSet
from airflow_provider_soperator.provisioning.spec import Connections as ConnectionIds
from tests.integration.cluster import Cluster
from tests.integration.connections import Connections
from tests.integration.late import too_late
from tests.integration.provisioning import GPU, TaskInstance, destroy, is_made, ledger, provision, recipe, spec
from tests.integration.terraforming import RECIPES, needs_terraform, wait_for
from tests.patience import PATIENCE

pytestmark = [*needs_terraform, pytest.mark.lane("terraform")]

ALL = ["create cluster", "create jail", "create slurm", "create worker-0", "create worker-cpu-0"]


# Its description has the release of the older Soperator.
@pytest.mark.oldest_slurm
def test_a_cluster_is_made_tried_changed_and_destroyed(
    tmp_path: Path, cluster: Cluster, connections: Connections, capsys: pytest.CaptureFixture[str]
) -> None:
    slurm = connections.login_node().slurm_conn_id
    options = {
        "connections": ConnectionIds(slurm=slurm, kubernetes="kubernetes_default"),
        "ready_timeout": timedelta(seconds=PATIENCE),
    }
    source = recipe(tmp_path)
    made = provision(source, **options)
    assert sorted(ledger(tmp_path)) == ALL
    assert made["plan"]["exists"] is False
    # A job has run on a node of each set that has one on.
    assert made["tried"] == {"worker": "worker-0", "worker-cpu": "worker-cpu-0"}
    assert "worker-cpu: worker-cpu-0" in capsys.readouterr().out

    again = provision(source, **options)
    assert again["plan"] == {"summary": "nothing to do", "changes": {}, "exists": True}
    assert again["tried"]

    more = (NodeSet("worker", 101, ephemeral=True, min_size=0, **GPU), *spec().nodesets[1:])
    assert "1 to create" in provision(source, spec=spec(nodesets=more))["plan"]["summary"]
    assert ledger(tmp_path).count("create worker-1") == 1

    job = cluster.held_job("--nodelist=worker-0")
    with pytest.raises(AirflowFailException, match=rf"there are jobs in the queue \({job} of root\)"):
        destroy(source, connections=options["connections"])
    cluster.let_go(job)
    cluster.wait_job(job, "COMPLETED")
    assert "destroy jail" not in ledger(tmp_path)
    destroy(source, connections=options["connections"])
    assert "destroy jail" in ledger(tmp_path)


@pytest.mark.oldest_slurm
def test_a_cluster_that_does_not_come_up_says_what_is_missing(tmp_path: Path, connections: Connections) -> None:
    slurm = connections.login_node().slurm_conn_id
    source = recipe(tmp_path)
    more = spec(nodesets=(*spec().nodesets, NodeSet("more", 1, **GPU)))
    kubernetes = ConnectionIds(kubernetes="kubernetes_default")
    too_late(
        lambda within: provision(source, spec=more, connections=kubernetes, ready_timeout=timedelta(seconds=within)),
        r"not done within \d+:\d\d:[^ ]+: .*more",
        within=5,
    )
    # What was made stays, and the next try looks again.
    with pytest.raises(AirflowException, match=r"(?s)the job that tried node set .* has ended FAILED"):
        provision(
            source,
            TaskInstance("tried with another job"),
            spec=more,
            connections=ConnectionIds(slurm=slurm),
            smoke_job={"script": "#!/bin/bash\nexit 3\n"},
            ready_timeout=timedelta(seconds=PATIENCE),
        )


def test_only_what_was_agreed_to_is_done(tmp_path: Path) -> None:
    source = recipe(tmp_path)
    planned = provision(source, plan_only=True)
    assert ledger(tmp_path) == []
    assert set(planned["changes"].values()) == {"create"}
    other = spec(nodesets=(*spec().nodesets, NodeSet("more", 1, **GPU)))
    with pytest.raises(AirflowFailException, match=r"has changed since it was approved: module\.node_group\[.more-0"):
        provision(source, spec=other, approved_plan=planned)
    assert ledger(tmp_path) == []
    # The same changes, of other sizes.
    larger = spec(nodesets=(replace(spec().nodesets[0], size=64), *spec().nodesets[1:]))
    with pytest.raises(AirflowFailException, match=r"or its recipe, has changed since the plan was approved"):
        provision(source, spec=larger, approved_plan=planned)
    provision(source, approved_plan=planned)
    # The next try of the task has nothing left to do.
    provision(source, approved_plan=planned)
    assert sorted(ledger(tmp_path)) == ALL


def test_a_cluster_that_exists(tmp_path: Path) -> None:
    failing = recipe(tmp_path, env={"STUB_FAIL": "slurm", "STUB_WORDS": "no answer"})
    with pytest.raises(AirflowException, match="no answer"):
        provision(failing, if_exists="fail")
    # What the task itself has begun it goes on with, in its next try.
    provision(recipe(tmp_path), TaskInstance(try_number=2), if_exists="fail")
    assert sorted(ledger(tmp_path)) == ALL
    with pytest.raises(AirflowFailException, match=r"there is a cluster research already.*choose another name"):
        provision(recipe(tmp_path), TaskInstance("another run"), if_exists="fail")


def test_clusters_in_one_backend_have_a_state_each(tmp_path: Path) -> None:
    shared = {"local": {"path": str(tmp_path / "default.tfstate"), "workspace_dir": str(tmp_path / "states")}}
    source = recipe(tmp_path, backend=shared)
    provision(source)
    other = provision(source, spec=spec(name="other"), plan_only=True)
    assert (other["exists"], set(other["changes"].values())) == (False, {"create"})
    assert provision(source, plan_only=True)["exists"]


QUOTA = "rpc error: code = ResourceExhausted desc = QuotaFailure: compute.instance.gpu.h100 limit 16, requested 64"
EXPIRED = "rpc error: code = Unauthenticated desc = token expired"


@pytest.mark.parametrize(
    ("source", "options", "said"),
    [
        (lambda home: recipe(home, home, ""), {}, "recipe"),
        (lambda home: recipe(home, subfolder="modules/step"), {}, "recipe is not for Soperator clusters"),
        (lambda home: recipe(home, subfolder="nowhere"), {}, "recipe"),
        (recipe, {"spec": spec(extra={"slurm_exporter_enable": True})}, "slurm_exporter_enabled"),
        (recipe, {"spec": spec(extra={"telemetry_enabled": "perhaps"})}, "telemetry_enabled"),
        (recipe, {"spec": spec(jail=None)}, "filesystem_jail"),
        (lambda home: recipe(home, terraform="/no/such/terraform"), {}, "terraform"),
        (recipe, {"connections": ConnectionIds(slurm="never_defined")}, "there is no connection never_defined"),
        (recipe, {"nebius_conn_id": "never_defined"}, "there is no connection never_defined"),
        (recipe, {"approved_plan": "yes"}, "must be the result of a task with plan_only=True"),
    ],
    ids=["empty", "other", "missing", "unknown", "type", "unset", "binary", "slurm", "nebius", "consent"],
)
def test_mistakes_are_refused_before_anything_is_made(
    tmp_path: Path, source: Callable[[Path], Any], options: dict[str, Any], said: str
) -> None:
    with pytest.raises(AirflowFailException, match=said):
        provision(source(tmp_path), **options)
    assert ledger(tmp_path) == []


@pytest.mark.parametrize("run", [provision, destroy], ids=["provision", "destroy"])
def test_all_that_a_worker_lacks_is_told_at_once_and_before_terraform_runs(tmp_path: Path, run: Any) -> None:
    shutil.copytree(RECIPES, tmp_path / "recipe")
    (tmp_path / "recipe/modules/step/more.tf").write_text('locals {\n  wait = ["kubectl", "wait"]\n}\n')
    (tmp_path / "recipe/soperator/.envrc").write_text("cat > terraform_backend_override.tf << EOF\n")
    source = recipe(tmp_path, tmp_path / "recipe", env={"PATH": str(tmp_path)})
    del source.env["TF_VAR_o11y_profile"]  # type: ignore[attr-defined] # recipe() has made a dict
    with pytest.raises(AirflowFailException) as told:
        run(source, plan_only=True, spec=spec(region=None))
    for words in (
        "nothing was planned or changed",
        "- the program kubectl is not on PATH",
        "- there is no value for region, o11y_profile: ",
        "- The recipe's .envrc, which no task runs, would put the state into a bucket",
    ):
        assert words in str(told.value)
    assert not list(tmp_path.glob("workspaces/research/recipe/**/.terraform"))


def test_what_the_cloud_refuses_is_named_and_what_was_made_is_kept(tmp_path: Path) -> None:
    for words, said in ((QUOTA, "compute.instance.gpu.h100"), (EXPIRED, "new token")):
        with pytest.raises(AirflowFailException, match=re.escape(said)):
            provision(recipe(tmp_path, env={"STUB_FAIL": "worker-0", "STUB_WORDS": words}))
    provision(recipe(tmp_path))
    assert sorted(ledger(tmp_path)) == ALL


def test_a_task_that_is_ended_leaves_what_the_next_one_goes_on_from(tmp_path: Path) -> None:
    source = recipe(tmp_path)
    (tmp_path / "held/worker-0").touch()
    task = ProvisionClusterOperator(task_id="task", spec=spec(), source=source, nebius_conn_id=None, ready_timeout=None)
    with ThreadPoolExecutor(1) as worker:
        ended = worker.submit(task.execute, TaskInstance().context)
        # What is interrupted before Terraform has noted it is made once more.
        wait_for(lambda: is_made(tmp_path, "worker-cpu-0"), "one of two node groups is there")
        task.on_kill()
        with pytest.raises(AirflowException, match="terraform apply was interrupted"):
            ended.result(PATIENCE)
    (tmp_path / "held/worker-0").unlink()
    provision(source)
    assert sorted(ledger(tmp_path)) == ALL


def test_a_name_that_is_not_confirmed(tmp_path: Path) -> None:
    with pytest.raises(AirflowFailException, match="confirm is 'resaerch', and the cluster is called research"):
        destroy(recipe(tmp_path), confirm="resaerch")
    with pytest.raises(AirflowFailException, match=r"name connections\.slurm, or set end_jobs=True"):
        destroy(recipe(tmp_path))
    assert not (tmp_path / "workspaces").exists()


def test_the_next_try_of_a_killed_worker_follows_what_goes_on(tmp_path: Path) -> None:
    (tmp_path / "held/slurm").parent.mkdir()
    (tmp_path / "held/slurm").touch()
    worker = subprocess.Popen(
        [sys.executable, "-m", "tests.integration.provisioning", str(tmp_path)], start_new_session=True
    )
    wait_for(lambda: len(ledger(tmp_path)) == len(ALL) - 1, "all but one step is done")
    os.killpg(worker.pid, signal.SIGKILL)
    worker.wait()
    (tmp_path / "held/slurm").unlink()
    provision(recipe(tmp_path), TaskInstance(try_number=2))
    assert sorted(ledger(tmp_path)) == ALL
