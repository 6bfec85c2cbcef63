"""The server of the double: who is let in, faults on demand, encodings, and how fast it comes and goes."""

from __future__ import annotations

import http.client
import json
import ssl
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client, config
from kubernetes.client.exceptions import ApiException

from sandbox.kube import protobuf
from sandbox.kube.catalogue import ACTIVE_CHECK, SLURM_CLUSTER
from sandbox.kube.certificates import ensure_certificates
from sandbox.kube.errors import ApiError
from sandbox.kube.openapi import v2_protobuf
from sandbox.kube.schemas import shape_of
from sandbox.kube.structure import unknown
from tests.patience import PATIENCE
from tests.sandbox.kube_world import NAMESPACE, NODE_SET_PARTS, TOKEN, KubeWorld, eventually, kube_world

NODE_SET = f"/apis/slurm.nebius.ai/v1alpha1/namespaces/{NAMESPACE}/nodesets"


@pytest.fixture
def world(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubeWorld]:
    with kube_world(tmp_path, tmp_path_factory.getbasetemp() / "kube-certificates") as made:
        yield made


class Answer:
    def __init__(self, code: int, headers: Any, body: bytes) -> None:
        self.code, self.headers, self.body = code, headers, body

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def ask(
    world: KubeWorld,
    path: str,
    method: str = "GET",
    body: Any = None,
    *,
    token: str | None = TOKEN,
    content_type: str = "application/json",
    accept: str = "application/json",
    timeout: float = PATIENCE,
) -> Answer:
    data = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": content_type, "Accept": accept}
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    request = urllib.request.Request(world.server.url + path, data, headers, method=method)
    context = ssl.create_default_context(cafile=str(world.server.ca_file))
    try:
        with urllib.request.urlopen(request, timeout=timeout, context=context) as answer:
            return Answer(answer.status, answer.headers, answer.read())
    except urllib.error.HTTPError as refused:
        with refused:
            return Answer(refused.code, refused.headers, refused.read())


def test_an_update_makes_a_lease_and_changes_one_of_a_known_version_only(world: KubeWorld) -> None:
    path = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/block"
    body: dict[str, Any] = {"metadata": {"name": "block"}, "spec": {"holderIdentity": "ann"}}
    made = ask(world, path, "PUT", body)
    assert made.code == 201
    assert ask(world, path, "PUT", body).code == 422
    body["metadata"]["resourceVersion"] = made.json["metadata"]["resourceVersion"]
    body["spec"]["holderIdentity"] = "bob"
    assert ask(world, path, "PUT", body).code == 200
    assert ask(world, path, "PUT", body).json["reason"] == "Conflict"
    assert b"bob" in world.kubectl("get", "leases", "-n", NAMESPACE).stdout


# Who is let in


@pytest.mark.parametrize("token", [None, "", "wrong", TOKEN + "x"])
def test_wrong_tokens(world: KubeWorld, token: str | None) -> None:
    for path in (
        "/version",
        "/apis",
        NODE_SET,
        f"/api/v1/namespaces/{NAMESPACE}/pods/worker-0/exec?command=id",
    ):
        answer = ask(world, path, token=token)
        assert (answer.code, answer.json["reason"], answer.json["kind"]) == (401, "Unauthorized", "Status")


def test_wrong_token_in_the_clients(world: KubeWorld, tmp_path: Path) -> None:
    wrong = world.write_kubeconfig(tmp_path / "wrong", token="wrong")
    with config.new_client_from_config(str(wrong)) as api, pytest.raises(ApiException) as caught:
        client.CoreV1Api(api).list_node()
    assert caught.value.status == 401
    refused = world.kubectl("get", "nodes", code=1, env={"KUBECONFIG": str(wrong)})
    assert b"Unauthorized" in refused.stderr or b"logged in" in refused.stderr


@pytest.mark.parametrize("path", ["/readyz", "/livez", "/healthz"])
def test_health_needs_no_token(world: KubeWorld, path: str) -> None:
    answer = ask(world, path, token=None)
    assert (answer.code, answer.body) == (200, b"ok")


