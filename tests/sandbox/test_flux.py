"""Flux: whose values win, when they are looked at, and how long lasts what is changed by hand."""

from __future__ import annotations

import gzip
import json
import re
from base64 import b64decode
from typing import Any

import pytest
import yaml

from airflow_provider_soperator.soperator.clusters import keeper_of
from sandbox.cloud import landscape
from sandbox.cloud.events import Recorder
from sandbox.cloud.flux import FluxController
from sandbox.kube.managers import Manager
from sandbox.kube.objects import Object, clone, dig, put
from sandbox.kube.store import ObjectStore
from sandbox.settings import NAMESPACE, SUITES, Settings

FLUX = "flux-system"
UMBRELLA = "soperator-fluxcd"
NODE_SETS, CLUSTER = f"flux-system-{UMBRELLA}-nodesets", f"flux-system-{UMBRELLA}-slurm-cluster"
INTERVAL = 300
BY_HAND = Manager("kubectl", "Update", "slurm.nebius.ai/v1alpha1")


class Recipe:
    """What the recipe has installed, on a clock that is moved."""

    def __init__(self, slurm: str = min(SUITES)) -> None:
        self.settings = Settings(slurm=slurm, port_base=30000, static=2, flux_interval=INTERVAL)
        self.store, self.now = ObjectStore(), 0.0
        landscape.create_objects(self.store, self.settings)
        self.flux = FluxController(self.store, Recorder(self.store), self.settings, lambda: self.now)
        self.flux.install()

    def look(self) -> None:
        for _ in range(6):
            self.flux.sync()

    def wait(self) -> None:
        self.now += INTERVAL
        self.look()

    def write(self, config_map: str, values: Object, *, wait: bool = True) -> None:
        body = {"metadata": {"name": config_map}, "data": {"values.yaml": yaml.safe_dump(values)}}
        if self.store.list("configmaps", FLUX, fields=f"metadata.name={config_map}"):
            self.store.patch("configmaps", config_map, body, FLUX)
        else:
            self.store.create("configmaps", body, FLUX)
        if wait:
            self.wait()

    def ask(self, release: str, when: str) -> None:
        patch = {"metadata": {"annotations": {"reconcile.fluxcd.io/requestedAt": when}}}
        self.store.patch("helmreleases", release, patch, FLUX)
        self.look()

    def items(self) -> list[Object]:
        """The list of NodeSets as Terraform has written it."""
        data = self.store.get("configmaps", "terraform-fluxcd-values", FLUX)["data"]["values.yaml"]
        found: list[Object] = dig(yaml.safe_load(data), "nodesets.overrideValues.nodesets")
        return clone(found)

    def scale(self, replicas: int) -> None:
        self.store.patch("nodesets", "worker-cpu", {"spec": {"replicas": replicas}}, NAMESPACE, manager=BY_HAND)

    def sizes(self) -> dict[str, int]:
        return {one["metadata"]["name"]: one["spec"]["replicas"] for one in self.store.list("nodesets", NAMESPACE)}

    def cluster(self) -> Any:
        return self.store.get("slurmclusters", "soperator", NAMESPACE)

    def condition(self, type_: str, release: str = NODE_SETS) -> Any:
        return dig(self.store.get("helmreleases", release, FLUX), f"status.conditions[{type_}]") or {}

    def revision(self, release: str = NODE_SETS) -> int:
        return int(self.store.get("helmreleases", release, FLUX)["status"]["history"][0]["version"])


@pytest.fixture
def recipe() -> Recipe:
    return Recipe()


def sized(items: list[Object], **sizes: int) -> Object:
    """Values of the umbrella with these sizes."""
    changed = [{**item, "replicas": sizes.get(item["name"].replace("-", "_"), item["replicas"])} for item in items]
    return {"nodesets": {"overrideValues": {"nodesets": changed}}}


