"""What a change of a recipe's cluster would lose, with the types of the published recipe and the real Terraform."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import AssetAlias
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from airflow_provider_soperator.operators.cluster import CompareClusterOperator
from airflow_provider_soperator.provisioning.parts import NodeSet
from airflow_provider_soperator.provisioning.spec import Recipe
from tests.integration.cloud.provider import install
from tests.integration.provisioning import CPU, GPU, TaskInstance, destroy, ledger, provision, recipe, spec
from tests.integration.terraforming import RECIPES, needs_terraform

pytestmark = [*needs_terraform, pytest.mark.lane("terraform")]

JAIL = "module.filestore.nebius_compute_v1_filesystem.this[0]"
CLUSTER = "module.k8s.nebius_mk8s_v1_cluster.this[0]"
WORKERS = 'module.node_group["worker-0"].nebius_mk8s_v1_node_group.this[0]'
NODES = ["create worker-0", "create worker-cpu-0"]
ALL = ["context", "create cluster", "create jail", "create slurm", *NODES]
CPUS = NodeSet("worker-cpu", 2, min_size="all", **CPU)


def workers(size: int, name: str = "worker") -> NodeSet:
    return NodeSet(name, size, ephemeral=True, initial=1, min_size=0, **GPU)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where each test has its home: paths in it are absolute."""
    return tmp_path_factory.mktemp("recipe") / "home"


@pytest.fixture(scope="module")
def empty(place: Path) -> Path:
    """A home with nothing made, to copy."""
    shutil.copytree(RECIPES, place / "recipe")
    step = Path(__file__).parent / "cloud/step.tf"
    shutil.copy(step, place / "recipe/modules/step/main.tf")
    install(place)
    return place.rename(place.with_name("empty"))


@pytest.fixture(scope="module")
def whole(place: Path, empty: Path) -> Path:
    """One with the cluster: to make it takes as long as most of what is done with it."""
    shutil.copytree(empty, place)
    provision(source(place))
    assert told(place) == ALL
    return place.rename(place.with_name("whole"))


@pytest.fixture
def home(place: Path, empty: Path) -> Iterator[Path]:
    yield shutil.copytree(empty, place)
    shutil.rmtree(place)


@pytest.fixture
def made(place: Path, whole: Path) -> Iterator[Path]:
    """A home with the cluster."""
    yield shutil.copytree(whole, place, symlinks=True)
    shutil.rmtree(place)


def source(home: Path, fail: str = "", **changed: Any) -> Recipe:
    env = {"TF_CLI_CONFIG_FILE": str(home / "terraform.rc"), "STUB_FAIL": fail, "STUB_WORDS": "no such capacity"}
    return recipe(home, home / "recipe", env=env, **changed)


def told(home: Path) -> list[str]:
    """What was noted, with "cluster" for the name that Nebius has for it."""
    return sorted(line.replace("soperator-research", "cluster") for line in ledger(home))


def test_a_second_run_has_nothing_to_do_and_a_resize_says_what_it_does(made: Path) -> None:
    again = provision(source(made))["plan"]
    assert again == {"summary": "nothing to do", "changes": {}, "exists": True}
    # The context of the worker is written all the same.
    assert told(made) == sorted([*ALL, "context"])
    grown = provision(source(made), spec=spec(nodesets=(workers(8), CPUS)))["plan"]
    assert grown["summary"] == "1 to update"
    assert grown["changes"] == {WORKERS: "update"}


def test_a_first_apply_that_failed_halfway_is_continued(home: Path) -> None:
    with pytest.raises(AirflowException, match="no such capacity"):
        provision(source(home, fail="worker-0"))
    provision(source(home))
    assert [line for line in told(home) if line.startswith("create")] == [line for line in ALL if line != "context"]


@pytest.mark.soak
def test_what_may_be_in_use_is_not_replaced_though_it_is_tainted(made: Path) -> None:
    grown = spec(nodesets=(*spec().nodesets, workers(2, "more")))
    with pytest.raises(AirflowException, match="no such capacity"):
        provision(source(made, fail="more-0"), spec=grown)
    more = 'module.node_group["more-0"].nebius_mk8s_v1_node_group.this[0]'
    with pytest.raises(AirflowFailException, match=r"more-0.*its creation was not finished.*terraform untaint"):
        provision(source(made), spec=grown)
    provision(source(made), spec=grown, allow_destroy=[more])
    assert "create more-0" in ledger(made)


