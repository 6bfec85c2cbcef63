"""The example DAGs as Airflow's DAG processor sees them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.listeners.listener import get_listener_manager

DAGS = Path(__file__).parents[2] / "dags"
#: How the actions of the page begin to say what they do.
OF_ACTIONS = ("Cancel", "Delete", "Have", "Let", "Power", "Run", "Stop")


@pytest.fixture
def listener() -> Iterator[None]:
    """One as OpenLineage and Airflow's own examples have, beside which Airflow refuses some tasks."""
    manager, one = get_listener_manager(), object()
    manager.add_listener(one)
    yield
    manager.pm.unregister(one)


@pytest.mark.usefixtures("listener")
def test_they_parse_soon_and_say_what_they_are_for() -> None:
    bag = DagBag(DAGS)
    assert bag.import_errors == {}
    assert {dag.fileloc for dag in bag.dags.values()} == {str(file) for file in DAGS.glob("*.py")}
    for dag in bag.dags.values():
        assert (dag.doc_md or "").startswith(
            ("Destroy", "Estimate", "Every", "Heal", "Make", "Prepare", "Search", "Upgrade", *OF_ACTIONS)
        )
        # The list of DAGs has it.
        assert 20 < len(dag.description or "") < 130, dag.dag_id
    # What takes something from others waits until it is switched on.
    paused = {dag.dag_id for dag in bag.dags.values() if dag.is_paused_upon_creation}
    assert paused >= {"destroy_cluster", "gpu_shifts", "replace_sick_nodes", "tidy_up", "upgrade_window"}
    # Airflow and the provider are imported once; what is left is to be done again and again.
    for file in DAGS.glob("*.py"):
        # Of this thread alone: others may keep the machine busy.
        began = time.thread_time()
        assert bag.process_file(str(file), only_if_updated=False)
        assert time.thread_time() - began < 2, file
