"""A node group as a target, against the double of the Nebius API: what it orders, and what it leaves alone."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, TypeVar

import jwt
import pytest
from async_timeout import timeout
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
from nebius.api.nebius.iam.v1 import ExchangeTokenRequest, TokenExchangeServiceClient
from nebius.api.nebius.mk8s.v1 import (
    NodeGroupDeploymentStrategy,
    NodeGroupServiceClient,
    NodeGroupSpec,
    NVLinkSpec,
    PreemptibleSpec,
    ReservationPolicy,
)

from airflow_provider_soperator.capacity.holdings import Holding, Release
from airflow_provider_soperator.capacity.targets import NebiusNodeGroupTarget, Target
from airflow_provider_soperator.capacity.targets.protocol import Session, SessionContext
from airflow_provider_soperator.errors import CapacityMistake
from airflow_provider_soperator.hooks.cluster_clients import ShiftClients
from airflow_provider_soperator.hooks.nebius import NebiusHook
from airflow_provider_soperator.nebius import api
from airflow_provider_soperator.nebius.api import NebiusUnreachable
from airflow_provider_soperator.nebius.capacity_blocks import CapacityBlock
from airflow_provider_soperator.slurm.requests import PowerDownMode
from sandbox.cloud import landscape
from sandbox.cloud.faults import ApiFault
from sandbox.nebius.catalogue import Catalogue
from tests.integration.cluster import Cluster
from tests.integration.connections import Connections
from tests.integration.sessions import Sessions
from tests.patience import PATIENCE
from tests.sandbox.nebius_world import BLOCK, INFERENCE, TOKEN, TRAINING, World, sdk_of, wire, world

T = TypeVar("T")

UPDATE = "NodeGroupService/Update"
GROUP = NebiusNodeGroupTarget(name="inference", node_group=INFERENCE, nebius_conn_id="nebius_world")
SCALED = NebiusNodeGroupTarget(name="training", node_group=TRAINING, nebius_conn_id="nebius_world")
NOW = Release(leaves_at=datetime(2026, 11, 21, tzinfo=timezone.utc), mode=PowerDownMode.ASAP)
LATER = Release(leaves_at=datetime(2026, 11, 21, tzinfo=timezone.utc), mode=None)


class Shift(Sessions):
    """Sessions of a shift, while the world is moved on by hand."""

    def __init__(self, here: World, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.world = here
        self._monkeypatch = monkeypatch

    def connect(self) -> None:
        """Let the connection lead to the world as it is served now."""
        server = self.world.server
        address = {"host": server.host, "port": server.port, "password": TOKEN}
        said = {"conn_type": "nebius", **address, "extra": {"insecure": True}}
        self._monkeypatch.setenv("AIRFLOW_CONN_NEBIUS_WORLD", json.dumps(said))

    def open(self, target: Target = GROUP, **context: Any) -> Session:
        return super().open(target, **context)

    def block(self) -> CapacityBlock:
        return self.do(NebiusHook("nebius_world").block(BLOCK))

    def operations(self) -> list[str]:
        """The ids of all that were accepted."""
        return list(self.world.server.state.operations)


@pytest.fixture
def here(tmp_path: Path) -> Iterator[World]:
    with world(tmp_path / "ledger.jsonl") as made:
        yield made


@pytest.fixture
def shift(here: World, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shift]:
    made = Shift(here, monkeypatch)
    made.connect()
    yield made
    made.close()


def settle(here: World) -> None:
    """Let the machines come and go."""
    here.advance(0)
    here.advance(1)


# What it has


def test_a_target_is_a_value_that_opens_nothing() -> None:
    assert (GROUP.units, GROUP.gpus_per_unit) == ("nodes", 8)
    with pytest.raises(CapacityMistake, match="gpus_per_unit must be >= 1, got 0"):
        NebiusNodeGroupTarget(name="cpu", node_group=INFERENCE, gpus_per_unit=0)


def test_a_group_at_rest(shift: Shift) -> None:
    assert shift.do(shift.open().look()) == Holding(allowed=2, held=2, ready=2)


def test_an_autoscaler_may_take_what_its_bounds_allow(shift: Shift) -> None:
    seen = shift.do(shift.open(SCALED).look())
    # Those it has not made yet wait for work, and not the other way round.
    assert seen == Holding(allowed=4, held=0, ready=4)
    assert seen.promised == 4


# Growing and shrinking


def test_it_grows_and_shrinks(here: World, shift: Shift) -> None:
    session, before = shift.open(), here.group()
    shift.do(session.grow(3))
    here.advance(0)
    assert shift.do(session.look()) == Holding(allowed=3, held=3, ready=2, is_settled=False)
    here.advance(1)
    assert shift.do(session.look()) == Holding(allowed=3, held=3, ready=3)
    shift.do(session.shrink(1, NOW))
    here.advance(0)
    # What is on its way out holds its GPUs still.
    assert shift.do(session.look()) == Holding(allowed=1, held=3, ready=1, is_settled=False)
    here.advance(1)
    assert shift.do(session.look()) == Holding(allowed=1, held=1, ready=1)
    after = here.group()
    assert wire(after.spec.template) == wire(before.spec.template)
    assert wire(after.spec.strategy) == wire(before.spec.strategy)
    assert here.server.state.groups[INFERENCE].template_changes == 0


def test_nothing_is_ordered_twice_and_nothing_that_is_there(here: World, shift: Shift) -> None:
    session = shift.open()
    shift.do(session.grow(1))
    shift.do(session.grow(2))
    shift.do(session.shrink(2, NOW))
    shift.do(session.shrink(0, LATER))
    assert shift.operations() == []
    for _ in range(3):
        shift.do(session.grow(4))
        shift.do(shift.open().grow(4))
    assert len(shift.operations()) == 1


def test_a_group_can_be_emptied_and_filled_again(here: World, shift: Shift) -> None:
    session = shift.open()
    shift.do(session.shrink(0, NOW))
    settle(here)
    assert shift.do(session.look()) == Holding(allowed=0, held=0, ready=0)
    assert shift.block().free == 32
    shift.do(session.grow(4))
    settle(here)
    assert shift.do(session.look()) == Holding(allowed=4, held=4, ready=4)
    shift.do(session.finish())
    assert shift.do(session.look()).ready == 4


def test_the_bounds_of_an_autoscaler_are_moved(here: World, shift: Shift) -> None:
    kept = NebiusNodeGroupTarget(name="t", node_group=TRAINING, nebius_conn_id="nebius_world", min_nodes=2)
    session = shift.open(kept)

    def bounds() -> tuple[int, int]:
        found = here.group(TRAINING).spec.autoscaling
        assert found is not None
        return found.min_node_count, found.max_node_count

    shift.do(session.shrink(0, NOW))
    assert bounds() == (0, 0)
    settle(here)
    shift.do(session.grow(1))
    assert bounds() == (1, 1)
    settle(here)
    assert shift.do(session.look()) == Holding(allowed=1, held=1, ready=1)
    shift.do(session.shrink(0, NOW))
    settle(here)
    shift.do(session.grow(3))
    assert bounds() == (2, 3)
    here.advance(0)
    assert shift.do(session.look()) == Holding(allowed=3, held=2, ready=1, is_settled=False)
    here.advance(1)
    assert shift.do(session.look()) == Holding(allowed=3, held=2, ready=3)
    shift.do(session.shrink(0, NOW))
    here.advance(0)
    assert shift.do(session.look()) == Holding(allowed=0, held=2, ready=0, is_settled=False)


# Want of capacity


def test_a_growth_that_hangs_says_why_and_can_be_taken_back(here: World, shift: Shift) -> None:
    session = shift.open()
    shift.do(session.grow(5))
    settle(here)
    seen = shift.do(session.look())
    assert (seen.allowed, seen.held, seen.ready, seen.is_settled) == (5, 4, 4, False)
    (problem,) = seen.problems
    assert "0 of 32 GPUs free, 8 are needed" in problem
    shift.do(session.grow(5))
    assert len(shift.operations()) == 1
    shift.do(session.shrink(2, NOW))
    settle(here)
    assert shift.do(session.look()) == Holding(allowed=2, held=2, ready=2)
    assert here.fleet.payg == 0


def test_a_growth_that_hangs_ends_by_itself_once_there_is_room(here: World, shift: Shift) -> None:
    here.block.claim("somebody-else", 16)
    session = shift.open()
    shift.do(session.grow(3))
    settle(here)
    assert shift.do(session.look()).problems
    here.block.release("somebody-else")
    settle(here)
    assert shift.do(session.look()) == Holding(allowed=3, held=3, ready=3)


def test_in_a_sandbox_whose_block_is_full_for_a_while(cluster: Cluster, connections: Connections) -> None:
    target = NebiusNodeGroupTarget(name="inference", node_group=landscape.INFERENCE_GROUP)
    purpose = SessionContext(block=landscape.BLOCK_ID, key="a-shift-in-a-sandbox")

    async def until(session: Session, wanted: Callable[[Holding], bool]) -> Holding:
        while not wanted(seen := await session.look()):
            await asyncio.sleep(0.1)
        return seen

    async def scenario() -> None:
        async with timeout(PATIENCE), target.open(purpose, ShiftClients(), logging.getLogger("sandbox")) as session:
            await session.check(2, await NebiusHook().block(landscape.BLOCK_ID))
            cluster.fault("block-exhausted", leave=cluster.settings.gpus)
            await session.grow(2)
            seen = await until(session, lambda seen: seen.ready == 1 and bool(seen.problems))
            assert not seen.is_settled
            cluster.fault("clear")
            assert await until(session, lambda seen: seen.is_settled) == Holding(allowed=2, held=2, ready=2)
            await session.shrink(0, NOW)
            assert await until(session, lambda seen: seen.is_settled) == Holding(allowed=0, held=0, ready=0)

    cluster.settle()
    asyncio.run(scenario())
    assert cluster.usage() == cluster.settings.gpus


# One operation at a time


def test_what_runs_on_the_group_is_waited_for(here: World, shift: Shift, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    here.resize(4)
    session = shift.open()
    here.advance(0)
    shift.do(session.shrink(1, NOW))
    shift.do(session.shrink(1, NOW))
    (running,) = shift.operations()
    assert here.group().spec.fixed_node_count == 4
    assert [record.message for record in caplog.records if running in record.message] == [
        f"Node group {INFERENCE}: waiting for {running}, which is still running"
    ]
    here.advance(1)
    shift.do(session.shrink(1, NOW))
    assert here.group().spec.fixed_node_count == 1


def test_an_api_that_refuses_the_second_operation_is_asked_again(here: World, shift: Shift) -> None:
    session = shift.open()
    shift.do(session.grow(5))
    settle(here)
    here.faults.add(ApiFault("nebius", "conflict", UPDATE, count=2))
    for _ in range(2):
        shift.do(session.shrink(2, NOW))
        assert here.group().spec.fixed_node_count == 5
    shift.do(session.shrink(2, NOW))
    assert here.group().spec.fixed_node_count == 2


# Answers that do not come


def test_an_answer_that_is_lost_costs_nothing(here: World, shift: Shift) -> None:
    session = shift.open()
    here.faults.add(ApiFault("nebius", "lost", UPDATE))
    shift.do(session.grow(3))
    assert len(shift.operations()) == 1
    settle(here)
    here.faults.add(ApiFault("nebius", "lost", UPDATE, count=api.LIMITS["retries"] + 1))
    with pytest.raises(NebiusUnreachable) as lost:
        shift.do(session.shrink(1, NOW))
    assert lost.value.unsettled
    assert lost.value.retryable
    shift.do(session.shrink(1, NOW))
    settle(here)
    # The size that it ordered itself is nobody else's.
    assert shift.do(session.look()) == Holding(allowed=1, held=1, ready=1)
    assert len(shift.operations()) == 2


def test_two_processes_of_one_shift_order_once(here: World, shift: Shift, caplog: pytest.LogCaptureFixture) -> None:
    async def both() -> None:
        await asyncio.gather(one.grow(4), other.grow(4))

    caplog.set_level(logging.INFO)
    one, other = shift.open(), shift.open()
    shift.do(both())
    assert len(shift.operations()) == 1
    assert here.group().metadata.resource_version == 2
    # Both took the same operation for theirs, where two shifts would have been in each other's way.
    assert "cannot be resized at present" not in caplog.text


def test_an_api_that_hangs_is_given_up_in_time(here: World, shift: Shift, monkeypatch: pytest.MonkeyPatch) -> None:
    session, limit = shift.open(), 0.2
    seen: Holding | None = None
    monkeypatch.setitem(api.LIMITS, "timeout", PATIENCE)
    while seen is None:
        monkeypatch.setitem(api.LIMITS, "per_retry_timeout", limit)
        here.faults.add(ApiFault("nebius", "hang", "NodeGroupService/Get"))
        try:
            seen = shift.do(session.look())
        except NebiusUnreachable:
            # On a busy machine too short for the API that does not hang, too.
            assert limit < PATIENCE / 4
            limit *= 4
    assert seen.ready == 2
    monkeypatch.setitem(api.LIMITS, "per_retry_timeout", 0.2)
    here.faults.add(ApiFault("nebius", "hang", "NodeGroupService/Get", count=None))
    with pytest.raises(NebiusUnreachable, match=f"could not read node group {INFERENCE}"):
        shift.do(session.look())


# Others at the same group


@contextmanager
def terraform(here: World) -> Iterator[NodeGroupServiceClient]:
    """Another account at the same API."""
    account = "serviceaccount-e00terraform"
    # It takes its time, and the claims are good for a minute.
    key = generate_private_key(65537, 2048)
    claims = {"iss": account, "sub": account, "exp": int(time.time()) + 60}
    signed = jwt.encode(claims, key, "RS256", headers={"kid": "publickey-e00"})
    exchange = TokenExchangeServiceClient(here.sdk).exchange(ExchangeTokenRequest(subject_token=signed))
    sdk = sdk_of(here.server, exchange.wait().access_token)
    yield NodeGroupServiceClient(sdk)
    sdk.sync_close()


def test_somebody_who_undoes_it_once_is_overruled_and_twice_is_left_alone(
    here: World, shift: Shift, caplog: pytest.LogCaptureFixture
) -> None:
    session = shift.open()
    with terraform(here) as others:
        for undone in (False, True):
            shift.do(session.grow(4))
            settle(here)
            assert shift.do(session.look()).ready == 4
            here.resize(2, groups=others)
            settle(here)
            if not undone:
                assert shift.do(session.look()).allowed == 2
                assert f"{INFERENCE} was set to 2 nodes by serviceaccount-e00terraform" in caplog.text
    shift.do(session.grow(4))
    assert here.group().spec.fixed_node_count == 2
    seen = shift.do(session.look())
    assert (seen.pinned, seen.possible(4)) == (2, 2)
    assert "was set to 2 nodes by serviceaccount-e00terraform with " in seen.problems[0]
    assert "Terraform" in seen.problems[0]


def test_a_group_that_changes_between_two_looks_is_looked_at_again(here: World, shift: Shift) -> None:
    session = shift.open()
    shift.do(session.look())
    group = here.group()
    group.metadata.labels = {"owner": "somebody"}
    here.update(group.spec, version=group.metadata.resource_version)
    settle(here)
    shift.do(session.grow(3))
    assert here.group().spec.fixed_node_count == 3


# What could never be


def change(here: World, change: Callable[[NodeGroupSpec], None]) -> None:
    """Change the group's spec behind the back of the API, which would refuse some of it."""
    change(here.server.state.groups[INFERENCE].spec)


