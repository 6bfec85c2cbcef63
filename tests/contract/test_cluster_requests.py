"""Slurm itself, over every way: settings, daemons, rights."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta, timezone

import pytest

from airflow_provider_soperator.slurm.errors import ControllerUnreachable
from airflow_provider_soperator.slurm.requests import (
    ListJobs,
    ListShares,
    Ping,
    ReadClock,
    ShowConfig,
    ShowRights,
    WhoAmI,
)
from airflow_provider_soperator.transports.transport_errors import NotSupported
from tests.contract.transports import REST, Way, newest
from tests.integration.cluster import Cluster

# What Slurm answers differs from one version to the next.
pytestmark = pytest.mark.each_slurm


@pytest.fixture
def commands(connect: Callable[[str], Way]) -> Way:
    return connect("local")


def test_settings_are_the_same_over_every_way(
    way: Way, commands: Way, cluster: Cluster, request: pytest.FixtureRequest
) -> None:
    if request.node.callspec.params["way"] in REST and newest(cluster) < 45:
        with pytest.raises(NotSupported, match="cannot show the cluster's settings"):
            way.ask(ShowConfig())
        return
    assert way.ask(ShowConfig()) == commands.ask(ShowConfig())
    assert way.ask(ShowConfig()).settings["ClusterName"] == "soperator"


def test_rights_are_the_same_over_every_way(way: Way, commands: Way) -> None:
    assert way.ask(WhoAmI()) == "root"
    for user in ("root", "alice", "nobody-at-all"):
        assert way.ask(ShowRights(user)) == commands.ask(ShowRights(user))


def test_shares_are_the_same_over_every_way(way: Way, commands: Way, cluster: Cluster) -> None:
    # Usage is reckoned anew every few minutes, which may be between two questions.
    cluster.wait("both say the same", lambda: way.ask(ListShares()) == commands.ask(ListShares()))
    [alice] = [share for share in way.ask(ListShares()) if share.user == "alice"]
    assert (alice.account, alice.shares, alice.normal_shares) == ("research", 1, 1.0)
    assert alice.fair_share is not None


def test_the_clock_is_that_of_slurmctld(way: Way) -> None:
    said = way.ask(ReadClock())
    assert said is not None
    assert abs(datetime.now(timezone.utc) - said) < timedelta(minutes=1)


def test_the_controller_is_up(way: Way) -> None:
    [controller] = way.ask(Ping())
    assert (controller.host, controller.role, controller.is_up) == ("controller-0", "primary", True)


# Slurm's commands take their time to give up, so not every way that runs them is tried.
@pytest.mark.newest_slurm
@pytest.mark.parametrize("name", ["local", "rest"])
def test_a_slurmctld_that_is_down_is_told(name: str, connect: Callable[[str], Way], cluster: Cluster) -> None:
    way = connect(name)
    cluster.fault("slurmctld-down")
    with cluster.commands_wait(4):
        for request in (Ping(), ListJobs()):
            with pytest.raises(ControllerUnreachable):
                way.ask(request)
