"""How fast the file system is that all nodes share, as a task that fails once it is too slow."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from airflow_provider_soperator.operators.metrics import emit
from airflow_provider_soperator.operators.node_lists import check_nodes, names_of
from airflow_provider_soperator.slurm.errors import InvalidRequest, SlurmError

if TYPE_CHECKING:
    from airflow.sdk.definitions.context import Context

    from airflow_provider_soperator.clients.client import SlurmClient
    from airflow_provider_soperator.slurm.jail import JailLook
    from airflow_provider_soperator.slurm.records import Node


class JailSlow(AirflowException):
    """The jail was slower than it may be, or did not answer at all."""


class JailLatencyOperator(BaseOperator):
    """Measure how long the jail takes to create, look up, read, list, rename and delete small files.

        JailLatencyOperator(task_id="jail", nodes="worker-[0-7]", warn=0.05, fail=1.0)

    From the login node, and from ``nodes``, or all of a ``partition``, by a job of one CPU on each, for which a node
    needs room: those that are off, drained or full are left out, and named. The task fails if 1 of 20 times is longer
    than ``fail`` seconds, or if something has not ended after ``limit`` seconds; above ``warn`` it logs a warning.
    Returns ``{place: {operation: {"p50": …, "p95": …, "longest": …}}}`` in seconds.

    ``folder`` is one in the jail, the home of the connection's user if not given. ``srun_options`` are more words for
    ``srun``, such as ``["--account=ops"]``; ``patience`` is for how many seconds a job may wait for its node.
    """

    template_fields: Sequence[str] = ("slurm_conn_id", "nodes", "partition", "folder", "srun_options")
    ui_color = "#d9f2e6"

    def __init__(
        self,
        *,
        nodes: str | Sequence[str] | None = None,
        partition: str | None = None,
        folder: str = "~",
        rounds: int = 20,
        warn: float = 0.1,
        fail: float = 1.0,
        limit: float = 30.0,
        patience: float = 30.0,
        srun_options: Sequence[str] = (),
        metrics: bool = True,
        slurm_conn_id: str = "soperator_default",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_nodes(nodes)
        if nodes is not None and partition is not None:
            raise ValueError("say which nodes are meant: nodes or partition, and not both")
        if not 0 < warn <= fail < limit:
            raise ValueError(
                f"warn={warn:g}, fail={fail:g} and limit={limit:g} seconds must be in this order, and above 0"
            )
        if rounds < 1:
            raise ValueError(f"rounds={rounds} measures nothing")
        self.nodes, self.partition = nodes, partition
        self.folder = folder
        self.rounds = rounds
        self.warn, self.fail, self.limit = warn, fail, limit
        self.patience = patience
        self.srun_options = srun_options
        self.metrics = metrics
        self.slurm_conn_id = slurm_conn_id

    def execute(self, context: Context) -> dict[str, Any]:
        from airflow_provider_soperator.hooks.slurm import SlurmHook
        from airflow_provider_soperator.slurm.jail import described, table, too_slow
        from airflow_provider_soperator.transports.errors import CommandTimedOut, NotSupported

        try:
            with SlurmHook(self.slurm_conn_id).client() as slurm:
                looks = list(self._looks(slurm))
        except CommandTimedOut as error:
            raise JailSlow(
                f"what was to measure the jail for {self.limit:g} s has not ended: the file system hangs, or the whole "
                "login node does"
            ) from error
        except (SlurmError, NotSupported, ValueError) as error:
            if isinstance(error, SlurmError) and error.retryable:
                raise
            raise AirflowFailException(str(error)) from error
        self.log.info("%s", table(looks))
        if self.metrics:
            emit(_gauges(looks), slurm_conn_id=self.slurm_conn_id)
        if trouble := too_slow(looks, self.fail):
            raise JailSlow(f"the jail is too slow (at most {self.fail:g} s): {'; '.join(trouble)}")
        for line in too_slow(looks, self.warn):
            self.log.warning("The jail is slow: %s", line)
        return described(looks)

    def _looks(self, slurm: SlurmClient) -> Iterator[JailLook]:
        """What each place sees, the login node first."""
        from airflow_provider_soperator.slurm import hostlist
        from airflow_provider_soperator.slurm.jail import ProbeJail, ProbeJailOnNodes
        from airflow_provider_soperator.slurm.nodes import is_usable
        from airflow_provider_soperator.slurm.requests import ListNodes

        how: dict[str, Any] = {"folder": self.folder, "rounds": self.rounds, "limit": self.limit}
        yield slurm.ask(ProbeJail(**how))
        if self.nodes is None and not self.partition:
            return
        nodes = slurm.ask(ListNodes())
        meant = self._meant(nodes)
        usable = tuple(node.name for node in meant if is_usable(node))
        if left_out := [node.name for node in meant if node.name not in usable]:
            self.log.info("Not measured, as no job can start there: %s", hostlist.fold(left_out))
        if usable:
            said = self.srun_options
            options = tuple(shlex.split(said) if isinstance(said, str) else said)
            yield from slurm.ask(ProbeJailOnNodes(nodes=usable, patience=self.patience, options=options, **how))

    def _meant(self, nodes: Sequence[Node]) -> list[Node]:
        from airflow_provider_soperator.slurm.power import refuse_unknown

        names = names_of(self.nodes)
        refuse_unknown(names, {node.name for node in nodes})
        meant = [node for node in nodes if node.name in names or self.partition in node.partitions]
        if not meant:
            raise InvalidRequest(f"no node is in a partition {self.partition}")
        return meant


def _gauges(looks: Sequence[JailLook]) -> Iterator[tuple[str, float, dict[str, str]]]:
    for look in looks:
        for operation, latency in look.latencies.items():
            tags = {"place": look.place, "operation": operation}
            yield "jail.seconds.p50", latency.p50, tags
            yield "jail.seconds.p95", latency.p95, tags
            yield "jail.seconds.longest", latency.longest, tags
