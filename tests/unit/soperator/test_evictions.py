"""Which Kubernetes Nodes are emptied."""

from __future__ import annotations

import asyncio
import json
import logging
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_soperator.soperator.evictions import CORDONED, PodEvictions, PodHost, choose
from airflow_provider_soperator.soperator.objects import Objects
from airflow_provider_soperator.transports.transport_errors import ConnectRefused


def pod(owner: str, *, is_ready: bool = True) -> dict[str, Any]:
    owners = [{"uid": owner, "name": owner, "kind": "ReplicaSet", "controller": True}]
    conditions = [{"type": "Ready", "status": str(is_ready)}]
    metadata = {"name": f"{owner}-1", "namespace": "inference", "ownerReferences": owners}
    return {"metadata": metadata, "status": {"conditions": conditions}}


def host(name: str, *pods: dict[str, Any], age: int = 0, blocked: bool = False, **node: Any) -> PodHost:
    metadata = {"name": name, "creationTimestamp": f"2026-11-{20 - age:02}T00:00:00Z", **node.pop("metadata", {})}
    return PodHost({"metadata": metadata, "spec": node}, pods, ("a budget",) if blocked else ())


OURS = {"metadata": {"annotations": {CORDONED: "airflow:capacity/b: "}}, "unschedulable": True}

BUSY = host("busy", pod("a"), pod("a"))


@pytest.mark.parametrize(
    ("first", "other"),
    [
        (host("few", pod("a")), BUSY),
        (host("starts", pod("a", is_ready=False), pod("a", is_ready=False)), host("one", pod("a"))),
        (host("many", pod("a"), pod("b")), host("blocked", blocked=True)),
        (host("ours", pod("a"), pod("a"), blocked=True, **OURS), host("empty")),
        (host("cordoned", pod("a"), pod("a"), unschedulable=True), host("ours", **OURS)),
        (host("gone", pod("a"), metadata={"deletionTimestamp": "2026-11-21T00:00:00Z"}), host("ours", **OURS)),
        (host("young", pod("a")), host("old", pod("a"), age=5)),
    ],
    ids=lambda one: one.name,
)
def test_the_first_to_go(first: PodHost, other: PodHost) -> None:
    assert choose([other, first], 1) == [first]
    assert choose([first, other], 1) == [first]


def test_of_equal_nodes_one_whose_pods_have_replicas_on_nodes_that_stay() -> None:
    only, one, two, three = host("only", pod("b")), *(host(name, pod("a")) for name in ("one", "two", "three"))
    chosen = choose([only, one, two, three], 3)
    # With the last replica of one service or of the other: the age decides, as nothing else is left.
    assert [each.name for each in chosen[:2]] == ["one", "two"]
    # Two nodes hold the two replicas of one service: not both go as long as another service has one to spare.
    services = [host("a1", pod("a")), host("a2", pod("a")), host("b1", pod("b")), host("b2", pod("b"))]
    assert {str(each.name)[0] for each in choose(services, 2)} == {"a", "b"}


def test_only_what_may_go_is_chosen_but_for_what_is_cordoned() -> None:
    hosts = [host("one"), host("two"), host("three", **OURS)]
    assert [each.name for each in choose(hosts, 3, frozenset({"two"}))] == ["three", "two"]
    assert choose(hosts, -1) == []


def test_a_node_says_what_serves_there() -> None:
    assert str(BUSY) == "serves with 2 Pods (inference/a)"
    assert str(host("blocked", pod("a", is_ready=False), blocked=True)) == "no Pod serves there; a budget"


@pytest.mark.parametrize("calls", ["keep", "step"])
def test_a_mark_goes_with_the_cordon_that_others_have_undone(calls: str) -> None:
    patches: list[Any] = []

    async def nodes(*args: Any) -> list[Any]:
        return [host("undone", metadata=OURS["metadata"]).node]

    async def pods(node: str) -> list[Any]:
        return []

    async def patch(name: str, body: Any) -> None:
        patches.append(body)

    objects: Any = SimpleNamespace(list_all=nodes, list_pods_on=pods, patch_node=patch)
    evictions = PodEvictions(objects, "group=a", "airflow:capacity/b: ", None, logging.getLogger(__name__))
    asyncio.run(getattr(evictions, calls)(1))
    assert patches == [{"metadata": {"annotations": {CORDONED: None}}}]


def evict(status: int, body: bytes) -> str:
    """What is said of a Pod whose eviction gets this answer."""

    async def read() -> bytes:
        return body

    async def answer(*args: Any, **how: Any) -> Any:
        return SimpleNamespace(status=status, reason="", read=read)

    metadata = {"name": "a-1", "namespace": "inference", "uid": "a"}
    return asyncio.run(Objects(SimpleNamespace(call_api=answer), "soperator", "").evict({"metadata": metadata}))


@pytest.mark.parametrize("body", [b"<html>Bad Gateway</html>", b'"Bad Gateway"', b"[]", b""])
def test_a_refusal_of_a_proxy_may_pass(body: bytes) -> None:
    with pytest.raises(ConnectRefused, match="could not evict pod inference/a-1"):
        evict(502, body)


@pytest.mark.parametrize("status", [403, 400, 422, 500])
def test_what_a_webhook_denies_is_the_reason_of_that_pod_alone(status: int) -> None:
    said = 'admission webhook "guard.example.com" denied the request: in use'
    assert evict(status, json.dumps({"kind": "Status", "message": said, "code": status}).encode()) == said
