"""Base of asset watchers: looks at an interval, events, and a memory that outlives a triggerer."""

from __future__ import annotations

import hashlib
import json
from abc import abstractmethod
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar

from airflow.triggers.base import BaseEventTrigger, TriggerEvent

from airflow_provider_soperator.client.client import AsyncSlurmClient
from airflow_provider_soperator.slurm.requests import Request
from airflow_provider_soperator.triggers.base import SlurmTrigger
from airflow_provider_soperator.work.polling import polled, slurm_client

#: Default seconds between two looks.
POLL_INTERVAL = 30.0


#: Part of an interval for which another watcher's answer is used. It is less than 1, so that each look is fresh.
_AS_GOOD_AS_NEW = 0.9


T = TypeVar("T")


class EventTrigger(SlurmTrigger, BaseEventTrigger):
    """Watches a cluster for as long as there is an active DAG that is scheduled on its asset."""

    poll_interval: float

    @abstractmethod
    def open(self) -> AbstractAsyncContextManager[Any]:
        """Open the clients that the looks need."""

    @abstractmethod
    async def look(self, client: Any) -> Sequence[dict[str, Any]]:
        """Look for events; returns the payloads of those since the last look."""

    @abstractmethod
    def memory(self) -> Any:
        """State from which another process goes on, as JSON."""

    @abstractmethod
    def remember(self, memory: Any) -> None:
        """Go on from a memory; None at a first start."""

    async def run(self) -> AsyncIterator[TriggerEvent]:
        store = _Memory(self)
        memory = await store.read()
        self.remember(memory)
        # No failure is raised: Airflow would restart the watcher a second later, and for ever.
        async for events in polled(self.open, self.look, self.poll_interval, self.log):
            # By now Airflow has stored the events of the last look. Sooner they could be lost, later repeated.
            await store.write(memory)
            for payload in events:
                yield TriggerEvent(payload)  # type: ignore[no-untyped-call]
            memory = self.memory()
            if not events:
                await store.write(memory)

    @property
    def max_age(self) -> float:
        """Maximum age of another watcher's answer, in seconds."""
        return self.poll_interval * _AS_GOOD_AS_NEW


class SlurmEventTrigger(EventTrigger):
    """Watches Slurm."""

    slurm_conn_id: str

    def open(self) -> AbstractAsyncContextManager[AsyncSlurmClient]:
        return slurm_client(self.slurm_conn_id)

    def shared(self, client: AsyncSlurmClient, request: Request[T]) -> Awaitable[T]:
        """The answer that all watchers of the cluster share in an interval."""
        return client.ask_shared(request, self.max_age)


class _Memory:
    """The memory of a watcher, which Airflow keeps beside the asset, from 3.3 on."""

    def __init__(self, trigger: SlurmTrigger) -> None:
        self._store = getattr(trigger, "asset_state_store", None)
        path, arguments = trigger.serialize()
        # The interval is not part of the watcher's identity.
        told = json.dumps([path, {**arguments, "poll_interval": None}], sort_keys=True)
        self._key = f"soperator-{hashlib.sha256(told.encode()).hexdigest()[:16]}"
        self._log = trigger.log
        self._written: Any = None

    async def read(self) -> Any:
        if self._store is None:
            return None
        try:
            self._written = await self._store.aget(self._key)
        except ValueError:
            self._log.warning("Nothing is remembered over a restart: give each asset a watcher with other arguments")
            self._store = None
        return self._written

    async def write(self, memory: Any) -> None:
        if self._store is not None and memory != self._written:
            await self._store.aset(self._key, memory)
            self._written = memory
