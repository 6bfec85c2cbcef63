"""The object store by itself: versions, conflicts, deletion, and who is told what."""

from __future__ import annotations

import asyncio
import json
from datetime import datetime, timezone
from typing import Any

import pytest

from sandbox.kube.errors import ApiError
from sandbox.kube.objects import age
from sandbox.kube.store import Change, ObjectStore
from sandbox.kube.watching import Watch


@pytest.fixture
def store() -> ObjectStore:
    return ObjectStore()


def node_set(name: str = "worker", **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": spec or {"replicas": 1}}


def code_of(caught: pytest.ExceptionInfo[ApiError]) -> tuple[int, str]:
    status = caught.value.status()
    assert status["code"] == caught.value.code
    return status["code"], status["reason"]


def test_created_objects_have_an_identity(store: ObjectStore) -> None:
    first, second = store.create("nodeset", node_set("a")), store.create("nodeset", node_set("b"))
    assert (first["apiVersion"], first["kind"]) == ("slurm.nebius.ai/v1alpha1", "NodeSet")
    assert first["metadata"]["namespace"] == "default"
    assert first["metadata"]["generation"] == 1
    assert first["metadata"]["uid"] != second["metadata"]["uid"]
    assert int(first["metadata"]["resourceVersion"]) < int(second["metadata"]["resourceVersion"])


def test_what_is_handed_out_is_a_copy(store: ObjectStore) -> None:
    given = node_set()
    made = store.create("nodeset", given)
    given["spec"]["replicas"] = made["spec"]["replicas"] = store.get("nodeset", "worker")["spec"]["replicas"] = 9
    store.list("nodeset")[0]["spec"]["replicas"] = 9
    assert store.get("nodeset", "worker")["spec"]["replicas"] == 1


def test_names(store: ObjectStore) -> None:
    made = store.create("pod", {"metadata": {"generateName": "job-"}})
    assert made["metadata"]["name"].startswith("job-")
    assert len(made["metadata"]["name"]) == 9
    store.create("nodeset", node_set())
    with pytest.raises(ApiError) as caught:
        store.create("nodeset", node_set())
    assert code_of(caught) == (409, "AlreadyExists")
    for bad in ("", "Upper", "a_b", "-a", "a" * 254):
        with pytest.raises(ApiError) as caught:
            store.create("nodeset", node_set(bad))
        assert code_of(caught) == (422, "Invalid")


def test_generation_counts_changes_of_the_specification_only(store: ObjectStore) -> None:
    store.create("nodeset", node_set())
    store.patch("nodeset", "worker", {"metadata": {"labels": {"a": "b"}}})
    assert store.patch("nodeset", "worker", {"status": {"phase": "Ready"}})["metadata"]["generation"] == 1
    assert store.patch("nodeset", "worker", {"spec": {"replicas": 2}})["metadata"]["generation"] == 2


def test_parts(store: ObjectStore) -> None:
    store.create("nodeset", {**node_set(), "status": {"phase": "Ready"}}, part="spec")
    assert "status" not in store.get("nodeset", "worker")
    both = {"spec": {"replicas": 5}, "status": {"phase": "Ready"}, "metadata": {"labels": {"a": "b"}}}
    after = store.patch("nodeset", "worker", both, part="status")
    assert (after["spec"], after["status"], after["metadata"].get("labels")) == (
        {"replicas": 1},
        both["status"],
        None,
    )
    both["status"] = {"phase": "Other"}
    after = store.patch("nodeset", "worker", both, part="spec")
    assert (after["spec"], after["status"]) == ({"replicas": 5}, {"phase": "Ready"})


def test_a_stale_version_conflicts(store: ObjectStore) -> None:
    old = store.create("nodeset", node_set())
    store.patch("nodeset", "worker", {"spec": {"replicas": 2}})
    with pytest.raises(ApiError) as caught:
        store.update("nodeset", old)
    assert code_of(caught) == (409, "Conflict")
    with pytest.raises(ApiError) as caught:
        store.patch("nodeset", "worker", {"metadata": {"resourceVersion": old["metadata"]["resourceVersion"]}})
    assert code_of(caught) == (409, "Conflict")
    fresh = store.get("nodeset", "worker")
    fresh["spec"]["replicas"] = 3
    assert store.update("nodeset", fresh)["spec"]["replicas"] == 3


def test_another_object_of_the_same_name_conflicts(store: ObjectStore) -> None:
    old = store.create("nodeset", node_set())
    store.delete("nodeset", "worker")
    store.create("nodeset", node_set())
    del old["metadata"]["resourceVersion"]
    with pytest.raises(ApiError) as caught:
        store.update("nodeset", old)
    assert code_of(caught) == (409, "Conflict")


def test_what_cannot_be_changed(store: ObjectStore) -> None:
    made = store.create("nodeset", node_set())
    after = store.patch("nodeset", "worker", {"metadata": {"creationTimestamp": "x", "generation": 9}})
    assert after["metadata"] == made["metadata"]
    with pytest.raises(ApiError) as caught:
        store.patch("nodeset", "worker", {"metadata": {"name": "other"}})
    assert code_of(caught) == (400, "BadRequest")


def test_a_change_that_changes_nothing_is_none(store: ObjectStore) -> None:
    store.create("nodeset", node_set())
    seen: list[Change] = []
    store.subscribe(seen.append)
    before = store.resource_version
    store.patch("nodeset", "worker", {"spec": {"replicas": 1}})
    assert store.resource_version == before
    assert seen == []


@pytest.mark.parametrize("replicas", ["3", 1.5, True, -1, [1]])
def test_replicas_that_are_no_count(store: ObjectStore, replicas: Any) -> None:
    store.create("nodeset", node_set())
    with pytest.raises(ApiError) as caught:
        store.patch("nodeset", "worker", {"spec": {"replicas": replicas}})
    assert code_of(caught) == (422, "Invalid")
    assert caught.value.details["causes"][0]["field"] == "spec.replicas"


def lease(**spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "block"}, "spec": spec}