@contextmanager
def another(here: World, shift: Shift, **catalogue: Any) -> Iterator[None]:
    """The same fleet in another part of the cloud, from where the sessions see it that are opened from now on."""
    before, here.server = here.server, here.serve(catalogue=Catalogue(**catalogue))
    try:
        shift.connect()
        yield
    finally:
        here.run(here.server.stop())
        here.server = before


def refused(shift: Shift, units: int = 3, target: Target = GROUP, block: CapacityBlock | None = None) -> str:
    before = wire(shift.world.group())
    with pytest.raises(CapacityMistake) as mistake:
        shift.do(shift.open(target).check(units, block or shift.block()))
    assert wire(shift.world.group()) == before
    return str(mistake.value)


def policy(policy: ReservationPolicy.Policy, *ids: str) -> Callable[[NodeGroupSpec], None]:
    def change(spec: NodeGroupSpec) -> None:
        spec.template.reservation_policy = ReservationPolicy(policy=policy, reservation_ids=list(ids))

    return change


def test_what_fits_is_not_refused(here: World, shift: Shift) -> None:
    session, block = shift.open(), shift.block()
    for units in (0, 2, 4):
        shift.do(session.check(units, block))
    change(here, policy(ReservationPolicy.Policy.STRICT))
    shift.do(session.check(4, block))
    shift.do(shift.open(SCALED).check(4, block))
    assert shift.operations() == []


