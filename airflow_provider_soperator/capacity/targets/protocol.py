"""The protocol of all that can hold GPUs of a capacity block.

A target is a value that a DAG file makes: it says what there is to be moved, and opens nothing. A session is a target
at work, in an event loop. Every method of a session is one idempotent step: it looks, does what can be done now, and
returns; it is called again and again, in this process or in the next one.
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

#: Marks a dict that is a target, also where it is the field of another one.
_CLASS = "__target__"
_PLAIN = (str, int, float, bool, type(None))


class Clients(Protocol):
    """Clients for connections that are given by their ids."""

    def slurm(self, conn_id: str) -> AbstractAsyncContextManager[AsyncSlurmClient]: ...

    def nebius(self, conn_id: str) -> AbstractAsyncContextManager[SDK]: ...

    def kubernetes(self, conn_id: str) -> AbstractAsyncContextManager[ApiClient]: ...

    async def block(self, conn_id: str, block: str) -> CapacityBlock:
        """A capacity block, as it is now."""
        ...


@dataclass(frozen=True, kw_only=True)
class SessionContext:
    """The shift that a session is opened for."""

    #: The capacity block whose GPUs are moved.
    block: str
    #: Tells this shift from all others, over every try of its task.
    key: str
    #: For people who wonder about a drained node or a resized group.
    why: str = ""


class Session(Protocol):
    """A target at work. Methods that a target has no use for do nothing by default."""

    async def check(self, units: int, block: CapacityBlock) -> None:
        """Raise ``CapacityMistake`` if it could never have so many units of this block. Nothing is changed."""

    async def look(self) -> Holding:
        """Read what it has now."""

    async def explain(self, to: int) -> tuple[str, ...]:
        """List the units that would go if it were to have so many, and why these; in lines for people."""
        return ()

    async def shrink(self, to: int, release: Release) -> None:
        """Go on towards having at most so many units, as far as ``release`` allows."""

    async def grow(self, to: int) -> None:
        """Go on towards having at least so many units; the block has free what it takes."""

    async def allow(self, to: int) -> None:
        """Let it have so many again, if it takes them by itself; it had them so, and they were not at work."""
        await self.grow(to)

    async def finish(self) -> None:
        """The shift is over, well or not: leave nothing behind that was only for its duration."""

    async def losses(self) -> JobLosses:
        """Count the jobs that were on what this session has taken."""
        from airflow_provider_soperator.capacity.figures import JobLosses

        return JobLosses()

    def lease(self) -> Lease | None:
        """The lease that lets only one shift move this target at a time; None if it has none."""
        return None


@runtime_checkable
class Target(Protocol):
    """Something that can hold GPUs of a block: a frozen dataclass whose fields JSON can carry."""

    @property
    def name(self) -> str: ...

    @property
    def gpus_per_unit(self) -> int: ...

    #: What a unit is called, in the plural: ``nodes``, ``replicas``.
    @property
    def units(self) -> str: ...

    def open(self, context: SessionContext, clients: Clients, log: Logger) -> AbstractAsyncContextManager[Session]: ...


def refuse_unnamed(block: CapacityBlock, whose: str) -> None:
    """Raise ``CapacityMistake`` if it has not been said which block the machines of ``whose`` are of."""
    if not block.id:
        raise CapacityMistake(
            f"{whose}: nobody has said which capacity block its machines are of", "say block=, with the block's id"
        )


def write_target(target: Target) -> dict[str, Any]:
    """The target's class and its fields; all who run tasks must be able to import the class.

    >>> from airflow_provider_soperator.capacity.targets import KubernetesScaleTarget
    >>> written = write_target(KubernetesScaleTarget(name="inference", resource="vllm", gpus_per_unit=8))
    >>> written["__target__"], written["resource"]
    ('airflow_provider_soperator.capacity.targets:KubernetesScaleTarget', 'vllm')
    """
    if not _is_target(type(target)):
        raise CapacityMistake(f"{target!r} is no target", "make it a frozen dataclass, as those of this package are")
    path = f"{type(target).__module__}:{type(target).__qualname__}"
    if _find(path) is not type(target):
        raise CapacityMistake(
            f"only this process knows {type(target).__name__}, and others are to use it", "put it into a module"
        )
    fields = {field.name: getattr(target, field.name) for field in dataclasses.fields(target) if field.init}  # type: ignore[arg-type]
    return {_CLASS: path, **{name: _write(value, f"{path}.{name}") for name, value in fields.items()}}


def read_target(written: Mapping[str, Any]) -> Target:
    """The target that was written; no other class is ever made an object of."""
    found = _find(str(written[_CLASS]))
    if found is None or not _is_target(found):
        raise CapacityMistake(
            f"{written[_CLASS]} is no target", "install in all of Airflow's processes what the DAG was made with"
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
    raise CapacityMistake(f"{where} is {value!r}, which JSON cannot carry", "use texts, numbers, lists and dicts")


def _read(value: Any) -> Any:
    if isinstance(value, list):
        # A frozen target has no lists that could be added to.
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
    """Tell if a class is one of targets, before there is an object of it."""
    if not (isinstance(kind, type) and dataclasses.is_dataclass(kind) and callable(getattr(kind, "open", None))):
        return False
    has = {field.name for field in dataclasses.fields(kind)} | set(dir(kind))
    return kind.__dataclass_params__.frozen and {"name", "gpus_per_unit", "units"} <= has  # type: ignore[attr-defined]
