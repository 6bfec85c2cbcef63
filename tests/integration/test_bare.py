"""Soperator's operator alone: a Slurm comes of the objects that somebody applies, or does not, for the real reasons."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kubernetes.watch import Watch

from airflow_provider_soperator.provisioning.parts import NodeSet
from airflow_provider_soperator.provisioning.spec import Installation, KubernetesObjects
from sandbox.cloud.landscape import nodesets_of, slurm_cluster
from sandbox.lifecycle import Sandbox
from sandbox.settings import NAMESPACE, RELEASES, Settings
from tests.integration.cluster import Cluster
from tests.integration.connections import Connections
from tests.integration.provisioning import CPU, GPU, destroy, provision
from tests.integration.test_checks_double import parts
from tests.patience import PATIENCE
from tests.sandboxes import versions
from tests.unit.provisioning import clusters

pytestmark = pytest.mark.lane("sandboxes of their own")

CLUSTERS = ("slurm.nebius.ai", "v1", NAMESPACE, "slurmclusters")
Apply = Callable[..., None]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """What the versions of Soperator have in common is tried on one."""
    metafunc.parametrize("settings", versions(metafunc), indirect=True)


@pytest.fixture
def settings(request: pytest.FixtureRequest) -> Settings:
    if os.geteuid() != 0 or not Path("/etc/debian_version").exists():
        pytest.skip("a sandbox needs root on Debian")
    name = f"bare-{request.param.replace('.', '')}-{os.getpid()}"
    small = Settings(name=name, slurm=request.param, workers=2, static=1, initial=0, bare=True)
    return replace(small, resume_timeout=PATIENCE, suspend_timeout=1, vm_boot=0.3, vm_lag=1, vm_removal=0.3)


@pytest.fixture
def bare(settings: Settings) -> Iterator[Cluster]:
    made = Sandbox(settings)
    try:
        made.up()
        cluster = Cluster(made)
        yield cluster
        cluster.close()
    finally:
        made.down()


@pytest.fixture
def apply(bare: Cluster, tmp_path: Path) -> Apply:
    def apply(*objects: dict[str, Any]) -> None:
        file = tmp_path / "objects.json"
        file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))
        bare.kubectl("apply", "--server-side", "-f", str(file))

    return apply


def cluster_of(settings: Settings, **spec: Any) -> dict[str, Any]:
    made = slurm_cluster(settings)
    return {"apiVersion": "slurm.nebius.ai/v1", "kind": "SlurmCluster", **made, "spec": {**made["spec"], **spec}}


def sets_of(settings: Settings) -> tuple[dict[str, Any], dict[str, Any]]:
    kind = {"apiVersion": "slurm.nebius.ai/v1alpha1", "kind": "NodeSet"}
    gpu, cpu = ({**kind, **nodeset} for nodeset in nodesets_of(settings))
    return gpu, cpu


@contextmanager
def phases(cluster: Cluster) -> Iterator[list[tuple[str, dict[str, str]]]]:
    """Each phase of the SlurmCluster that was seen, with the conditions when it began."""
    seen: list[tuple[str, dict[str, str]]] = []
    watch = Watch()
    listed = cluster.custom_objects.list_namespaced_custom_object
    # From here on, also where the thread begins later.
    since = {"resource_version": listed(*CLUSTERS)["metadata"]["resourceVersion"], "timeout_seconds": PATIENCE}

    def follow() -> None:
        for event in watch.stream(listed, *CLUSTERS, **since):
            status = event["object"].get("status") or {}
            if "phase" in status and (not seen or seen[-1][0] != status["phase"]):
                seen.append((status["phase"], {one["type"]: one["status"] for one in status["conditions"]}))
            if status.get("phase") == "Available":
                return

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    try:
        yield seen
    finally:
        watch.stop()


def phase(cluster: Cluster) -> str:
    found = cluster.custom_objects.get_namespaced_custom_object(*CLUSTERS, "soperator")
    return str((found.get("status") or {}).get("phase"))


def test_objects_become_a_slurm_on_which_jobs_run(bare: Cluster, apply: Apply, settings: Settings) -> None:
    assert bare.sandbox.init.processes().keys() == {"cloud"}
    with phases(bare) as seen:
        apply(cluster_of(settings), *sets_of(settings))
        bare.wait("it is available", lambda: phase(bare) == "Available")
        bare.wait("that was seen", lambda: seen and seen[-1][0] == "Available")
    assert [phase for phase, _ in seen] == ["Pending", "Not available", "Available"]
    assert set(seen[0][1].values()) == {"Unknown"}
    # The first that is not ready ends a pass: nobody has looked at those after it.
    assert seen[1][1]["CommonAvailable"] == "True"
    assert (seen[1][1]["ControllersAvailable"], seen[1][1]["AccountingAvailable"]) == ("False", "Unknown")
    assert set(seen[2][1].values()) == {"True"}

    # The node is off, as a new ephemeral set has none on.
    assert bare.active_nodes() == []
    said = bare.run("srun", "--gres=gpu:8", "sh", "-c", "echo $SLURMD_NODENAME $CUDA_VISIBLE_DEVICES")
    assert said.split() == [said.split()[0], "0,1,2,3,4,5,6,7"]
    assert said.startswith("worker-")
    job = bare.sbatch("--gres=gpu:8", "--nodelist=worker-0", wrap="ls /dev/nvidia*")
    bare.wait("the job has run", lambda: bare.job_state(job) == "COMPLETED")
    assert bare.run("cat", f"/root/{job}.out").count("/dev/nvidia") == 8

    bare.kubectl("delete", "nodeset", "worker", "worker-cpu")
    bare.kubectl("delete", "slurmcluster", "soperator")
    bare.wait("all of it has ended", lambda: bare.sandbox.init.processes().keys() == {"cloud"})
    pods = json.loads(bare.kubectl("get", "pods,services", "--output=json"))["items"]
    assert pods == []


def test_nodes_have_what_static_says_and_no_more(bare: Cluster, apply: Apply, settings: Settings) -> None:
    gpu, cpu = sets_of(settings)
    del gpu["spec"]["nodeConfig"]["static"], gpu["spec"]["nodeConfig"]["gresConfig"]
    apply(cluster_of(settings), gpu, cpu)
    bare.wait("it is available", lambda: phase(bare) == "Available")
    bare.wait_node("worker-cpu-0", has={"IDLE"}, lacks={"POWERED_DOWN"})
    assert bare.run("srun", "--nodelist=worker-0", "hostname").strip() == "worker-0"
    refused = bare.try_run("sbatch", "--gres=gpu:8", "--wrap=true")
    assert refused.returncode == 1
    assert "Requested node configuration is not available" in refused.stderr
    assert "CPUTot=1 " in bare.run("scontrol", "show", "node", "worker-0")


def test_without_structured_partitions_there_are_no_nodes(bare: Cluster, apply: Apply, settings: Settings) -> None:
    apply(cluster_of(settings, partitionConfiguration={"configType": "default"}), *sets_of(settings))
    bare.wait("it is available", lambda: phase(bare) == "Available")
    bare.wait("its Pod has been tried", lambda: "BackOff" in bare.kubectl("get", "events"))
    assert "worker" not in bare.run("sinfo", "--noheader", "--format=%N")
    assert bare.custom("nodesets", "worker-cpu")["status"]["phase"] == "Provisioning"


@pytest.mark.each_slurm
def test_a_partition_of_a_set_that_is_not_there(bare: Cluster, apply: Apply, settings: Settings) -> None:
    lost = {"name": "lost", "nodeSetRefs": ["gone"], "config": "State=UP"}
    main = {"name": "main", "isAll": True, "config": "Default=YES State=UP"}
    apply(
        cluster_of(settings, partitionConfiguration={"configType": "structured", "partitions": [main, lost]}),
        *sets_of(settings),
    )
    if settings.soperator == "4.1":
        # No login node has come up by then.
        log = settings.paths.logs / "slurmctld.log"
        bare.wait("slurmctld refuses it", lambda: log.exists() and "gone" in log.read_text(errors="replace"))
        assert phase(bare) == "Not available"
        partitions = {"configType": "structured", "partitions": [main]}
        apply(cluster_of(settings, partitionConfiguration=partitions))
    bare.wait("it is available", lambda: phase(bare) == "Available")
    assert bare.run("srun", "--nodelist=worker-cpu-0", "hostname").strip() == "worker-cpu-0"


@pytest.mark.each_slurm
def test_a_set_belongs_to_a_cluster(bare: Cluster, apply: Apply, settings: Settings) -> None:
    gpu, cpu = sets_of(settings)
    for nodeset in (gpu, cpu):
        nodeset["metadata"].pop("annotations", None)
        nodeset["spec"].pop("clusterName", None)
    apply(cluster_of(settings), gpu, cpu)
    bare.wait("it is available", lambda: phase(bare) == "Available")
    if settings.soperator == "4.1":
        # There is one cluster, and so it is that.
        bare.wait_node("worker-cpu-0", has={"IDLE"}, lacks={"POWERED_DOWN"})
        annotations = bare.custom("nodesets", "worker")["metadata"]["annotations"]
        assert annotations["slurm.nebius.ai/parental-cluster-ref"] == "soperator"
    else:
        assert "conditions" not in (bare.custom("nodesets", "worker").get("status") or {})
        assert "worker" not in bare.run("sinfo", "--noheader", "--format=%N")


def test_without_rest_nothing_is_read_again(bare: Cluster, apply: Apply, settings: Settings) -> None:
    said = cluster_of(settings)
    said["spec"]["slurmNodes"]["rest"]["enabled"] = False
    gpu, cpu = sets_of(settings)
    apply(said, cpu)
    bare.wait("it is available", lambda: phase(bare) == "Available")
    bare.wait_node("worker-cpu-0", has={"IDLE"}, lacks={"POWERED_DOWN"})
    apply(gpu)
    lines = r"grep -h 'NodeName=worker-[0\[]' /etc/slurm/slurm.conf /etc/slurm/slurm_base.conf.noedit"
    bare.wait("it is written", lambda: bare.try_run("sh", "-c", lines).stdout)
    assert bare.try_run("scontrol", "show", "node", "worker-0").returncode != 0
    bare.run("scontrol", "reconfigure")
    bare.wait_known("worker-0", known=True)


def test_another_image_restarts_slurmd_in_its_pod(bare: Cluster, apply: Apply, settings: Settings) -> None:
    _, cpu = sets_of(settings)
    apply(cluster_of(settings), cpu)
    bare.wait("it is available", lambda: phase(bare) == "Available")
    bare.wait_node("worker-cpu-0", has={"IDLE"}, lacks={"POWERED_DOWN"})
    bare.wait("the set is ready", lambda: bare.custom("nodesets", "worker-cpu")["status"]["phase"] == "Ready")
    before, process = bare.pod("worker-cpu-0").metadata.uid, bare.sandbox.init.processes()["worker-cpu-0"]["pid"]
    cpu["spec"]["slurmd"]["image"]["tag"] = "next"
    applied = time.time()
    apply(cpu)

    def runs_it() -> bool:
        statuses = bare.pod("worker-cpu-0").status.container_statuses
        return {one.name: one.image for one in statuses}["slurmd"].endswith(":next") and all(s.ready for s in statuses)

    bare.wait("slurmd runs from it", runs_it)
    assert bare.pod("worker-cpu-0").metadata.uid == before
    after = bare.sandbox.init.processes()["worker-cpu-0"]
    assert after["pid"] != process
    assert after["started"] >= applied + settings.rollout_lag, "it did not run on for a while"
    bare.wait_node("worker-cpu-0", has={"IDLE"}, lacks={"POWERED_DOWN"})


def test_an_overwritten_jail_has_what_its_image_has(bare: Cluster, apply: Apply, settings: Settings) -> None:
    apply(cluster_of(settings), sets_of(settings)[1])
    bare.wait("it is available", lambda: phase(bare) == "Available")
    bare.wait_node("worker-cpu-0", has={"IDLE"}, lacks={"POWERED_DOWN"})
    bare.run("sh", "-c", "mkdir -p /home/alice/data && echo hers >/home/alice/data/set && useradd bob")
    pods = ("worker-cpu-0", "login-0", "controller-0", "accounting-0", "rest-0")

    def goes_on() -> None:
        apply(cluster_of(settings, maintenance="none"))
        bare.wait("all Pods are back", lambda: all(map(bare.pod, pods)))
        bare.wait("all parts are", lambda: parts(bare) == {"Available"})
        bare.wait_node("worker-cpu-0", has={"IDLE"}, lacks={"POWERED_DOWN"})

    for mode in ("downscale", "downscaleAndDeletePopulateJail"):
        apply(cluster_of(settings, maintenance=mode))
        bare.wait("all Pods are gone", lambda: not any(map(bare.pod, pods)))
        # It says of itself what it said before.
        assert phase(bare) == "Available"
    assert bare.kubectl("get", "services", "--output=name").count("soperator-") == 4
    goes_on()
    assert bare.run("cat", "/home/alice/data/set") == "hers\n"
    apply(cluster_of(settings, maintenance="downscaleAndOverwritePopulateJail"))
    succeeded = "--output=jsonpath={.spec.template.spec.containers[0].env}{.status.succeeded}"
    asked = ("get", "job", "soperator-populate-jail", succeeded, "--ignore-not-found")
    bare.wait("it is overwritten", lambda: bare.kubectl(*asked) == '[{"name":"OVERWRITE","value":"1"}]1')
    goes_on()
    assert bare.try_run("test", "-e", "/home/alice/data").returncode == 1
    assert bare.try_run("id", "bob").returncode == 1
    bare.run("srun", "--nodelist=worker-cpu-0", "id", "alice")


def test_a_cluster_that_a_task_applies_runs_jobs(
    bare: Cluster, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of another name, with what the task renders and nothing else; only the folder of scripts is not there."""
    Connections(bare, monkeypatch)
    source = KubernetesObjects("kubernetes_default", installation=Installation(scripts=None))
    wanted = clusters.cluster(
        operator_version=RELEASES[settings.soperator],
        nodesets=(NodeSet("worker", 2, ephemeral=True, initial=0, **GPU), NodeSet("worker-cpu", 1, **CPU)),
        accounting=True,
        rest=True,
    )
    provision(source, spec=wanted)

    def is_available() -> bool:
        found = bare.custom_objects.get_namespaced_custom_object(*CLUSTERS, "research")
        return bool((found.get("status") or {}).get("phase") == "Available")

    bare.wait("it is available", is_available)
    assert bare.run("srun", "--gres=gpu:8", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES").strip() == "0,1,2,3,4,5,6,7"
    assert "research" in bare.run("sacct", "--allocations", "--noheader", "--format=Cluster")
    destroy(source, spec=wanted, end_jobs=True)
    bare.wait("all of it has ended", lambda: bare.sandbox.init.processes().keys() == {"cloud"})