def test_certificates_are_verified(world: KubeWorld, tmp_path: Path) -> None:
    stranger = ensure_certificates(tmp_path / "stranger").ca_file
    context = ssl.create_default_context(cafile=str(stranger))
    with pytest.raises(urllib.error.URLError, match="CERTIFICATE_VERIFY_FAILED"):
        urllib.request.urlopen(world.server.url + "/readyz", timeout=PATIENCE, context=context)
    by_name = world.server.url.replace("127.0.0.1", "localhost")
    context = ssl.create_default_context(cafile=str(world.server.ca_file))
    with urllib.request.urlopen(by_name + "/readyz", timeout=PATIENCE, context=context) as answer:
        assert answer.read() == b"ok"


def test_certificates_outlive_a_restart_but_not_damage(tmp_path: Path) -> None:
    first = ensure_certificates(tmp_path / "c")
    authority = first.ca_file.read_bytes()
    assert ensure_certificates(tmp_path / "c").ca_file.read_bytes() == authority
    assert first.key.stat().st_mode & 0o077 == 0
    first.ca_file.write_bytes(ensure_certificates(tmp_path / "other").ca_file.read_bytes())
    ensure_certificates(tmp_path / "c")
    assert first.ca_file.read_bytes() not in (authority, (tmp_path / "other" / "ca.crt").read_bytes())


def test_kubeconfig_is_private(world: KubeWorld) -> None:
    assert world.kubeconfig.stat().st_mode & 0o077 == 0


# What is answered


@pytest.mark.parametrize("path", ["/version", "/apis", NODE_SET, NODE_SET + "/none", "/nowhere", "/readyz"])
def test_every_answer_says_what_it_comes_from(world: KubeWorld, path: str) -> None:
    assert ask(world, path).headers["X-Sandbox-Double"] == "kubernetes"


@pytest.mark.parametrize(
    ("method", "path", "code"),
    [
        ("GET", "/nowhere", 404),
        ("GET", "/apis/slurm.nebius.ai/v9", 404),
        ("GET", NODE_SET + "/worker/nothing", 404),
        ("GET", "/apis/slurm.nebius.ai/v1alpha1/nodesets/worker", 404),
        ("GET", f"/api/v1/namespaces/{NAMESPACE}/nodes", 404),
        ("POST", NODE_SET + "/worker", 405),
        ("PUT", NODE_SET, 405),
        ("DELETE", NODE_SET + "/worker/status", 405),
        ("POST", "/version", 404),
    ],
)
def test_paths_and_methods_that_are_not_there(world: KubeWorld, method: str, path: str, code: int) -> None:
    answer = ask(world, path, method, {} if method != "GET" else None)
    assert (answer.code, answer.json["code"]) == (code, code)


@pytest.mark.parametrize("body", [b"{", b"[]", b"", b"\xff\xfe"])
def test_bodies_that_are_no_object(world: KubeWorld, body: bytes) -> None:
    assert ask(world, NODE_SET, "POST", body).code == 400


def test_yaml_is_read_where_it_is_announced(world: KubeWorld) -> None:
    spec = json.dumps({"replicas": 3, **NODE_SET_PARTS})
    text = f"apiVersion: slurm.nebius.ai/v1alpha1\nkind: NodeSet\nmetadata: {{name: y}}\nspec: {spec}\n"
    body = text.encode()
    assert ask(world, NODE_SET, "POST", body).code == 400
    assert ask(world, NODE_SET, "POST", body, content_type="application/yaml").code == 201
    assert world.get("nodeset", "y")["spec"]["replicas"] == 3


def test_dry_runs(world: KubeWorld) -> None:
    before = world.call(world.store.dump)
    patch: dict[str, Any] = {"content_type": "application/merge-patch+json"}
    made = {"metadata": {"name": "dry"}, "spec": {"replicas": 1, **NODE_SET_PARTS}}
    assert ask(world, NODE_SET + "?dryRun=All", "POST", made).code == 201
    answer = ask(world, NODE_SET + "/worker?dryRun=All", "PATCH", {"spec": {"replicas": 9}}, **patch)
    assert answer.json["spec"]["replicas"] == 9
    answer = ask(world, NODE_SET + "/worker/scale?dryRun=All", "PATCH", {"spec": {"replicas": 9}}, **patch)
    assert answer.json["spec"]["replicas"] == 9
    assert ask(world, NODE_SET + "/worker", "DELETE", {"dryRun": ["All"]}).code == 200
    assert ask(world, NODE_SET + "?dryRun=All", "DELETE").code == 200
    assert ask(world, NODE_SET + "?dryRun=Some", "POST", made).code == 400
    assert world.call(world.store.dump) == before


