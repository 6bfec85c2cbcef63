"""Kubeconfig files that lead kubectl and the Python clients to the double."""

from __future__ import annotations

import base64
from pathlib import Path

import yaml

from sandbox.private import write_private


def write_kubeconfig(
    path: Path,
    *,
    server: str,
    ca_file: Path,
    token: str,
    context: str = "sandbox",
    namespace: str = "default",
) -> Path:
    """Write a kubeconfig of one context; it holds the CA certificate itself, so it can be moved."""
    authority = base64.b64encode(ca_file.read_bytes()).decode()
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {"name": context, "cluster": {"server": server, "certificate-authority-data": authority}},
        ],
        "users": [{"name": context, "user": {"token": token}}],
        "contexts": [
            {"name": context, "context": {"cluster": context, "user": context, "namespace": namespace}},
        ],
        "current-context": context,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    write_private(path, yaml.safe_dump(config, sort_keys=False).encode())
    return path
