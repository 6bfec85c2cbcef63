"""The machines of the fleet as compute instances: their state, and whether the block paid for them."""

from __future__ import annotations

from nebius.api.nebius.common.v1 import GetByNameRequest, ResourceMetadata
from nebius.api.nebius.compute.v1 import (
    GetInstanceRequest,
    Instance,
    InstanceSpec,
    InstanceStatus,
    ListInstancesRequest,
    ListInstancesResponse,
    ResourcesSpec,
)

from sandbox.cloud.fleet import Fleet, Machine, MachineState
from sandbox.nebius.catalogue import Catalogue
from sandbox.nebius.clock import moment
from sandbox.nebius.errors import not_found
from sandbox.nebius.paging import page
from sandbox.nebius.rpc import Headers, Method

SERVICE = "compute"
State = InstanceStatus.InstanceState
STATES = {
    MachineState.CREATING: State.CREATING,
    MachineState.RUNNING: State.RUNNING,
    MachineState.DELETING: State.DELETING,
}


class Instances:
    """InstanceService, the part that reads."""

    def __init__(self, fleet: Fleet, catalogue: Catalogue) -> None:
        self._fleet = fleet
        self._catalogue = catalogue

    def methods(self) -> dict[str, Method]:
        return {"Get": self.get, "GetByName": self.get_by_name, "List": self.list}

    def get(self, request: GetInstanceRequest, headers: Headers) -> Instance:
        return self._found(request.id)

    def get_by_name(self, request: GetByNameRequest, headers: Headers) -> Instance:
        """A machine's name is its id."""
        return self._found(request.name)

    def list(self, request: ListInstancesRequest, headers: Headers) -> ListInstancesResponse:
        machines = [one for one in self._fleet.machines.values() if self._project(one) == request.parent_id]
        some, token = page(SERVICE, machines, request.page_size, request.page_token)
        return ListInstancesResponse(items=[self._message(m) for m in some], next_page_token=token)

    def _found(self, instance_id: str) -> Instance:
        machine = self._fleet.machines.get(instance_id)
        if machine is None:
            raise not_found(SERVICE, "instance", instance_id)
        return self._message(machine)

    def _project(self, machine: Machine) -> str:
        return self._fleet.groups[machine.group].project

    def _message(self, machine: Machine) -> Instance:
        shape = self._catalogue.template(machine.group)
        return Instance(
            metadata=ResourceMetadata(
                id=machine.id,
                parent_id=self._project(machine),
                name=machine.id,
                resource_version=1,
                updated_at=moment(machine.since),
                labels={
                    "mk8s-cluster-id": self._fleet.groups[machine.group].cluster,
                    "mk8s-node-group-id": machine.group,
                },
            ),
            spec=InstanceSpec(resources=ResourcesSpec(platform=shape.platform, preset=shape.preset)),
            status=InstanceStatus(
                state=STATES[machine.state],
                reservation_id=self._fleet.block.id if machine.reserved else "",
            ),
        )
