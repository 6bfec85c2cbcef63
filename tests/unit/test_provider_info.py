"""Airflow finds the provider, and accepts what it says of itself."""

from __future__ import annotations

import json
from importlib import import_module, metadata, resources
from itertools import chain
from pkgutil import iter_modules

import jsonschema
import pytest
from airflow.providers_manager import ProvidersManager
from airflow.sdk import BaseHook, BaseOperator, BaseSensorOperator
from airflow.sdk.module_loading import import_string
from airflow.triggers.base import BaseTrigger

import airflow_provider_soperator
from airflow_provider_soperator.get_provider_info import get_provider_info
from airflow_provider_soperator.hooks import forms
from airflow_provider_soperator.links import LINKS
from airflow_provider_soperator.operators.approval import ApproveShiftOperator
from airflow_provider_soperator.plugin import SoperatorPlugin

PACKAGE = "airflow-provider-soperator"

#: What DAGs import, which stays where it is.
PUBLIC = {
    "capacity.demand": ("Demand",),
    "capacity.loads": ("MetricLoad", "QueueLoad", "ServiceLoad"),
    "capacity.schedule": ("CapacitySchedule", "Window"),
    "capacity.targets": ("BoughtNodes", "KubernetesScaleTarget", "NebiusNodeGroupTarget", "SlurmNodesTarget"),
    "hooks.cluster": ("SoperatorClusterHook",),
    "hooks.nebius": ("NebiusHook",),
    "hooks.slurm": ("SlurmHook",),
    "hooks.terraform": ("TerraformHook",),
    "operators.action_dags": ("action_dags",),
    "operators.capacity": ("ScaleTargetOperator", "ShiftCapacityOperator"),
    "operators.capacity_dag": ("capacity_dag",),
    "operators.cluster": (
        "BackupJailOperator",
        "CompareClusterOperator",
        "DestroyClusterOperator",
        "ProvisionClusterOperator",
        "RunActiveCheckOperator",
        "ScaleNodeSetOperator",
    ),
    "operators.leftovers": ("ReleaseLeftOversOperator",),
    "operators.nodes": (
        "CreateReservationOperator",
        "DeleteReservationOperator",
        "DrainNodesOperator",
        "PowerDownNodesOperator",
        "PowerUpNodesOperator",
        "ReplaceNodesOperator",
        "UndrainNodesOperator",
    ),
    "operators.pipeline": ("SbatchPipeline",),
    "operators.queue": (
        "CancelJobsOperator",
        "HoldJobsOperator",
        "ReleaseJobsOperator",
        "TopJobsOperator",
        "UpdateJobsOperator",
    ),
    "operators.sbatch": ("SbatchOperator",),
    "operators.stats": ("SlurmStatsOperator",),
    "operators.steering": ("SteerShiftOperator",),
    "provisioning": (
        "ClusterSpec",
        "Connections",
        "Disk",
        "Filesystem",
        "Installation",
        "KubernetesObjects",
        "LocalNvme",
        "NodeSet",
        "PartitionSpec",
        "Recipe",
        "ServiceNodes",
        "Submount",
    ),
    "sensors.capacity": ("CapacityBlockSensor",),
    "sensors.cluster": ("ClusterReadySensor",),
    "sensors.health": ("ActiveCheckSensor", "NodeHealthSensor"),
    "sensors.jobs": ("SlurmJobSensor", "SlurmQueueSensor"),
    "sensors.nodes": ("NodeStateSensor",),
    "timetables.capacity": ("CapacityTimetable",),
}


def test_valid_against_the_schema_of_the_installed_airflow() -> None:
    schema = json.loads(resources.files("airflow").joinpath("provider_info.schema.json").read_text())
    jsonschema.validate(get_provider_info(), schema)
    # The schema lets unknown keys pass, so a misspelt one would say nothing to Airflow.
    assert get_provider_info().keys() <= schema["properties"].keys() | {"versions"}


def test_airflow_lists_the_provider() -> None:
    provider = ProvidersManager().providers[PACKAGE]
    assert provider.version == airflow_provider_soperator.__version__
    assert provider.data["name"] == "Soperator"
    # Airflow adds keys of its own.
    assert provider.data == provider.data | get_provider_info()


def test_links_are_registered_and_have_a_field_each() -> None:
    names = {f"{type(link).__module__}.{type(link).__qualname__}" for link in LINKS}
    assert names <= set(ProvidersManager().extra_links_class_names)
    assert [link.template for link in LINKS] == list(forms.LINKS)


def test_one_version_everywhere() -> None:
    assert metadata.version(PACKAGE) == airflow_provider_soperator.__version__
    assert get_provider_info()["versions"] == [airflow_provider_soperator.__version__]
    assert get_provider_info()["package-name"] == PACKAGE


@pytest.mark.parametrize("module", PUBLIC)
def test_what_dags_import_is_there(module: str) -> None:
    found = import_module(f"airflow_provider_soperator.{module}")
    assert [name for name in PUBLIC[module] if not hasattr(found, name)] == []


#: What Airflow is told of by module, with the class that each kind has.
KINDS = {"hooks": BaseHook, "operators": BaseOperator, "sensors": BaseSensorOperator, "triggers": BaseTrigger}


@pytest.mark.parametrize("kind", KINDS)
def test_airflow_is_told_of_the_modules_of_all_classes(kind: str) -> None:
    room = import_module(f"airflow_provider_soperator.{kind}")
    classes = {
        each
        for module in iter_modules(room.__path__, f"{room.__name__}.")
        for each in vars(import_module(module.name)).values()
        if isinstance(each, type) and issubclass(each, KINDS[kind]) and each.__module__.startswith(room.__name__)
    }
    # What others are made from is no one's to use, nor is the task that `capacity_dag` makes of its own.
    classes = {each for each in classes if not each.__subclasses__() or each.__name__ in chain(*PUBLIC.values())}
    classes.discard(ApproveShiftOperator)
    told = [import_module(module) for group in get_provider_info()[kind] for module in group["python-modules"]]
    assert {each.__qualname__ for each in classes if not any(hasattr(one, each.__name__) for one in told)} == set()
    # Nor is it told of a module with nothing in it; `capacity_dag` and `pipeline` make tasks, and are no operators.
    makers = {"capacity_dag", "pipeline"}
    empty = {
        one.__name__.rpartition(".")[2]
        for one in told
        if not classes & {each for each in vars(one).values() if isinstance(each, type)}
    }
    assert empty <= makers


@pytest.mark.parametrize("key", ["cli", "connection-types", "executors", "extra-links", "task-decorators"])
def test_what_airflow_is_told_of_by_name_is_there(key: str) -> None:
    for entry in get_provider_info()[key]:
        path = entry if isinstance(entry, str) else entry.get("class-name") or entry["hook-class-name"]
        assert callable(import_string(path))


def test_the_plugin_is_registered_once() -> None:
    """A second copy of the package's metadata, as an editable install leaves beside it, is a red error in the UI."""
    plugin = f"{SoperatorPlugin.__module__}:{SoperatorPlugin.__name__}"
    # As Airflow goes through them: one on each folder of the path, also where two are the same.
    points = chain.from_iterable(one.entry_points.select(group="airflow.plugins") for one in metadata.distributions())
    assert [one.value for one in points].count(plugin) == 1
    assert "plugins" not in get_provider_info()
