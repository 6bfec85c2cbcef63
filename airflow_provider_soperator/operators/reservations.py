"""Reserve nodes for a time, and let them go again, as tasks."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowException

from airflow_provider_soperator.operators.work import StrictOperator, final_errors
from airflow_provider_soperator.slurm.errors import InvalidRequest, ReservationConflict
from airflow_provider_soperator.slurm.hostlist import check_count, check_nodes_or_count, names_of
from airflow_provider_soperator.slurm.node_conditions import refuse_unknown
from airflow_provider_soperator.slurm.requests import CreateReservation, DeleteReservation, ListNodes, ListReservations
from airflow_provider_soperator.slurm.requests.nodes import HANDOVER_FLAGS
from airflow_provider_soperator.values import check_durations, comma_separated, moment_of

if TYPE_CHECKING:
    from airflow_provider_soperator.client.sync import SlurmClient
    from airflow_provider_soperator.slurm.cluster_records import Node, Reservation

#: As long as Slurm lets a reservation without an end be.
_UNLIMITED = timedelta(days=365)


class CreateReservationOperator(StrictOperator):
    """Reserve nodes for some users or accounts.

        CreateReservationOperator(
            task_id="reserve",
            name="night",
            nodes="worker-[0-3]",
            start="{{ dag_run.run_after + macros.timedelta(hours=12) }}",
            duration=timedelta(hours=8),
            users=["root"],
        )

    An existing reservation with the same nodes and times is a success; if it differs, the task fails and says in what.

    :param name: name of the reservation
    :param nodes: names of nodes, as a list or as Slurm writes them
    :param count: number of usable nodes to choose, idle ones first, and none that others have reserved at that time
    :param partition: with ``count``: only nodes of this partition
    :param start: start time; by default now
    :param end: end time
    :param duration: length, instead of ``end``
    :param users: users who may run jobs in it
    :param accounts: accounts that may run jobs in it
    :param flags: flags of the reservation; with the default, running jobs go on, and none starts that would run into it
    :param comment: comment on the reservation
    :param slurm_conn_id: Airflow connection to Slurm
    """

    template_fields: Sequence[str] = (
        "slurm_conn_id", "name", "nodes", "count", "partition", "start", "end", "users", "accounts", "flags", "comment",
    )  # fmt: skip
    ui_color = "#fde8c8"

    def __init__(
        self,
        *,
        name: str,
        nodes: str | Sequence[str] | None = None,
        count: int | str | None = None,
        partition: str | None = None,
        start: datetime | str | None = None,
        end: datetime | str | None = None,
        duration: timedelta | None = None,
        users: Sequence[str] = (),
        accounts: Sequence[str] = (),
        flags: Sequence[str] = HANDOVER_FLAGS,
        comment: str = "",
        slurm_conn_id: str = "soperator_default",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_nodes_or_count(nodes, count)
        if end is not None and duration is not None:
            raise ValueError("give either end or duration, and not both")
        if not users and not accounts:
            raise ValueError("users and accounts are both empty: give one of them")
        check_durations(or_none=True, duration=duration)
        self.name = name
        self.nodes, self.count, self.partition = nodes, count, partition
        self.start, self.end, self.duration = start, end, duration
        self.users, self.accounts, self.flags = users, accounts, flags
        self.comment = comment
        self.slurm_conn_id = slurm_conn_id

    def execute(self, context: Context) -> dict[str, Any]:
        from airflow_provider_soperator.hooks.slurm import SlurmHook

        with final_errors(), SlurmHook(self.slurm_conn_id).client() as slurm:
            made, was_there = self._make(slurm)
        self.log.info(
            "Reservation %s of %s %s", made.name, made.nodelist, "is there already" if was_there else "is made"
        )
        return {
            "name": made.name,
            "nodes": list(names_of(made.nodelist)),
            "start": made.start and made.start.isoformat(),
            "end": made.end and made.end.isoformat(),
            "already": was_there,
        }

    def _make(self, slurm: SlurmClient) -> tuple[Reservation, bool]:
        """The reservation, and whether it was there."""
        if self.count is not None:
            check_count(self.count)
        known = slurm.ask(ListNodes())
        names = names_of(self.nodes)
        refuse_unknown(names, {node.name for node in known})
        others = slurm.ask(ListReservations())
        there = next((one for one in others if one.name == self.name), None)
        if there is not None:
            self._compare(there, self._wanted(names or names_of(there.nodelist or None)))
            return there, True
        wanted = self._wanted(names or self._choose(known, others))
        try:
            slurm.ask(wanted)
        except ReservationConflict as error:
            # The answer to the first time may have been lost on its way.
            there = _find(slurm, self.name)
            if there is None:
                # Such as nodes that are busy: another try may help.
                raise AirflowException(str(error)) from error
            self._compare(there, wanted)
        made = there or _find(slurm, self.name)
        if made is None:
            raise InvalidRequest(f"reservation {self.name} was made, and is gone again: is its end over?")
        return made, False

    def _wanted(self, names: Sequence[str]) -> CreateReservation:
        # Slurm knows no smaller unit than a second.
        start = (moment_of("start", self.start) or datetime.now(timezone.utc)).replace(microsecond=0)
        end = start + self.duration if self.duration else moment_of("end", self.end)
        return CreateReservation(
            name=self.name,
            nodes=tuple(names),
            start=start,
            end=end.replace(microsecond=0) if end else None,
            users=tuple(comma_separated(self.users)),
            accounts=tuple(comma_separated(self.accounts)),
            flags=tuple(comma_separated(self.flags)),
            partition=self.partition or "",
            comment=self.comment,
        )

    def _choose(self, known: Sequence[Node], others: Sequence[Reservation]) -> tuple[str, ...]:
        count, span = int(self.count or 0), self._wanted(())
        end = span.end or span.start + _UNLIMITED
        at_once = [one for one in others if (one.start or end) < end and span.start < (one.end or end)]
        taken = {name for one in at_once for name in names_of(one.nodelist or None)}
        usable = [node for node in known if node.is_usable and (self.partition or "") in ("", *node.partitions)]
        fitting = [node for node in usable if node.name not in taken]
        if len(fitting) < count:
            reserved = f", {len(usable) - len(fitting)} of which others have reserved" if fitting != usable else ""
            raise InvalidRequest(f"{count} nodes are wanted, and {len(usable)} are usable{reserved}")
        return tuple(node.name for node in sorted(fitting, key=lambda node: node.is_busy)[:count])

    def _compare(self, there: Reservation, wanted: CreateReservation) -> None:
        """Raise if what is there is not what is wanted."""
        pairs: list[tuple[str, Any, Any]] = [
            ("nodes", set(names_of(there.nodelist or None)), set(wanted.nodes)),
            ("users", set(there.users), set(wanted.users)),
            ("accounts", set(there.accounts), set(wanted.accounts)),
        ]
        if self.count is not None:
            # The first try has chosen some.
            pairs.append(("number of nodes", len(pairs[0][1]), int(self.count)))
        # Without a start it begins when it is made, which is another moment in each try.
        starts = moment_of("start", self.start)
        if starts:
            pairs += [("start", there.start, wanted.start)]
        if wanted.end and (starts or not self.duration):
            pairs += [("end", there.end, wanted.end)]
        elif wanted.end and there.start and there.end:
            pairs += [("duration", there.end - there.start, wanted.end - wanted.start)]
        different = [f"{what} {_shown(has)}, not {_shown(wants)}" for what, has, wants in pairs if has != wants]
        if different:
            raise InvalidRequest(
                f"there is a reservation {self.name} already, with {'; '.join(different)}: "
                "delete it, or take another name"
            )


class DeleteReservationOperator(StrictOperator):
    """Delete a reservation; one that is gone is a success. While jobs run in it or wait for it, the task fails.

        DeleteReservationOperator(task_id="release", name="night", trigger_rule="all_done")

    Returns True if it was there.

    :param name: name of the reservation
    :param slurm_conn_id: Airflow connection to Slurm
    """

    template_fields: Sequence[str] = ("slurm_conn_id", "name")
    ui_color = "#fde8c8"

    def __init__(self, *, name: str, slurm_conn_id: str = "soperator_default", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.name = name
        self.slurm_conn_id = slurm_conn_id

    def execute(self, context: Context) -> bool:
        from airflow_provider_soperator.hooks.slurm import SlurmHook

        with final_errors(), SlurmHook(self.slurm_conn_id).client() as slurm:
            try:
                was_there = slurm.ask(DeleteReservation(self.name))
            except ReservationConflict as error:
                raise AirflowException(
                    f"reservation {self.name} stays while jobs run in it or wait for it, which `squeue "
                    f"--reservation={self.name}` lists: try again once they are gone ({error.said})"
                ) from error
        self.log.info("Reservation %s %s", self.name, "is deleted" if was_there else "was not there")
        return was_there


def _find(slurm: SlurmClient, name: str) -> Reservation | None:
    return next((one for one in slurm.ask(ListReservations()) if one.name == name), None)


def _shown(value: Any) -> str:
    return (",".join(sorted(value)) or "none") if isinstance(value, set) else str(value)
