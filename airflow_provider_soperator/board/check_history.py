"""What checks have found: figures of nodes over time, active checks, and the health of nodes with all that is known."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from itertools import islice
from typing import Any

from airflow_provider_soperator.board.looks import attempt, kept_since
from airflow_provider_soperator.health.assessment import Observations
from airflow_provider_soperator.health.figures import VARIABLES, FiguresMistake, Kept, kept_figures, slower
from airflow_provider_soperator.health.findings import Finding
from airflow_provider_soperator.hooks.check import sentences
from airflow_provider_soperator.hooks.cluster import SoperatorClusterHook
from airflow_provider_soperator.hooks.cluster_clients import HealthSources
from airflow_provider_soperator.hooks.slurm import SlurmHook
from airflow_provider_soperator.soperator.active_checks import ActiveChecks, newest, newest_result

#: Nodes whose figures are drawn, of each check: the slow ones first.
_MOST_DRAWN = 8
#: The size of a drawing of figures over time.
WIDTH, HEIGHT = 120, 24


@dataclass(frozen=True, kw_only=True)
class CheckLook:
    """The newest result of an active check."""

    name: str
    state: str
    is_bad: bool
    at: datetime | None = None
    why: str = ""


@dataclass(frozen=True, kw_only=True)
class HealthLook:
    """What is known of the health of a cluster's nodes beside what Slurm says."""

    taken: datetime
    observations: Observations = Observations()  # noqa: RUF009 - it is frozen
    checks: Sequence[CheckLook] = ()
    #: Why a source could not be asked, by the name of the source; and since when what is known of it is as it was.
    failures: Mapping[str, str] = field(default_factory=dict)
    since: Mapping[str, datetime] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Course:
    """A figure of a node over time."""

    check: str
    figure: str
    node: str
    values: Sequence[float]
    is_slow: bool

    @property
    def points(self) -> str:
        """A line through the values, from the left to the right; it begins at 0, so that a small change looks small."""
        values = self.values if len(self.values) > 1 else [*self.values, *self.values]
        most, step = max(values) or 1.0, WIDTH / (len(values) - 1)
        ys = (HEIGHT - 1 - (HEIGHT - 2) * max(0.0, value) / most for value in values)
        return " ".join(f"{place * step:.1f},{y:.1f}" for place, y in enumerate(ys))


async def look_at_health(connection: str, before: HealthLook | None = None) -> HealthLook:
    """Figures from Airflow Variables; Pods and active checks, if the connection names one to Kubernetes."""
    now, failures = datetime.now(timezone.utc), dict[str, str]()
    last = before or HealthLook(taken=now)
    figures, pods, checks = await asyncio.gather(
        attempt("figures of checks", failures, asyncio.to_thread(_all_figures, failures), last.observations.figures),
        attempt("Pods", failures, _pods(connection), last.observations.kubernetes),
        attempt("active checks", failures, _checks(connection), last.checks),
    )
    return HealthLook(
        taken=now,
        observations=Observations(kubernetes=pods, figures=figures),
        checks=checks,
        failures=failures,
        # Of figures that cannot be read none are shown.
        since=kept_since(failures.keys() & {"figures of checks", "Pods", "active checks"}, before),
    )


def _all_figures(failures: dict[str, str]) -> dict[str, Kept]:
    """The figures of all checks that can be read."""
    from airflow.models.variable import Variable
    from airflow.utils.session import create_session
    from sqlalchemy import select

    with create_session() as session:
        keys = session.scalars(select(Variable.key).where(Variable.key.startswith(VARIABLES, autoescape=True))).all()
    found = {}
    for check in sorted(key.removeprefix(VARIABLES) for key in keys if key):
        try:
            found[check] = kept_figures(check)
        except FiguresMistake as error:
            failures[f"figures of {check}"] = sentences(str(error))
    return found


async def _pods(connection: str) -> Any:
    settings = await SlurmHook(connection).async_settings()
    if not settings.kubernetes_conn_id:
        return None
    sources = HealthSources(kubernetes_conn_id=settings.kubernetes_conn_id, namespace=settings.namespace)
    return (await sources.ask()).kubernetes


async def _checks(connection: str) -> list[CheckLook]:
    settings = await SlurmHook(connection).async_settings()
    if not settings.kubernetes_conn_id:
        return []
    now = datetime.now(timezone.utc)
    async with SoperatorClusterHook(settings.kubernetes_conn_id, settings.namespace).objects() as objects:
        checks = ActiveChecks(objects)
        known, runs = await asyncio.gather(checks.list_all(), checks.runs())
    found = []
    for check in sorted(known, key=lambda one: one.name):
        _, result = newest_result(check, runs, None, now)
        last = newest([run for run in runs if run.check == check.name])
        state = result.state.value if result else "never run"
        failed = ", ".join(str(job) for job in result.jobs if not job.succeeded) if result else ""
        found.append(
            CheckLook(
                name=check.name,
                state=state,
                is_bad=bool(result and result.state.is_bad),
                at=last.created if last else check.last.submitted,
                why="; ".join(filter(None, (result.why, failed))) if result else "",
            )
        )
    return found


def alike(findings: Mapping[str, Sequence[Finding]]) -> list[tuple[Finding, list[str]]]:
    """Equal findings together, the oldest with all their nodes: a fault of many nodes is one row."""
    groups: dict[tuple[Any, ...], list[Finding]] = {}
    for one in (finding for found in findings.values() for finding in found):
        groups.setdefault((one.kind, one.what, one.heals), []).append(one)
    newest_of_all = datetime.max.replace(tzinfo=timezone.utc)
    return [
        (min(group, key=lambda one: one.since or newest_of_all), [one.node for one in group])
        for group in groups.values()
    ]


def courses(figures: Mapping[str, Kept], nodes: Sequence[str]) -> list[Course]:
    """The figures of these nodes over time, of each check those of slow nodes first."""
    names, found = frozenset(nodes), list[Course]()
    for check, kept in figures.items():
        mine = {node: runs for node, runs in kept.items() if node in names}
        slow = {one.node for one in slower(check, mine, Observations.tolerance)}
        in_order = sorted(mine, key=lambda name: (name not in slow, name.rpartition("-")[0], len(name), name))
        each = (
            (node, figure) for node in in_order for figure in sorted({name for _, run in mine[node] for name in run})
        )
        for node, figure in islice(each, _MOST_DRAWN):
            values = [run[figure] for _, run in mine[node] if figure in run]
            found.append(Course(check=check, figure=figure, node=node, values=values, is_slow=node in slow))
    return found
