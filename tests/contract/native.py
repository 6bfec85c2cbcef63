"""The native transport as a way of the tests: pyslurm and the commands of a sandbox's login node.

It is there only if it is asked for by name: Debian has no pyslurm, and docs/native.md says how to make a root with one.
"""

from __future__ import annotations

from collections.abc import Callable

from airflow_provider_soperator.transports.native import NativeTransport
from tests.contract.transports import AsyncWay, Way, inside
from tests.integration.cluster import Cluster

NATIVE: dict[str, Callable[[Cluster], Way]] = {
    "native": lambda cluster: AsyncWay(lambda: NativeTransport(python(cluster), inside(cluster, "/bin/sh"))),
}


def python(cluster: Cluster, *settings: str) -> tuple[str, ...]:
    """A Python on the login node, with some more variables in its environment."""
    return inside(cluster, "env", *settings, "python3")
