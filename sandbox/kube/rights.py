"""What a user may do: Roles and ClusterRoles through their bindings, in the words of the API server.

Aggregation of ClusterRoles is left out, and the built-in ones but ``cluster-admin``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from sandbox.kube import errors
from sandbox.kube.chart_kinds import CLUSTER_ROLE, CLUSTER_ROLE_BINDING, RBAC, ROLE, ROLE_BINDING
from sandbox.kube.kinds import Kind
from sandbox.kube.objects import Object, dig
from sandbox.kube.requests import Target, is_true
from sandbox.kube.store import ObjectStore

REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
_ADMIN = [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]


@dataclass(frozen=True)
class User:
    """Who asks. ``power`` is all, to read, or what roles give."""

    name: str
    groups: tuple[str, ...] = ("system:authenticated",)
    power: str = "roles"


@dataclass(frozen=True)
class Attributes:
    """What is asked for, as roles speak of it; ``resource`` has the subresource after a slash."""

    verb: str
    group: str
    resource: str
    namespace: str
    name: str = ""


def attributes(request: web.Request, target: Target) -> Attributes:
    kind, name, namespace = target.kind, target.name, target.namespace
    if request.method in ("GET", "HEAD"):
        verb = "get" if name else "watch" if is_true(request, "watch") else "list"
    else:
        verb = _VERBS[request.method]
        verb = "deletecollection" if verb == "delete" and not name else verb
    if not name and verb != "create":
        # A list of one object by its name is a question for that object.
        field, _, wanted = request.query.get("fieldSelector", "").partition("=")
        name = wanted.lstrip("=") if field == "metadata.name" and "," not in wanted else ""
    if kind.plural == "namespaces":
        namespace = target.name
    resource = f"{kind.plural}/{target.subresource}" if target.subresource else kind.plural
    return Attributes(verb, kind.group, resource, namespace, name)


class Rights:
    """The roles and bindings of a store."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def demand(self, user: User, wanted: Attributes) -> None:
        """Refuse what the user may not do."""
        missing: list[str] = []
        if not self.has(user, wanted, missing):
            raise errors.forbidden(user.name, wanted, missing)

    def has(self, user: User, wanted: Attributes, missing: list[str] | None = None) -> bool:
        """Whether a rule allows it; adds the roles that are bound and not there."""
        if user.power == "all":
            return True
        if user.power == "reads":
            return wanted.verb in ("get", "list", "watch") and wanted.resource != "pods/exec"
        return any(_allows(rule, wanted) for rule in self._rules(user, wanted.namespace, missing))

    def review(self, user: User, body: Object) -> Object:
        """The answer to a SelfSubjectAccessReview."""
        asked = dig(body, "spec.resourceAttributes")
        # What is no resource is here for everybody who has come in.
        allowed, missing = asked is None, list[str]()
        if asked is not None:
            resource = asked.get("resource", "*")
            if asked.get("subresource"):
                resource += f"/{asked['subresource']}"
            words = {key: asked.get(key, "") for key in ("verb", "group", "namespace", "name")}
            allowed = self.has(user, Attributes(resource=resource, **words), missing)
        status: dict[str, Any] = {"allowed": allowed}
        if missing:
            status["reason"] = f"RBAC: {errors.joined(missing)}"
        return {
            "kind": "SelfSubjectAccessReview",
            "apiVersion": "authorization.k8s.io/v1",
            "metadata": {},
            "spec": body.get("spec") or {},
            "status": status,
        }

    def _rules(self, user: User, namespace: str, missing: list[str] | None) -> Iterator[Object]:
        bindings = [(one, "") for one in self._store.list(CLUSTER_ROLE_BINDING)]
        if namespace:
            bindings += [(one, namespace) for one in self._store.list(ROLE_BINDING, namespace)]
        for binding, where in bindings:
            if any(_is_meant(subject, user, where) for subject in binding.get("subjects") or []):
                yield from self._rules_of(binding["roleRef"], where, missing)

    def _rules_of(self, reference: Object, namespace: str, missing: list[str] | None) -> list[Object]:
        kind: Kind = CLUSTER_ROLE if reference["kind"] == "ClusterRole" else ROLE
        name = str(reference["name"])
        found = self._store.list(kind, namespace if kind.namespaced else None, fields=f"metadata.name={name}")
        if not found and (kind, name) == (CLUSTER_ROLE, "cluster-admin"):
            return _ADMIN
        if not found and missing is not None:
            missing.append(f'{kind.kind.lower()}.{RBAC} "{name}" not found')
        return list(found[0].get("rules") or []) if found else []


def _is_meant(subject: Object, user: User, namespace: str) -> bool:
    kind, name = subject.get("kind"), subject.get("name")
    if kind == "ServiceAccount":
        return user.name == f"system:serviceaccount:{subject.get('namespace') or namespace}:{name}"
    return name in user.groups if kind == "Group" else kind == "User" and name == user.name


def _allows(rule: Object, wanted: Attributes) -> bool:
    named = rule.get("resourceNames") or []
    _, _, subresource = wanted.resource.partition("/")
    resources = {"*", wanted.resource} | ({f"*/{subresource}"} if subresource else set())
    return (
        not {"*", wanted.verb}.isdisjoint(rule.get("verbs") or [])
        and not {"*", wanted.group}.isdisjoint(rule.get("apiGroups") or [])
        and not resources.isdisjoint(rule.get("resources") or [])
        and (not named or wanted.name in named)
    )
