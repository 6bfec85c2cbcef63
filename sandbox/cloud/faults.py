"""Faults on demand: which calls to the two doubles fail, hang or conflict, and for how long; what a GPU may say."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal, get_args

Api = Literal["kubernetes", "nebius"]
#: ``lost`` is a call that was carried out, and whose answer never came.
Effect = Literal["error", "hang", "conflict", "lost"]
#: What the DCGM exporter says of a GPU that is well.
GPU_METRICS = {
    "DCGM_FI_DEV_XID_ERRORS": 0.0,
    "DCGM_FI_DEV_GPU_TEMP": 35.0,
    "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": 0.0,
    "DCGM_FI_DEV_ROW_REMAP_FAILURE": 0.0,
}


@dataclass
class ApiFault:
    """One fault, and the calls it strikes.

    ``matching`` is a shell pattern over what is called: ``"PATCH nodesets/worker"`` (verb, plural, name) on the
    Kubernetes API, ``"NodeGroupService/Update"`` on the Nebius one.
    """

    api: Api
    effect: Effect
    matching: str = "*"
    #: Calls still to strike; None means every one until the fault is cleared.
    count: int | None = 1

    def __post_init__(self) -> None:
        if self.api not in get_args(Api):
            raise ValueError(f"no such API: {self.api!r} (one of {', '.join(get_args(Api))})")
        if self.effect not in get_args(Effect):
            raise ValueError(f"no such effect: {self.effect!r} (one of {', '.join(get_args(Effect))})")
        if self.effect == "lost" and self.api != "nebius":
            raise ValueError("only answers of the Nebius API can be lost")
        if self.count is not None and self.count < 1:
            raise ValueError("a fault strikes at least one call")


class ApiFaults:
    """The faults now in force, asked by both doubles at the start of every call."""

    def __init__(self) -> None:
        self._faults: list[ApiFault] = []

    def add(self, fault: ApiFault) -> None:
        self._faults.append(fault)

    def clear(self) -> None:
        self._faults.clear()

    def strike(self, api: Api, call: str) -> Effect | None:
        """The effect that hits this call, if any; counts it against the fault."""
        for fault in self._faults:
            if fault.api == api and fnmatchcase(call, fault.matching):
                if fault.count is not None:
                    fault.count -= 1
                    if fault.count == 0:
                        self._faults.remove(fault)
                return fault.effect
        return None

    def describe(self) -> list[dict[str, Any]]:
        return [asdict(fault) for fault in self._faults]
