"""The protocol of targets: holders of GPUs of a capacity block.

A target is a value in a DAG file: it describes a holder, and opens no connection. A session is a target at work, in an
event loop. Every method of a session is one idempotent step: it observes, does what is possible now, and returns; it
is called again and again, by this process or by the next one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from airflow_provider_soperator.errors import CapacityMistake

if TYPE_CHECKING:
    from kubernetes_asyncio.client import ApiClient
    from nebius.sdk import SDK

    from airflow_provider_soperator.capacity.figures import JobLosses
    from airflow_provider_soperator.capacity.holdings import Holding, Release
    from airflow_provider_soperator.capacity.lease import Lease
    from airflow_provider_soperator.client.client import AsyncSlurmClient
    from airflow_provider_soperator.logger import Logger
    from airflow_provider_soperator.nebius.capacity_blocks import CapacityBlock

#: Marks a dict that is a target, also if it is a field of another target.
_CLASS = "__target__"
_PLAIN = (str, int, float, bool, type(None))


class Clients(Protocol):
    """Clients for connections, by their ids."""

    def slurm(self, conn_id: str) -> AbstractAsyncContextManager[AsyncSlurmClient]: ...

    def nebius(self, conn_id: str) -> AbstractAsyncContextManager[SDK]: ...

    def kubernetes(self, conn_id: str) -> AbstractAsyncContextManager[ApiClient]: ...

    async def block(self, conn_id: str, block: str) -> CapacityBlock:
        """The present state of a capacity block."""
        ...


@dataclass(frozen=True, kw_only=True)
class SessionContext:
    """The shift that a session is opened for."""

    #: The capacity block whose GPUs are moved.
    block: str
    #: Identifies the shift over all tries of its task.
    key: str
    #: Shown at drained nodes and resized groups.
    why: str = ""


class Session(Protocol):
    """A target at work. Optional methods default to no-ops."""

    async def check(self, units: int, block: CapacityBlock) -> None:
        """Raise ``CapacityMistake`` if it could never have ``units`` units of this block. Changes nothing."""

    async def look(self) -> Holding:
        """Read the present holding."""

    async def explain(self, to: int) -> tuple[str, ...]:
        """List the units that would go to shrink to ``to``, with reasons; in lines for people."""
        return ()

    async def shrink(self, to: int, release: Release) -> None:
        """Take a step towards at most ``to`` units, within the limits of ``release``."""

    async def grow(self, to: int) -> None:
        """Take a step towards at least ``to`` units; the block has the GPUs free."""

    async def allow(self, to: int) -> None:
        """Restore the permission for ``to`` units that the target takes by itself; they were not at work before."""
        await self.grow(to)

    async def finish(self) -> None:
        """Clean up what existed only for the shift, at its success or failure."""

    async def losses(self) -> JobLosses:
        """Count the jobs on units that this session has taken."""
        from airflow_provider_soperator.capacity.figures import JobLosses

        return JobLosses()

    def lease(self) -> Lease | None:
        """The lease that lets only one shift move this target at a time; None if it has none."""
        return None


@runtime_checkable
class Target(Protocol):
    """A holder of GPUs of a block: a frozen dataclass whose fields JSON can carry."""

    @property
    def name(self) -> str: ...

    @property
    def gpus_per_unit(self) -> int: ...

    #: The word for its units, in the plural: ``nodes``, ``replicas``.
    @property
    def units(self) -> str: ...

    def open(self, context: SessionContext, clients: Clients, log: Logger) -> AbstractAsyncContextManager[Session]: ...


def refuse_unnamed(block: CapacityBlock, whose: str) -> None:
    """Raise ``CapacityMistake`` if the block of the machines of ``whose`` is not known."""
    if not block.id:
        raise CapacityMistake(f"{whose}: the capacity block of its machines is unknown", "set block= to the block's id")


def write_target(target: Target) -> dict[str, Any]:
    """The target's class and fields as JSON; all Airflow processes must be able to import the class.

    >>> from airflow_provider_soperator.capacity.targets import KubernetesScaleTarget
    >>> written = write_target(KubernetesScaleTarget(name="inference", resource="vllm", gpus_per_unit=8))
    >>> written["__target__"], written["resource"]
    ('airflow_provider_soperator.capacity.targets:KubernetesScaleTarget', 'vllm')
    """
    if not _is_target(type(target)):
        raise CapacityMistake(f"{target!r} is not a target", "make it a frozen dataclass, as in this package")
    path = f"{type(target).__module__}:{type(target).__qualname__}"
    if _find(path) is not type(target):
        raise CapacityMistake(f"other processes cannot import {type(target).__name__}", "move it into a module")
    fields = {field.name: getattr(target, field.name) for field in dataclasses.fields(target) if field.init}  # type: ignore[arg-type]
    return {_CLASS: path, **{name: _write(value, f"{path}.{name}") for name, value in fields.items()}}


def read_target(written: Mapping[str, Any]) -> Target:
    """The target that was written; other classes are never instantiated."""
    found = _find(str(written[_CLASS]))
    if found is None or not _is_target(found):
        raise CapacityMistake(
            f"{written[_CLASS]} is not a target", "install the package that defines it in all Airflow processes"
        )
    made: Target = found(**{name: _read(value) for name, value in written.items() if name != _CLASS})
    return made


def _write(value: Any, where: str) -> Any:
    if _is_target(type(value)):
        return write_target(value)
    # A subclass, such as an enumeration, would come back as something else.
    if type(value) in _PLAIN:
        return value
    if type(value) in (tuple, list):
        return [_write(one, where) for one in value]
    if type(value) is dict and all(type(key) is str and key != _CLASS for key in value):
        return {key: _write(one, where) for key, one in value.items()}
    raise CapacityMistake(f"{where} is {value!r}, which JSON cannot carry", "use strings, numbers, lists and dicts")


def _read(value: Any) -> Any:
    if isinstance(value, list):
        # A frozen target has tuples, as a list could be changed.
        return tuple(map(_read, value))
    if isinstance(value, dict):
        return read_target(value) if _CLASS in value else {key: _read(one) for key, one in value.items()}
    return value


def _find(path: str) -> Any:
    module, _, name = path.partition(":")
    try:
        found: Any = import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError):
        return None
    return found


def _is_target(kind: Any) -> bool:
    """True if a class is a target; checked without an instance."""
    if not (isinstance(kind, type) and dataclasses.is_dataclass(kind) and callable(getattr(kind, "open", None))):
        return False
    has = {field.name for field in dataclasses.fields(kind)} | set(dir(kind))
    return kind.__dataclass_params__.frozen and {"name", "gpus_per_unit", "units"} <= has  # type: ignore[attr-defined]
