"""Active checks and their runs: how they are read, started and ended.

A check is an ActiveCheck and a CronJob of the same name; each run is a Job of that CronJob. The Job of a Slurm check
ends once the Slurm jobs are submitted, and notes their ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from airflow_provider_soperator.errors import nearest
from airflow_provider_soperator.soperator.check_results import CheckResult, JobEnd, RunState
from airflow_provider_soperator.soperator.conditions import Condition, Object, conditions_of, parse_time
from airflow_provider_soperator.soperator.kinds import ACTIVE_CHECK, CRON_JOB, JOB
from airflow_provider_soperator.soperator.objects import ObjectMissing, Objects
from airflow_provider_soperator.soperator.workloads import OWNER
from airflow_provider_soperator.transports.transport_errors import ConnectRefused

#: Ids of a run's Slurm jobs, and of those whose end Soperator has not processed yet (from 5.0 on).
_SLURM_JOBS = "slurm-job-id"
_UNHANDLED = "unhandled-slurm-job-id"
_SKIPPED = "slurm-skipped-reason"
#: The id in status.slurmJobsStatus of a run that has submitted nothing.
_NO_SLURM_JOB = "No slurm job"
_OF_SLURM = "slurmJob"
#: Conditions of a Job that has ended. Others come before them.
_ENDS = ("Complete", "Failed")
#: Kubernetes copies a Job's name into a label, which is limited to this length.
_NAME_LIMIT = 63
#: The annotation that ``kubectl create job --from`` sets.
_BY_HAND = {"cronjob.kubernetes.io/instantiate": "manual"}
#: Soperator looks at a run at least every minute. If it has not noted a run this long after its end, it never will.
FOLLOWS = timedelta(minutes=3)
#: The partition of the Slurm jobs of all checks.
PARTITION = "hidden"


@dataclass(frozen=True, kw_only=True)
class RunSeen:
    """A run of a check, from its Job."""

    name: str
    uid: str = ""
    check: str = ""
    created: datetime | None = None
    finished: datetime | None = None
    #: The end of the Job, which is not the end of the run: ``Complete``, ``Failed``, or empty.
    end: str = ""
    why: str = ""
    slurm_jobs: tuple[str, ...] = ()
    #: None if this Soperator does not note them.
    unhandled: tuple[str, ...] | None = None
    #: Why there was nothing to check.
    skipped: str = ""

    @classmethod
    def read(cls, job: Object) -> RunSeen:
        about = job["metadata"]
        noted = about.get("annotations") or {}
        owners = (one["name"] for one in about.get("ownerReferences") or () if one.get("kind") == "CronJob")
        ends = (one for type_, one in conditions_of(job).items() if type_ in _ENDS and one.is_true)
        end = next(ends, Condition("", ""))
        return cls(
            name=about["name"],
            uid=about.get("uid", ""),
            check=next(owners, ""),
            created=parse_time(about.get("creationTimestamp")),
            finished=end.since,
            end=end.type,
            why=end.why,
            slurm_jobs=_ids(noted.get(_SLURM_JOBS, "")),
            unhandled=_ids(noted[_UNHANDLED]) if _UNHANDLED in noted else None,
            skipped=noted.get(_SKIPPED, ""),
        )


@dataclass(frozen=True, kw_only=True)
class LastRun:
    """The run that Soperator looked at last; not always the newest, because it looks at old ones again."""

    outcome: CheckResult = CheckResult()  # noqa: RUF009 - it is frozen
    #: Its Job, if noted; otherwise the first of its Slurm jobs is.
    job: str = ""
    slurm_job: str = ""
    submitted: datetime | None = None

    def is_of(self, run: RunSeen) -> bool:
        return run.slurm_jobs[:1] == (self.slurm_job,) if self.slurm_job else self.job == run.name


@dataclass(frozen=True, kw_only=True)
class CheckSeen:
    """A check, with Soperator's status of its last run."""

    name: str
    cluster: str = ""
    #: True if it runs as Slurm jobs; others run in Kubernetes only.
    is_of_slurm: bool = False
    depends_on: tuple[str, ...] = ()
    last: LastRun = LastRun()

    @classmethod
    def read(cls, check: Object) -> CheckSeen:
        spec, status = check["spec"], check.get("status") or {}
        is_of_slurm = spec.get("checkType") == _OF_SLURM
        last = _last_in_slurm(status.get("slurmJobsStatus") or {})
        return cls(
            name=check["metadata"]["name"],
            cluster=spec.get("slurmClusterRefName", ""),
            is_of_slurm=is_of_slurm,
            depends_on=tuple(spec.get("dependsOn") or ()),
            last=last if is_of_slurm else _last_in_kubernetes(status.get("k8sJobsStatus") or {}),
        )


