"""What a real Slurm answers about reservations, its own settings, and who may do what."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from airflow_provider_soperator.slurm import errors
from airflow_provider_soperator.slurm.requests import (
    CreateReservation,
    DeleteReservation,
    ListReservations,
    MintToken,
    Ping,
    ShowConfig,
    ShowRights,
    ShowTopology,
    UpdateReservation,
)
from tests.integration.answers import ask, submit_held
from tests.integration.cluster import Cluster

# What Slurm answers differs from one version to the next.
pytestmark = pytest.mark.each_slurm


def test_the_life_of_a_reservation(cluster: Cluster) -> None:
    start = datetime.now(timezone.utc).replace(microsecond=0) + timedelta(hours=1)
    asked = CreateReservation(
        name="airflow-night",
        nodes=("worker-0", "worker-1"),
        start=start,
        end=start + timedelta(hours=8),
        users=("root", "alice"),
        flags=("MAINT", "IGNORE_JOBS"),
        comment="for the night; a=b State=ACTIVE",
    )
    try:
        assert ask(cluster, asked) == "airflow-night"
        (found,) = ask(cluster, ListReservations())
        assert (found.name, found.nodelist, found.users) == ("airflow-night", "worker-[0-1]", ("root", "alice"))
        assert (found.start, found.end, found.is_active) == (start, start + timedelta(hours=8), False)
        assert {"MAINT", "IGNORE_JOBS"} <= found.flags
        assert found.comment == asked.comment
        with pytest.raises(errors.ReservationConflict):
            ask(cluster, asked)
        ask(cluster, UpdateReservation(name="airflow-night", end=start + timedelta(hours=2), flags=("-MAINT",)))
        ask(cluster, UpdateReservation(name="airflow-night", nodes=("worker-1",)))
        ask(cluster, UpdateReservation(name="airflow-night", comment="for another; b=c"))
        (changed,) = ask(cluster, ListReservations())
        assert changed.comment == "for another; b=c"
        assert (changed.end, changed.nodelist) == (start + timedelta(hours=2), "worker-1")
        assert "MAINT" not in changed.flags
        assert "airflow-night" in submit_held(cluster, reservation="airflow-night").reservation
    finally:
        cluster.run("scancel", "--full", "--state=PENDING", "--user=root")
        gone = ask(cluster, DeleteReservation("airflow-night"))
    assert gone
    assert not ask(cluster, DeleteReservation("airflow-night"))
    assert ask(cluster, ListReservations()) == ()


def test_what_the_cluster_says_of_itself(cluster: Cluster) -> None:
    config = ask(cluster, ShowConfig())
    assert config.release == tuple(map(int, cluster.settings.slurm.split(".")))
    assert config.settings["ResumeTimeout"] == f"{cluster.settings.resume_timeout} sec"
    assert config.suspend_exc_nodes == "worker-cpu-[0-1]"
    assert config.has_accounting
    assert config.rate_limit is None
    (controller,) = ask(cluster, Ping())
    assert controller.is_up
    assert ask(cluster, ShowRights("root")).may_change_nodes
    alice = ask(cluster, ShowRights("alice"))
    assert (alice.is_known, alice.may_change_nodes) == (True, False)
    assert not ask(cluster, ShowRights("nobody-here")).is_known
    assert ask(cluster, MintToken(timedelta(minutes=5), "alice")).count(".") == 2


def test_the_switch_above_each_node(cluster: Cluster) -> None:
    switches = ask(cluster, ShowTopology())
    assert {switches[f"worker-{number}"] for number in range(4)} == {"worker-leaf0"}
    assert "root" not in switches.values()
