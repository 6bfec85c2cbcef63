"""Flux's helm-controller: HelmReleases, the values that they are given, and what it installs of their charts.

As in 1.6 of helm-controller (Flux 2.9): resources are applied by the server, and fields of others taken over; but only
when the chart or the values have changed. What has been changed by hand until then is at most reported.
"""

from __future__ import annotations

import hashlib
import json
import time
from base64 import b64decode
from collections.abc import Callable, Iterator
from typing import Any

import yaml

from sandbox.cloud.charts import FLUX_NAMESPACE, RenderError, installation, merged, render
from sandbox.cloud.conditions import condition, timestamp, with_conditions
from sandbox.cloud.events import Recorder
from sandbox.cloud.helm import KEPT, Helm, name_of, target_of
from sandbox.kube.catalogue import HELM_RELEASE
from sandbox.kube.errors import ApiError
from sandbox.kube.managers import Manager
from sandbox.kube.objects import Object, dig
from sandbox.kube.store import ObjectStore
from sandbox.settings import Settings

REQUESTED, FORCED = "reconcile.fluxcd.io/requestedAt", "reconcile.fluxcd.io/forceAt"
WATCHED = "reconcile.fluxcd.io/watch"
_FINALIZER = "finalizers.fluxcd.io"
#: Looks at all releases that an installation takes at most: each waits for others.
_ROUNDS = 50


class ValuesError(Exception):
    """Values that a HelmRelease refers to, and that are not there."""