def test_an_unknown_group_is_refused(shift: Shift) -> None:
    nobody = NebiusNodeGroupTarget(name="x", node_group="mk8snodegroup-e00nobody", nebius_conn_id="nebius_world")
    assert "there is no node group mk8snodegroup-e00nobody" in refused(shift, target=nobody)


def test_a_group_that_would_buy_is_refused_also_later(here: World, shift: Shift) -> None:
    session = shift.open()
    change(here, policy(ReservationPolicy.Policy.AUTO, BLOCK))
    said = refused(shift)
    assert "AUTO: it buys machines that the block lacks" in said
    assert f"--id {INFERENCE}" in said
    with pytest.raises(CapacityMistake, match="AUTO"):
        shift.do(session.grow(3))
    # Back it may go.
    shift.do(session.shrink(1, NOW))
    change(here, policy(ReservationPolicy.Policy.FORBID))
    assert "FORBID: it never uses a block" in refused(shift)


def test_a_group_of_another_block_is_refused(here: World, shift: Shift) -> None:
    change(here, policy(ReservationPolicy.Policy.STRICT, "capacityblockgroup-e00other"))
    assert f"from capacityblockgroup-e00other, not from {BLOCK}" in refused(shift)


def test_a_group_that_names_no_block_is_refused_if_there_are_several(here: World, shift: Shift) -> None:
    with another(here, shift, other_blocks=("capacityblockgroup-e00second",)):
        change(here, policy(ReservationPolicy.Policy.STRICT))
        assert "its machines may also come from capacityblockgroup-e00second" in refused(shift)