def test_a_list_sent_at_the_start_of_a_watch(world: KubeWorld) -> None:
    query = "?watch=1&sendInitialEvents=true&allowWatchBookmarks=true&timeoutSeconds=1"
    lines = [json.loads(line) for line in ask(world, NODE_SET + query).body.splitlines()]
    assert [line["type"] for line in lines] == ["ADDED", "BOOKMARK"]
    assert lines[1]["object"]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}


def test_openapi_documents(world: KubeWorld) -> None:
    index = ask(world, "/openapi/v3").json["paths"]
    document = ask(world, index["apis/slurm.nebius.ai/v1alpha1"]["serverRelativeURL"]).json
    assert "slurm.nebius.ai.v1alpha1.NodeSet" in document["components"]["schemas"]
    accept = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf"
    assert ask(world, "/openapi/v2", accept=accept).body == v2_protobuf()
    assert ask(world, "/openapi/v2").json["swagger"] == "2.0"


# Protobuf


def _field(number: int, value: bytes | str | int) -> bytes:
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    value = value.encode() if isinstance(value, str) else value
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def _body(kind: str, api_version: str, raw: bytes) -> bytes:
    return b"k8s\x00" + _field(1, _field(1, api_version) + _field(2, kind)) + _field(2, raw)


def test_deletions_in_protobuf(world: KubeWorld) -> None:
    """As Helm deletes its Secrets: with conditions, and in the background."""
    uid = world.get("deployment", "vllm")["metadata"]["uid"]
    path = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/vllm"
    other = _body("DeleteOptions", "v1", _field(2, _field(1, "another")) + _field(4, "Background"))
    assert ask(world, path, "DELETE", other, content_type=protobuf.CONTENT_TYPE).code == 409
    own = _body("DeleteOptions", "v1", _field(2, _field(1, uid)) + _field(4, "Background"))
    assert ask(world, path, "DELETE", own, content_type=protobuf.CONTENT_TYPE).code == 200


def test_fields_that_5_0_has_added() -> None:
    exporter = {"jobSource": "controller", "accountingJobsLookback": "1h", "maxCollectorInflight": 1}
    login = {"userIsolation": {"enabled": True}, "sshd": {"image": "sshd", "imagePullSecrets": [{"name": "cr"}]}}
    spec = {"populateJail": {"imagePullSecrets": []}, "slurmNodes": {"exporter": exporter, "login": login}}
    container = {"imagePullPolicy": "Always", "imagePullSecrets": [{"name": "cr"}]}
    check = {"slurmJobSpec": {"jobContainer": container}, "k8sJobSpec": {"mungeContainer": container}}
    for kind, said in ((SLURM_CLUSTER, spec), (ACTIVE_CHECK, check)):
        shape = shape_of(kind)
        assert shape
        assert unknown({"spec": said}, shape) == []