@pytest.mark.parametrize("slurm", [*SUITES])
def test_a_new_installation_is_flux_own_work(slurm: str) -> None:
    recipe = Recipe(slurm)
    assert recipe.cluster()["spec"] == landscape.slurm_cluster(recipe.settings)["spec"]
    for wanted in landscape.nodesets_of(recipe.settings):
        made = recipe.store.get("nodesets", wanted["metadata"]["name"], NAMESPACE)
        assert made["spec"] == wanted["spec"]
        assert [(one["manager"], one["operation"]) for one in made["metadata"]["managedFields"]] == [
            ("helm-controller", "Apply")
        ]
        assert made["metadata"]["labels"]["helm.toolkit.fluxcd.io/name"] == NODE_SETS
    before = recipe.store.resource_version
    recipe.look()
    assert recipe.store.resource_version == before


def test_what_stands_in_the_release_beats_what_it_refers_to(recipe: Recipe) -> None:
    # The recipe has it inline, so neither of the ConfigMaps of the child comes to anything, as the cluster is ready.
    for config_map in ("terraform-nodesets", "nodesets"):
        recipe.write(config_map, sized(recipe.items(), worker_cpu=5)["nodesets"]["overrideValues"])
    recipe.write("slurm-cluster", {"maintenance": "downscale"})
    assert (recipe.sizes()["worker-cpu"], recipe.cluster()["spec"]["maintenance"]) == (2, "none")
    assert [recipe.condition("Ready", name)["status"] for name in (NODE_SETS, CLUSTER)] == ["True", "True"]
    # What Terraform does not say can be added there, and the later of two wins.
    recipe.write("terraform-slurm-cluster", {"customCgroupConfig": "a=1", "slurmConfig": {"minJobAge": 1}})
    recipe.write("slurm-cluster", {"customCgroupConfig": "b=2"})
    spec = recipe.cluster()["spec"]
    assert (spec["customCgroupConfig"], spec["slurmConfig"]["minJobAge"]) == ("b=2", 1)
    assert spec["slurmConfig"]["messageTimeout"] == 60


def test_the_values_of_the_umbrella_beat_terraform(recipe: Recipe) -> None:
    recipe.write("soperator-fluxcd-values", sized(recipe.items(), worker_cpu=4))
    assert recipe.sizes() == {"worker": 8, "worker-cpu": 4}
    # What Terraform writes later is joined with it: the list stays.
    again = sized(recipe.items(), worker=6) | {"slurmCluster": {"overrideValues": {"maintenance": "downscale"}}}
    recipe.write("terraform-fluxcd-values", {**again, "nodesets": {"enabled": True, **again["nodesets"]}})
    assert recipe.sizes() == {"worker": 8, "worker-cpu": 4}
    assert recipe.cluster()["spec"]["maintenance"] == "downscale"


def test_what_the_provider_advises_lasts(recipe: Recipe) -> None:
    keeper = keeper_of(recipe.store.get("nodesets", "worker-cpu", NAMESPACE))
    assert keeper
    assert keeper.name == f"the HelmRelease {FLUX}/{NODE_SETS}"
    found = re.search(r"in ([\w.]+), with all NodeSets in full, of the ConfigMap ([\w-]+) ", keeper.remedy)
    assert found
    values: Object = {}
    put(values, found[1], [{**item, "replicas": 6} for item in recipe.items()])
    recipe.write(found[2], values)
    assert recipe.sizes() == {"worker": 6, "worker-cpu": 6}
    recipe.scale(3)
    recipe.ask(NODE_SETS, "now")
    recipe.write("slurm-cluster", {"customCgroupConfig": "a=1"})
    recipe.write("terraform-nodesets", {"images": {"munge": {"tag": "other"}}})
    assert recipe.sizes() == {"worker": 6, "worker-cpu": 6}


def test_a_list_is_replaced_whole(recipe: Recipe) -> None:
    recipe.write("soperator-fluxcd-values", sized(recipe.items()[1:], worker_cpu=3))
    assert recipe.sizes() == {"worker-cpu": 3}


