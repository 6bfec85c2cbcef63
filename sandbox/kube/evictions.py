"""The eviction of Pods, as far as PodDisruptionBudgets allow it: pkg/registry/core/pod/storage/eviction.go."""

from __future__ import annotations

from aiohttp import web

from sandbox.kube import errors
from sandbox.kube.objects import Object, clone, dig, timestamp
from sandbox.kube.requests import Target, is_dry_run, read_object
from sandbox.kube.selectors import label_selector, selector_text
from sandbox.kube.store import ObjectStore

_SUCCESS: Object = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}
_VIOLATES = "Cannot evict pod as it would violate the pod's disruption budget."
_TWO_BUDGETS = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."


async def evict(store: ObjectStore, request: web.Request, target: Target) -> Object:
    """Delete a Pod unless its budget is against it; the Status to answer with, which may be one of a failure."""
    if request.method != "POST":
        raise errors.method_not_allowed()
    body = await read_object(request)
    if dig(body, "metadata.name") != target.name:
        raise errors.bad_request("name in URL does not match name in Eviction object")
    options = body.get("deleteOptions") or {}
    dry_run = is_dry_run(request, options)
    pod = store.get("pods", target.name, target.namespace)
    if not _is_free_to_go(pod):
        budgets = [one for one in store.list("poddisruptionbudgets", target.namespace) if covers(one, pod)]
        if len(budgets) > 1:
            return {**_SUCCESS, "status": "Failure", "message": _TWO_BUDGETS, "code": 500}
        for budget in budgets:
            _take_from(store, budget, pod, dry_run)
    uid = dig(options, "preconditions.uid") or ""
    grace = options.get("gracePeriodSeconds")
    store.delete("pods", target.name, target.namespace, uid=uid, grace=grace, dry_run=dry_run)
    return _SUCCESS


def covers(budget: Object, pod: Object) -> bool:
    """An empty selector is one of no Pod."""
    selector = selector_text(dig(budget, "spec.selector"))
    return bool(selector) and label_selector(selector)(pod)


def is_ready(pod: Object) -> bool:
    return str(dig(pod, "status.conditions[Ready].status")) == "True"


def _is_free_to_go(pod: Object) -> bool:
    phase = dig(pod, "status.phase")
    return phase in ("Succeeded", "Failed", "Pending") or "deletionTimestamp" in pod["metadata"]


def _take_from(store: ObjectStore, budget: Object, pod: Object, dry_run: bool) -> None:
    """Count the disruption against the budget, or refuse it."""
    name, status = budget["metadata"]["name"], clone(budget.get("status") or {})
    healthy, desired = status.get("currentHealthy", 0), status.get("desiredHealthy", 0)
    if not is_ready(pod) and healthy >= desired > 0:
        return
    if status.get("observedGeneration", 0) < budget["metadata"]["generation"]:
        said = f"The disruption budget {name} is still being processed by the server."
        raise errors.too_many_requests(_VIOLATES, 10, {"reason": "DisruptionBudget", "message": said})
    if status.get("disruptionsAllowed", 0) <= 0:
        said = f"The disruption budget {name} needs {desired} healthy pods and has {healthy} currently"
        raise errors.too_many_requests(_VIOLATES, 0, {"reason": "DisruptionBudget", "message": said})
    status["disruptionsAllowed"] -= 1
    status.setdefault("disruptedPods", {})[pod["metadata"]["name"]] = timestamp(store.now())
    if not dry_run:
        change = {"status": status}
        store.patch("poddisruptionbudgets", name, change, budget["metadata"]["namespace"], part="status")
