"""Approval of a plan: what a shift may do at most, and until when a person may say so."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from hashlib import sha256
from typing import Any

from airflow_provider_soperator.capacity.allocation import bounds_of, units_text
from airflow_provider_soperator.capacity.order import DesiredAllocation, ShiftOrder, Superseded
from airflow_provider_soperator.errors import CapacityMistake


def approval_of(order: ShiftOrder, plan: Mapping[str, Any]) -> dict[str, Any]:
    """What is approved with the plan of an order: its goal, the nodes that go, the jobs that may be ended, its end."""
    bounds: dict[str, Any] = {
        "goal": dict(order.desired),
        # A plan that does not name them sets no bounds to them.
        **{name: plan[name] for name in ("nodes", "jobs") if name in plan},
        "end": order.stops_at and order.stops_at.isoformat(),
    }
    return {**bounds, "digest": _digest(bounds)}


def read_approval(plan: Any) -> dict[str, Any]:
    """What was approved with a plan; raises ``CapacityMistake`` if it is not what was shown."""
    said = plan.get("approval") if isinstance(plan, Mapping) else None
    if not isinstance(said, Mapping):
        raise CapacityMistake("approved_plan must be the result of a ShiftCapacityOperator with plan_only=True")
    bounds = {name: value for name, value in said.items() if name != "digest"}
    if said.get("digest") != _digest(bounds):
        raise CapacityMistake("the approved plan is not the one that was shown", "plan again, and have that approved")
    return dict(said)


def as_approved(wanted: DesiredAllocation, approval: Mapping[str, Any]) -> DesiredAllocation:
    """What is wanted, with the goal that was approved; ``Superseded`` if that is wished for no more."""
    goal: dict[str, int] = approval["goal"]
    bounds = {target: bounds_of(units) for target, units in wanted.units.items()}
    if goal.keys() != bounds.keys() or not all(low <= goal[target] <= high for target, (low, high) in bounds.items()):
        raise Superseded(
            f"{units_text(goal)} was approved, but {units_text(wanted.units)} is wished for by now; the next run asks "
            "again"
        )
    return replace(wanted, units=goal)


def answer_by(order: ShiftOrder, now: datetime) -> datetime | None:
    """The moment until which an answer is of use: the handover, or else the beginning of the next shift."""
    return order.wanted_at if order.wanted_at > now else order.stops_at


def _digest(bounds: Mapping[str, Any]) -> str:
    return sha256(json.dumps(bounds, sort_keys=True).encode()).hexdigest()[:12]