def test_a_group_in_another_region_is_refused(here: World, shift: Shift) -> None:
    block = shift.block()
    with another(here, shift, region="eu-west1"):
        said = refused(shift, block=block)
    assert f"node group {INFERENCE} is in eu-west1, but block {BLOCK} in eu-north1" in said


def preemptible(spec: NodeGroupSpec) -> None:
    spec.template.preemptible = PreemptibleSpec()


def other_platform(spec: NodeGroupSpec) -> None:
    spec.template.resources.platform = "gpu-h200-sxm"


def one_gpu(spec: NodeGroupSpec) -> None:
    spec.template.resources.preset = "1gpu-16vcpu-200gb"


def no_gpu(spec: NodeGroupSpec) -> None:
    spec.template.resources.preset = "16vcpu-64gb"


def nvlink(spec: NodeGroupSpec) -> None:
    spec.template.nvlink = NVLinkSpec(nvl_instance_group_id="computenvlinstancegroup-e00")


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (preemptible, "preemptible machines, which are never of a block"),
        (other_platform, "machines of gpu-h200-sxm, but block"),
        (one_gpu, "has 1 GPUs (preset 1gpu-16vcpu-200gb), expected 8: set gpus_per_unit=1"),
        (no_gpu, "has 0 GPUs (preset 16vcpu-64gb), expected 8: use a node group with GPUs"),
        (nvlink, "is one NVLink group of 2 nodes, which Nebius cannot resize"),
    ],
)
def test_a_group_of_the_wrong_kind_is_refused(
    here: World, shift: Shift, changed: Callable[[NodeGroupSpec], None], words: str
) -> None:
    change(here, changed)
    assert words in refused(shift)


def test_a_number_that_can_never_be_is_refused(shift: Shift) -> None:
    assert f"5 nodes of {INFERENCE} need 40 GPUs, but block {BLOCK} has 32" in refused(shift, units=5)
    assert "allows 0 to 100 in one group" in refused(shift, units=101)
    assert "cannot have -1 nodes" in refused(shift, units=-1)


def test_nodes_that_are_drained_for_ever_are_warned_of(
    here: World, shift: Shift, caplog: pytest.LogCaptureFixture
) -> None:
    session, block = shift.open(), shift.block()
    shift.do(session.check(3, block))
    assert "drain_timeout" not in caplog.text

    def forever(spec: NodeGroupSpec) -> None:
        spec.strategy = NodeGroupDeploymentStrategy(drain_timeout=timedelta(0))

    change(here, forever)
    shift.do(session.check(3, block))
    assert "set strategy.drain_timeout" in caplog.text