@pytest.mark.parametrize(
    ("spec", "code", "said"),
    [
        ({"leaseDurationSeconds": 0}, 422, "spec.leaseDurationSeconds: Invalid value: 0: must be greater than 0"),
        ({"leaseTransitions": -1}, 422, "must be greater than or equal to 0"),
        ({"preferredHolder": "ann"}, 422, "may only be specified if `strategy` is defined"),
        ({"leaseDurationSeconds": "5m"}, 400, "cannot be handled as a Lease"),
        # A MicroTime has six digits.
        ({"renewTime": "2026-11-21T20:00:00Z"}, 400, 'parsing time "2026-11-21T20:00:00Z"'),
        ({"renewTime": "2026-11-21T20:00:00.123Z"}, 400, "cannot be handled as a Lease"),
    ],
)
def test_what_is_no_lease(store: ObjectStore, spec: dict[str, Any], code: int, said: str) -> None:
    with pytest.raises(ApiError) as caught:
        store.create("lease", lease(**spec))
    assert caught.value.code == code
    assert said in caught.value.message


def test_of_two_who_take_a_lease_as_they_have_read_it_one_has_it(store: ObjectStore) -> None:
    made = store.create("lease", lease(holderIdentity="ann", renewTime="2026-11-21T20:00:00.000000Z"))
    assert "generation" not in made["metadata"]
    version = {"resourceVersion": made["metadata"]["resourceVersion"]}
    store.patch("lease", "block", {"metadata": version, "spec": {"holderIdentity": "bob"}})
    with pytest.raises(ApiError) as caught:
        store.patch("lease", "block", {"metadata": version, "spec": {"holderIdentity": "eve"}})
    assert code_of(caught) == (409, "Conflict")
    assert store.get("lease", "block")["spec"]["holderIdentity"] == "bob"
    with pytest.raises(ApiError) as caught:
        store.create("lease", lease(holderIdentity="eve"))
    assert code_of(caught) == (409, "AlreadyExists")