def find(checks: Sequence[CheckSeen], said: str, namespace: str) -> CheckSeen:
    """The check of a name, with or without the prefix of its cluster, which Soperator adds from 5.0 on."""
    named = {check.name: check for check in checks}
    if said in named:
        return named[said]
    meant = [one for one in checks if one.cluster and said in (_short(one), f"{one.cluster}-{one.name}")]
    if len(meant) == 1:
        return meant[0]
    if meant:
        wrong = f"{said} is ambiguous: name one of {', '.join(one.name for one in meant)}"
    elif not checks:
        wrong = f"there is no check {said}, and no other check"
    else:
        near = nearest(said, [*named, *map(_short, checks)])
        hint = f"did you mean {near!r}? There" if near else "there"
        wrong = f"there is no check {said}: {hint} are {', '.join(sorted(named))}"
    raise ObjectMissing(wrong, f"the namespace is {namespace}")


def newest(runs: Sequence[RunSeen], since: datetime | None = None) -> RunSeen | None:
    """The run that began last, not before ``since``."""
    begun = [run for run in runs if run.created and (since is None or run.created >= since)]
    return max(begun, key=lambda run: (run.created, run.name), default=None)


def newest_result(
    check: CheckSeen, runs: Sequence[RunSeen], since: datetime | None, now: datetime
) -> tuple[str, CheckResult | None]:
    """The Job of the run that began last, not before ``since``, and its result; None if there is no such run."""
    if run := newest([run for run in runs if run.check == check.name], since):
        return run.name, judged(check, run, now)
    last = check.last
    # Kubernetes has deleted its Job.
    return (last.job, last.outcome) if last.submitted and (since is None or last.submitted >= since) else ("", None)


def judged(check: CheckSeen, run: RunSeen, now: datetime) -> CheckResult:
    """The result of a run as far as Kubernetes shows it; Soperator's notes on another run do not count."""
    if not run.end:
        return CheckResult()
    if run.skipped:
        return CheckResult(state=RunState.SKIPPED, why=run.skipped)
    if not check.is_of_slurm:
        return CheckResult(state=RunState(run.end), why=run.why if run.end == "Failed" else "")
    if run.end == "Failed" and not run.slurm_jobs:
        return CheckResult(state=RunState.ERROR, why=f"it has submitted no job to Slurm ({run.why})")
    if check.last.is_of(run):
        return check.last.outcome
    if run.unhandled or (run.finished and now - run.finished < FOLLOWS):
        return CheckResult()
    why = "Soperator has not noted its end, or has noted another run since"
    return CheckResult(state=RunState.UNKNOWN, why=why if run.slurm_jobs else "its Job has noted no Slurm jobs")


def under_way(check: CheckSeen, runs: Sequence[RunSeen], now: datetime) -> tuple[RunSeen, ...]:
    """The runs in progress, which another run would disturb: Soperator cancels older Slurm jobs of the same check.

    So of the runs with submitted jobs only the newest can be in progress.
    """
    last = newest(runs)
    if last and (last.unhandled == () or judged(check, last, now).state.is_over):
        last = None
    return tuple(run for run in runs if not run.end or run is last)


def _short(check: CheckSeen) -> str:
    return check.name.removeprefix(f"{check.cluster}-")


def _ids(said: str) -> tuple[str, ...]:
    return tuple(one.strip() for one in said.split(",") if one.strip())


