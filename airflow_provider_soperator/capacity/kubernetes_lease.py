"""A lease kept as a ``Lease`` of Kubernetes, in the cluster that all who move a block have agreed on."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone

from airflow_provider_soperator.capacity.lease_store import TERM, LeaseStore, ShiftRecord, StoredLease
from airflow_provider_soperator.errors import CapacityMistake
from airflow_provider_soperator.soperator.conditions import Object
from airflow_provider_soperator.soperator.kinds import LEASE
from airflow_provider_soperator.soperator.objects import ObjectMissing, Objects
from airflow_provider_soperator.transports.transport_errors import TransportError, is_conflict

#: The rights that it needs, for errors.
RIGHTS = "get, create and patch on leases.coordination.k8s.io"
_RECORD = "soperator.airflow/shift"
#: The notation of a MicroTime, which has exactly six digits.
_MICRO_TIME = "%Y-%m-%dT%H:%M:%S.%fZ"


class KubernetesLease(LeaseStore):
    """The lease of a block in one namespace. The API server refuses a change of what others have changed since."""

    def __init__(self, objects: Objects, block: str, key: str) -> None:
        self._objects, self._key = objects, key
        self._name = re.sub("[^a-z0-9.-]", "-", f"airflow-shift-{block.lower()}")

    async def read(self) -> StoredLease | None:
        try:
            return self._stored(await self._objects.read(LEASE, self._name))
        except ObjectMissing:
            return None

    async def write(
        self, record: ShiftRecord, now: datetime, term: timedelta, over: StoredLease | None
    ) -> StoredLease | None:
        moment, holder = now.astimezone(timezone.utc).strftime(_MICRO_TIME), f"{record.airflow}/{record.task}"
        spec = {"holderIdentity": holder, "leaseDurationSeconds": int(term.total_seconds()), "renewTime": moment}
        if over is None or not (over.is_mine and over.is_held):
            spec["acquireTime"] = moment
        return await self._change({"metadata": {"annotations": {_RECORD: record.write()}}, "spec": spec}, over)

    async def free(self, session: str | None) -> None:
        seen = await self.read()
        if seen and seen.is_held and seen.is_mine and seen.is_driven_by(session):
            # The record stays: what it claims may still come.
            await self._change({"metadata": {}, "spec": {"holderIdentity": None}}, seen)

    async def _change(self, body: Object, over: StoredLease | None) -> StoredLease | None:
        body = {"apiVersion": LEASE.api_version, "kind": LEASE.kind, **body}
        body["metadata"] |= {"resourceVersion": over.version} if over else {"name": self._name}
        try:
            call = self._objects.patch(LEASE, self._name, body) if over else self._objects.create(LEASE, body)
            return self._stored(await call)
        except ObjectMissing as error:
            if over is None:
                said = f"there is no namespace {self._objects.namespace} for the leases of blocks"
                remedy = "correct lease_namespace of the Nebius connection, or create it"
                raise CapacityMistake(said, remedy) from error
        except TransportError as error:
            if not is_conflict(error):
                raise
        return None

    def _stored(self, found: Object) -> StoredLease:
        metadata, spec = found["metadata"], found.get("spec") or {}
        record = ShiftRecord.read((metadata.get("annotations") or {}).get(_RECORD, ""))
        # One that a person has made may lack it.
        renewed = spec.get("renewTime") or metadata["creationTimestamp"]
        seconds = spec.get("leaseDurationSeconds")
        where = f"{self._objects.namespace}/{self._name}"
        return StoredLease(
            version=metadata["resourceVersion"],
            renewed=datetime.fromisoformat(renewed.replace("Z", "+00:00")),
            term=timedelta(seconds=seconds) if seconds else TERM,
            is_held=bool(spec.get("holderIdentity")),
            is_mine=record is not None and record.key == self._key,
            record=record,
            name=f"Lease {where}",
            remedy=f"kubectl delete lease -n {where.replace('/', ' ')}",
        )
