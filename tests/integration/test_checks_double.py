"""The doubles of Soperator's checks, of its statuses and of Prometheus, on a sandbox that runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from kubernetes.client import CustomObjectsApi

from sandbox.settings import CLUSTER, NAMESPACE
from tests.integration.cluster import NOT_UP, Cluster
from tests.integration.outside import accounted, command_line, fault
from tests.patience import PATIENCE

pytestmark = pytest.mark.leaves("drains")


@pytest.mark.each_slurm
def test_checks_replace_a_broken_machine(cluster: Cluster) -> None:
    before = cluster.machine_of("worker-0")
    job = cluster.held_job("--gpus=1", "--nodelist=worker-0")
    cluster.wait_job(job, "RUNNING")
    fault(cluster, "checks", "on")
    fault(cluster, "node-drain", "worker-0", "hardware")
    # For as long as the job runs the machine is left alone.
    cluster.wait_node("worker-0", has={"DRAIN", "MIXED"})
    assert cluster.machine_of("worker-0") == before
    cluster.let_go(job)
    cluster.wait("there is another machine", lambda: cluster.machine_of("worker-0") not in (None, before))
    node = cluster.wait_node("worker-0", has={"IDLE"}, lacks=NOT_UP)
    assert node.reason == ""
    assert [entry["entry"] for entry in cluster.ledger_of(before)] == ["claim", "release"]
    assert accounted(cluster, cluster.sbatch("--nodelist=worker-0"))["State"] == "COMPLETED"


def active_check(cluster: Cluster) -> dict[str, Any]:
    status: dict[str, Any] = (
        cluster.custom("activechecks", cluster.node_check).get("status", {}).get("slurmJobsStatus", {})
    )
    return status


def run_check(cluster: Cluster, name: str) -> dict[str, Any]:
    """Start a run as people do, and wait for its end."""
    cluster.kubectl("create", "job", f"--from=cronjob/{cluster.node_check}", name)
    annotation = "-o=jsonpath={.metadata.annotations.slurm-job-id}"
    ids = cluster.wait(f"{name} has Slurm jobs", lambda: cluster.kubectl("get", "job", name, annotation))

    def ended() -> dict[str, Any] | None:
        status = active_check(cluster)
        own = status.get("lastRunId") == ids.split(",")[0]
        return status if own and status["lastRunStatus"] != "InProgress" else None

    return cluster.wait(f"{name} has ended", ended)


def test_check_fails_and_drains_the_node(cluster: Cluster) -> None:
    assert run_check(cluster, "check-well")["lastRunStatus"] == "Complete"
    fault(cluster, "check-fails", cluster.node_check, "worker-0")
    status = run_check(cluster, "check-ill")
    assert status["lastRunStatus"] == "Failed"
    [failed] = status["lastRunFailJobsAndReasons"]
    # Nobody acts on it: the check controllers are off here.
    assert cluster.node("worker-0").reason == f"[node_problem] {cluster.node_check}: job {failed['jobID']} [slurm_job]"
    assert "DRAIN" in cluster.node("worker-0").state
    assert accounted(cluster, failed["jobID"])["ExitCode"] == "1:0"


def test_backup_fails(cluster: Cluster, tmp_path: Path) -> None:
    backup = {"apiVersion": "k8up.io/v1", "kind": "Backup", "metadata": {"name": "doomed"}, "spec": {}}
    manifest = tmp_path / "backup.json"
    manifest.write_text(json.dumps(backup))
    fault(cluster, "backup-fails")
    try:
        cluster.kubectl("create", f"--filename={manifest}")
        asked = ("get", "backup", "doomed", "--output=jsonpath={.status.conditions[?(@.type=='Completed')].reason}")
        assert cluster.wait("it has ended", lambda: cluster.kubectl(*asked)) == "Failed"
    finally:
        fault(cluster, "clear")
        cluster.kubectl("delete", "backup", "doomed", "--ignore-not-found")


def test_gpu_metric(cluster: Cluster) -> None:
    def asked(query: str) -> list[dict[str, Any]]:
        answer = httpx.get(
            f"{cluster.access['prometheus']['url']}/api/v1/query", params={"query": query}, timeout=PATIENCE
        )
        found: list[dict[str, Any]] = answer.json()["data"]["result"]
        return found

    ill = "DCGM_FI_DEV_XID_ERRORS > 0"
    assert asked(ill) == []
    fault(cluster, "gpu-metric", "worker-0", "DCGM_FI_DEV_XID_ERRORS", "79", "--gpu=3")
    [found] = asked(ill)
    assert found["value"][1] == "79"
    labels = {name: found["metric"][name] for name in ("Hostname", "pod", "gpu")}
    assert labels == {"Hostname": cluster.machine_of("worker-0"), "pod": "worker-0", "gpu": "3"}
    cluster.run("scontrol", "update", "nodename=worker-cpu-0", "state=drain", "reason=metrics")
    [info] = asked('slurm_node_info{state_is_drain="true"}')
    assert (info["metric"]["node_name"], info["metric"]["reason"]) == ("worker-cpu-0", "metrics")


def slurm_cluster(cluster: Cluster) -> dict[str, Any]:
    api: CustomObjectsApi = cluster.custom_objects
    found: dict[str, Any] = api.get_namespaced_custom_object(
        "slurm.nebius.ai", "v1", NAMESPACE, "slurmclusters", CLUSTER
    )
    return found["status"]


def parts(cluster: Cluster) -> set[str]:
    """What is said of the parts that have daemons."""
    types = ("ControllersAvailable", "LoginAvailable", "AccountingAvailable")
    return {entry["reason"] for entry in slurm_cluster(cluster)["conditions"] if entry["type"] in types}


def test_cluster_phase(cluster: Cluster) -> None:
    fault(cluster, "cluster-phase", "Not available", "LoginAvailable=False:NotAvailable", "Other=Unknown")
    cluster.wait("the phase is pinned", lambda: slurm_cluster(cluster)["phase"] == "Not available")
    said = {entry["type"]: (entry["status"], entry["reason"]) for entry in slurm_cluster(cluster)["conditions"]}
    assert (said["LoginAvailable"], said["Other"]) == (("False", "NotAvailable"), ("Unknown", "SandboxFault"))
    fault(cluster, "clear")
    cluster.wait("it says what is", lambda: slurm_cluster(cluster)["phase"] == "Available")
    said = {entry["type"]: entry["status"] for entry in slurm_cluster(cluster)["conditions"]}
    assert set(said.values()) == {"True"}


def test_nodeset_phase(cluster: Cluster) -> None:
    fault(cluster, "nodeset-phase", "worker-cpu", "Pending")
    shown = command_line("status", "--name", cluster.settings.name, env={"COLUMNS": "200"}).stdout
    assert "the status of worker-cpu is made up" in shown
    cluster.wait(
        "the phase is pinned", lambda: cluster.custom("nodesets", "worker-cpu")["status"]["phase"] == "Pending"
    )


def test_maintenance(cluster: Cluster) -> None:
    fault(cluster, "maintenance", "on")

    def phases() -> set[str]:
        return {cluster.custom("nodesets", name)["status"]["phase"] for name in ("worker", "worker-cpu")}

    cluster.wait("the workers go", lambda: phases() == {"Terminating"} and cluster.pod("worker-cpu-0") is None)
    cluster.wait("so does all else", lambda: not any(map(cluster.pod, ("controller-0", "login-0", "accounting-0"))))
    # The phase alone would not tell.
    assert slurm_cluster(cluster)["phase"] == "Available"
    reasons = {entry["type"]: entry["reason"] for entry in slurm_cluster(cluster)["conditions"]}
    assert reasons["ControllersAvailable"] == "Maintenance"
    fault(cluster, "maintenance", "off")
    cluster.wait("Slurm is back", lambda: parts(cluster) == {"Available"})
    cluster.wait("the workers are back", lambda: phases() <= {"Ready", "Provisioning"} and cluster.pod("worker-cpu-0"))
    for name in ("worker-0", "worker-cpu-0", "worker-cpu-1"):
        cluster.wait_node(name, has={"IDLE"}, lacks=NOT_UP)
