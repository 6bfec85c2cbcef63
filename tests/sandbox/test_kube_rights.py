"""ServiceAccounts with tokens of their own: what roles let them do, and what they are told otherwise."""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from sandbox.kube.objects import Object
from sandbox.kube.patch import APPLY, MERGE
from tests.sandbox.kube_world import NAMESPACE, NODE_SET_PARTS, KubeWorld, kube_world
from tests.sandbox.test_kube_server import Answer, ask

USER = "system:serviceaccount:soperator:airflow"
CORE, BATCH = f"/api/v1/namespaces/{NAMESPACE}", f"/apis/batch/v1/namespaces/{NAMESPACE}"
NODE_SETS = f"/apis/slurm.nebius.ai/v1alpha1/namespaces/{NAMESPACE}/nodesets"
REVIEW = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
SLURM = "slurm.nebius.ai"


class Airflow:
    """An account without any rights but those that a test gives it."""

    def __init__(self, world: KubeWorld) -> None:
        self.world = world
        world.kubectl("create", "serviceaccount", "airflow")
        self.token = world.text("create", "token", "airflow").strip()

    def __call__(self, path: str, method: str = "GET", body: Any = None, **options: Any) -> Answer:
        return ask(self.world, path, method, body, token=self.token, **options)

    def told(self, *request: Any, **options: Any) -> str:
        """What a refusal says."""
        answer = self(*request, **options)
        assert answer.code == 403, answer.body
        assert answer.json["reason"] == "Forbidden"
        return str(answer.json["message"])

    def may(self, *rules: Object, cluster: bool = False, bound: str = "") -> None:
        """A Role, or a ClusterRole that is bound for the namespace or, with ``bound``, for all."""
        role = {"kind": "ClusterRole" if cluster else "Role", "name": "airflow"}
        binding = {
            "metadata": {"name": "airflow"},
            "subjects": [{"kind": "ServiceAccount", "name": "airflow", "namespace": NAMESPACE}],
            "roleRef": {**role, "apiGroup": "rbac.authorization.k8s.io"},
        }
        create = self.world.store.create
        self.world.call(create, role["kind"], {"metadata": {"name": "airflow"}, "rules": [*rules]}, NAMESPACE)
        self.world.call(create, bound or "RoleBinding", binding, NAMESPACE)


def rule(group: str, resources: str, verbs: str, *names: str) -> Object:
    made: Object = {"apiGroups": [group], "resources": resources.split(), "verbs": verbs.split()}
    return made | ({"resourceNames": list(names)} if names else {})


@pytest.fixture
def world(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubeWorld]:
    with kube_world(tmp_path, tmp_path_factory.getbasetemp() / "kube-certificates") as made:
        yield made


@pytest.fixture
def airflow(world: KubeWorld) -> Airflow:
    return Airflow(world)


def test_without_a_role_nothing_is_allowed(airflow: Airflow) -> None:
    where = 'in API group "slurm.nebius.ai" in the namespace "soperator"'
    assert (
        airflow.told(f"{NODE_SETS}/worker")
        == f'nodesets.slurm.nebius.ai "worker" is forbidden: User "{USER}" cannot get resource "nodesets" {where}'
    )
    assert (
        airflow.told(NODE_SETS)
        == f'nodesets.slurm.nebius.ai is forbidden: User "{USER}" cannot list resource "nodesets" {where}'
    )
    assert airflow.told("/api/v1/nodes").endswith('cannot list resource "nodes" in API group "" at the cluster scope')
    # What there is may be seen by everybody who has come in.
    assert airflow("/apis/slurm.nebius.ai/v1alpha1").code == 200
    assert ask(airflow.world, NODE_SETS).code == 200


def test_a_role_is_for_its_verbs_resources_names_and_namespace(airflow: Airflow) -> None:
    airflow.may(rule(SLURM, "nodesets nodesets/scale", "get list", "worker"), rule("", "pods", "list"))
    assert airflow(f"{NODE_SETS}/worker").code == 200
    assert airflow(f"{NODE_SETS}/other").code == 403
    assert airflow(f"{NODE_SETS}/worker/scale").code == 200
    assert airflow(NODE_SETS).code == 403
    # A list of the one object by its name is a question for it.
    assert airflow(f"{NODE_SETS}?fieldSelector=metadata.name%3Dworker").code == 200
    assert "cannot watch resource" in airflow.told(f"{CORE}/pods?watch=true")
    scaled = {"spec": {"replicas": 1}}
    said = airflow.told(f"{NODE_SETS}/worker/scale", "PATCH", scaled, content_type=MERGE)
    assert said.startswith(
        f'nodesets.slurm.nebius.ai "worker" is forbidden: User "{USER}" cannot patch resource "nodesets/scale"'
    )
    assert airflow(f"{CORE}/pods").code == 200
    assert airflow("/api/v1/pods").code == 403
    assert airflow("/api/v1/namespaces/default/pods").code == 403


