"""Autoscalers of a workload: how far they may scale it, and how a shift pauses them.

KEDA is paused by its own annotation. A HorizontalPodAutoscaler has none: both its bounds are set to the number of
replicas, and the original bounds are kept in an annotation. An autoscaler is released once the workload has just the
replicas that the autoscaler may make at most: with fewer it would take GPUs of others, and more it would undo.
"""

from __future__ import annotations

from collections.abc import Mapping

from airflow_provider_soperator.errors import CapacityMistake
from airflow_provider_soperator.soperator.conditions import Object
from airflow_provider_soperator.soperator.kinds import Resource
from airflow_provider_soperator.soperator.objects import Objects
from airflow_provider_soperator.soperator.workloads import MANAGER

_PAUSED = "autoscaling.keda.sh/paused"
_PAUSED_REPLICAS = "autoscaling.keda.sh/paused-replicas"
#: The pause is ours while it is at this number.
_OUR_PAUSE = f"{MANAGER}/paused-replicas"
#: The original bounds of an HPA that is pinned.
_BOUNDS = f"{MANAGER}/bounds"
#: KEDA's default of ``maxReplicaCount``.
_KEDA_MOST = 100


class Keda:
    """A ScaledObject. (An ``Hpa`` has the same methods.)"""

    resource = Resource("keda.sh", "v1alpha1", "scaledobjects", "ScaledObject")

    def __init__(self, found: Object) -> None:
        self.name = str(found["metadata"]["name"])
        self._annotations: Mapping[str, str] = found["metadata"].get("annotations") or {}
        #: The most replicas that it may ever make.
        self.most = int(found["spec"].get("maxReplicaCount", _KEDA_MOST))
        ours = self._annotations.get(_OUR_PAUSE)
        self._is_ours = ours is not None and ours == self._annotations.get(_PAUSED_REPLICAS)
        #: The patch that removes our mark, if others have undone what it marks: what they do next is not ours.
        self.unmarked = annotated({_OUR_PAUSE: None}) if ours is not None and not self._is_ours else None

    def check(self) -> None:
        """Raise ``CapacityMistake`` if it cannot be paused."""
        pinned = self._annotations.get(_PAUSED_REPLICAS)
        if pinned is not None and not self._is_ours:
            raise CapacityMistake(
                f"ScaledObject {self.name} is paused at {pinned} replicas, and not by this provider",
                f"remove its annotation {_PAUSED_REPLICAS} once the reason for the pause is gone",
            )

    def ceiling(self, replicas: int) -> int:
        """The highest number of replicas that it may set now, given the present number."""
        if pinned := self._annotations.get(_PAUSED_REPLICAS):
            return int(pinned)
        return replicas if self._annotations.get(_PAUSED) == "true" else self.most

    def may_add(self, replicas: int) -> int:
        """The replicas that it may add for more work; while it is pinned, they come without any."""
        return 0 if _PAUSED_REPLICAS in self._annotations else max(0, self.ceiling(replicas) - replicas)

    def pin(self, replicas: int) -> Object | None:
        """The patch that pins the workload at this number; None if it is pinned already."""
        said = str(replicas)
        if self._is_ours and self._annotations[_PAUSED_REPLICAS] == said:
            return None
        return annotated({_PAUSED_REPLICAS: said, _OUR_PAUSE: said})

    def release(self, replicas: int) -> Object | None:
        """The patch that unpins it, if we have pinned it and this is the most that it may set; else None."""
        if not self._is_ours or replicas != self.most:
            return None
        return annotated({_PAUSED_REPLICAS: None, _OUR_PAUSE: None})


class Hpa:
    """A HorizontalPodAutoscaler. It never scales a workload that has no replicas."""

    resource = Resource("autoscaling", "v2", "horizontalpodautoscalers", "HorizontalPodAutoscaler")

    def __init__(self, found: Object, *, may_pin: bool) -> None:
        self.name = str(found["metadata"]["name"])
        self._may_pin = may_pin
        spec = found["spec"]
        self._bounds = (int(spec.get("minReplicas", 1)), int(spec["maxReplicas"]))
        noted = (found["metadata"].get("annotations") or {}).get(_BOUNDS)
        # Bounds that differ from each other were set by others since.
        self._is_pinned = noted is not None and self._bounds[0] == self._bounds[1]
        least, _, most = (noted or "").partition("-")
        self._own = (int(least), int(most)) if self._is_pinned else self._bounds
        self.most = self._own[1]
        self.unmarked = annotated({_BOUNDS: None}) if noted is not None and not self._is_pinned else None

    def check(self) -> None:
        if not self._may_pin:
            raise CapacityMistake(
                f"HorizontalPodAutoscaler {self.name} scales the same workload",
                "delete it, or set pin_hpa=True to let a shift change its bounds",
            )

    def ceiling(self, replicas: int) -> int:
        return self._bounds[1] if replicas else 0

    def may_add(self, replicas: int) -> int:
        return 0 if self._is_pinned else max(0, self.ceiling(replicas) - replicas)

    def pin(self, replicas: int) -> Object | None:
        least = max(1, replicas)
        if self._is_pinned and self._bounds == (least, least):
            return None
        return self._changed((least, least), "{}-{}".format(*self._own))

    def release(self, replicas: int) -> Object | None:
        return self._changed(self._own, None) if self._is_pinned and replicas == self.most else None

    @staticmethod
    def _changed(bounds: tuple[int, int], noted: str | None) -> Object:
        return annotated({_BOUNDS: noted}) | {"spec": {"minReplicas": bounds[0], "maxReplicas": bounds[1]}}


Autoscaler = Keda | Hpa


async def find(objects: Objects, workload: Resource, name: str, *, may_pin_hpa: bool) -> Autoscaler | None:
    """Find the autoscaler of a workload, if it has one."""

    def scales(found: Object) -> bool:
        reference = found["spec"].get("scaleTargetRef") or {}
        return reference.get("name") == name and workload.is_meant_by(reference)

    if await objects.serves(Keda.resource):
        for found in filter(scales, await objects.list_all(Keda.resource)):
            return Keda(found)
    for found in filter(scales, await objects.list_all(Hpa.resource)):
        return Hpa(found, may_pin=may_pin_hpa)
    return None


def annotated(annotations: Mapping[str, str | None]) -> Object:
    """A merge patch; None removes an annotation."""
    return {"metadata": {"annotations": dict(annotations)}}
