"""The double as a gRPC server on loopback, over a fleet that someone else moves forward."""

from __future__ import annotations

from typing import Any

import grpc

from sandbox.cloud.faults import ApiFaults
from sandbox.cloud.fleet import Fleet
from sandbox.nebius.accounts import Profiles, Projects
from sandbox.nebius.allowances import CapacityAllowances
from sandbox.nebius.capacity import CapacityBlockGroups
from sandbox.nebius.catalogue import Catalogue
from sandbox.nebius.clusters import Clusters
from sandbox.nebius.instances import Instances
from sandbox.nebius.node_groups import NodeGroups
from sandbox.nebius.operations import Operations
from sandbox.nebius.rpc import Gate, Rest, service
from sandbox.nebius.state import NebiusState
from sandbox.nebius.tokens import Tokens


class Server:
    """A running double; made by ``serve``."""

    def __init__(
        self, fleet: Fleet, faults: ApiFaults, token: str, catalogue: Catalogue, *, abort_running: bool
    ) -> None:
        self.state = NebiusState()
        self.host = ""
        self.port = 0
        self._fleet = fleet
        self._operations = Operations(fleet, self.state)
        self._groups = NodeGroups(fleet, catalogue, self.state, self._operations, abort_running=abort_running)
        gate = Gate(faults, token)
        self.tokens = Tokens(gate)
        # A second server on the same port must fail, not share its calls.
        # The SDK asks more often than a server would take by itself whether its connection is alive.
        patience = ("grpc.http2.min_ping_interval_without_data_ms", 10_000)
        self._grpc = grpc.aio.server(options=[("grpc.so_reuseport", 0), patience])
        self._grpc.add_generic_rpc_handlers(
            (
                service("nebius.mk8s.v1.NodeGroupService", self._groups.methods(), gate),
                service("nebius.mk8s.v1.ClusterService", Clusters(catalogue).methods(), gate),
                service("nebius.common.v1.OperationService", self._operations.methods(), gate),
                service(
                    "nebius.capacity.v1.CapacityBlockGroupService",
                    CapacityBlockGroups(fleet.block, catalogue).methods(),
                    gate,
                ),
                service(
                    "nebius.capacity.v1.CapacityAllowanceService", CapacityAllowances(fleet, catalogue).methods(), gate
                ),
                service("nebius.compute.v1.InstanceService", Instances(fleet, catalogue).methods(), gate),
                service("nebius.iam.v1.TokenExchangeService", self.tokens.methods(), gate),
                service("nebius.iam.v1.ProfileService", Profiles(catalogue).methods(), gate),
                service("nebius.iam.v2.ProjectService", Projects(catalogue).methods(), gate),
                Rest(gate),
            )
        )

    @property
    def address(self) -> str:
        """What ``nebius.base.resolver.Constant`` takes."""
        return f"{self.host}:{self.port}"

    async def start(self, host: str, port: int) -> None:
        self.host = host
        self.port = self._grpc.add_insecure_port(f"{host}:{port}")
        await self._grpc.start()
        self._fleet.after_step.append(self._operations.settle)

    async def stop(self) -> None:
        """Cut off every call, also those that a fault has made hang."""
        if self._operations.settle in self._fleet.after_step:
            self._fleet.after_step.remove(self._operations.settle)
        await self._grpc.stop(grace=None)

    def dump(self) -> dict[str, Any]:
        """What to keep over a restart, as plain JSON; the fleet and its block have their own ``dump``."""
        return self.state.dump()

    def load(self, dumped: dict[str, Any]) -> None:
        self.state.load(dumped)
        self._groups.adopt_policies()


async def serve(
    fleet: Fleet,
    faults: ApiFaults,
    *,
    token: str,
    host: str = "127.0.0.1",
    port: int = 0,
    catalogue: Catalogue | None = None,
    abort_running: bool = False,
) -> Server:
    """Serve the groups that the fleet has now; port 0 takes any that is free.

    ``abort_running`` chooses what an update does to one that still runs on the group (see ``NodeGroups``).
    """
    server = Server(fleet, faults, token, catalogue or Catalogue(), abort_running=abort_running)
    await server.start(host, port)
    return server
