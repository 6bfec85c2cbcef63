"""The Kubernetes double as kubectl uses it: tables, changes, waits, and what it makes by itself."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sandbox.kube.chart_kinds import CHART_KINDS
from tests.patience import PATIENCE
from tests.sandbox.kube_world import (
    NAMESPACE,
    NODE_SET_PARTS,
    KubeWorld,
    eventually,
    kube_world,
    kubectl_version,
)

MANIFEST: list[dict[str, Any]] = [
    {
        "apiVersion": "slurm.nebius.ai/v1alpha1",
        "kind": "NodeSet",
        "metadata": {"name": "gpu", "labels": {"keep": "1", "drop": "1"}},
        "spec": {"replicas": 1, **NODE_SET_PARTS},
    },
    {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "settings"}, "data": {"a": "1", "b": "2"}},
    {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web"},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": {"app": "web"}},
            "template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": {"containers": [{"name": "web", "image": "v1"}, {"name": "side", "image": "v1"}]},
            },
        },
    },
]


@pytest.fixture
def world(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubeWorld]:
    with kube_world(tmp_path, tmp_path_factory.getbasetemp() / "kube-certificates") as made:
        yield made


def rows(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


@pytest.mark.parametrize(
    ("kind", "header", "row"),
    [
        ("ns", "NAME STATUS AGE", "soperator Active"),
        ("nodes", "NAME STATUS ROLES AGE VERSION", "gpu-a Ready <none>"),
        ("po", "NAME READY STATUS RESTARTS AGE", "login-0 2/2 Running 0"),
        (
            "slurmclusters",
            "NAME STATUS CONTROLLERS LOGIN SCONFIGCTRL ACCOUNTING",
            "soperator Available True 2",
        ),
        ("nodeset", "NAME STATUS DESIRED READY EPHEMERAL", "worker Ready 4 2 true"),
        ("nodesetpowerstates.slurm.nebius.ai", "NAME NODESET ACTIVE READY AGE", "worker worker 2 True"),
        (
            "activecheck",
            "NAME TYPE INIT SUSPEND SCHEDULE K8S STATUS SLURM STATUS SLURM SUBMIT TIME SLURM ID AGE",
            "nccl slurmJob true false 0 1 * * * Complete 17",
        ),
        ("deploy", "NAME READY UP-TO-DATE AVAILABLE AGE", "vllm 0/2 0 0"),
        ("sts", "NAME READY AGE", "db 0/2"),
        ("cronjobs", "NAME SCHEDULE SUSPEND ACTIVE LAST SCHEDULE AGE", "nccl 0 1 * * * false 0 <none>"),
        ("so", "NAME SCALETARGETNAME MIN MAX READY ACTIVE AGE", "vllm vllm 1 3"),
        ("events", "LAST SEEN TYPE REASON OBJECT MESSAGE", "BackOff pod/worker-0 Back-off restarting failed"),
    ],
)
def test_get_as_a_table(world: KubeWorld, kind: str, header: str, row: str) -> None:
    head, *body = rows(world.text("get", kind))
    assert head == header.split()
    assert any(" ".join(line).startswith(row) or row in " ".join(line) for line in body), body


def test_get_one_in_other_forms(world: KubeWorld) -> None:
    found = world.json("get", "nodeset", "worker")
    assert found == world.get("nodeset", "worker")
    assert world.text("get", "nodesets", "-o", "name") == "nodeset.slurm.nebius.ai/worker\n"
    assert world.text("get", "nodeset/worker", "-o", "jsonpath={.spec.replicas}") == "4"
    listed = world.json("get", "pods")["items"]
    assert {(item["kind"], item["metadata"]["name"]) for item in listed} == {
        ("Pod", "finished"),
        ("Pod", "login-0"),
        ("Pod", "worker-0"),
    }
    wide = world.text("get", "pods", "-A", "-o", "wide")
    assert rows(wide)[0][0] == "NAMESPACE"
    assert "gpu-a" in wide
    missing = world.kubectl("get", "nodeset", "none", code=1)
    assert b'NotFound): nodesets.slurm.nebius.ai "none" not found' in missing.stderr


def test_selectors(world: KubeWorld) -> None:
    assert world.text("get", "nodes", "-l", "zone in (a,c)", "-o", "name") == "node/gpu-a\n"
    assert world.text("get", "nodes", "-l", "zone,zone!=a", "-o", "name") == "node/gpu-b\n"
    running = world.text("get", "pods", "--field-selector", "status.phase!=Running", "-o", "name")
    assert running == "pod/finished\n"


def test_describe(world: KubeWorld) -> None:
    pod = world.text("describe", "pod", "worker-0")
    assert "Status:       Running" in pod
    assert "Back-off restarting failed container" in pod
    node = world.text("describe", "node", "gpu-a")
    assert "Non-terminated Pods:          (2 in total)" in node
    node_set = world.text("describe", "nodeset", "worker")
    assert "Ephemeral Nodes:  true" in node_set
    assert ["Events:", "<none>"] in rows(node_set)


def test_scale(world: KubeWorld) -> None:
    world.kubectl("scale", "nodeset", "worker", "--replicas=7")
    assert world.get("nodeset", "worker")["spec"] == {"replicas": 7, "ephemeralNodes": True, **NODE_SET_PARTS}
    world.kubectl("scale", "deployment/vllm", "--replicas=0")
    world.kubectl("scale", "deployment/vllm", "--replicas=5", "--current-replicas=0")
    world.kubectl("scale", "deployment/vllm", "--replicas=9", "--current-replicas=0", code=1)
    assert world.get("deployment", "vllm")["spec"]["replicas"] == 5


def test_patch(world: KubeWorld) -> None:
    world.kubectl("patch", "nodeset", "worker", "--type=merge", "-p", '{"spec":{"replicas":6}}')
    assert world.get("nodeset", "worker")["spec"]["replicas"] == 6
    operations = '[{"op":"replace","path":"/spec/replicas","value":8}]'
    world.kubectl("patch", "nodeset", "worker", "--type=json", "-p", operations)
    assert world.get("nodeset", "worker")["spec"]["replicas"] == 8
    world.kubectl("patch", "node", "gpu-a", "-p", '{"metadata":{"labels":{"pool":"train"}}}')
    assert world.get("node", "gpu-a")["metadata"]["labels"] == {"zone": "a", "pool": "train"}
    # Custom resources know no strategic merge, which is what kubectl sends by default.
    world.kubectl("patch", "nodeset", "worker", "-p", '{"spec":{"replicas":1}}', code=1)
    refused = world.kubectl("patch", "nodeset", "worker", "--type=merge", "-p", '{"spec":{"replicas":"x"}}', code=1)
    assert b"spec.replicas" in refused.stderr


def test_label_annotate_taint_cordon(world: KubeWorld) -> None:
    world.kubectl("label", "node", "gpu-b", "pool=serve", "zone-")
    assert world.get("node", "gpu-b")["metadata"]["labels"] == {"pool": "serve"}
    world.kubectl("annotate", "nodeset", "worker", "note=hello world")
    assert world.get("nodeset", "worker")["metadata"]["annotations"] == {"note": "hello world"}
    world.kubectl("taint", "node", "gpu-b", "only=serve:NoSchedule")
    world.kubectl("cordon", "gpu-b")
    taint = {"key": "only", "value": "serve", "effect": "NoSchedule"}
    assert world.get("node", "gpu-b")["spec"] == {"taints": [taint], "unschedulable": True}
    assert "Ready,SchedulingDisabled" in world.text("get", "node", "gpu-b")


def _revised() -> list[dict[str, Any]]:
    changed = json.loads(json.dumps(MANIFEST))
    del changed[0]["metadata"]["labels"]["drop"]
    del changed[1]["data"]["b"]
    changed[2]["spec"]["template"]["spec"]["containers"][0]["image"] = "v2"
    return list(changed)


def _manifest(items: list[dict[str, Any]]) -> str:
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": items})


@pytest.mark.parametrize("server_side", [False, True])
def test_apply_twice(world: KubeWorld, server_side: bool) -> None:
    how = ["apply", "-f", "-", *(["--server-side"] if server_side else [])]
    world.kubectl(*how, stdin=_manifest(MANIFEST))
    assert world.get("nodeset", "gpu")["metadata"]["labels"] == {"keep": "1", "drop": "1"}
    world.call(world.store.patch, "nodeset", "gpu", {"spec": {"priorityClass": "high"}}, NAMESPACE)
    said = world.text(*how, stdin=_manifest(_revised()))
    assert world.get("nodeset", "gpu")["metadata"]["labels"] == {"keep": "1"}
    assert world.get("nodeset", "gpu")["spec"] == {"replicas": 1, "priorityClass": "high", **NODE_SET_PARTS}
    assert world.get("configmap", "settings")["data"] == {"a": "1"}
    containers = world.get("deployment", "web")["spec"]["template"]["spec"]["containers"]
    assert [(c["name"], c["image"]) for c in containers] == [("web", "v2"), ("side", "v1")]
    assert said.count("serverside-applied" if server_side else "configured") == 3
    version = world.get("deployment", "web")["metadata"]["resourceVersion"]
    world.kubectl(*how, stdin=_manifest(_revised()))
    assert world.get("deployment", "web")["metadata"]["resourceVersion"] == version


def test_create_and_delete(world: KubeWorld) -> None:
    world.kubectl("create", "-f", "-", "--dry-run=client", stdin=_manifest(MANIFEST))
    world.kubectl("get", "nodeset", "gpu", code=1)
    world.kubectl("create", "-f", "-", stdin=_manifest(MANIFEST))
    again = world.kubectl("create", "-f", "-", stdin=_manifest(MANIFEST), code=1)
    assert again.stderr.count(b"AlreadyExists") == 3
    world.kubectl("delete", "nodeset", "gpu")
    world.kubectl("get", "nodeset", "gpu", code=1)
    world.kubectl("delete", "pods", "-l", "slurm.nebius.ai/nodeset=worker")
    assert "No resources found" in world.kubectl("get", "pods").stderr.decode()


def test_create_makes_builtin_objects(world: KubeWorld) -> None:
    world.kubectl("create", "namespace", "extra")
    world.kubectl("create", "configmap", "c", "--from-literal=k=v")
    world.kubectl("create", "secret", "generic", "s", "--from-literal=k=v")
    world.kubectl("create", "deployment", "d", "--image=web:1")
    assert world.get("namespace", "extra")["status"] == {"phase": "Active"}
    assert world.get("configmap", "c")["data"] == {"k": "v"}
    secret = world.get("secret", "s")
    assert (secret["type"], secret["data"]) == ("Opaque", {"k": "dg=="})
    assert world.get("deployment", "d")["spec"]["replicas"] == 1


def test_what_charts_install_is_kept(world: KubeWorld) -> None:
    """A ServiceMonitor, a PriorityClass and their like: stored as they are, listed, deleted."""
    kinds = [kind for kind in CHART_KINDS if kind.kind != "ServiceAccount"]
    things = [
        {
            "apiVersion": kind.api_version,
            "kind": kind.kind,
            "metadata": {"name": "from-a-chart"},
            **({} if kind.group == "rbac.authorization.k8s.io" else {"spec": {"kept": "as-it-is"}}),
        }
        for kind in kinds
    ]
    listed = json.dumps({"apiVersion": "v1", "kind": "List", "items": things})
    world.kubectl("apply", "--server-side", "--validate=false", "-f", "-", stdin=listed)
    shown = world.text("get", ",".join(kind.resource for kind in kinds), "--no-headers")
    assert shown.count("from-a-chart") >= len(kinds)
    monitor = world.get("servicemonitor", "from-a-chart")
    assert (monitor["spec"], monitor["metadata"]["generation"]) == ({"kept": "as-it-is"}, 1)
    world.kubectl("delete", "--wait=false", "-f", "-", stdin=listed)
    assert b"No resources found" in world.kubectl("get", "servicemonitors,priorityclasses,schedules").stderr


def test_create_job_from_cron_job(world: KubeWorld) -> None:
    # Before 1.21 kubectl knows cron jobs only in the version that was then the newest.
    cron_job = "cronjob/nccl" if kubectl_version() >= (1, 21) else "cronjobs.v1beta1.batch/nccl"
    world.kubectl("create", "job", f"--from={cron_job}", "nccl-manual-1")
    job = world.get("job", "nccl-manual-1")
    assert job["metadata"]["annotations"] == {"cronjob.kubernetes.io/instantiate": "manual"}
    assert job["metadata"]["ownerReferences"][0]["name"] == "nccl"
    assert job["spec"]["template"]["spec"]["restartPolicy"] == "Never"
    container = job["spec"]["template"]["spec"]["containers"][0]
    assert (container["name"], container["image"]) == ("check", "nccl")
    assert rows(world.text("get", "jobs"))[1][:3] == ["nccl-manual-1", "Running", "0/1"]


WAITS = [("condition=Ready", "pod/worker-0"), ("condition=PodsReady", "nodeset/worker")]
if kubectl_version() >= (1, 23):
    WAITS += [("jsonpath={.status.phase}=Ready", "nodeset/worker"), ("delete", "pod/none")]


@pytest.mark.parametrize(("condition", "what"), WAITS)
def test_wait_for_what_is_so(world: KubeWorld, condition: str, what: str) -> None:
    world.kubectl("wait", f"--for={condition}", what, f"--timeout={PATIENCE}s")


def test_wait_for_what_comes_to_be(world: KubeWorld) -> None:
    with world.kubectl_running("wait", "--for=condition=Late", "pod/worker-0", f"--timeout={PATIENCE}s") as waiting:
        eventually(lambda: world.server_watches() > 0)
        assert waiting.poll() is None
        conditions = [{"type": "Late", "status": "True"}]
        world.call(world.store.patch, "pod", "worker-0", {"status": {"conditions": conditions}}, NAMESPACE)
        assert waiting.wait(PATIENCE) == 0


def test_wait_for_what_does_not(world: KubeWorld) -> None:
    world.kubectl("wait", "--for=condition=Never", "pod/worker-0", "--timeout=1s", code=1)


def test_get_and_watch(world: KubeWorld) -> None:
    with world.kubectl_running("get", "nodesets", "-w", stdout=subprocess.PIPE) as watching:
        eventually(lambda: world.server_watches() > 0)
        world.kubectl("scale", "nodeset", "worker", "--replicas=9")
        world.call(world.store.delete, "nodeset", "worker", NAMESPACE)
        assert watching.stdout is not None
        lines = [watching.stdout.readline().decode().split() for _ in range(4)]
    assert [line[:3] for line in lines] == [
        ["NAME", "STATUS", "DESIRED"],
        ["worker", "Ready", "4"],
        ["worker", "Ready", "9"],
        ["worker", "Ready", "9"],
    ]


def test_a_watch_ends_with_its_client(world: KubeWorld) -> None:
    with world.kubectl_running("get", "nodesets", "-w", stdout=subprocess.DEVNULL):
        eventually(lambda: world.server_watches() > 0)
    eventually(lambda: world.server_watches() == 0)


def test_logs(world: KubeWorld) -> None:
    assert world.text("logs", "worker-0") == "slurmd 1\nslurmd 2\nslurmd 3\n"
    assert world.text("logs", "login-0", "-c", "munge", "--tail=1") == "munge 3\n"
    assert world.text("logs", "worker-0", "--tail=0") == ""


def test_what_there_is(world: KubeWorld) -> None:
    server = json.loads(world.text("version", "-o", "json"))["serverVersion"]
    assert server["gitVersion"].endswith("+sandbox")
    listed = world.text("api-resources", "-o", "name").split()
    assert {"nodesets.slurm.nebius.ai", "pods", "deployments.apps", "cronjobs.batch"} <= set(listed)
    if kubectl_version() >= (1, 27):
        assert "as the sandbox keeps it" in world.text("explain", "nodeset")


def test_an_apply_that_conflicts_with_kubectl(world: KubeWorld) -> None:
    how = ["apply", "--server-side", "-f", "-"]
    world.kubectl(*how, "--field-manager=airflow", stdin=_manifest(MANIFEST[:1]))
    world.kubectl("scale", "nodeset", "gpu", "--replicas=5")
    refused = world.kubectl(*how, "--field-manager=airflow", stdin=_manifest(MANIFEST[:1]), code=1)
    assert b'conflict with "kubectl" with subresource "scale" using slurm.nebius.ai/v1alpha1 at ' in refused.stderr
    assert b": .spec.replicas" in refused.stderr
    forced = [*how, "--field-manager=airflow", "--force-conflicts"]
    world.kubectl(*forced, "--dry-run=server", stdin=_manifest(MANIFEST[:1]))
    assert world.get("nodeset", "gpu")["spec"]["replicas"] == 5
    world.kubectl(*forced, stdin=_manifest(MANIFEST[:1]))
    assert world.get("nodeset", "gpu")["spec"]["replicas"] == 1


def test_what_a_kind_requires_and_knows(world: KubeWorld) -> None:
    wrong = {**MANIFEST[0], "spec": {"replicas": 1, "munge": NODE_SET_PARTS["munge"]}}
    refused = world.kubectl("create", "-f", "-", stdin=json.dumps(wrong), code=1)
    assert b'The NodeSet "gpu" is invalid: spec.slurmd: Required value' in refused.stderr
    misspelt = {**MANIFEST[0], "spec": {"replica": 1, **NODE_SET_PARTS}}
    refused = world.kubectl("create", "-f", "-", stdin=json.dumps(misspelt), code=1)
    assert b'unknown field "spec.replica"' in refused.stderr
    world.kubectl("create", "-f", "-", "--validate=false", stdin=json.dumps(misspelt))
    assert "replica" not in world.get("nodeset", "gpu")["spec"]