def test_missing_things(store: ObjectStore) -> None:
    with pytest.raises(ApiError) as caught:
        store.get("nodeset", "none")
    assert code_of(caught) == (404, "NotFound")
    assert caught.value.message == 'nodesets.slurm.nebius.ai "none" not found'
    with pytest.raises(ApiError) as caught:
        store.create("nodeset", node_set(), "nowhere")
    assert caught.value.message == 'namespaces "nowhere" not found'
    with pytest.raises(KeyError):
        store.list("unheard-of")


def test_finalizers_hold_a_deleted_object(store: ObjectStore) -> None:
    store.create("job", {"metadata": {"name": "j", "finalizers": ["hold"]}, "spec": {}})
    types: list[str] = []
    store.subscribe(lambda change: types.append(change.type))
    assert "deletionTimestamp" in store.delete("job", "j")["metadata"]
    store.delete("job", "j")
    assert types == ["MODIFIED"]
    store.patch("job", "j", {"metadata": {"finalizers": None}})
    assert types == ["MODIFIED", "DELETED"]
    assert store.list("job") == []


def test_deletion_takes_what_is_owned_along_unless_told_not_to(store: ObjectStore) -> None:
    def family(name: str) -> None:
        owner = store.create("job", {"metadata": {"name": name}, "spec": {}})
        reference = {"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": owner["metadata"]["uid"]}
        store.create("pod", {"metadata": {"name": f"{name}-pod", "ownerReferences": [reference]}})

    family("a")
    family("b")
    store.delete("job", "a")
    store.delete("job", "b", propagation="Orphan")
    assert [pod["metadata"]["name"] for pod in store.list("pod")] == ["b-pod"]


def test_deleting_a_namespace_empties_it(store: ObjectStore) -> None:
    store.create("namespace", {"metadata": {"name": "ns"}})
    store.create("nodeset", node_set(), "ns")
    store.create("nodeset", node_set())
    store.delete("namespace", "ns")
    assert [thing["metadata"]["namespace"] for thing in store.list("nodeset")] == ["default"]


def test_delete_preconditions(store: ObjectStore) -> None:
    made = store.create("nodeset", node_set())
    wrongs: list[dict[str, Any]] = [{"uid": "other"}, {"resource_version": "1"}]
    for wrong in wrongs:
        with pytest.raises(ApiError) as caught:
            store.delete("nodeset", "worker", **wrong)
        assert code_of(caught) == (409, "Conflict")
    store.delete("nodeset", "worker", uid=made["metadata"]["uid"])
    assert store.list("nodeset") == []


def test_dry_runs_leave_no_trace(store: ObjectStore) -> None:
    store.create("nodeset", node_set())
    before = json.dumps(store.dump())
    seen: list[Change] = []
    store.subscribe(seen.append)
    assert store.create("nodeset", node_set("other"), dry_run=True)["metadata"]["uid"]
    assert store.patch("nodeset", "worker", {"spec": {"replicas": 7}}, dry_run=True)["spec"]["replicas"] == 7
    store.delete("nodeset", "worker", dry_run=True)
    assert json.dumps(store.dump()) == before
    assert seen == []


def test_subscribers_see_changes_in_order_even_those_they_make(store: ObjectStore) -> None:
    def controller(change: Change) -> None:
        if change.kind.plural == "nodesets" and change.type == "ADDED":
            store.patch("nodeset", change.name, {"status": {"phase": "Ready"}})

    seen: list[tuple[str, int]] = []
    store.subscribe(controller)
    end = store.subscribe(lambda change: seen.append((change.type, change.resource_version)))
    store.create("nodeset", node_set())
    start = store.resource_version
    assert seen == [("ADDED", start - 1), ("MODIFIED", start)]
    end()
    store.delete("nodeset", "worker")
    assert len(seen) == 2


