"""CPUs and GPUs of Nebius' machines, as slurm.conf declares them."""

from __future__ import annotations

import re
from dataclasses import dataclass

from airflow_provider_soperator.provisioning.fields import preset_of


@dataclass(frozen=True)
class _Platform:
    presets: tuple[str, ...]
    #: vCPUs up to which a machine has one socket; others have two.
    one_socket: int
    threads: int = 2
    #: A part of the name that the driver gives the GPU: with that, ``AutoDetect=nvidia`` finds them.
    gpu: str = ""


def _cpu_presets(*cpus: int) -> tuple[str, ...]:
    return tuple(f"{count}vcpu-{count * 4}gb" for count in cpus)


_H = ("1gpu-16vcpu-200gb", "8gpu-128vcpu-1600gb")
_B200 = ("1gpu-20vcpu-224gb", "8gpu-160vcpu-1792gb")
#: The platforms and presets of the published recipe.
_PLATFORMS = {
    "cpu-e2": _Platform(_cpu_presets(2, 4, 8, 16, 32, 48, 64, 80), 32),
    "cpu-d3": _Platform(_cpu_presets(2, 4, 8, 16, 32, 48, 64, 96, 128, 160, 192, 224, 256), 128),
    "cpu-g1": _Platform(_cpu_presets(2, 4, 8, 16, 32, 56, 112), 56, threads=1),
    "gpu-h100-sxm": _Platform(_H, 16, gpu="nvidia_h100_80gb_hbm3"),
    "gpu-h200-sxm": _Platform(_H, 16, gpu="nvidia_h200"),
    "gpu-b200-sxm": _Platform(_B200, 20, gpu="nvidia_b200"),
    "gpu-b200-sxm-a": _Platform(_B200, 20, gpu="nvidia_b200"),
    "gpu-b300-sxm": _Platform(("1gpu-24vcpu-346gb", "8gpu-192vcpu-2768gb"), 24, gpu="nvidia_b300"),
    "gpu-gb300": _Platform(("4gpu-112vcpu-800gb",), 56, threads=1, gpu="nvidia_gb300"),
}


def static_of(platform: str, preset: str) -> str:
    """The options of ``NodeName`` for a machine; empty if the preset is not known.

    >>> static_of("gpu-h100-sxm", "1gpu-16vcpu-200gb")
    'CPUs=16 Boards=1 SocketsPerBoard=1 CoresPerSocket=8 ThreadsPerCore=2 Gres=gpu:nvidia_h100_80gb_hbm3:1'
    """
    known, size = _PLATFORMS.get(platform), preset_of(preset)
    if known is None or size is None or preset not in known.presets:
        return ""
    sockets = 1 if size.cpus <= known.one_socket else 2
    cores = size.cpus // sockets // known.threads
    gres = f" Gres=gpu:{known.gpu}:{size.gpus}" if size.gpus else ""
    return (
        f"CPUs={size.cpus} Boards=1 SocketsPerBoard={sockets} CoresPerSocket={cores} "
        f"ThreadsPerCore={known.threads}{gres}"
    )


def is_of(static: str, preset: str) -> bool:
    """True if options of ``NodeName`` have the CPUs and GPUs of a preset, whatever else they have."""
    size, cpus = preset_of(preset), re.search(r"\bCPUs=(\d+)", static)
    gpus = re.search(r"\bGres=gpu:(?:\w+:)?(\d+)", static)
    said = (int(cpus[1]) if cpus else 1, int(gpus[1]) if gpus else 0)
    return size is not None and said == (size.cpus, size.gpus)
