"""The connections of a shift: what its targets may do, and where its lease is kept."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from dataclasses import replace
from datetime import datetime, timezone
from types import SimpleNamespace
from typing import Any, cast

import pytest

from airflow_provider_soperator.capacity import connections
from airflow_provider_soperator.capacity.connections import ShiftConnections, TargetMachines
from airflow_provider_soperator.capacity.holdings import ProjectShare
from airflow_provider_soperator.capacity.kubernetes_lease import KubernetesLease
from airflow_provider_soperator.capacity.lease_store import LeaseStore
from airflow_provider_soperator.capacity.order import ShiftOrder
from airflow_provider_soperator.capacity.reservations import ReservationLease
from airflow_provider_soperator.capacity.targets import KubernetesScaleTarget, SlurmNodesTarget
from airflow_provider_soperator.capacity.targets.protocol import Clients, MachineClues, Session
from airflow_provider_soperator.nebius import node_groups
from airflow_provider_soperator.nebius.capacity_blocks import Allowance
from airflow_provider_soperator.transports.transport_errors import Unreachable
from tests.unit.capacity.lease_places import Namespace

#: Two clusters, whose nodes have the same names.
ORDER = ShiftOrder(
    key="k",
    task="shifts/run/shift/-1",
    airflow="3f2a9c01d7e4",
    block="capacityblockgroup-1",
    nebius_conn_id="nebius_default",
    targets=tuple(SlurmNodesTarget(name=name, nodes="worker-[0-7]", slurm_conn_id=name) for name in ("a", "b")),
    desired={"a": 6, "b": 2},
    wanted_at=datetime(2026, 11, 23, tzinfo=timezone.utc),
    approved={"nodes": {"a": ["worker-1"]}, "jobs": {"a": ["7"]}},
)


class Reached:
    """The ways to all that a shift talks to; ``place`` keeps leases."""

    def __init__(self, place: Namespace | None = None) -> None:
        self._place = place

    @asynccontextmanager
    async def slurm(self, conn_id: str) -> AsyncIterator[Any]:
        async def ask(request: Any) -> str:
            return "root"

        yield SimpleNamespace(ask=ask)

    @asynccontextmanager
    async def kubernetes(self, conn_id: str) -> AsyncIterator[Any]:
        raise Unreachable("the Kubernetes API does not answer")
        yield

    @asynccontextmanager
    async def leases(self, conn_id: str) -> AsyncIterator[Any]:
        yield self._place


def opened(place: Namespace | None = None) -> ShiftConnections:
    async def go() -> ShiftConnections:
        made = ShiftConnections(ORDER, cast(Clients, Reached(place)), logging.getLogger(__name__))
        await made.open()
        return made

    return asyncio.run(go())


def test_what_is_approved_for_one_target_is_not_for_another() -> None:
    limits = {name: vars(session)["_context"] for name, session in opened().sessions.items()}
    assert (limits["a"].may_take, limits["a"].may_end) == ({"worker-1"}, {"7"})
    assert limits["b"].may_take == limits["b"].may_end == frozenset()
    # What a shift leaves says which Airflow it is of.
    assert {one.airflow for one in limits.values()} == {ORDER.airflow}


@pytest.mark.parametrize("place", [None, Namespace()])
def test_the_places_of_a_lease_are_reached_while_a_target_is_away(place: Namespace | None) -> None:
    away = KubernetesScaleTarget(name="inference", resource="vllm", gpus_per_unit=8)
    order = replace(ORDER, targets=(away, ORDER.targets[0]), desired={"inference": 0, "a": 6})
    made = ShiftConnections(order, cast(Clients, Reached(place)), logging.getLogger(__name__))
    with pytest.raises(Unreachable):
        asyncio.run(made.open())
    assert len(made.stores) == 1
    assert made.sessions == {}


@pytest.mark.parametrize(
    ("place", "kinds"), [(None, [ReservationLease, ReservationLease]), (Namespace(), [KubernetesLease])]
)
def test_each_slurm_keeps_a_lease_unless_a_place_is_agreed_on(
    place: Namespace | None, kinds: list[type[LeaseStore]]
) -> None:
    made = opened(place)
    assert [type(store) for store in made.stores] == kinds
    assert made.is_agreed is bool(place)


def test_the_share_of_a_targets_project_counts_once_it_has_a_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replicas that are all away have none by which their node group could be found."""
    seen = set[str]()

    class Replicas(Session):
        async def machines(self) -> MachineClues:
            return MachineClues(machines=frozenset(seen))

    async def allowances(sdk: Any, block: str) -> dict[str, Allowance]:
        return {"serving": Allowance(16, 8)}

    async def find_groups(sdk: Any, machines: frozenset[str], *more: Any) -> frozenset[str]:
        return frozenset({"group"} if machines else ())

    async def project_of(sdk: Any, group: str) -> str:
        return "serving"

    monkeypatch.setattr(connections, "read_allowances", allowances)
    monkeypatch.setattr(node_groups, "find_groups", find_groups)
    monkeypatch.setattr(node_groups, "project_of", project_of)
    machines = TargetMachines(lambda: nullcontext(cast(Any, None)), "block", logging.getLogger(__name__))
    sessions: Any = {"inference": cast(Any, Replicas)()}
    assert asyncio.run(machines.shares(sessions)) == []
    seen.add("computeinstance-0")
    assert asyncio.run(machines.shares(sessions)) == [ProjectShare("serving", frozenset({"inference"}), 16, 8)]
