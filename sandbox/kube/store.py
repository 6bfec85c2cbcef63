"""The objects of the double: what clients of the API and controllers in the same process both work on."""

from __future__ import annotations

import logging
import random
import uuid
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any, Literal

from sandbox.kube import errors
from sandbox.kube.catalogue import KINDS, NAMESPACE, POD
from sandbox.kube.kinds import Kind, Kinds
from sandbox.kube.managers import Manager, note_update
from sandbox.kube.objects import Object, clone, dig, packed, put, timestamp, unpacked
from sandbox.kube.patch import merge
from sandbox.kube.selectors import field_selector, label_selector
from sandbox.kube.validation import settle_namespace, settle_type, validate, validate_name

ChangeType = Literal["ADDED", "MODIFIED", "DELETED"]
#: What of an object a write may touch: clients write one part at a time, controllers may write both.
Part = Literal["spec", "status", "all"]
#: What becomes of the objects that a deleted one owns.
PROPAGATIONS = ("Background", "Foreground", "Orphan")
Objects = list[Object]

# Without vowels and look-alikes, as the API server makes them.
_SUFFIX = "bcdfghjklmnpqrstvwxz2456789"
_DELETION = ("deletionTimestamp", "deletionGracePeriodSeconds")
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Change:
    """One change of one object; the objects are shared, so a callback must not alter them."""

    type: ChangeType
    kind: Kind
    object: Object
    previous: Object | None
    resource_version: int

    @property
    def name(self) -> str:
        return str(self.object["metadata"]["name"])

    @property
    def namespace(self) -> str:
        return str(self.object["metadata"].get("namespace", ""))