def test_protobuf_bodies(world: KubeWorld) -> None:
    mount = _field(1, "data") + _field(3, "/data")
    container = _field(1, "main") + _field(2, "image") + _field(3, "sh") + _field(3, "-c") + _field(9, mount)
    resources = _field(1, _field(1, "cpu") + _field(2, _field(1, "500m")))
    container += _field(8, resources)
    volume = _field(1, "data") + _field(2, _field(2, b""))
    pod = _field(1, volume) + _field(2, container) + _field(3, "Never") + _field(4, 300) + _field(16, "")
    spec = _field(1, 0) + _field(6, _field(2, pod))
    metadata = _field(1, "j") + _field(8, b"") + _field(11, _field(1, "label") + _field(2, "value"))
    body = _body("Job", "batch/v1", _field(1, metadata) + _field(2, spec) + _field(3, b""))
    path = f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs"
    assert ask(world, path, "POST", body, content_type=protobuf.CONTENT_TYPE).code == 201
    job = world.get("job", "j")
    assert job["metadata"]["labels"] == {"label": "value"}
    assert job["spec"] == {
        "parallelism": 0,
        "template": {
            "spec": {
                "volumes": [{"name": "data", "emptyDir": {}}],
                "containers": [
                    {
                        "name": "main",
                        "image": "image",
                        "command": ["sh", "-c"],
                        "resources": {"limits": {"cpu": "500m"}},
                        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
                    }
                ],
                "restartPolicy": "Never",
                "terminationGracePeriodSeconds": 300,
            }
        },
    }


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"not protobuf", 400),
        (b"k8s\x00", 400),
        (_body("Namespace", "v1", _field(1, _field(1, "n")))[:-1], 400),
        # What is not known is refused, not dropped.
        (_body("Namespace", "v1", _field(1, _field(1, "n") + _field(15, "x"))), 415),
        (_body("Ingress", "v1", b""), 415),
    ],
)
def test_protobuf_that_cannot_be_read(body: bytes, code: int) -> None:
    with pytest.raises(ApiError) as caught:
        protobuf.decode(body)
    assert caught.value.code == code


# Faults


def test_error_on_demand(world: KubeWorld) -> None:
    world.fault("error", "GET nodesets/worker", count=2)
    assert ask(world, NODE_SET).code == 200
    for _ in range(2):
        answer = ask(world, NODE_SET + "/worker")
        assert (answer.code, answer.json["reason"]) == (503, "ServiceUnavailable")
    assert ask(world, NODE_SET + "/worker").code == 200


def test_conflict_on_demand(world: KubeWorld) -> None:
    world.fault("conflict", "PATCH nodesets/worker/scale")
    with config.new_client_from_config(str(world.kubeconfig)) as api:
        custom = client.CustomObjectsApi(api)
        where = {
            "group": "slurm.nebius.ai",
            "version": "v1alpha1",
            "namespace": NAMESPACE,
            "plural": "nodesets",
        }
        body = {"spec": {"replicas": 1}}
        with pytest.raises(ApiException) as caught:
            custom.patch_namespaced_custom_object_scale(**where, name="worker", body=body)
        assert caught.value.status == 409
        custom.patch_namespaced_custom_object_scale(**where, name="worker", body=body)
    assert world.get("nodeset", "worker")["spec"]["replicas"] == 1


def test_faults_reach_kubectl(world: KubeWorld) -> None:
    world.fault("error", "GET pods/")
    failed = world.kubectl("get", "pods", code=1)
    assert b"fault on demand" in failed.stderr
    world.fault("error", "POST pods/worker-0/exec")
    world.fault("error", "GET pods/worker-0/exec")
    world.kubectl("exec", "worker-0", "--", "true", code=1)
    assert world.runner.processes == []


def test_hang_on_demand(world: KubeWorld) -> None:
    world.fault("hang", "GET nodes/*", count=None)
    where, context = world.server.url.rpartition("/")[2], ssl.create_default_context(cafile=str(world.server.ca_file))
    with closing(http.client.HTTPSConnection(where, timeout=PATIENCE, context=context)) as connection:
        connection.connect()
        # Only the answer is waited for so briefly, and not the connection.
        connection.sock.settimeout(0.3)
        connection.request("GET", "/api/v1/nodes", headers={"Authorization": f"Bearer {TOKEN}"})
        with pytest.raises(TimeoutError):
            connection.getresponse()
    world.kubectl("get", "nodes", "--request-timeout=1s", code=1)
    assert ask(world, NODE_SET).code == 200
    world.call(world.faults.clear)
    assert ask(world, "/api/v1/nodes").code == 200


# Coming and going


