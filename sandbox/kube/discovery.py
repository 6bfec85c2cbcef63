"""What the double says it can do: versions, groups and resources, as clients discover them."""

from __future__ import annotations

from sandbox.kube.kinds import Kind, Kinds
from sandbox.kube.objects import Object

#: Says what it is wherever a client shows the version of its server.
GIT_VERSION = "v1.32.0+sandbox"

_VERBS = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]
_CHANGE_VERBS = ["get", "patch", "update"]


def version() -> Object:
    return {
        "major": "1",
        "minor": "32",
        "gitVersion": GIT_VERSION,
        "gitCommit": "",
        "gitTreeState": "sandbox-double",
        "buildDate": "2025-01-01T00:00:00Z",
        "goVersion": "none",
        "compiler": "none",
        "platform": "linux/amd64",
    }


def core_versions(host: str) -> Object:
    servers = [{"clientCIDR": "0.0.0.0/0", "serverAddress": host}]
    return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": servers}


def groups(kinds: Kinds) -> Object:
    listed = [_group(name, versions) for name, versions in kinds.groups().items() if name]
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": listed}


def group(kinds: Kinds, name: str) -> Object | None:
    versions = kinds.groups().get(name)
    return {"kind": "APIGroup", "apiVersion": "v1", **_group(name, versions)} if versions else None


def _group(name: str, versions: list[str]) -> Object:
    entries = [{"groupVersion": f"{name}/{version}", "version": version} for version in versions]
    return {"name": name, "versions": entries, "preferredVersion": entries[0]}


def resources(kinds: Kinds, group: str, version: str) -> Object | None:
    """The resources of one group and version, subresources included."""
    found = [entry for kind in kinds if kind.group == group and version in kind.versions for entry in _entries(kind)]
    if not found:
        return None
    group_version = f"{group}/{version}" if group else version
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": found}


def _entries(kind: Kind) -> list[Object]:
    common = {"singularName": "", "namespaced": kind.namespaced, "kind": kind.kind}
    entries: list[Object] = [
        {
            **common,
            "name": kind.plural,
            "singularName": kind.singular,
            "verbs": _VERBS,
            "shortNames": list(kind.short_names),
            "categories": list(kind.categories),
        }
    ]
    if kind.has_status:
        entries.append({**common, "name": f"{kind.plural}/status", "verbs": _CHANGE_VERBS})
    if kind.scale:
        scale = {"kind": "Scale", "group": "autoscaling", "version": "v1", "verbs": _CHANGE_VERBS}
        entries.append({**common, "name": f"{kind.plural}/scale", **scale})
    for name, verbs in kind.others.items():
        shown = {"exec": "PodExecOptions"}.get(name, kind.kind)
        entries.append({**common, "name": f"{kind.plural}/{name}", "kind": shown, "verbs": list(verbs)})
    return entries
