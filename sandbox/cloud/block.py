"""The capacity block: a fixed number of reserved GPUs, and a ledger of who held how many of them when."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


class CapacityExhausted(Exception):
    """The block has fewer GPUs free than were asked for."""

    entry = "refused"


class AllowanceExhausted(CapacityExhausted):
    """The project has fewer GPUs of the block left than were asked for."""

    entry = "barred"


@dataclass(frozen=True)
class LimitChange:
    """A limit that the block will have from a moment on, as a reservation that ends or is extended has."""

    at: float
    limit: int


class CapacityBlock:
    """GPUs that were paid for in advance. What is claimed beyond the limit does not exist.

    Every claim, release and refusal is appended to the ledger, so that a test can prove afterwards that at no instant
    more was held than the block has, or asked for.
    """

    def __init__(
        self, block_id: str, limit: int, *, ledger: Path | None = None, now: Callable[[], float] = time.time
    ) -> None:
        self.id = block_id
        self.limit = limit
        #: False makes the API report USAGE_STATE_UNKNOWN, as when the region cannot be reached.
        self.usage_known = True
        #: True makes the API say that the limit is being moved now.
        self.reconciling = False
        self.next_change: LimitChange | None = None
        #: The GPUs of it that projects may have, if that is not all of them.
        self.allowances: dict[str, int] = {}
        self._holders: dict[str, int] = {}
        #: The projects of holders that are in one.
        self._projects: dict[str, str] = {}
        self._ledger = ledger
        self._now = now

    @property
    def usage(self) -> int:
        return sum(self._holders.values())

    @property
    def free(self) -> int:
        """Never negative, also when the limit was lowered below what is in use."""
        return max(0, self.limit - self.usage)

    @property
    def holders(self) -> dict[str, int]:
        return dict(self._holders)

    def usage_of(self, project: str) -> int:
        return sum(gpus for holder, gpus in self._holders.items() if self._projects.get(holder) == project)

    def allow(self, project: str, limit: int | None) -> None:
        """Limit what a project may have from now on, or let it have all; what its holders have stays theirs."""
        self.allowances.pop(project, None)
        if limit is not None:
            self.allowances[project] = limit

    def claim(self, holder: str, gpus: int, project: str = "") -> None:
        """Take GPUs for a holder that has none yet, all or nothing."""
        if gpus < 1:
            raise ValueError(f"{holder} cannot hold {gpus} GPUs")
        if holder in self._holders:
            raise ValueError(f"{holder} holds GPUs already")
        if gpus > self.free:
            raise CapacityExhausted(
                f"capacity block {self.id} has {self.free} of {self.limit} GPUs free, {gpus} are needed"
            )
        allowed = self.allowances.get(project)
        if allowed is not None and self.usage_of(project) + gpus > allowed:
            raise AllowanceExhausted(
                f"{project} may have {allowed} GPUs of capacity block {self.id} and has {self.usage_of(project)}, "
                f"{gpus} more are needed"
            )
        self._holders[holder] = gpus
        if project:
            self._projects[holder] = project
        self._record("claim", holder, gpus)

    def release(self, holder: str) -> None:
        """Give back all that a holder has; a holder that has nothing gives nothing back."""
        gpus = self._holders.pop(holder, None)
        self._projects.pop(holder, None)
        if gpus is not None:
            self._record("release", holder, gpus)

    def set_limit(self, limit: int) -> None:
        """A reservation grows or shrinks under its users; what they hold stays theirs."""
        self.limit = limit
        self._record("limit", self.id, limit)

    def schedule_limit(self, at: float, limit: int) -> None:
        """Announce a limit; ``advance`` puts it in force once its time has come."""
        self.next_change = LimitChange(at, limit)

    def advance(self) -> None:
        """Put in force what was scheduled until now."""
        if self.next_change is not None and self._now() >= self.next_change.at:
            limit, self.next_change = self.next_change.limit, None
            self.set_limit(limit)

    def note_payg(self, holder: str, gpus: int, *, is_declared: bool = False) -> None:
        """Write down GPUs that were bought beside the block, so that the ledger can prove that none were.

        Those of a group that never has any of the block are told apart: whoever makes it larger says that he buys.
        """
        self._record("declared" if is_declared else "payg", holder, gpus)

    def note_refused(self, holder: str, gpus: int, why: type[CapacityExhausted] = CapacityExhausted) -> None:
        """Write down GPUs that were asked for and not there, so that the ledger can prove that nobody asked."""
        self._record(why.entry, holder, gpus)

    def _record(self, entry: str, holder: str, gpus: int) -> None:
        if self._ledger is None:
            return
        line = {"at": self._now(), "entry": entry, "holder": holder, "gpus": gpus}
        line |= {"usage": self.usage, "limit": self.limit}
        with self._ledger.open("a") as ledger:
            ledger.write(json.dumps(line) + "\n")

    def dump(self) -> dict[str, Any]:
        return {
            "limit": self.limit,
            "usage_known": self.usage_known,
            "reconciling": self.reconciling,
            "next_change": asdict(self.next_change) if self.next_change else None,
            "holders": self.holders,
            "projects": dict(self._projects),
            "allowances": dict(self.allowances),
        }

    def load(self, state: dict[str, Any]) -> None:
        self.limit = state["limit"]
        self.usage_known = state["usage_known"]
        self.reconciling = state["reconciling"]
        self.next_change = LimitChange(**state["next_change"]) if state["next_change"] else None
        self._holders = dict(state["holders"])
        self._projects = dict(state["projects"])
        self.allowances = dict(state["allowances"])
