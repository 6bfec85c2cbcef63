"""DAG files are parsed all day long: what importing a module may not bring in, in one table."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import pytest

import airflow_provider_soperator
from airflow_provider_soperator import provisioning
from airflow_provider_soperator.capacity import targets

# In one process: each that runs some of it would import everything for itself.
pytestmark = pytest.mark.xdist_group("imports")

ROOT = airflow_provider_soperator.__name__

#: What a call needs and no DAG file does. It is imported once a connection is opened, or a function is packed.
LATE = {
    "ClusterShell", "cloudpickle", "grpc", "hcl2", "httpx", "kubernetes", "kubernetes_asyncio", "nebius",
    "paramiko", "pyslurm",
}  # fmt: skip
#: The parts of Airflow that read its database.
DATABASE = {"airflow.models.dag", "airflow.models.serialized_dag"}
#: What modules that know nothing of Airflow do without, beside that.
ACTS = LATE | {"airflow", "jwt", "yaml"}
#: Modules that wait bring asyncio in, and with it these.
ALSO = {"socket", "subprocess"}

DAG_FILE = """
from airflow.sdk import DAG
from airflow_provider_soperator.capacity.targets import SlurmNodesTarget
from airflow_provider_soperator.decorators.sbatch import sbatch_task

SlurmNodesTarget(name="training", nodes="worker-[0-7]")

with DAG("a-dag"):
    @sbatch_task(partition="main", python="/opt/python/bin/python3")
    def double(value):
        return 2 * value

    double(1)
    double.expand(value=[1, 2])
"""


def modules(*names: str) -> list[str]:
    """Modules, and packages with all that they hold, as statements that import them."""
    base = Path(*airflow_provider_soperator.__path__)
    found = []
    for name in names:
        path = base.joinpath(*name.split("."))
        files = sorted(path.rglob("*.py")) if path.is_dir() else [path.with_suffix(".py")]
        dotted = (".".join(file.relative_to(base.parent).with_suffix("").parts) for file in files)
        found += [f"import {each.removesuffix('.__init__')}" for each in dotted]
    return found


class Row(NamedTuple):
    """Statements, and what none of them may bring in."""

    about: str
    statements: Iterable[str]
    barred: set[str]
    but: Iterable[str] = ()

    def checked(self) -> list[str]:
        less = modules(*self.but)
        assert set(less) <= set(self.statements)
        return [each for each in self.statements if each not in less]


#: In the order in which one Python carries them out, so each bars all that later ones do: there, what earlier ones
#: have imported would not be seen.
TABLE = (
    Row(
        "packages that only think",
        modules("slurm", "soperator", "health", "provisioning"),
        ACTS | ALSO,
        # These call Kubernetes.
        but=(
            "provisioning.manifests",
            "provisioning.objects",
            "soperator.active_checks",
            "soperator.cluster_objects",
            "soperator.evictions",
            "soperator.objects",
            "soperator.pod_events",
        ),
    ),
    Row(
        "descriptions of clusters, by the names that DAG files use",
        [f"from {provisioning.__name__} import {name}" for name in provisioning.__all__],
        ACTS | ALSO,
    ),
    Row(
        "targets, by the names that DAG files use",
        [f"from {targets.__name__} import {name}" for name in targets.__all__],
        ACTS,
    ),
    Row(
        "what is beneath Airflow's own",
        modules("capacity", "pipelines", "client", "functions", "provisioning", "soperator", "terraform", "transports"),
        ACTS,
        but=(
            # This calls the cloud.
            "capacity.targets.bought_nodes",
            "capacity.targets.nebius_session",
            # These make Airflow's tasks.
            "pipelines.group",
            "pipelines.member",
            "pipelines.stages",
            "pipelines.submit",
        ),
    ),
    Row(
        "what every process of Airflow reads",
        modules("get_provider_info", "hooks.forms"),
        ACTS,
    ),
    # From here on, what counts is what comes on top of what parsing a DAG file imports anyway.
    Row(
        "Airflow's own",
        ["import airflow.sdk, airflow.sdk.bases.hook, airflow.sdk.bases.decorator"],
        DATABASE | {"airflow.timetables.base", "kubernetes", "nebius", "paramiko"},
    ),
    # Every process of Airflow loads all plugins, and few ask for timetables.
    Row("the plugin", modules("plugin"), LATE | DATABASE | {"airflow.timetables.base"}),
    Row("a DAG file", [DAG_FILE], LATE | DATABASE),
    Row(
        "every module, also those above",
        modules("."),
        LATE | DATABASE,
        # These call the cloud, and are imported once there is something to call it for; the page is for the API server.
        but=(
            "capacity.targets.bought_nodes",
            "capacity.targets.nebius_session",
            "nebius.node_groups",
            "page.actions",
            "page.app",
            "page.viewer",
        ),
    ),
)

#: Carries statements out, and tells what each has imported first.
PROGRAM = """
import json, sys
seen, told = set(), []
for statement in json.load(sys.stdin):
    exec(statement, {"__name__": "program"})
    told.append(sorted(sys.modules.keys() - seen))
    seen |= sys.modules.keys()
print("\\n" + json.dumps(told))
"""


@pytest.fixture(scope="module")
def imported() -> dict[str, set[str]]:
    """What each statement was the first to import, in a Python which had imported nothing of its own."""
    statements = list(dict.fromkeys(statement for row in TABLE for statement in row.checked()))
    said = subprocess.run(
        [sys.executable, "-c", PROGRAM], input=json.dumps(statements), stdout=subprocess.PIPE, text=True, check=True
    )
    found = json.loads(said.stdout.splitlines()[-1])
    return dict(zip(statements, map(set, found), strict=True))


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.about)
def test_nothing_is_imported_that_is_barred(row: Row, imported: dict[str, set[str]]) -> None:
    found = {each: imported[each] & row.barred for each in row.checked()}
    assert found
    assert {each: names for each, names in found.items() if names} == {}


def test_no_module_is_left_out(imported: dict[str, set[str]]) -> None:
    assert imported.keys() >= {f"import {ROOT}.hooks.slurm", f"import {ROOT}.transports.rest", f"import {ROOT}"}
    assert "airflow.sdk" in set().union(*imported.values())


@pytest.mark.parametrize("module", ["operators.capacity", "operators.provisioning", "sensors.cluster", "sensors.jobs"])
def test_a_dag_file_does_not_load_what_carries_out_its_tasks(module: str) -> None:
    program = f"import sys, {ROOT}.{module}; print(*sys.modules)"
    said = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, check=True)
    loaded = said.stdout.splitlines()[-1].split()
    late = ("slurm.requests", "slurm.node_conditions", "nebius.capacity_blocks", "transports", "client", "triggers")
    assert f"{ROOT}.{module}" in loaded
    assert [name for name in loaded if name.startswith(tuple(f"{ROOT}.{room}" for room in late))] == []