def test_nodes_are_not_lost_unless_they_may_be(made: Path) -> None:
    fewer = spec(nodesets=(workers(2), CPUS))
    with pytest.raises(AirflowFailException, match=r"worker-0 would shrink from 4 to 2 machines.*allow_destroy"):
        provision(source(made), spec=fewer)
    with pytest.raises(AirflowFailException, match=r"worker-cpu-0.*would be destroyed.*no longer in the recipe"):
        provision(source(made), spec=spec(nodesets=(workers(4),)))
    provision(source(made), spec=fewer, allow_destroy=[WORKERS])
    assert "update worker-0" in ledger(made)


def test_what_would_end_is_refused_unless_it_may(made: Path) -> None:
    moved = spec(project="project-e00other")
    for options in ({}, {"plan_only": True}, {"allow_destroy": ["module.slurm.*"]}):
        with pytest.raises(AirflowFailException, match=r"nothing was changed: module\.k8s.*be replaced.*parent_id"):
            provision(source(made), spec=moved, **options)
    assert told(made) == ALL
    provision(source(made), spec=moved, allow_destroy=["module.k8s.*"])
    assert "destroy soperator-research" in ledger(made)


@pytest.mark.soak
def test_a_state_of_another_cluster_is_left_alone(home: Path) -> None:
    kept = {"path": str(home / "default.tfstate"), "workspace_dir": str(home / "states")}
    shared = source(home, workspace="shared", backend={"local": kept})
    provision(shared)
    other = spec(name="other")
    refused = "that of the cluster soperator-research, and other would be"
    with pytest.raises(AirflowFailException, match=refused):
        destroy(shared, spec=other, confirm="other", end_jobs=True)
    with pytest.raises(AirflowFailException, match=refused):
        provision(shared, spec=other)
    assert told(home) == ALL


def test_a_cluster_is_destroyed_without_its_data_and_made_again_with_it(
    made: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    planned = destroy(source(made), plan_only=True)
    assert JAIL not in planned["changes"]
    assert planned["changes"][CLUSTER] == "delete"
    capsys.readouterr()
    destroy(source(made), approved_plan=planned, end_jobs=True)
    said = capsys.readouterr().out
    assert said.count("Plan: ") == 1
    assert f"stays in the state: {JAIL}" in said
    assert ledger(made)[-2:] == ["destroy soperator-research", "disks"]
    assert "destroy jail" not in ledger(made)
    # What stays is nothing to do for the next one.
    assert destroy(source(made), end_jobs=True)["plan"]["summary"] == "nothing to do"
    provision(source(made))
    assert ledger(made).count("create jail") == 1
    destroy(source(made), end_jobs=True, keep_data=False)
    assert "destroy jail" in ledger(made)


def test_a_cluster_is_compared_and_nothing_is_changed(made: Path) -> None:
    events: dict[str, Any] = {}

    def compare(**options: Any) -> Any:
        alias = AssetAlias("research_drift")
        common = {"spec": spec(), "source": source(made), "nebius_conn_id": None, "outlets": [alias]}
        task = CompareClusterOperator(task_id="compare", **{**common, **options})
        found = type("Event", (), {"add": lambda self, asset, extra: events.update({asset.name: extra})})
        return task.execute({**TaskInstance().context, "outlet_events": {alias: found()}})

    assert compare() == {"summary": "nothing to do", "changes": {}, "exists": True}
    assert events == {}
    bigger = spec(nodesets=(workers(8), CPUS))
    assert compare(spec=bigger)["changes"] == {WORKERS: "update"}
    assert events["research_drift"]["summary"] == "1 to update"
    with pytest.raises(AirflowFailException, match="differs from its description: 1 to update"):
        compare(spec=bigger, fail=True)
    assert told(made) == ALL


def test_templates_in_the_environment_of_a_recipe_are_rendered(home: Path) -> None:
    hidden = source(home, fail="{{ ti.run_id }}")
    with pytest.raises(AirflowException, match="no such capacity"):
        provision(hidden, TaskInstance("worker-0"))


def test_placeholders_of_an_example_are_named(home: Path) -> None:
    values = home / "recipe/soperator/terraform.tfvars"
    existing = '{ existing = { id = "computefilesystem-<YOUR-FILESTORE-ID>" } }'
    values.write_text(values.read_text() + f"filesystem_jail = {existing}\n")
    with pytest.raises(AirflowFailException, match=r"placeholder for filesystem_jail: .*<YOUR-FILESTORE-ID>"):
        provision(source(home), spec=spec(jail=None))
    provision(source(home))