def _last_in_kubernetes(status: Object) -> LastRun:
    return LastRun(
        outcome=CheckResult(state=RunState(status.get("lastJobStatus", ""))),
        job=status.get("lastJobName", ""),
        # The time of the last scheduled run: manual runs are not noted.
        submitted=parse_time(status.get("lastJobScheduleTime")),
    )


def _last_in_slurm(status: Object) -> LastRun:
    first = status.get("lastRunId", "")
    has_jobs = first != _NO_SLURM_JOB
    failed = [_end(one, "FAILED") for one in status.get("lastRunFailJobsAndReasons") or ()]
    others = [_end(one, "") for one in status.get("lastRunErrorJobsAndReasons") or ()]
    cancelled = [JobEnd(job_id=one, state="CANCELLED") for one in status.get("lastRunCancelledJobs") or ()]
    return LastRun(
        outcome=CheckResult(
            state=RunState(status.get("lastRunStatus", "")),
            jobs=(*failed, *others, *cancelled),
            why="" if has_jobs else "it has submitted no job to Slurm",
        ),
        # If there is a Slurm job, this field has its name.
        job="" if has_jobs else status.get("lastRunName", ""),
        slurm_job=first if has_jobs else "",
        submitted=parse_time(status.get("lastRunSubmitTime")),
    )


def _end(said: Object, state: str) -> JobEnd:
    return JobEnd(job_id=said["jobID"], state=state, reason=said.get("reason", ""))


class ActiveChecks:
    """The active checks of a namespace."""

    def __init__(self, objects: Objects) -> None:
        self.objects = objects

    async def list_all(self) -> tuple[CheckSeen, ...]:
        return tuple(map(CheckSeen.read, await self.objects.list_all(ACTIVE_CHECK)))

    async def find(self, said: str) -> CheckSeen:
        return find(await self.list_all(), said, self.objects.namespace)

    async def runs(self) -> tuple[RunSeen, ...]:
        """Runs of all checks, except old ones that Kubernetes has deleted."""
        return tuple(map(RunSeen.read, await self.objects.list_all(JOB)))

    async def start(self, check: CheckSeen, name: str, owner: str) -> RunSeen:
        """Start a run, or return the existing one of this name."""
        try:
            cron_job = await self.objects.read(CRON_JOB, check.name)
        except ObjectMissing as error:
            others = f", and {', '.join(check.depends_on)} have completed" if check.depends_on else ""
            raise ConnectRefused(
                f"the check {check.name} has no CronJob yet",
                f"Soperator creates it once the cluster is available{others}",
            ) from error
        return RunSeen.read(await self.objects.create_once(JOB, job_of(cron_job, name, owner)))

    async def end(self, run: str) -> None:
        """Delete a run's Job; its Slurm jobs continue."""
        with suppress(ObjectMissing):
            await self.objects.delete(JOB, run)


def job_name(check: str, key: str) -> str:
    """The name of the Job for a key.

    >>> job_name("gpu-checks", "q6befiawjvkz_3")
    'gpu-checks-airflow-q6befiawjvkz-3'
    """
    suffix = f"-airflow-{key.replace('_', '-')}"
    return check[: _NAME_LIMIT - len(suffix)].rstrip("-.") + suffix


def job_of(cron_job: Object, name: str, owner: str) -> dict[str, Any]:
    """The Job of a run, as ``kubectl create job --from`` makes it; ``owner`` is the task that starts it."""
    about, template = cron_job["metadata"], cron_job["spec"]["jobTemplate"]
    kind = {"apiVersion": "batch/v1", "kind": "CronJob"}
    said, pod = template.get("metadata") or {}, template["spec"]["template"].get("metadata") or {}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": name,
            # Soperator follows Jobs by a label that only their Pods get. Kubernetes copies it to a Job only if the
            # Job has no labels.
            "labels": {**(pod.get("labels") or {}), **(said.get("labels") or {})},
            "annotations": {**(said.get("annotations") or {}), **_BY_HAND, OWNER: owner},
            "ownerReferences": [{**kind, "name": about["name"], "uid": about["uid"], "controller": True}],
        },
        "spec": template["spec"],
    }
