"""Descriptions that tests change a little."""

from __future__ import annotations

import base64
import struct
from typing import Any

from airflow_provider_soperator.provisioning.parts import NodeSet
from airflow_provider_soperator.provisioning.spec import ClusterSpec

GPU = {"platform": "gpu-h100-sxm", "preset": "8gpu-128vcpu-1600gb"}


def public_key(kind: str = "ssh-ed25519") -> str:
    """A key of the right form; nobody has the private one."""
    data = b"".join(struct.pack(">I", len(part)) + part for part in (kind.encode(), bytes(32)))
    return f"{kind} {base64.b64encode(data).decode()} somebody@example"


def workers(name: str = "worker", size: Any = 2, **changed: Any) -> NodeSet:
    return NodeSet(name, size, **{**GPU, **changed})


def cluster(**changed: Any) -> ClusterSpec:
    said = {"name": "research", "operator_version": "4.1.7", "nodesets": (workers(),), "login_keys": (public_key(),)}
    return ClusterSpec(**{**said, **changed})
