"""What the double remembers beyond the fleet, in a form that survives a restart of the sandbox."""

from __future__ import annotations

from base64 import b64decode, b64encode
from dataclasses import asdict, dataclass, field
from typing import Any

from nebius.api.nebius.mk8s.v1 import NodeGroupSpec


@dataclass
class GroupRecord:
    """A node group as this API knows it. The spec is kept without its size: that is the fleet's."""

    spec: NodeGroupSpec
    labels: dict[str, str]
    created_at: float
    updated_at: float
    resource_version: int = 1
    #: Updates that changed the template. On the real API each of them replaces every machine.
    template_changes: int = 0


@dataclass
class OperationRecord:
    """One accepted update of a node group."""

    id: str
    resource_id: str
    created_at: float
    #: The request, serialised and base64-encoded.
    request: str
    headers: dict[str, str]
    created_by: str
    finished_at: float | None = None
    #: The final google.rpc.Status, serialised and base64-encoded; None while the operation runs.
    status: str | None = None


@dataclass
class NebiusState:
    """All of it, by id."""

    groups: dict[str, GroupRecord] = field(default_factory=dict)
    operations: dict[str, OperationRecord] = field(default_factory=dict)
    #: Operations by the idempotency key of the call that started them.
    keys: dict[str, str] = field(default_factory=dict)
    #: Of the newest operation; no id is given twice, also not that of one which is forgotten.
    serial: int = 0
    #: Of each group the spec, and the same serialised: it is asked for at each step, and replaced at most.
    _serialised: dict[str, tuple[NodeGroupSpec, str]] = field(default_factory=dict)

    def forget_finished(self, keep: int = 0) -> None:
        """Drop the operations that are over, as the service may do at any time, but for those that ended last."""
        over = [op for op in self.operations.values() if op.status is not None]
        finished = sorted(over, key=lambda op: op.finished_at or 0.0)
        for forgotten in finished[: max(len(finished) - keep, 0)]:
            del self.operations[forgotten.id]
        self.keys = {key: op for key, op in self.keys.items() if op in self.operations}

    def dump(self) -> dict[str, Any]:
        return {
            "groups": {
                group_id: {**vars(record), "spec": self._serialised_spec(group_id)}
                for group_id, record in self.groups.items()
            },
            "operations": [asdict(operation) for operation in self.operations.values()],
            "keys": dict(self.keys),
            "serial": self.serial,
        }

    def _serialised_spec(self, group_id: str) -> str:
        spec, known = self.groups[group_id].spec, self._serialised.get(group_id)
        if known is None or known[0] is not spec:
            known = self._serialised[group_id] = spec, encoded(spec.SerializeToString(deterministic=True))
        return known[1]

    def load(self, dumped: dict[str, Any]) -> None:
        """Groups that are no longer there are forgotten, those that are new keep what they were made with."""
        for group_id, fields in dumped["groups"].items():
            if group_id in self.groups:
                spec = NodeGroupSpec.FromString(b64decode(fields["spec"]))
                self.groups[group_id] = GroupRecord(**{**fields, "spec": spec})
        self.operations = {
            fields["id"]: OperationRecord(**fields)
            for fields in dumped["operations"]
            if fields["resource_id"] in self.groups
        }
        self.keys = {key: op for key, op in dumped["keys"].items() if op in self.operations}
        self.serial = dumped["serial"]


def encoded(message: bytes) -> str:
    return b64encode(message).decode()