def test_subresources_of_pods_are_rights_of_their_own(airflow: Airflow) -> None:
    airflow.may(rule("", "pods */log", "get create"))
    assert airflow(f"{CORE}/pods/worker-0/log").code == 200
    assert 'cannot get resource "pods/exec"' in airflow.told(f"{CORE}/pods/worker-0/exec?command=ls")
    eviction = {"metadata": {"name": "worker-0"}}
    assert 'cannot create resource "pods/eviction"' in airflow.told(f"{CORE}/pods/worker-0/eviction", "POST", eviction)
    assert 'cannot deletecollection resource "pods"' in airflow.told(f"{CORE}/pods", "DELETE")


@pytest.mark.parametrize(("bound", "elsewhere", "nodes"), [("RoleBinding", 403, 403), ("ClusterRoleBinding", 200, 200)])
def test_a_cluster_role_counts_where_it_is_bound(airflow: Airflow, bound: str, elsewhere: int, nodes: int) -> None:
    airflow.may(rule("*", "*", "get list"), cluster=True, bound=bound)
    assert airflow(f"{CORE}/pods").code == 200
    assert airflow("/api/v1/namespaces/default/pods").code == elsewhere
    assert airflow("/api/v1/nodes").code == nodes
    assert airflow(f"/api/v1/namespaces/{NAMESPACE}").code == 200
    assert airflow(f"{NODE_SETS}/worker", "DELETE").code == 403


def test_an_apply_that_makes_an_object_needs_create(airflow: Airflow) -> None:
    airflow.may(rule(SLURM, "nodesets", "patch"))
    body = {"apiVersion": "slurm.nebius.ai/v1alpha1", "kind": "NodeSet", "spec": {"replicas": 1, **NODE_SET_PARTS}}
    how = {"content_type": APPLY}
    new, old = f"{NODE_SETS}/new?fieldManager=airflow", f"{NODE_SETS}/worker?fieldManager=airflow&force=true"
    assert 'cannot create resource "nodesets"' in airflow.told(new, "PATCH", body, **how)
    assert airflow(old, "PATCH", {**body, "metadata": {"name": "worker"}}, **how).code == 200


def test_a_role_that_is_not_there_is_named(airflow: Airflow) -> None:
    airflow.may()
    airflow.world.call(airflow.world.store.delete, "roles", "airflow", NAMESPACE)
    said = airflow.told(f"{CORE}/pods")
    assert said.endswith(': RBAC: role.rbac.authorization.k8s.io "airflow" not found')


def test_groups_of_accounts_and_cluster_admin(airflow: Airflow) -> None:
    world = airflow.world
    world.kubectl("create", "rolebinding", "all", "--clusterrole=cluster-admin", "--group=system:serviceaccounts:other")
    assert airflow(f"{CORE}/pods").code == 403
    world.kubectl(
        "create", "rolebinding", "mine", "--clusterrole=cluster-admin", f"--group=system:serviceaccounts:{NAMESPACE}"
    )
    assert airflow(f"{CORE}/pods/worker-0", "DELETE").code == 200
    assert airflow("/api/v1/nodes").code == 403


def test_what_one_may_do_can_be_asked(airflow: Airflow) -> None:
    airflow.may(rule(SLURM, "nodesets/scale", "patch"))

    def can(verb: str, resource: str, subresource: str = "") -> bool:
        asked = {"namespace": NAMESPACE, "verb": verb, "group": SLURM, "resource": resource}
        spec = {"resourceAttributes": {**asked, "subresource": subresource}}
        answer = airflow(REVIEW, "POST", {"spec": spec})
        assert answer.code == 201
        return bool(answer.json["status"]["allowed"])

    assert can("patch", "nodesets", "scale")
    assert not can("patch", "nodesets")
    assert airflow.world.text("auth", "can-i", "delete", "nodesets").strip() == "yes"


def test_tokens_end_with_their_time_and_their_account(airflow: Airflow) -> None:
    world = airflow.world
    short = world.kubectl("create", "token", "airflow", "--duration=1m", code=1)
    assert b"may not specify a duration less than 10 minutes" in short.stderr
    assert airflow("/api/v1").code == 200
    world.store.now = lambda: datetime.now(timezone.utc) + timedelta(minutes=61)
    assert airflow("/api/v1").code == 401
    world.store.now = lambda: datetime.now(timezone.utc)
    # One of the same name is another account.
    world.kubectl("delete", "serviceaccount", "airflow")
    world.kubectl("create", "serviceaccount", "airflow")
    assert airflow("/api/v1").code == 401


def test_a_secret_holds_a_token_without_an_end(airflow: Airflow) -> None:
    world = airflow.world
    wanted = {
        "metadata": {"name": "airflow-token", "annotations": {"kubernetes.io/service-account.name": "airflow"}},
        "type": "kubernetes.io/service-account-token",
    }
    world.kubectl("create", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "Secret", **wanted}))
    data = {key: b64decode(value).decode() for key, value in world.get("secret", "airflow-token")["data"].items()}
    assert data["namespace"] == NAMESPACE
    assert data["ca.crt"].startswith("-----BEGIN CERTIFICATE-----")
    airflow.token = data["token"]
    world.store.now = lambda: datetime.now(timezone.utc) + timedelta(days=3650)
    assert airflow("/api/v1").code == 200
    world.kubectl("delete", "secret", "airflow-token")
    assert airflow("/api/v1").code == 401