def test_the_end_comes_at_once(world: KubeWorld) -> None:
    world.fault("hang", "GET nodes/*")

    def try_nodes() -> None:
        with pytest.raises(OSError):  # noqa: PT011 - how a connection breaks is not the point
            ask(world, "/api/v1/nodes", timeout=PATIENCE)

    hung = threading.Thread(target=try_nodes)
    watched: list[Answer] = []
    watch = threading.Thread(target=lambda: watched.append(ask(world, NODE_SET + "?watch=1", timeout=PATIENCE)))
    hung.start()
    watch.start()
    with world.kubectl_running("exec", "worker-0", "--", "sleep", "1000") as kubectl:
        eventually(lambda: world.runner.processes and world.server_watches())
        eventually(lambda: not world.faults.describe())
        world.run(world.server.close())
        assert kubectl.wait(PATIENCE) != 0
    # Each would wait for longer by itself.
    for one in (hung, watch):
        one.join(PATIENCE)
        assert not one.is_alive()
    # The watch has ended well, not broken off.
    assert watched[0].code == 200
    eventually(lambda: world.runner.processes[0].returncode is not None)


def test_a_restart_goes_on_where_it_was(world: KubeWorld, tmp_path: Path) -> None:
    dumped = json.loads(json.dumps(world.call(world.store.dump)))
    with kube_world(tmp_path / "again", world.certificates) as again:
        again.call(again.store.load, dumped)
        assert again.get("nodeset", "worker") == world.get("nodeset", "worker")
        assert again.text("get", "nodesets", "-o", "name") == "nodeset.slurm.nebius.ai/worker\n"


# Server-side apply


def apply_nodeset(world: KubeWorld, body: Any, query: str) -> Answer:
    content_type = "application/apply-patch+yaml"
    return ask(world, f"{NODE_SET}/gpu?{query}", "PATCH", body, content_type=content_type)


def test_apply_creates_changes_and_refuses(world: KubeWorld) -> None:
    spec = {"replicas": 1, **NODE_SET_PARTS}
    body = {"apiVersion": "slurm.nebius.ai/v1alpha1", "kind": "NodeSet", "metadata": {"name": "gpu"}, "spec": spec}
    assert apply_nodeset(world, body, "fieldManager=a&dryRun=All").code == 201
    assert ask(world, NODE_SET + "/gpu").code == 404
    made = apply_nodeset(world, body, "fieldManager=a")
    assert (made.code, made.json["metadata"]["managedFields"][0]["operation"]) == (201, "Apply")
    yaml = b"apiVersion: slurm.nebius.ai/v1alpha1\nkind: NodeSet\nmetadata: {name: gpu}\nspec: {replicas: 2}\n"
    refused = apply_nodeset(world, yaml, "fieldManager=b")
    assert (refused.code, refused.json["details"]["causes"][0]["field"]) == (409, ".spec.replicas")
    assert apply_nodeset(world, yaml, "fieldManager=b&force=true").json["spec"]["replicas"] == 2
    # Who no longer names a field that nobody else has, would leave the object without what it must have.
    assert apply_nodeset(world, yaml, "fieldManager=a").code == 422


@pytest.mark.parametrize("query", ["fieldManager=a", "fieldManager=a&fieldValidation=Strict"])
@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"slurmd": {"x": 1}}, ".spec.slurmd.x: field not declared in schema"),
        (
            {"x": 1, "y": 2},
            "errors:\n  .spec.x: field not declared in schema\n  .spec.y: field not declared in schema",
        ),
    ],
)
def test_fields_that_are_not_there_cannot_be_applied(world: KubeWorld, query: str, spec: Any, said: str) -> None:
    metadata = {"name": "gpu", "namespace": NAMESPACE}
    body = {"apiVersion": "slurm.nebius.ai/v1alpha1", "kind": "NodeSet", "metadata": metadata, "spec": spec}
    refused = apply_nodeset(world, body, query)
    what = f"{NAMESPACE}/gpu; slurm.nebius.ai/v1alpha1, Kind=NodeSet"
    assert refused.code == 500
    assert refused.json["message"] == f"failed to create typed patch object ({what}): {said}"


@pytest.mark.parametrize(
    ("query", "name", "code"), [("", "gpu", 422), ("fieldManager=a", "other", 400), ("fieldManager=a", "gpu", 422)]
)
def test_applies_that_are_wrong(world: KubeWorld, query: str, name: str, code: int) -> None:
    body = {"apiVersion": "slurm.nebius.ai/v1alpha1", "kind": "NodeSet", "metadata": {"name": name}, "spec": {}}
    assert apply_nodeset(world, body, query).code == code
