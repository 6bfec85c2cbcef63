"""Progress of a run, from Terraform's events: its resources, a progress bar, and lines for a log."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_soperator.terraform.failures import Diagnostic, seconds_of

#: The steps of each planned action; other actions do not count.
_STEPS = {"create": 1, "update": 1, "delete": 1, "replace": 2}
_DOING = {"create": "creating", "update": "changing", "delete": "destroying", "read": "reading"}
_DONE = {"create": "created", "update": "changed", "delete": "destroyed", "read": "read"}
_WIDTH = 20
#: Resources that a bar names: the oldest ones, because they are what a user waits for.
_NAMED = 2


@dataclass(frozen=True)
class Applied:
    """Result of an apply."""

    added: int = 0
    changed: int = 0
    destroyed: int = 0
    imported: int = 0

    def __str__(self) -> str:
        done = f"{self.added} added, {self.changed} changed, {self.destroyed} destroyed"
        return f"{done}, {self.imported} imported" if self.imported else done


@dataclass
class ApplyProgress:
    """State of a run, event by event. Times are seconds since the epoch, by Terraform's clock."""

    total: int = 0
    done: int = 0
    #: Resources in progress, each with its action and start time.
    current: dict[str, tuple[str, float]] = field(default_factory=dict)
    diagnostics: list[Diagnostic] = field(default_factory=list)
    #: The result of a finished apply.
    applied: Applied = Applied()
    began: float = 0.0
    #: The time of the last event of a resource, at which this run held the lock of the state.
    last_sign: float = 0.0

    def take(self, event: Mapping[str, Any]) -> Iterator[str]:
        """Note an event, and yield log lines if it is worth any."""
        at = seconds_of(event.get("@timestamp", "")) or 0.0
        self.began = self.began or at
        if "hook" in event:
            self.last_sign = at
        match event:
            case {"type": "planned_change", "change": {"action": action}}:
                self.total += _STEPS.get(action, 0)
            case {"type": "apply_start", "hook": {"resource": {"addr": address}, "action": action}}:
                self.current[address] = (action, at)
                yield f"{_DOING.get(action, action)} {address}"
            case {"type": "apply_complete", "hook": {"resource": {"addr": address}, "action": action}}:
                self.done += action in _STEPS
                yield f"{_DONE.get(action, action)} {self._taken(address, at)}"
            case {"type": "apply_errored", "hook": {"resource": {"addr": address}, "action": action}}:
                yield f"FAILED: {_DOING.get(action, action)} {self._taken(address, at)}"
            case {"type": "change_summary", "changes": {"operation": "apply" | "destroy"} as changes}:
                self.applied = Applied(*(changes.get(name, 0) for name in ("add", "change", "remove", "import")))
            case {"type": "diagnostic", "diagnostic": said}:
                self.diagnostics.append(Diagnostic.read(said))
            case {"type": "log", "@message": str(words)}:
                if event.get("@level") in ("warn", "error") or "nterrupt" in words:
                    yield " ".join(words.split())

    def bar(self, now: float) -> str:
        """A progress bar in one line.

        >>> ApplyProgress(total=4, done=1, current={"module.k8s.x.y": ("create", 100.0)}, began=40.0).bar(230.0)
        '[#####---------------] 1/4 · 3:10 · creating module.k8s.x.y (2:10)'
        """
        total = max(self.total, self.done)
        full = _WIDTH * self.done // total if total else 0
        oldest = sorted(self.current.items(), key=lambda one: one[1][1])
        told = [f"{_DOING.get(action, action)} {name} ({_clock(now - at)})" for name, (action, at) in oldest[:_NAMED]]
        more = f" and {len(oldest) - _NAMED} more" if len(oldest) > _NAMED else ""
        parts = [f"[{'#' * full:-<{_WIDTH}}] {self.done}/{total}", _clock(now - self.began), ", ".join(told) + more]
        return " · ".join(filter(None, parts))

    def _taken(self, address: str, at: float) -> str:
        _, began = self.current.pop(address, ("", at))
        return f"{address} in {_clock(at - began)}"


def _clock(seconds: float) -> str:
    """Minutes and seconds, and hours if there are any."""
    minutes, second = divmod(max(0, int(seconds)), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"
