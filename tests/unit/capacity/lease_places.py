"""Places that keep leases, in memory: a namespace of the sandbox's Kubernetes, and a Slurm."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from types import SimpleNamespace, coroutine
from typing import Any, TypeVar

from airflow_provider_soperator.capacity.kubernetes_lease import KubernetesLease
from airflow_provider_soperator.capacity.lease_store import LeaseStore, ShiftRecord
from airflow_provider_soperator.capacity.reservations import ReservationLease
from airflow_provider_soperator.slurm.requests import Request
from airflow_provider_soperator.soperator.kinds import Resource
from airflow_provider_soperator.soperator.objects import ObjectMissing
from airflow_provider_soperator.transports.transport_errors import kubernetes_error
from sandbox.kube.errors import ApiError
from sandbox.kube.store import ObjectStore
from tests.unit.capacity.world import Reservations

BLOCK = "capacityblockgroup-1"

T = TypeVar("T")


@coroutine
def pause() -> Generator[None, None, None]:
    """Here others may come in between, and here a process may end."""
    yield


class Namespace:
    """The namespace of a Kubernetes cluster, as ``Objects`` reaches it; only leases are in it."""

    namespace = "capacity"

    def __init__(self) -> None:
        self.store = ObjectStore()
        self.store.create("namespace", {"metadata": {"name": self.namespace}})

    @property
    def leases(self) -> list[dict[str, Any]]:
        return self.store.list("lease", self.namespace)

    async def read(self, resource: Resource, name: str) -> dict[str, Any]:
        return await self._answer(lambda: self.store.get(resource.plural, name, self.namespace))

    async def create(self, resource: Resource, body: dict[str, Any]) -> dict[str, Any]:
        return await self._answer(lambda: self.store.create(resource.plural, body, self.namespace))

    async def patch(self, resource: Resource, name: str, body: dict[str, Any]) -> dict[str, Any]:
        return await self._answer(lambda: self.store.patch(resource.plural, name, body, self.namespace))

    async def _answer(self, ask: Callable[[], T]) -> T:
        await pause()
        try:
            return ask()
        except ApiError as error:
            said = SimpleNamespace(status=error.code, body=error.message)
            failed = kubernetes_error(Refused(said.status, error.message), "ask")
            if error.code == 404:
                failed = ObjectMissing(error.message)
            raise failed from Refused(said.status, error.message)


class Refused(Exception):
    """An answer of the API server that is an error."""

    def __init__(self, status: int, body: str) -> None:
        super().__init__(body)
        self.status, self.body = status, body


class KubernetesPlace:
    """Leases in Kubernetes."""

    def __init__(self) -> None:
        self.namespace = Namespace()

    def lease(self, key: str, block: str = BLOCK) -> LeaseStore:
        return KubernetesLease(self.namespace, block, key)  # type: ignore[arg-type]

    @property
    def held(self) -> int:
        return sum(bool(one["spec"].get("holderIdentity")) for one in self.namespace.leases)

    @property
    def shifts(self) -> set[str]:
        """The keys of the shifts of which there is a record."""
        return _keys(one["metadata"]["annotations"]["soperator.airflow/shift"] for one in self.namespace.leases)


class SlurmPlace:
    """Leases in Slurm."""

    def __init__(self) -> None:
        self.slurm = Reservations()

    async def ask(self, request: Request[Any]) -> Any:
        await pause()
        return self.slurm.answer(request)

    def lease(self, key: str, block: str = BLOCK) -> LeaseStore:
        return ReservationLease(self.ask, block, key, ("worker-0",), "root")

    @property
    def held(self) -> int:
        return len(self.slurm.known)

    @property
    def shifts(self) -> set[str]:
        return _keys(one.comment for one in self.slurm.known.values())


def _keys(records: Iterable[str]) -> set[str]:
    return {record.key for said in records if (record := ShiftRecord.read(said))}


Place = KubernetesPlace | SlurmPlace
PLACES = (KubernetesPlace, SlurmPlace)
