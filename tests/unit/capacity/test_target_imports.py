"""DAG files name targets, and are parsed all day long: a target imports what it needs once it is opened."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("ClusterShell", "grpc", "kubernetes", "kubernetes_asyncio", "nebius")
TARGETS = ("KubernetesScaleTarget", "NebiusNodeGroupTarget", "SlurmNodesTarget")


@pytest.mark.parametrize("name", TARGETS)
def test_a_target_imports_no_client(name: str) -> None:
    program = (
        f"import sys\nfrom airflow_provider_soperator.capacity.targets import {name}\n"
        f"print(*(name for name in {HEAVY!r} if name in sys.modules))"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert said.stdout.split() == []


def test_a_name_that_is_none_is_an_error() -> None:
    from airflow_provider_soperator.capacity import targets

    with pytest.raises(AttributeError, match="no attribute 'SlurmNodeTarget'"):
        targets.SlurmNodeTarget  # noqa: B018
