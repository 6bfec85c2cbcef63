"""What a kind of object is to the API: its names, its columns, and how it is served."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from sandbox.kube.objects import Object

Cell = Callable[[Object, datetime], Any]
ColumnType = Literal["string", "integer", "boolean", "date"]


@dataclass(frozen=True)
class Column:
    """One column of ``kubectl get``: a path into the object, or a function of it and the time."""

    name: str
    value: str | Cell
    type: ColumnType = "string"
    #: 0 is always shown, 1 only with ``-o wide``.
    priority: int = 0


@dataclass(frozen=True)
class ScalePaths:
    """Where a kind keeps what its scale subresource shows."""

    replicas: str = "spec.replicas"
    status: str = "status.replicas"
    selector: str = "spec.selector"


@dataclass(frozen=True)
class Kind:
    """One kind of object and how the API serves it."""

    group: str
    version: str
    kind: str
    plural: str
    namespaced: bool = True
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    columns: tuple[Column, ...] = ()
    #: Status is written apart from the rest, through /status.
    has_status: bool = True
    scale: ScalePaths | None = None
    #: ``metadata.generation`` counts the changes of the specification.
    has_generation: bool = True
    #: Defined by a CustomResourceDefinition: no strategic merge, and no update without a resourceVersion.
    custom: bool = False
    #: No update without a resourceVersion, as for custom kinds.
    needs_version: bool = False
    #: An update makes an object that is not there.
    made_by_update: bool = False
    #: Versions served beside ``version`` under the same storage, for old clients.
    also_versions: tuple[str, ...] = ()
    #: What a new object has at these paths if it does not say.
    defaults: dict[str, Any] = field(default_factory=dict, hash=False, compare=False)
    #: Subresources other than status and scale: name -> verbs.
    others: dict[str, tuple[str, ...]] = field(default_factory=dict, hash=False, compare=False)

    @property
    def singular(self) -> str:
        return self.kind.lower()

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def resource(self) -> str:
        """The name error messages use: ``nodesets.slurm.nebius.ai``, ``pods``."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def versions(self) -> tuple[str, ...]:
        return (self.version, *self.also_versions)


class Kinds:
    """The registry: finds a kind by its path, or by any name kubectl would take."""

    def __init__(self, kinds: Iterable[Kind]) -> None:
        self._kinds = tuple(kinds)
        #: By every name; what two would be called is the first one's.
        self._named: dict[str, Kind] = {}
        for kind in self._kinds:
            for name in (kind.plural, kind.singular, kind.kind, kind.resource, *kind.short_names):
                self._named.setdefault(name, kind)

    def __iter__(self) -> Iterator[Kind]:
        return iter(self._kinds)

    def find(self, name: str) -> Kind:
        """The kind called so: plural, singular, kind, short name, or ``plural.group``."""
        if name not in self._named:
            raise KeyError(f"no such kind: {name!r}")
        return self._named[name]

    def at(self, group: str, version: str, plural: str) -> Kind | None:
        for kind in self._kinds:
            if kind.group == group and kind.plural == plural and version in kind.versions:
                return kind
        return None

    def groups(self) -> dict[str, list[str]]:
        """Each group and the versions it is served in, the preferred one first."""
        found: dict[str, list[str]] = {}
        for kind in self._kinds:
            versions = found.setdefault(kind.group, [])
            versions.extend(version for version in kind.versions if version not in versions)
        return {
            group: sorted(versions, key=lambda v: ("alpha" in v or "beta" in v, v)) for group, versions in found.items()
        }
