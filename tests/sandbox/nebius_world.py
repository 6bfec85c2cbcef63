"""A double over a small fleet whose clock the test moves, served from a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from nebius.aio.service_error import RequestError
from nebius.api.nebius.capacity.v1 import (
    CapacityBlockGroup,
    CapacityBlockGroupServiceClient,
    GetCapacityBlockGroupRequest,
)
from nebius.api.nebius.common.v1 import Operation, ResourceMetadata
from nebius.api.nebius.mk8s.v1 import (
    GetNodeGroupRequest,
    NodeGroup,
    NodeGroupServiceClient,
    NodeGroupSpec,
    UpdateNodeGroupRequest,
)
from nebius.base.protos.direct import Message
from nebius.base.resolver import Constant
from nebius.sdk import SDK

from sandbox.cloud.block import CapacityBlock
from sandbox.cloud.faults import ApiFaults
from sandbox.cloud.fleet import Autoscaling, Fixed, Fleet, Timing
from sandbox.cloud.fleet import NodeGroup as FleetGroup
from sandbox.nebius.catalogue import INFERENCE_PROJECT
from sandbox.nebius.server import Server, serve
from tests.patience import PATIENCE

TOKEN = "sandbox-token"
BLOCK = "capacityblockgroup-e00sandbox"
TRAINING = "mk8snodegroup-e00training"
INFERENCE = "mk8snodegroup-e00inference"
#: A call that fails for good is over soon.
ONE_TRY: dict[str, Any] = {
    "timeout": PATIENCE,
    "per_retry_timeout": PATIENCE,
    "auth_timeout": PATIENCE,
    "retries": 1,
}

R = TypeVar("R")


def sdk_of(server: Server, credentials: Any = TOKEN) -> SDK:
    return SDK(
        resolver=Constant(server.address),
        options=[("nebius.insecure", True)],
        credentials=credentials,
        user_agent_prefix="sandbox-tests/0",
    )


class World:
    """Four machines' worth of GPUs: two fixed inference machines, and training that scales from 0 to 4."""

    def __init__(self, ledger: Path) -> None:
        self.clock = 1_800_000_000.0
        self.busy: set[str] = set()
        self.pending: dict[str, int] = {}
        self.block = CapacityBlock(BLOCK, 32, ledger=ledger, now=lambda: self.clock)
        self.faults = ApiFaults()
        self.fleet = Fleet(self.block, Timing(boot=1, idle=8, removal=1), now=lambda: self.clock)
        cluster = "mk8scluster-e00soperator"
        self.fleet.add_group(FleetGroup(TRAINING, "worker-0", cluster, 8, Autoscaling(0, 4)))
        cluster = "mk8scluster-e00inference"
        labels = {"pool": "serving"}
        self.fleet.add_group(FleetGroup(INFERENCE, "serving", cluster, 8, Fixed(2), labels, INFERENCE_PROJECT))
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.server = self.serve()
        self.sdk = sdk_of(self.server)
        self.groups = NodeGroupServiceClient(self.sdk)
        self.advance(0)
        self.advance(1)

    def serve(self, **options: Any) -> Server:
        return self.run(serve(self.fleet, self.faults, token=TOKEN, **options))

    def run(self, work: Any) -> Any:
        future: Future[Any] = asyncio.run_coroutine_threadsafe(work, self._loop)
        return future.result(PATIENCE)

    def advance(self, seconds: float) -> None:
        """Let time pass, in the thread that answers the calls."""

        async def step() -> None:
            self.clock += seconds
            self.fleet.step(self.pending, self.busy)

        self.run(step())

    def close(self) -> None:
        self.sdk.sync_close()
        self.run(self.server.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE)
        self._loop.close()

    def group(self, group_id: str = INFERENCE) -> NodeGroup:
        return self.groups.get(GetNodeGroupRequest(id=group_id), **ONE_TRY).wait()

    def capacity(self) -> CapacityBlockGroup:
        client = CapacityBlockGroupServiceClient(self.sdk)
        return client.get(GetCapacityBlockGroupRequest(id=BLOCK), **ONE_TRY).wait()

    def update(
        self,
        spec: NodeGroupSpec | None,
        *,
        group: str = INFERENCE,
        version: int = 0,
        metadata: list[tuple[str, str]] | None = None,
        groups: NodeGroupServiceClient | None = None,
    ) -> Any:
        request = UpdateNodeGroupRequest(metadata=ResourceMetadata(id=group, resource_version=version), spec=spec)
        return (groups or self.groups).update(request, metadata=metadata, **ONE_TRY).wait()

    def resize(self, count: int, **more: Any) -> Any:
        """The form that touches nothing but the count."""
        mask = [("X-ResetMask", "spec.fixed_node_count"), *more.pop("metadata", [])]
        return self.update(NodeGroupSpec(fixed_node_count=count), metadata=mask, **more)


@contextmanager
def world(ledger: Path) -> Iterator[World]:
    made = World(ledger)
    try:
        yield made
    finally:
        made.close()


def refusal(call: Callable[[], R]) -> RequestError:
    """The error that a call ends with; a call that works is a failure of the test."""
    try:
        result = call()
    except RequestError as error:
        return error
    raise AssertionError(f"was not refused but answered {result!r}")


def wire(message: Message) -> bytes:
    """Messages of the SDK cannot be compared; what they are on the wire can."""
    return message.SerializeToString(deterministic=True)


def message(operation: Any) -> Operation:
    raw: Operation = operation.raw()
    return raw
