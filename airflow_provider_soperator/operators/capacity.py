"""Tasks that move reserved GPUs: by a schedule, as requested, or one target alone."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from hashlib import sha256
from signal import Signals
from typing import TYPE_CHECKING, Any, Literal

from airflow.sdk import Asset, AssetAlias, Context, conf
from airflow.sdk.definitions.callback import AsyncCallback
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException, AirflowTaskTimeout

from airflow_provider_soperator.capacity.allocation import bounds_of, counted, refuse_unknown_targets
from airflow_provider_soperator.capacity.targets import SlurmNodesTarget, refuse_common, refuse_strangers
from airflow_provider_soperator.errors import CapacityError, CapacityMistake
from airflow_provider_soperator.operators.work import WaitingOperator, WorkOperator, task_name
from airflow_provider_soperator.values import check_durations, check_interval, is_on, whole_number
from airflow_provider_soperator.work.protocols import count, emit

if TYPE_CHECKING:
    from airflow_provider_soperator.capacity.order import DesiredAllocation, ReleaseMode, Rollback, ShiftOrder, Timeouts
    from airflow_provider_soperator.capacity.overrides import Override
    from airflow_provider_soperator.capacity.schedule import CapacitySchedule
    from airflow_provider_soperator.capacity.targets import Target
    from airflow_provider_soperator.work.protocols import End
    from airflow_provider_soperator.work.targets import TargetScaling


#: Parameters that are fields of an order, as they are.
_AS_IN_AN_ORDER = (
    "block", "nebius_conn_id", "targets", "transfer", "mode", "force_after", "grace", "signal", "rollback",
    "poll_interval",
)  # fmt: skip
#: Time within which a plan of demand is answered: no other begins before.
_DEMAND_STANDS = timedelta(hours=1)


class ScaleTargetOperator(WorkOperator):
    """Bring one target to a number of units, and wait until they can work.

        ScaleTargetOperator(
            task_id="serve",
            target=KubernetesScaleTarget(name="inference", resource="vllm", namespace="inference", gpus_per_unit=8),
            units=4,
            timeout=timedelta(minutes=20),
        )

    A task that is stopped or times out leaves the target as it is. To move GPUs between targets there is
    ``ShiftCapacityOperator``.

    :param target: holder of GPUs
    :param units: number of units, such as nodes or replicas
    :param timeout: time limit of the work
    :param mode: when units with jobs leave: once ``"idle"``, once their jobs have ended (``"asap"``), or at once
        (``"force"``: jobs are requeued or cancelled)
    :param block: id of the capacity block in which the target grows as far as GPUs are free; node groups and Slurm
        nodes need it, a Kubernetes workload does not
    :param nebius_conn_id: Airflow connection to the Nebius API
    """

    template_fields: Sequence[str] = ("units", "block", "nebius_conn_id")

    def __init__(
        self,
        *,
        target: Target,
        units: int | str,
        timeout: timedelta = timedelta(minutes=30),
        mode: ReleaseMode = "asap",
        block: str | None = None,
        nebius_conn_id: str = "nebius_default",
        **kwargs: Any,
    ) -> None:
        super().__init__(timeout=timeout, **kwargs)
        _check_mode(mode)
        refuse_strangers([target])
        self.target, self.units = target, units
        self.mode, self.block, self.nebius_conn_id = mode, block, nebius_conn_id

    def work(self, context: Context) -> TargetScaling:
        from airflow_provider_soperator.hooks.cluster_clients import installation_id
        from airflow_provider_soperator.work.targets import TargetScaling

        return TargetScaling(
            target=self.target,
            units=whole_number("units", self.units, 0),
            mode=self.mode,
            block=self.block or None,
            nebius_conn_id=self.nebius_conn_id,
            key=task_name(context["ti"]),
            airflow=installation_id(),
            **self.span(),
        )


def _check_mode(mode: str) -> None:
    if mode not in ("idle", "asap", "force"):
        raise CapacityMistake(f"mode must be 'idle', 'asap' or 'force', got {mode!r}")


class ShiftCapacityOperator(WaitingOperator):
    """Move GPUs of one capacity block between targets, until each has its desired number of units.

        ShiftCapacityOperator(
            task_id="shift",
            targets=[
                SlurmNodesTarget(name="training", nodes="worker-[0-7]"),
                NebiusNodeGroupTarget(name="inference", node_group="mk8snodegroup-e00inference", gpus_per_unit=8),
            ],
            block="capacityblockgroup-e00example",
            desired={"training": 4, "inference": 4},
        )

    Targets release units first, and each GPU goes on as soon as the block has it back. A run whose handover has been
    superseded is skipped. A retry continues the shift of the try before.

    Returns its ``state``, ``done`` or ``partial``, the final ``allocation``, what is ``missing`` and why, and the
    shift's ``figures``. These are also metrics (``soperator.shift.*``), and GPU-hours in the XCom ``report``, however
    the shift has ended. The plan is the XCom ``plan``, and how far it has come by now the XCom ``state``. An
    ``AssetAlias`` among its ``outlets`` gets an event at its end, for an asset of that name.

    :param targets: holders of GPUs of the block
    :param block: id of the capacity block
    :param desired: units, or GPUs (``"32 gpus"``), of each target; one target may be left out and gets the rest
    :param schedule: desired units by time, for as long as ``desired`` is empty
    :param at: moment whose allocation of the schedule is applied, at the earliest a handover whose shift is due; by
        default the end of the run's data interval
    :param until: end of what is ``desired`` beside a schedule; by default the next handover
    :param because: why it is desired, for plans and for ``overrides_variable``
    :param overrides_variable: key of an Airflow Variable with further overrides of the schedule, in which a shift keeps
        what is ``desired`` until its end
    :param demand_variable: key of an Airflow Variable in which the watcher of ``capacity_dag`` keeps the units that
        demand decides on within the ranges of the schedule
    :param approved_plan: result of a task with ``plan_only`` that a person has approved; the shift does no more
    :param transfer: time that one machine needs from one target to the other; nodes leave that long before the handover
    :param mode: when nodes leave: once ``"idle"``; once their jobs have ended (``"asap"``); or, ``force_after`` the
        handover, at once (``"force"``: jobs are requeued or cancelled)
    :param force_after: with ``mode="force"``: time after the handover until jobs are ended
    :param grace: time between the signal to a job and its end
    :param signal: signal that jobs get a ``grace`` before they are ended
    :param on_jobs_in_the_way: an ``AsyncCallback``, or a list of them, told of jobs that will be ended
        (``mode="force"``), once of each job, with ``jobs`` and ``block`` in its context
    :param timeouts: time limits of a ``capacity.order.Timeouts`` for the next unit in each part of the shift
    :param rollback: what is moved back if not all units can be moved in time: ``"none"`` or ``"all"``
    :param if_running: while another shift moves the block: ``"wait"`` or ``"fail"``
    :param plan_only: show and return the plan, and move nothing
    :param nebius_conn_id: Airflow connection to the Nebius API
    :param deferrable: carry out the shift in the triggerer, and not in an Airflow worker
    :param poll_interval: seconds between two polls of Slurm and the cloud
    """

    template_fields: Sequence[str] = (
        "block", "nebius_conn_id", "desired", "at", "until", "because", "approved_plan", "plan_only",
    )  # fmt: skip
    template_fields_renderers = {"desired": "json"}  # noqa: RUF012 - as Airflow has it
    ui_color = "#fde8c8"
    #: Of the try that runs: what was requested, and what was approved.
    _requested: Override | None = None
    _approval: dict[str, Any] | None = None

    def __init__(
        self,
        *,
        targets: Sequence[Target],
        block: str,
        desired: Mapping[str, int | str | None] | str | None = None,
        schedule: CapacitySchedule | None = None,
        at: datetime | str | None = None,
        until: datetime | str | None = None,
        because: str = "",
        overrides_variable: str | None = None,
        demand_variable: str | None = None,
        approved_plan: Any = None,
        transfer: timedelta = timedelta(0),
        mode: ReleaseMode = "asap",
        force_after: timedelta = timedelta(0),
        grace: timedelta = timedelta(minutes=2),
        signal: str = "TERM",
        on_jobs_in_the_way: AsyncCallback | Sequence[AsyncCallback] = (),
        timeouts: Timeouts | None = None,
        rollback: Rollback = "none",
        if_running: Literal["wait", "fail"] = "wait",
        plan_only: bool | str = False,
        nebius_conn_id: str = "nebius_default",
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        poll_interval: float = 10.0,
        **kwargs: Any,
    ) -> None:
        from airflow_provider_soperator.capacity.order import Timeouts, refuse_force_too_late

        super().__init__(**kwargs)
        if desired is None and schedule is None:
            raise CapacityMistake("desired and schedule are both missing", "give one of them")
        _check_mode(mode)
        check_durations(transfer=transfer, force_after=force_after, grace=grace)
        if not isinstance(timeouts or Timeouts(), Timeouts):
            raise CapacityMistake(f"timeouts is {timeouts!r}", "write Timeouts(ready=timedelta(hours=1)) or the like")
        if force_after and mode != "force":
            raise CapacityMistake(f"force_after needs mode='force', got {mode!r}")
        if if_running not in ("wait", "fail"):
            raise CapacityMistake(f"if_running must be 'wait' or 'fail', got {if_running!r}")
        if rollback not in ("none", "all"):
            raise CapacityMistake(f"rollback must be 'none' or 'all', got {rollback!r}")
        signal = signal.removeprefix("SIG")
        if signal and f"SIG{signal}" not in Signals.__members__:
            raise CapacityMistake(f"unknown signal {signal!r}", 'name one, such as "TERM" or "USR1"')
        if mode == "force":
            after, has_window = max(transfer + force_after, grace), bool(schedule) and rollback == "none"
            refuse_force_too_late(after, timeouts, has_window=has_window)
        self.targets = tuple(targets)
        refuse_impossible(self.targets, schedule, transfer)
        if isinstance(desired, Mapping):
            refuse_unknown_targets(desired, [target.name for target in self.targets])
        self.block, self.nebius_conn_id = block, nebius_conn_id
        self.desired, self.schedule, self.at = desired, schedule, at
        self.until, self.because, self.overrides_variable = until, because, overrides_variable
        self.demand_variable, self.approved_plan = demand_variable, approved_plan
        self.transfer, self.mode, self.force_after = transfer, mode, force_after
        self.grace, self.signal = grace, signal
        callbacks = (on_jobs_in_the_way,) if isinstance(on_jobs_in_the_way, AsyncCallback) else on_jobs_in_the_way
        self.on_jobs_in_the_way = tuple(callbacks)
        self.timeouts, self.rollback, self.if_running = timeouts, rollback, if_running
        check_interval("poll_interval", poll_interval)
        self.plan_only, self.deferrable, self.poll_interval = plan_only, deferrable, poll_interval

    def execute(self, context: Context) -> Any:
        from airflow_provider_soperator.capacity.demand import kept_demand
        from airflow_provider_soperator.capacity.order import Timeouts
        from airflow_provider_soperator.capacity.overrides import keep_override
        from airflow_provider_soperator.capacity.reconciliation import approval_of, begin, ordered
        from airflow_provider_soperator.hooks.cluster_clients import ShiftClients, installation_id
        from airflow_provider_soperator.triggers.shift import ShiftTrigger

        clients, self._airflow = ShiftClients(), installation_id()

        async def order_for(limit: int) -> ShiftOrder:
            wanted = self._wanted(context, limit)
            most = self.schedule.limit if self.schedule else None
            demanded = kept_demand(self.demand_variable, datetime.now(timezone.utc))
            return await ordered(self._order(context, wanted), wanted.units, most, clients, self.log, demanded)

        place, waits = (self.block, self.nebius_conn_id), (self.timeouts or Timeouts(), self.poll_interval)
        try:
            order, plan = asyncio.run(begin(order_for, *place, clients, self.log, *waits))
        except CapacityError as error:
            self._count("failed")
            failure = AirflowFailException if isinstance(error, CapacityMistake) else AirflowException
            raise failure(str(error)) from None
        said = plan.describe()
        self.log.info("The plan:\n%s", plan)
        now, by_hand = datetime.now(timezone.utc), self._requested is not None
        by_demand = order.wanted_at <= now and kept_demand(self.demand_variable, now) == order.desired
        said |= {"is_requested": by_hand, "is_demanded": by_demand and not by_hand}
        # An answer is of use until the handover, or else until the next shift begins, or until demand may be another.
        ends = (order.wanted_at if order.wanted_at > now else order.stops_at, now + _DEMAND_STANDS)
        answer = min(filter(None, ends if said["is_demanded"] else ends[:1]), default=None)
        said |= {"approval": approval_of(order, said), "answer_by": answer and answer.isoformat()}
        context["ti"].xcom_push("plan", said)
        if is_on(self.plan_only):
            return said
        wish: dict[str, Any] | None = None
        if self.schedule is not None and (overrides := self.overrides_variable):
            wish = {"schedule": self.schedule.describe(), "overrides": overrides, "demanded": self.demand_variable}
            wish["edited"] = [self.dag_id, context["dag_run"].run_after.timestamp()]
            if self._requested is not None:
                # Later runs wish for it, too.
                keep_override(overrides, self._requested, datetime.now(timezone.utc), self.schedule.zone)
        ti = context["ti"]
        callbacks = [{"path": one.path, "kwargs": one.kwargs} for one in self.on_jobs_in_the_way]
        is_last_try = ti.try_number > ti.max_tries
        trigger = ShiftTrigger(order.write(), self.deadline(), is_last_try, wish=wish, callbacks=callbacks)
        return self.wait_for(trigger, context)

    def needs_a_worker_after(self, end: End) -> bool:
        # It tells the figures.
        return True

    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:
        """The shift is over, or cannot go on."""
        from airflow_provider_soperator.capacity.figures import last_report
        from airflow_provider_soperator.capacity.reconciliation import keep_as_is
        from airflow_provider_soperator.work.protocols import result_of

        if report := event.get("report"):
            self._tell(report)
            report["window"] = last_report(self.dag_id) if self.overrides_variable else None
            context["ti"].xcom_push("report", report)
        else:
            self._count("failed")
        if event["status"] == "timeout":
            raise AirflowTaskTimeout(event["message"])
        outcome: dict[str, Any] = result_of(event)
        if why := outcome.get("superseded"):
            self.log.info("The shift is over: %s", why)
            raise AirflowSkipException(why)
        has = ", ".join(f"{name} {value}" for name, value in outcome["allocation"].items())
        self.log.info("The shift is %s: %s", outcome["state"], has)
        for line in outcome["missing"]:
            self.log.warning("Not as desired: %s", line)
        if (asked := outcome.get("asked")) and self.schedule is not None and self.overrides_variable:
            # What was wished for would be moved nevertheless, by the next run.
            kept = {**asked, "now": datetime.fromisoformat(asked["now"])}
            keep_as_is(self.overrides_variable, **kept, schedule=self.schedule, log=self.log)
        for alias in self.outlets:
            if isinstance(alias, AssetAlias):
                ended = {name: outcome[name] for name in ("state", "allocation", "missing")}
                context["outlet_events"][alias].add(Asset(alias.name), ended)
        return outcome

    def _tell(self, report: dict[str, Any]) -> None:
        """Log the figures of a shift that is over, and emit them as metrics."""
        from airflow_provider_soperator.capacity.figures import in_words

        self.log.info("%s", in_words(report))
        figures = dict(report["figures"])
        tags = {"dag_id": self.dag_id, "task_id": self.task_id, "state": report["state"]}
        for target, seconds in figures.pop("target_gpu_seconds").items():
            emit([("shift.target_gpu_seconds", seconds, {**tags, "target": target})])
        emit((f"shift.{name}", value, tags) for name, value in figures.items())
        self._count(report["state"])

    def _count(self, state: str) -> None:
        count("shift.ended", dag_id=self.dag_id, task_id=self.task_id, state=state)

    def _order(self, context: Context, wanted: DesiredAllocation) -> ShiftOrder:
        """The order of this task, without units."""
        from airflow_provider_soperator.capacity.order import ShiftOrder, Timeouts

        task = task_name(context["ti"])
        return ShiftOrder(
            key=sha256(f"{self._airflow} {task}".encode()).hexdigest()[:16],
            task=task,
            airflow=self._airflow,
            desired={},
            wanted_at=wanted.at,
            **{name: getattr(wanted, name) for name in ("until", "stops_at", "window_ends")},
            timeouts=self.timeouts or Timeouts(),
            wait_for_lease=self.if_running == "wait",
            approved=self._approval,
            why=f"{wanted.why} ({self.dag_id})",
            **{name: getattr(self, name) for name in _AS_IN_AN_ORDER},
        )

    def _wanted(self, context: Context, limit: int) -> DesiredAllocation:
        from airflow_provider_soperator.capacity.calendar import moment_by_clocks
        from airflow_provider_soperator.capacity.demand import kept_demand
        from airflow_provider_soperator.capacity.order import (
            Superseded,
            headed_for,
            is_requested,
            requested_allocation,
            scheduled_allocation,
        )
        from airflow_provider_soperator.capacity.reconciliation import approved

        now, run = datetime.now(timezone.utc), context["dag_run"]
        zone = schedule.zone if (schedule := self.schedule) else None
        try:
            at, until = (moment_by_clocks(zone, name, getattr(self, name)) for name in ("at", "until"))
        except ValueError as error:
            raise CapacityMistake(str(error)) from None
        if schedule is None:
            wanted = requested_allocation(self.desired, self.targets, limit, max(now, at or now))
            return replace(wanted, until=until, stops_at=until)
        try:
            kept = schedule.as_kept(self.overrides_variable, now)
            if is_requested(self.desired):
                # What a schedule does not give away is not to be had through its DAG either.
                most = min(limit, schedule.limit or limit)
                # The same at each try, and in the task that plans.
                at = at or run.run_after
                units = requested_allocation(self.desired, self.targets, most, at).units
                by, because = run.triggering_user_name or "", str(self.because or "")
                self._requested = kept.override(units, at, until, by, because)
                kept = kept.overridden([self._requested], now)
            else:
                at = at or run.data_interval_end or now
                # A newer handover supersedes this run, and an override does not.
                scheduled_allocation(schedule, at, now)
                at = max(at, headed_for(kept, now, kept_demand(self.demand_variable, now)))
            wanted = scheduled_allocation(kept, at, now)
            if self.approved_plan:
                self._approval = self.approved_plan["approval"]
                wanted = approved(wanted, self._approval["goal"], kept_demand(self.demand_variable, now))
            return wanted
        except Superseded as error:
            # Airflow does not log why a task is skipped.
            self.log.info("Nothing is moved: %s", error)
            raise AirflowSkipException(str(error)) from None


def refuse_impossible(
    targets: Sequence[Target], schedule: CapacitySchedule | None, transfer: timedelta = timedelta(0)
) -> None:
    """Refuse what could never be carried out as soon as the DAG is read."""
    refuse_strangers(targets)
    refuse_common(targets)
    if schedule is None:
        return
    schedule.refuse_late(transfer)
    names = [target.name for target in targets]
    if missing := sorted({*names} ^ {*schedule.targets}):
        raise CapacityMistake(
            f"the schedule is of {', '.join(schedule.targets)}, and the targets are {', '.join(names)}",
            f"name {' and '.join(missing)} in both",
        )
    for target in (one for one in targets if isinstance(one, SlurmNodesTarget)):
        for whose, allocation in schedule.allocations():
            if (most := bounds_of(allocation[target.name])[1]) > target.size:
                said = f"{whose} has {most} nodes of {target.name}, which has {counted(target.size, 'nodes')}"
                raise CapacityMistake(f"{said} ({target.nodes})", "give fewer, or name more nodes")
    if schedule.limit is not None:
        schedule.refuse_over_commitment({target.name: target.gpus_per_unit for target in targets}, schedule.limit)