def test_a_subscriber_that_fails_does_not_undo_the_change(store: ObjectStore, caplog: pytest.LogCaptureFixture) -> None:
    def broken(change: Change) -> None:
        raise RuntimeError("out of order")

    seen: list[Change] = []
    store.subscribe(broken)
    store.subscribe(seen.append)
    store.create("nodeset", node_set())
    assert store.get("nodeset", "worker")
    assert len(seen) == 1
    assert "out of order" in caplog.text


def test_dump_and_load(store: ObjectStore) -> None:
    store.create("nodeset", node_set())
    store.create("node", {"metadata": {"name": "gpu-a"}})
    other = ObjectStore()
    other.load(json.loads(json.dumps(store.dump())))
    assert other.list("nodeset") == store.list("nodeset")
    assert other.list("node") == store.list("node")
    assert other.resource_version > store.resource_version
    # Nobody may go on from before the load: what happened there is not known.
    with pytest.raises(ApiError) as caught:
        other.since(store.resource_version)
    assert code_of(caught) == (410, "Expired")


async def _events(watch: Watch) -> list[tuple[str, str]]:
    watch.close()
    found = []
    while (event := await watch.next(5)) is not None:
        found.append((event[0], event[1].get("metadata", {}).get("name") or str(event[1].get("code"))))
    return found


def test_watch_from_a_version(store: ObjectStore) -> None:
    async def scenario() -> list[tuple[str, str]]:
        store.create("nodeset", node_set("a"))
        since = store.resource_version
        store.create("nodeset", node_set("b"))
        watch = Watch(store, store.kind("nodeset"), resource_version=str(since))
        store.delete("nodeset", "a")
        store.create("node", {"metadata": {"name": "elsewhere"}})
        return await _events(watch)

    assert asyncio.run(scenario()) == [("ADDED", "b"), ("DELETED", "a")]


def test_watch_with_a_selector_sees_objects_come_and_go(store: ObjectStore) -> None:
    async def scenario() -> list[tuple[str, str]]:
        store.create("nodeset", node_set())
        watch = Watch(store, store.kind("nodeset"), "default", labels="on=yes")
        for value in ("yes", "yes", "no"):
            store.patch("nodeset", "worker", {"metadata": {"labels": {"on": value}}})
            store.patch("nodeset", "worker", {"status": {"phase": f"after-{value}"}})
        return await _events(watch)

    expected = [("ADDED", "worker"), ("MODIFIED", "worker"), ("DELETED", "worker")]
    assert asyncio.run(scenario()) == expected


def test_watch_that_comes_too_late() -> None:
    async def scenario() -> list[tuple[str, str]]:
        store = ObjectStore(history=3)
        store.create("nodeset", node_set())
        since = store.resource_version
        for replicas in range(2, 7):
            store.patch("nodeset", "worker", {"spec": {"replicas": replicas}})
        return await _events(Watch(store, store.kind("nodeset"), resource_version=str(since)))

    assert asyncio.run(scenario()) == [("ERROR", "410")]


def test_a_history_that_just_reaches_back() -> None:
    store = ObjectStore(history=3)
    for number in range(5):
        store.create("nodeset", node_set(f"n{number}"))
    last = store.resource_version
    assert [change.name for change in store.since(last - 3)] == ["n2", "n3", "n4"]
    with pytest.raises(ApiError):
        store.since(last - 4)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0, "0s"), (119, "119s"), (120, "2m"), (310, "5m10s"), (3600, "60m"), (3 * 3600, "3h"), (10**6, "11d")],
)
def test_ages(seconds: int, words: str) -> None:
    now = datetime(2026, 1, 1, tzinfo=timezone.utc)
    assert age("2026-01-01T00:00:00Z", datetime.fromtimestamp(now.timestamp() + seconds, timezone.utc)) == words
    assert age(None, now) == "<unknown>"