class ObjectStore:
    """Objects by kind, namespace and name, with the rules of the API server for changing them.

    A kind is given as a ``Kind`` or by any name the registry knows. Objects come and go as deep copies.

    >>> store = ObjectStore()
    >>> store.create("configmap", {"metadata": {"name": "greeting"}, "data": {"say": "hello"}})["data"]
    {'say': 'hello'}
    """

    def __init__(
        self,
        kinds: Kinds = KINDS,
        *,
        now: Callable[[], datetime] = lambda: datetime.now(timezone.utc),
        history: int = 4096,
    ) -> None:
        self.kinds = kinds
        self.now = now
        self._objects: dict[str, dict[tuple[str, str], Object]] = {kind.resource: {} for kind in kinds}
        #: The same by resource and key, packed: controllers list all again and again.
        self._packed: dict[tuple[str, tuple[str, str]], bytes] = {}
        self._version = 0
        self._history: deque[Change] = deque(maxlen=history)
        #: Changes up to this version can no longer be replayed.
        self._forgotten = 0
        self._subscribers: list[Callable[[Change], None]] = []
        self._pending: deque[Change] = deque()
        self._telling = False
        self.create(NAMESPACE, {"metadata": {"name": "default"}, "status": {"phase": "Active"}})

    @property
    def resource_version(self) -> int:
        return self._version

    # Reading

    def kind(self, kind: Kind | str) -> Kind:
        return self.kinds.find(kind) if isinstance(kind, str) else kind

    def get(self, kind: Kind | str, name: str, namespace: str = "default") -> Object:
        found: Object = clone(self._stored(self.kind(kind), name, namespace))
        return found

    def list(self, kind: Kind | str, namespace: str | None = None, *, labels: str = "", fields: str = "") -> Objects:
        """The objects of a kind, in all namespaces unless one is named, sorted by name."""
        kind = self.kind(kind)
        by_label, by_field = label_selector(labels), field_selector(fields)
        return [
            unpacked(self._packed[kind.resource, key])
            for key, thing in sorted(self._objects[kind.resource].items())
            if (not namespace or not kind.namespaced or key[0] == namespace) and by_label(thing) and by_field(thing)
        ]

    # Writing

    def create(
        self,
        kind: Kind | str,
        new: Object,
        namespace: str = "",
        *,
        part: Part = "all",
        dry_run: bool = False,
        manager: Manager | None = None,
    ) -> Object:
        """Add an object; its fields are the manager's, if one is named."""
        kind = self.kind(kind)
        thing: Object = clone(new)
        metadata = thing.setdefault("metadata", {})
        settle_type(kind, thing)
        namespace = settle_namespace(kind, metadata, namespace)
        if not metadata.get("name") and metadata.get("generateName"):
            metadata["name"] = metadata["generateName"] + "".join(random.choices(_SUFFIX, k=5))
        name = metadata.get("name") or ""
        validate_name(kind, name)
        if namespace and not self._has_namespace(namespace):
            raise errors.not_found("namespaces", namespace)
        if (namespace, name) in self._objects[kind.resource]:
            raise errors.already_exists(kind.resource, name)
        if part == "spec" and kind.has_status:
            thing.pop("status", None)
        validate(kind, thing)
        for path, default in kind.defaults.items():
            if dig(thing, path) in (None, ""):
                put(thing, path, clone(default))
        for ours in (*_DELETION, "selfLink", "resourceVersion"):
            metadata.pop(ours, None)
        metadata["uid"] = str(uuid.uuid4())
        metadata["creationTimestamp"] = timestamp(self.now())
        if kind.has_generation:
            metadata["generation"] = 1
        if manager:
            note_update(kind, {}, thing, manager, self.now())
        if not dry_run:
            self._commit("ADDED", kind, thing, None)
        answer: Object = clone(thing)
        return answer

    def update(
        self,
        kind: Kind | str,
        new: Object,
        namespace: str = "",
        *,
        part: Part = "all",
        dry_run: bool = False,
        manager: Manager | None = None,
    ) -> Object:
        """Replace an object; a conflict if it names a resourceVersion that is not the present one."""
        kind = self.kind(kind)
        thing: Object = clone(new)
        metadata = thing.setdefault("metadata", {})
        settle_type(kind, thing)
        namespace = settle_namespace(kind, metadata, namespace)
        name = metadata.get("name", "")
        old = self._stored(kind, name, namespace)
        was = old["metadata"]
        if metadata.get("resourceVersion") not in (None, "", was["resourceVersion"]):
            raise errors.conflict(kind.resource, name)
        if metadata.get("uid") not in (None, "", was["uid"]):
            raise errors.precondition(kind.resource, name, "UID", metadata["uid"], was["uid"])
        if kind.has_status and part == "spec":
            thing.pop("status", None)
            if "status" in old:
                thing["status"] = clone(old["status"])
        elif kind.has_status and part == "status":
            status = thing.get("status")
            thing = clone(old)
            put(thing, "status", status or {})
            metadata = thing["metadata"]
        validate(kind, thing)
        for fixed in (*_DELETION, "uid", "creationTimestamp", "generation", "resourceVersion"):
            metadata.pop(fixed, None)
            if fixed in was:
                metadata[fixed] = was[fixed]
        if kind.has_generation and _specification(thing) != _specification(old):
            metadata["generation"] = was.get("generation", 1) + 1
        if manager:
            note_update(kind, old, thing, manager, self.now())
        # A write that changes nothing makes no new version, and no event.
        if thing != old and not dry_run:
            # A Pod in its grace period stays until its kubelet deletes it with none.
            in_grace = metadata.get("deletionGracePeriodSeconds")
            if metadata.get("deletionTimestamp") and not metadata.get("finalizers") and not in_grace:
                self._remove(kind, thing, old, "Background")
            else:
                self._commit("MODIFIED", kind, thing, old)
        answer: Object = clone(thing)
        return answer

    def patch(
        self,
        kind: Kind | str,
        name: str,
        change: Callable[[Object], Object] | Object,
        namespace: str = "default",
        *,
        part: Part = "all",
        dry_run: bool = False,
        manager: Manager | None = None,
    ) -> Object:
        """Change an object by a JSON merge patch, or by a function from the old object to the new one."""
        kind = self.kind(kind)
        old = self.get(kind, name, namespace)
        new = change(old) if callable(change) else merge(old, change)
        if not isinstance(new, dict) or not isinstance(new.get("metadata"), dict):
            raise errors.bad_request("the patch does not leave an object")
        if new["metadata"].get("name") != name:
            raise errors.bad_request("the name of the object does not match the name on the URL")
        return self.update(kind, new, namespace if kind.namespaced else "", part=part, dry_run=dry_run, manager=manager)

    def delete(
        self,
        kind: Kind | str,
        name: str,
        namespace: str = "default",
        *,
        uid: str = "",
        resource_version: str = "",
        propagation: str = "Background",
        grace: int | None = None,
        dry_run: bool = False,
    ) -> Object:
        """Delete an object, or mark it as being deleted while something holds it; give back the last of it.

        Finalizers hold it, and a Pod its grace period; one of 0 ends a period that has begun.
        """
        kind = self.kind(kind)
        old = self._stored(kind, name, namespace)
        for wanted, key in ((uid, "uid"), (resource_version, "resourceVersion")):
            if wanted and wanted != old["metadata"][key]:
                raise errors.precondition(kind.resource, name, key, wanted, old["metadata"][key])
        thing, seconds = clone(old), _grace_of(kind, old, grace)
        if not dry_run:
            if not old["metadata"].get("finalizers") and not seconds:
                self._remove(kind, thing, old, propagation)
            elif "deletionTimestamp" not in old["metadata"] or seconds < _grace_left(old):
                thing["metadata"]["deletionTimestamp"] = timestamp(self.now() + timedelta(seconds=seconds))
                if kind == POD:
                    thing["metadata"]["deletionGracePeriodSeconds"] = seconds
                self._commit("MODIFIED", kind, thing, old)
        answer: Object = clone(thing)
        return answer

    # Following

    def subscribe(self, callback: Callable[[Change], None]) -> Callable[[], None]:
        """Call back after each change, in order; returns what ends it. A callback may itself write."""
        self._subscribers.append(callback)
        return lambda: self._subscribers.remove(callback) if callback in self._subscribers else None

    @property
    def subscriptions(self) -> int:
        """How many are called back, open watches included."""
        return len(self._subscribers)

    def since(self, resource_version: int) -> Iterable[Change]:
        """The changes after a version, or a 410 if they are no longer known."""
        if resource_version < self._forgotten:
            raise errors.gone(self._forgotten, resource_version)
        return [change for change in self._history if change.resource_version > resource_version]

    # Keeping

    def dump(self) -> dict[str, Any]:
        """Everything as plain JSON, for ``load``; the objects are shared, so what is returned must not be altered."""
        objects = {resource: list(things.values()) for resource, things in self._objects.items()}
        return {"resourceVersion": self._version, "objects": objects}

    def load(self, dumped: dict[str, Any]) -> None:
        """Become what was dumped. Nobody is told, and watches from before must start anew."""
        self._packed.clear()
        for resource, things in self._objects.items():
            things.clear()
            for thing in dumped["objects"].get(resource, ()):
                metadata = thing["metadata"]
                self._keep(resource, (metadata.get("namespace", ""), metadata["name"]), packed(thing))
        self._version = max(self._version, int(dumped["resourceVersion"])) + 1
        self._forgotten = self._version
        self._history.clear()

    # Inside

    def _stored(self, kind: Kind, name: str, namespace: str) -> Object:
        try:
            return self._objects[kind.resource][namespace if kind.namespaced else "", name]
        except KeyError:
            raise errors.not_found(kind.resource, name) from None

    def _keep(self, resource: str, key: tuple[str, str], thing: bytes) -> Object:
        kept: Object = unpacked(thing)
        self._objects[resource][key] = kept
        self._packed[resource, key] = thing
        return kept

    def _has_namespace(self, namespace: str) -> bool:
        return ("", namespace) in self._objects[NAMESPACE.resource]

    def _commit(self, type_: ChangeType, kind: Kind, thing: Object, previous: Object | None) -> None:
        self._version += 1
        metadata = thing["metadata"]
        metadata["resourceVersion"] = str(self._version)
        key = (metadata.get("namespace", ""), metadata["name"])
        # A new object each time: what was stored before lives on in the history.
        kept = self._keep(kind.resource, key, packed(thing))
        if type_ == "DELETED":
            del self._objects[kind.resource][key]
            del self._packed[kind.resource, key]
        if len(self._history) == self._history.maxlen:
            self._forgotten = self._history[0].resource_version
        change = Change(type_, kind, kept, previous, self._version)
        self._history.append(change)
        self._pending.append(change)
        self._tell()

    def _tell(self) -> None:
        # A callback that writes adds to the queue, so that everybody sees all changes in one order.
        if self._telling:
            return
        self._telling = True
        try:
            while self._pending:
                change = self._pending.popleft()
                for callback in tuple(self._subscribers):
                    try:
                        callback(change)
                    except Exception:
                        # The change has happened: whoever made it must not be told otherwise.
                        _log.exception("a subscriber failed on %s of %s %s", change.type, change.kind.kind, change.name)
        finally:
            self._telling = False

    def _remove(self, kind: Kind, thing: Object, old: Object, propagation: str) -> None:
        self._commit("DELETED", kind, thing, old)
        if kind == NAMESPACE:
            inside = thing["metadata"]["name"]
            self._remove_all(lambda other: other["metadata"].get("namespace") == inside)
        elif propagation != "Orphan":
            owner = thing["metadata"]["uid"]
            self._remove_all(
                lambda other: [o.get("uid") for o in other["metadata"].get("ownerReferences") or []] == [owner]
            )

    def _remove_all(self, doomed: Callable[[Object], bool]) -> None:
        for kind in self.kinds:
            for key in [key for key, thing in self._objects[kind.resource].items() if doomed(thing)]:
                # Deleting one may take others with it.
                if key in self._objects[kind.resource]:
                    self.delete(kind, key[1], key[0])


def _specification(thing: Object) -> Object:
    return {key: value for key, value in thing.items() if key not in ("metadata", "status", "apiVersion", "kind")}


def _grace_of(kind: Kind, thing: Object, asked: int | None) -> int:
    """Seconds that a Pod has to end, as CheckGracefulDelete of pkg/registry/core/pod/strategy.go says.

    One that names no period ends at once here, as a process does that SIGTERM ends.
    """
    if kind != POD or not dig(thing, "spec.nodeName") or dig(thing, "status.phase") in ("Succeeded", "Failed"):
        return 0
    own = int(dig(thing, "spec.terminationGracePeriodSeconds") or 0)
    return own if asked is None else max(0, asked)


def _grace_left(thing: Object) -> int:
    return int(thing["metadata"].get("deletionGracePeriodSeconds") or 0)