def test_an_item_in_part_fails_and_changes_nothing(recipe: Recipe) -> None:
    said = {"nodesets": {"overrideValues": {"nodesets": [{"name": "worker-cpu", "replicas": 3}]}}}
    recipe.write("soperator-fluxcd-values", said)
    ready = recipe.condition("Ready")
    assert (ready["status"], ready["reason"]) == ("False", "UpgradeFailed")
    assert ready["message"].startswith("Helm upgrade failed for release soperator/soperator-nodesets with chart ")
    assert ".Values.nodesets[*].slurmd is required" in ready["message"]
    assert recipe.sizes() == {"worker": 8, "worker-cpu": 2}
    # A field that the kind does not know the type of is refused by the API server.
    recipe.write("soperator-fluxcd-values", sized([{**recipe.items()[1], "replicas": "many"}]))
    assert "spec.replicas in body must be of type integer" in recipe.condition("Ready")["message"]
    recipe.write("soperator-fluxcd-values", sized(recipe.items(), worker_cpu=3))
    assert (recipe.condition("Ready")["status"], recipe.sizes()["worker-cpu"]) == ("True", 3)


def test_values_are_looked_at_late_or_when_asked(recipe: Recipe) -> None:
    recipe.write("soperator-fluxcd-values", sized(recipe.items(), worker_cpu=4), wait=False)
    recipe.now += INTERVAL - 1
    recipe.look()
    assert recipe.sizes()["worker-cpu"] == 2
    # Nothing tells that there is something to come.
    assert recipe.condition("Ready", UMBRELLA)["status"] == "True"
    recipe.ask(UMBRELLA, "2026-01-01T00:00:00Z")
    assert recipe.sizes()["worker-cpu"] == 4
    handled = dig(recipe.store.get("helmreleases", UMBRELLA, FLUX), "status.lastHandledReconcileAt")
    assert handled == "2026-01-01T00:00:00Z"
    # The one that Terraform writes is watched.
    recipe.write("soperator-fluxcd-values", {}, wait=False)
    values = sized(recipe.items(), worker_cpu=5)
    values["nodesets"]["enabled"] = True
    recipe.write("terraform-fluxcd-values", values, wait=False)
    recipe.look()
    assert recipe.sizes()["worker-cpu"] == 5


def test_a_release_goes_through_its_states(recipe: Recipe) -> None:
    recipe.write("soperator-fluxcd-values", sized(recipe.items(), worker_cpu=4), wait=False)
    recipe.now += INTERVAL
    recipe.flux.sync()
    progressing = "Running 'upgrade' action with timeout of 5m0s"
    for type_, status in (("Reconciling", "True"), ("Ready", "Unknown")):
        one = recipe.condition(type_, UMBRELLA)
        assert (one["status"], one["reason"], one["message"]) == (status, "Progressing", progressing)
    recipe.look()
    assert recipe.condition("Reconciling", UMBRELLA) == {}
    ready = recipe.condition("Ready")
    said = "Helm upgrade succeeded for release soperator/soperator-nodesets.v2 with chart helm-nodesets@4.1.7"
    assert (ready["status"], ready["reason"], ready["message"]) == ("True", "UpgradeSucceeded", said)
    release = recipe.store.get("helmreleases", NODE_SETS, FLUX)
    assert release["status"]["observedGeneration"] == release["metadata"]["generation"] == 2
    assert [one["status"] for one in release["status"]["history"]] == ["deployed", "superseded"]


def test_what_is_scaled_by_hand_stays_until_the_values_change(recipe: Recipe) -> None:
    recipe.scale(7)
    recipe.wait()
    recipe.wait()
    # It is told, and left.
    assert recipe.sizes()["worker-cpu"] == 7
    drifted = recipe.condition("Drifted")
    assert (drifted["status"], drifted["reason"]) == ("True", "DriftDetected")
    assert "NodeSet/soperator/worker-cpu changed" in drifted["message"]
    assert recipe.condition("Ready")["status"] == "True"
    assert recipe.revision() == 1
    # Values of another release are none of its business, and neither are those that come to the same.
    recipe.write("soperator-fluxcd-values", {"slurmCluster": {"overrideValues": {"customCgroupConfig": "a=1"}}})
    recipe.write("soperator-fluxcd-values", sized(recipe.items()))
    assert (recipe.sizes()["worker-cpu"], recipe.revision()) == (7, 1)
    recipe.write("soperator-fluxcd-values", sized(recipe.items(), worker=9))
    assert recipe.sizes() == {"worker": 9, "worker-cpu": 2}
    assert recipe.revision() == 2
    made = recipe.store.get("nodesets", "worker-cpu", NAMESPACE)
    owners = [one["manager"] for one in made["metadata"]["managedFields"] if "f:replicas" in json.dumps(one)]
    assert owners == ["helm-controller"]
    recipe.wait()
    assert recipe.condition("Drifted")["reason"] == "NoDriftDetected"


