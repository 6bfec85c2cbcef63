"""The DAGs with which people act on a cluster, as Airflow's database knows them: they are told by a tag."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

#: What actions do, as labels of buttons; those of no node and no job are of the whole cluster.
TITLES = {
    "drain": "Drain",
    "undrain": "Undrain",
    "power_up": "Power up",
    "power_down": "Power down",
    "replace": "Replace machine",
    "check": "Run a check",
    "cancel": "Cancel job",
    "release": "Release",
    "shift": "Move GPUs",
    "approve": "Approve moves",
}
_PREFIX = "soperator"


def action_tag(kind: str, connection: str) -> str:
    """The tag of a DAG that acts on the cluster behind a connection."""
    return f"{_PREFIX}:{kind}:{connection}"


@dataclass(frozen=True, kw_only=True)
class Offer:
    """A DAG that carries out an action, and whether one viewer may have it do so."""

    kind: str
    dag_id: str
    is_paused: bool = False
    is_allowed: bool = True

    @property
    def title(self) -> str:
        return TITLES[self.kind]

    @property
    def right(self) -> str:
        """What a viewer must be allowed to do with the DAG."""
        return "approve moves of" if self.kind == "approve" else "trigger"


def find_offers(connection: str) -> list[Offer]:
    """The DAGs with actions on the cluster behind a connection."""
    from airflow.models.dag import DagModel, DagTag
    from airflow.utils.session import create_session
    from sqlalchemy import select

    kinds = {action_tag(kind, connection): kind for kind in TITLES}
    with create_session() as session:
        tagged = select(DagTag.name, DagModel.dag_id, DagModel.is_paused).join(
            DagModel, DagModel.dag_id == DagTag.dag_id
        )
        rows = session.execute(tagged.where(DagTag.name.in_(kinds), ~DagModel.is_stale)).all()
    found = [Offer(kind=kinds[tag], dag_id=dag_id, is_paused=bool(paused)) for tag, dag_id, paused in rows]
    return sorted(found, key=lambda offer: ([*TITLES].index(offer.kind), offer.dag_id))


@dataclass(frozen=True, kw_only=True)
class FormField:
    """A parameter of a DAG, as a field of a form."""

    name: str
    value: Any
    schema: Mapping[str, Any]
    description: str = ""

    @property
    def is_nullable(self) -> bool:
        return "null" in self._types or None in self.schema.get("enum", ())

    @property
    def _types(self) -> tuple[str, ...]:
        types = self.schema.get("type", ())
        return (types,) if isinstance(types, str) else tuple(types)

    @property
    def form(self) -> str:
        """How it is written: ``choice``, ``boolean``, ``number``, ``moment``, ``json`` or ``text``."""
        if "enum" in self.schema:
            return "choice"
        if self.schema.get("format") == "date-time":
            return "moment"
        kinds = {"boolean": "boolean", "integer": "number", "number": "number", "array": "json", "object": "json"}
        return next((kinds[one] for one in self._types if one in kinds), "text")


def fields_of(dag_id: str, given: Mapping[str, str]) -> list[FormField]:
    """The fields of the form of a DAG, with the values that are given in place of its own."""
    from airflow.models.serialized_dag import SerializedDagModel

    dag = SerializedDagModel.get_dag(dag_id)
    params: Mapping[str, Any] = {name: dag.params.get_param(name).dump() for name in dag.params} if dag else {}
    return [
        FormField(
            name=name,
            value=given.get(name, param["value"]),
            schema=param["schema"],
            description=param["description"] or "",
        )
        for name, param in params.items()
        if "const" not in param["schema"]
    ]
