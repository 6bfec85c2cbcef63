"""The scale subresource: one shape for the replicas of every kind that has some."""

from __future__ import annotations

from sandbox.kube.errors import bad_request
from sandbox.kube.kinds import Kind, ScalePaths
from sandbox.kube.objects import Object, clone, dig, put
from sandbox.kube.selectors import selector_text


def scale_of(kind: Kind, thing: Object) -> Object:
    """The autoscaling/v1 Scale of an object."""
    paths = kind.scale or ScalePaths()
    metadata = thing["metadata"]
    shown = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {key: metadata[key] for key in shown if key in metadata},
        "spec": {"replicas": dig(thing, paths.replicas) or 0},
        "status": {
            "replicas": dig(thing, paths.status) or 0,
            "selector": selector_text(dig(thing, paths.selector)),
        },
    }


def with_scale(kind: Kind, thing: Object, scale: Object) -> Object:
    """The object as a changed Scale of it wants it; a stale resourceVersion in the Scale is passed on."""
    if scale.get("kind") not in (None, "", "Scale"):
        raise bad_request(f"expected a Scale, got {scale.get('kind')}")
    result: Object = clone(thing)
    replicas = dig(scale, "spec.replicas")
    put(result, (kind.scale or ScalePaths()).replicas, 0 if replicas is None else replicas)
    if version := dig(scale, "metadata.resourceVersion"):
        result["metadata"]["resourceVersion"] = version
    return result
