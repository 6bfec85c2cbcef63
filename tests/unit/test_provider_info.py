"""Airflow finds the provider, and accepts what it says of itself."""

from __future__ import annotations

import json
from importlib import import_module, metadata, resources

import jsonschema
import pytest
from airflow.providers_manager import ProvidersManager

import airflow_provider_soperator
from airflow_provider_soperator.get_provider_info import get_provider_info
from airflow_provider_soperator.hooks import forms
from airflow_provider_soperator.links import LINKS

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
    "operators.queue": ("HoldJobsOperator", "ReleaseJobsOperator", "TopJobsOperator", "UpdateJobsOperator"),
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


@pytest.mark.parametrize("kind", ["hooks", "triggers"])
def test_all_modules_that_airflow_is_told_of_are_there(kind: str) -> None:
    for group in get_provider_info()[kind]:
        for module in group["python-modules"]:
            import_module(module)