class FluxController:
    """Reconciles each HelmRelease when it changes, when it is asked to, and at its interval."""

    def __init__(
        self, store: ObjectStore, events: Recorder, settings: Settings, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._store, self._events, self._settings, self._now = store, events, settings, now
        self._helm = Helm(store)
        #: What had led to the last look at each HelmRelease, and when that was.
        self._looked: dict[str, tuple[Any, float]] = {}

    def install(self) -> None:
        """What the recipe installs, up to the end."""
        self._store.create("namespaces", {"metadata": {"name": FLUX_NAMESPACE}})
        for thing in installation(self._settings):
            values = (thing.get("data") or {}).get("values.yaml")
            if values is not None:
                thing["data"]["values.yaml"] = yaml.safe_dump(values) if values else ""
            self._helm.apply(thing, FLUX_NAMESPACE, Manager("helm", "Update", thing["apiVersion"]))
        for _ in range(_ROUNDS):
            self.sync()
            if all(map(_is_ready, self._releases())):
                return
        raise RuntimeError("Flux could not install Soperator")

    def sync(self) -> None:
        for release in self._releases():
            metadata = release["metadata"]
            if "deletionTimestamp" in metadata:
                self._uninstall(release)
            elif release["spec"].get("suspend"):
                self._looked.pop(metadata["name"], None)
            elif self._is_due(release):
                self._reconcile(release)

    def _releases(self) -> list[Object]:
        return self._store.list(HELM_RELEASE, FLUX_NAMESPACE)

    def _is_due(self, release: Object) -> bool:
        metadata = release["metadata"]
        led = [metadata["generation"], (metadata.get("annotations") or {}).get(REQUESTED), [*self._watched(release)]]
        before, ready = self._looked.get(metadata["name"]), dig(release, "status.conditions[Ready]") or {}
        if before and before[0] == led and self._now() - before[1] < self._settings.flux_interval:
            # What is under way, or waits for something, is looked at again.
            return not _is_ready(release) and not str(ready.get("reason")).endswith("Failed")
        self._looked[metadata["name"]] = (led, self._now())
        return True

    def _watched(self, release: Object) -> Iterator[str]:
        """The versions of what its values come from, if it has the label; others are looked at when it is time."""
        for source in release["spec"].get("valuesFrom") or []:
            for found in self._store.list(source["kind"], FLUX_NAMESPACE, fields=f"metadata.name={source['name']}"):
                if (found["metadata"].get("labels") or {}).get(WATCHED) == "Enabled":
                    yield str(found["metadata"]["resourceVersion"])

    def _reconcile(self, release: Object) -> None:
        metadata, status = release["metadata"], release.get("status") or {}
        if _FINALIZER not in (metadata.get("finalizers") or []):
            patch = {"metadata": {"finalizers": [*(metadata.get("finalizers") or []), _FINALIZER]}}
            self._store.patch(HELM_RELEASE, metadata["name"], patch, FLUX_NAMESPACE)
        if missing := self._missing(release):
            said = f"dependency '{FLUX_NAMESPACE}/{missing}' is not ready"
            self._write(release, with_conditions(status, condition("Ready", False, "DependencyNotReady", said)))
            return
        try:
            values = self._values(release)
        except ValuesError as error:
            self._events.tell(release, "ValuesError", str(error), warning=True)
            self._write(release, with_conditions(status, condition("Ready", False, "ValuesError", str(error))))
            return
        chart, digest = release["spec"]["chart"]["spec"], _digest(values)
        annotations = metadata.get("annotations") or {}
        last: Object = next(iter(status.get("history") or []), {})
        wanted = (chart["chart"], chart["version"], digest)
        in_sync = (last.get("chartName"), last.get("chartVersion"), last.get("configDigest")) == wanted
        asked = annotations.get(REQUESTED)
        is_forced = bool(asked and annotations.get(FORCED) == asked and status.get("lastHandledForceAt") != asked)
        if in_sync and not is_forced:
            self._report_sync(release, status)
            return
        action = "upgrade" if last else "install"
        if dig(status, "conditions[Reconciling].status") != "True":
            said = f"Running '{action}' action with timeout of 5m0s"
            progressing = [condition(type_, truth, "Progressing", said) for type_, truth in _PROGRESS]
            self._write(release, with_conditions(status, *progressing))
            return
        self._release(release, values, action, is_forced)

    def _missing(self, release: Object) -> str:
        ready = {one["metadata"]["name"] for one in self._releases() if _is_ready(one)}
        return next((one["name"] for one in release["spec"].get("dependsOn") or [] if one["name"] not in ready), "")

    def _values(self, release: Object) -> Object:
        """Those it refers to, each over the ones before it, and over all of them those that stand in it."""
        values: Object = {}
        for source in release["spec"].get("valuesFrom") or []:
            key, name = source.get("valuesKey", "values.yaml"), source["name"]
            found = self._store.list(source["kind"], FLUX_NAMESPACE, fields=f"metadata.name={name}")
            text = ((found[0].get("data") or {}) if found else {}).get(key)
            if text is None:
                if source.get("optional") and not found:
                    continue
                why = f"missing key '{key}'" if found else f'{source["kind"].lower()}s "{name}" not found'
                what = f"{source['kind']} chart values reference '{FLUX_NAMESPACE}/{name}' with key '{key}'"
                raise ValuesError(f"could not resolve {what}: {why}")
            text = b64decode(text).decode() if source["kind"] == "Secret" else text
            try:
                values = merged(values, yaml.safe_load(text) or {})
            except yaml.YAMLError as error:
                raise ValuesError(f"unable to read values from key '{key}': {error}") from None
        found_values: Object = merged(values, release["spec"].get("values") or {})
        return found_values

    def _release(self, release: Object, values: Object, action: str, is_forced: bool) -> None:
        status, chart = release.get("status") or {}, release["spec"]["chart"]["spec"]
        of = f"{target_of(release)}/{name_of(release)}"
        called = f"{chart['chart']}@{chart['version']}"
        try:
            things = render(chart["chart"], chart["version"], values, self._settings)
            number = self._helm.release(release, values, things)
        except (RenderError, ApiError) as error:
            said = f"Helm {action} failed for release {of} with chart {called}: {error}"
            self._events.tell(release, f"{action.title()}Failed", said, warning=True)
            failed = [condition(type_, False, f"{action.title()}Failed", said) for type_ in ("Released", "Ready")]
            self._write(release, with_conditions(status, *failed))
            return
        said = f"Helm {action} succeeded for release {of}.v{number} with chart {called}"
        self._events.tell(release, f"{action.title()}Succeeded", said)
        snapshot = {
            **{"name": name_of(release), "namespace": target_of(release), "version": number, "status": "deployed"},
            **{"action": action, "chartName": chart["chart"], "chartVersion": chart["version"]},
            **{"configDigest": _digest(values), "lastDeployed": timestamp()},
        }
        older = [{**one, "status": "superseded"} for one in status.get("history") or []]
        status = {**status, "history": [snapshot, *older][:KEPT], "storageNamespace": FLUX_NAMESPACE}
        status["lastAttemptedReleaseAction"] = action
        if is_forced:
            status["lastHandledForceAt"] = release["metadata"]["annotations"][REQUESTED]
        done = [condition(type_, True, f"{action.title()}Succeeded", said) for type_ in ("Released", "Ready")]
        self._finish(release, with_conditions(status, *done))

    def _report_sync(self, release: Object, status: Object) -> None:
        if dig(release, "spec.driftDetection.mode") in ("warn", "enabled"):
            status = with_conditions(status, self._drift(release, status["history"][0]))
        released = dig(status, "conditions[Released]") or {}
        ready = condition("Ready", True, str(released.get("reason")), str(released.get("message")))
        self._finish(release, with_conditions(status, ready))

    def _drift(self, release: Object, last: Object) -> Object:
        """What has been changed by hand is told, and left as it is."""
        if changed := self._helm.drifted(release):
            of = f"{last['namespace']}/{last['name']}.v{last['version']}"
            listed = "\n".join(f"{one} changed" for one in changed)
            said = f"Cluster state of release {of} has drifted from the desired state:\n{listed}"
            self._events.tell(release, "DriftDetected", said, warning=True)
            return condition("Drifted", True, "DriftDetected", said)
        return condition("Drifted", False, "NoDriftDetected", "No drift detected against the cluster state")

    def _finish(self, release: Object, status: Object) -> None:
        metadata = release["metadata"]
        status = {**status, "observedGeneration": metadata["generation"]}
        status["conditions"] = [one for one in status["conditions"] if one["type"] != "Reconciling"]
        if asked := (metadata.get("annotations") or {}).get(REQUESTED):
            status["lastHandledReconcileAt"] = asked
        self._write(release, status)

    def _uninstall(self, release: Object) -> None:
        metadata = release["metadata"]
        self._helm.uninstall(release)
        left = [one for one in metadata.get("finalizers") or [] if one != _FINALIZER]
        self._looked.pop(metadata["name"], None)
        self._store.patch(HELM_RELEASE, metadata["name"], {"metadata": {"finalizers": left}}, FLUX_NAMESPACE)

    def _write(self, release: Object, status: Object) -> None:
        if status != release.get("status"):
            name = release["metadata"]["name"]
            self._store.patch(HELM_RELEASE, name, lambda old: {**old, "status": status}, FLUX_NAMESPACE, part="status")


_PROGRESS: tuple[tuple[str, bool | None], ...] = (("Reconciling", True), ("Ready", None))


def _is_ready(release: Object) -> bool:
    """For those who wait for it: of the specification that it has now."""
    status = release.get("status") or {}
    observed = status.get("observedGeneration") == release["metadata"]["generation"]
    return observed and str(dig(status, "conditions[Ready].status")) == "True"


def _digest(values: Object) -> str:
    return "sha256:" + hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
