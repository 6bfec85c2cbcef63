"""Power nodes up and down, drain and undrain them, replace their machines, as tasks that end when it is done."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Literal

from airflow_provider_soperator.operators.moving import NodesLate, NodesOperator
from airflow_provider_soperator.operators.node_lists import check_count, names_of
from airflow_provider_soperator.operators.replacing import ReplaceNodesOperator
from airflow_provider_soperator.operators.reservations import CreateReservationOperator, DeleteReservationOperator
from airflow_provider_soperator.values import is_on, is_template

if TYPE_CHECKING:
    from airflow.sdk.definitions.context import Context

    from airflow_provider_soperator.triggers.moves import Wish
    from airflow_provider_soperator.triggers.nodes import NodeMoveTrigger

__all__ = [
    "CreateReservationOperator",
    "DeleteReservationOperator",
    "DrainNodesOperator",
    "NodesLate",
    "PowerDownNodesOperator",
    "PowerUpNodesOperator",
    "ReplaceNodesOperator",
    "UndrainNodesOperator",
]


class _MoveNodesOperator(NodesOperator):
    """Moves nodes by one wish.

    A task that is ended, or whose ``timeout`` is over, leaves the nodes on their way, and its log says where they are.
    """

    @abstractmethod
    def wish(self, **common: Any) -> Wish:
        """What is wanted, of which the nodes' names and the owner are known."""

    def trigger(self, context: Context) -> NodeMoveTrigger:
        from airflow_provider_soperator.triggers.nodes import NodeMoveTrigger

        wish = self.wish(nodes=names_of(self.nodes), owner=self.drain_owner or self.dag_id)
        return NodeMoveTrigger(
            self.slurm_conn_id,
            wish.write(),
            datetime.now(timezone.utc).isoformat(),
            time.time() + self.timeout.total_seconds(),
            self.poll_interval,
        )


class _PowerNodesOperator(_MoveNodesOperator):
    """Nodes by name, or so many of those that fit."""

    def __init__(
        self,
        *,
        nodes: str | Sequence[str] | None = None,
        count: int | str | None = None,
        partition: str | None = None,
        features: Sequence[str] = (),
        **kwargs: Any,
    ) -> None:
        super().__init__(nodes=nodes, **kwargs)
        if (nodes is None) == (count is None):
            raise ValueError("say which nodes are meant, or how many: nodes or count, and not both")
        if count is not None:
            check_count(count)
        self.count = count
        self.partition = partition
        self.features = [features] if isinstance(features, str) else list(features)

    def _chosen(self) -> dict[str, Any]:
        if self.count is None:
            # A partition may have come from default_args.
            return {}
        check_count(self.count)
        return {"count": int(self.count), "partition": self.partition or "", "features": tuple(self.features)}


class PowerUpNodesOperator(_PowerNodesOperator):
    """Power nodes up, and wait until jobs can start on them.

        PowerUpNodesOperator(task_id="up", nodes="worker-[0-3]")

    ``count``: so many nodes of a ``partition``, with all of some ``features``, are to be usable in the end; those that
    are already count. Drains of ``drain_owner`` are undone. A node that does not boot within ResumeTimeout fails the
    task, once the others are there.

    Returns ``nodes``, those that were there ``already``, and how many ``seconds`` it took.
    """

    template_fields: Sequence[str] = ("slurm_conn_id", "nodes", "count", "partition", "features", "drain_owner")

    def wish(self, **common: Any) -> Wish:
        from airflow_provider_soperator.triggers.moves import Wish

        return Wish(deed="up", **common, **self._chosen())


class PowerDownNodesOperator(_PowerNodesOperator):
    """Power nodes down, and wait until they are off.

        PowerDownNodesOperator(task_id="down", nodes="worker-[0-3]", mode="asap", stay_down=True)

    ``mode``: once they are ``idle``, and jobs may start before; once the jobs on them have ended (``asap``); or at once
    (``force``: jobs are requeued or killed). With ``stay_down`` they are drained as well, so that no job powers them
    up; ``PowerUpNodesOperator`` undoes that. ``count``: so many nodes are to be off in the end, and those that are
    already count; of the others, idle ones are taken first. Their machines, and so their GPUs, go some minutes later.
    """

    template_fields: Sequence[str] = (
        "slurm_conn_id", "nodes", "count", "partition", "features", "drain_owner", "mode", "stay_down", "reason",
    )  # fmt: skip

    def __init__(
        self,
        *,
        mode: Literal["idle", "asap", "force"] = "asap",
        stay_down: bool | str = False,
        reason: str = "",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if not is_template(mode):
            _check_mode(mode)
        self.mode = mode
        self.stay_down = stay_down
        self.reason = reason

    def wish(self, **common: Any) -> Wish:
        from airflow_provider_soperator.triggers.moves import Wish

        _check_mode(self.mode)
        stay_down = is_on(self.stay_down)
        return Wish(deed="down", mode=self.mode, stay_down=stay_down, why=self.reason, **common, **self._chosen())


class DrainNodesOperator(_MoveNodesOperator):
    """Let no new job start on nodes; with ``wait_for_jobs``, wait until those on them have ended.

        DrainNodesOperator(task_id="drain", nodes="worker-3", reason="new driver", wait_for_jobs=True)

    A node that somebody else has drained keeps their reason, and counts as done.
    """

    template_fields: Sequence[str] = ("slurm_conn_id", "nodes", "drain_owner", "reason", "wait_for_jobs")

    def __init__(
        self, *, nodes: str | Sequence[str], reason: str, wait_for_jobs: bool | str = False, **kwargs: Any
    ) -> None:
        super().__init__(nodes=nodes, **kwargs)
        self.reason = reason
        self.wait_for_jobs = wait_for_jobs

    def wish(self, **common: Any) -> Wish:
        from airflow_provider_soperator.triggers.moves import Wish

        return Wish(deed="drain", why=self.reason, wait_for_jobs=is_on(self.wait_for_jobs), **common)


class UndrainNodesOperator(_MoveNodesOperator):
    """Let jobs start on nodes again.

        UndrainNodesOperator(task_id="undrain", nodes="worker-3")

    Only drains of ``drain_owner`` are undone; with ``force`` those of health checks and of people are, too.
    """

    template_fields: Sequence[str] = ("slurm_conn_id", "nodes", "drain_owner", "force")

    def __init__(self, *, nodes: str | Sequence[str], force: bool | str = False, **kwargs: Any) -> None:
        super().__init__(nodes=nodes, **kwargs)
        self.force = force

    def wish(self, **common: Any) -> Wish:
        from airflow_provider_soperator.triggers.moves import Wish

        return Wish(deed="undrain", force=is_on(self.force), **common)


def _check_mode(mode: str) -> None:
    if mode not in ("idle", "asap", "force"):
        raise ValueError(f"mode={mode!r} is none of 'idle', 'asap' and 'force'")