def test_an_upgrade_can_be_forced(recipe: Recipe) -> None:
    recipe.scale(7)
    forced = {"metadata": {"annotations": {"reconcile.fluxcd.io/forceAt": "now"}}}
    recipe.store.patch("helmreleases", NODE_SETS, forced, FLUX)
    recipe.ask(NODE_SETS, "now")
    assert (recipe.sizes()["worker-cpu"], recipe.revision()) == (2, 2)
    recipe.wait()
    assert recipe.revision() == 2


def test_what_is_suspended_is_left_alone(recipe: Recipe) -> None:
    recipe.store.patch("helmreleases", NODE_SETS, {"spec": {"suspend": True}}, FLUX)
    recipe.write("soperator-fluxcd-values", sized(recipe.items(), worker_cpu=4))
    assert recipe.sizes()["worker-cpu"] == 2
    recipe.store.patch("helmreleases", NODE_SETS, {"spec": {"suspend": False}}, FLUX)
    recipe.look()
    assert recipe.sizes()["worker-cpu"] == 4


def test_the_chart_makes_one_of_none(recipe: Recipe) -> None:
    recipe.write("soperator-fluxcd-values", sized(recipe.items(), worker_cpu=0))
    assert recipe.sizes()["worker-cpu"] == 1


def test_another_version_is_another_release_and_other_images(recipe: Recipe) -> None:
    recipe.write("soperator-fluxcd-values", {"slurmCluster": {"version": "4.1.9"}})
    spec = recipe.cluster()["spec"]
    assert (spec["crVersion"], spec["populateJail"]["image"].rpartition(":")[2]) == ("4.1.9", "4.1.9-slurm24.11")
    worker = recipe.store.get("nodesets", "worker", NAMESPACE)["spec"]
    assert worker["slurmd"]["image"]["tag"] == "4.1.7-slurm24.11"
    recipe.write("soperator-fluxcd-values", {"slurmCluster": {"version": "4.1.9"}, "nodesets": {"version": "4.1.9"}})
    worker = recipe.store.get("nodesets", "worker", NAMESPACE)["spec"]
    assert worker["slurmd"]["image"]["tag"] == "4.1.9-slurm24.11"


def test_values_that_are_not_there(recipe: Recipe) -> None:
    recipe.store.delete("configmaps", "terraform-fluxcd-values", FLUX)
    recipe.wait()
    ready = recipe.condition("Ready", UMBRELLA)
    assert (ready["status"], ready["reason"]) == ("False", "ValuesError")
    assert "'flux-system/terraform-fluxcd-values' with key 'values.yaml'" in ready["message"]
    assert recipe.sizes() == {"worker": 8, "worker-cpu": 2}


def test_what_a_release_has_made_goes_with_it(recipe: Recipe) -> None:
    recipe.store.delete("helmreleases", UMBRELLA, FLUX)
    recipe.look()
    assert recipe.store.list("helmreleases") == []
    assert recipe.store.list("nodesets") == []
    assert recipe.store.list("slurmclusters") == []
    assert recipe.store.list("secrets", FLUX) == []


def test_a_revision_is_kept_as_helm_keeps_it(recipe: Recipe) -> None:
    for size in range(3, 9):
        recipe.write("soperator-fluxcd-values", sized(recipe.items(), worker_cpu=size))
    secrets = recipe.store.list("secrets", FLUX, labels="owner=helm,name=soperator-nodesets")
    assert [one["metadata"]["labels"]["version"] for one in secrets] == ["3", "4", "5", "6", "7"]
    assert [one["metadata"]["labels"]["status"] for one in secrets] == [*["superseded"] * 4, "deployed"]
    kept = json.loads(gzip.decompress(b64decode(b64decode(secrets[-1]["data"]["release"]))))
    assert [item["replicas"] for item in kept["config"]["nodesets"]] == [8, 8]
    assert [one["spec"]["replicas"] for one in yaml.safe_load_all(kept["manifest"])] == [8, 8]
