"""The example DAG that heals nodes, as it stands: a watcher sees one fall ill, and it comes back on another machine."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sandbox.airflow.beside import DAGS
from tests.airflow.stack import Stack
from tests.integration.cluster import Cluster


@pytest.fixture
def old(slurm: Cluster) -> Iterator[str]:
    """The machine of a node whose GPU has fallen off the bus."""
    slurm.reset()
    machine = slurm.machine_of("worker-0")
    assert machine
    slurm.fault("gpu-metric", node="worker-0", metric="DCGM_FI_DEV_XID_ERRORS", value=79.0, gpu=3)
    yield machine
    slurm.fault("clear")
    slurm.reset()


@pytest.mark.soak
def test_who_is_ill_is_healed(stack: Stack, slurm: Cluster, old: str) -> None:
    dag = stack.add_file(DAGS / "replace_sick_nodes.py")
    assert not dag.runs(), "it is to wait until somebody switches it on"
    stack.call("PATCH", f"/dags/{dag.dag_id}", json={"is_paused": False})
    # The watcher of a DAG that was paused begins when Airflow reads the file next, which tests do only if it changes.
    (stack.dags / "replace_sick_nodes.py").touch()
    [run] = stack.wait("the watcher has seen it", dag.runs)
    states = run.wait_all()
    assert states == dict.fromkeys(states, "success") | dict.fromkeys(("ask", "power_down", "power_up"), "skipped")
    assert run.xcom("replace").keys() == {"worker-0"}
    replaced = run.xcom("replace")["worker-0"]
    assert (replaced["old"], replaced["new"]) == (old, slurm.machine_of("worker-0"))
    assert run.xcom("trial")["nodes"] == "worker-0"
    assert "No reservations" in slurm.run("scontrol", "show", "reservation")
    # Else its watcher would go on for as long as there are tests.
    stack.call("PATCH", f"/dags/{dag.dag_id}", json={"is_paused": True})
