"""The files of a Slurm that Soperator's objects describe, as they lie in the sandbox's root."""

from __future__ import annotations

from collections.abc import Sequence

from sandbox.cloud import slurm_overrides
from sandbox.cloud.landscape import nodesets_of, slurm_cluster
from sandbox.cloud.slurm_config import Object, text_of
from sandbox.cloud.slurm_overrides import FirstPort
from sandbox.settings import Settings
from sandbox.slurmd_ports import SlurmdPorts


def initial_files(settings: Settings) -> dict[str, str]:
    """Those of a new sandbox, so that its daemons need not wait for its operator."""
    if settings.bare:
        return {"etc/hosts": slurm_overrides.hosts(None, ())}
    cluster, nodesets = slurm_cluster(settings), nodesets_of(settings)
    return files(cluster, nodesets, settings, SlurmdPorts(settings.ports).first)


def files(cluster: Object, nodesets: Sequence[Object], settings: Settings, first_port: FirstPort) -> dict[str, str]:
    """The files, by their paths in the root."""
    rendered = slurm_overrides.sandboxed(cluster, nodesets, settings, first_port)
    return {
        "etc/hosts": slurm_overrides.hosts(cluster, nodesets),
        **{f"etc/slurm/{name}": text_of(lines) for name, lines in rendered.items()},
    }
