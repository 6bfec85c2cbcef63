"""Watches: what happens to a selection of objects, from a given version on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

from async_timeout import timeout as time_limit

from sandbox.kube import errors
from sandbox.kube.kinds import Kind
from sandbox.kube.objects import Object
from sandbox.kube.selectors import field_selector, label_selector
from sandbox.kube.store import Change, ObjectStore

_INITIAL_END = "k8s.io/initial-events-end"


class Watch:
    """The events of one watch, in order; ``next`` waits for one.

    ``resource_version`` is as in the API: empty or 0 starts with all present objects as ADDED.
    """

    def __init__(
        self,
        store: ObjectStore,
        kind: Kind,
        namespace: str = "",
        *,
        labels: str = "",
        fields: str = "",
        resource_version: str = "",
        initial_events: bool = False,
    ) -> None:
        self._store, self._kind, self._namespace = store, kind, namespace
        self._by_label, self._by_field = label_selector(labels), field_selector(fields)
        self._queue: asyncio.Queue[tuple[str, Object] | None] = asyncio.Queue()
        if resource_version in ("", "0") or initial_events:
            for thing in store.list(kind, namespace, labels=labels, fields=fields):
                self._queue.put_nowait(("ADDED", thing))
            if initial_events:
                self._queue.put_nowait(("BOOKMARK", self._bookmark()))
        else:
            if not resource_version.isdigit():
                raise errors.bad_request(f"invalid resource version: {resource_version!r}")
            self._replay(int(resource_version))
        self._unsubscribe: Callable[[], None] = store.subscribe(self._take)

    async def next(self, timeout: float | None = None) -> tuple[str, Object] | None:
        """The next event, or None at the end: after ``close``, or when nothing came in time."""
        try:
            async with time_limit(timeout):
                return await self._queue.get()
        except asyncio.TimeoutError:
            return None

    def close(self) -> None:
        self._unsubscribe()
        self._queue.put_nowait(None)

    def _replay(self, version: int) -> None:
        try:
            for change in self._store.since(version):
                self._take(change)
        except errors.ApiError as problem:
            # The API server tells a watch that is too late in the stream, not by the HTTP status.
            self._queue.put_nowait(("ERROR", problem.status()))
            self._queue.put_nowait(None)

    def _take(self, change: Change) -> None:
        for event in self._seen(change):
            self._queue.put_nowait(event)

    def _seen(self, change: Change) -> Iterator[tuple[str, Object]]:
        if change.kind != self._kind or (self._namespace and change.namespace != self._namespace):
            return
        # With a selector, an object is added when it begins to match and deleted when it ceases to.
        before = change.previous is not None and self._matches(change.previous)
        now = change.type != "DELETED" and self._matches(change.object)
        if now:
            yield ("MODIFIED" if before else "ADDED"), change.object
        elif before:
            yield "DELETED", change.object

    def _matches(self, thing: Object) -> bool:
        return self._by_label(thing) and self._by_field(thing)

    def _bookmark(self) -> Object:
        metadata = {
            "resourceVersion": str(self._store.resource_version),
            "annotations": {_INITIAL_END: "true"},
            "creationTimestamp": None,
        }
        return {"apiVersion": self._kind.api_version, "kind": self._kind.kind, "metadata": metadata}
