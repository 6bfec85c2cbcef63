"""Jobs in the queue over slurmrestd."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta, timezone
from typing import Any

from airflow_provider_soperator.slurm import job_description, options, sbatch_arguments
from airflow_provider_soperator.slurm.errors import InvalidRequest, UnknownJob
from airflow_provider_soperator.slurm.job import BatchJob
from airflow_provider_soperator.slurm.job_ids import JobId
from airflow_provider_soperator.slurm.job_records import Job
from airflow_provider_soperator.slurm.notations import NoDuration
from airflow_provider_soperator.slurm.requests.commands import clean
from airflow_provider_soperator.slurm.requests.jobs import (
    CancelJobs,
    HoldJobs,
    JobDetail,
    ListJobs,
    ReleaseJobs,
    RequeueJobs,
    Submit,
    TopJobs,
    UpdateJob,
)
from airflow_provider_soperator.slurm.rest.calls import (
    UNREADABLE,
    Json,
    RestCall,
    Site,
    Steps,
    as_lines,
    asked,
    check_each,
    exit_code,
    handles,
    minutes,
    moment,
    number,
    segment,
    unsupported,
)
from airflow_provider_soperator.slurm.states import JobBase, JobState

#: Up to this many jobs are requested one by one; more with the whole queue, in one call.
FEW = 4
#: The index of no array element, which slurmrestd writes into file names.
_NO_ELEMENT = "4294967294"
#: The end of a list of array elements that slurmrestd has truncated.
_CUT = "..."
#: The signal that ends jobs: slurmctld itself sends SIGTERM first.
_END = "KILL"
_GONE = {2017, 2021}
#: The error for a job that is not in the requested state.
_OTHER_STATE = 2172

#: Fields of ``scontrol update job``, and the equivalent options of sbatch if their names differ.
_UPDATES: Mapping[str, str] = {
    "cpuspertask": "cpus-per-task",
    "numnodes": "nodes",
    "numtasks": "ntasks",
    "starttime": "begin",
    "timelimit": "time",
    **dict.fromkeys(("jobname", "name"), "job-name"),
    **dict.fromkeys(("account", "comment", "deadline", "dependency", "extra", "licenses", "nice", "partition"), ""),
    **dict.fromkeys(("priority", "qos", "wckey"), ""),
    **dict.fromkeys(("reservation", "reservationname"), "reservation"),
    **dict.fromkeys(("features", "constraint"), "constraint"),
    **dict.fromkeys(("reqnodelist", "nodelist"), "nodelist"),
    "excnodelist": "exclude",
    "mailuser": "mail-user",
    "stdout": "output",
    "stderr": "error",
}


@handles
def list_jobs(request: ListJobs, site: Site) -> Steps[tuple[Job, ...]]:
    """List jobs. slurmrestd returns the whole queue or single jobs; all other conditions are applied here.

    Before v0.0.43 ``stdout`` has its patterns expanded, and is empty for pending elements of an array.
    """
    request.command()  # rejects invalid states, users and partitions
    if request.mine and not site.user:
        unsupported("tell whose token this is, and the token names no user", "set the user of the connection")
    wholes = tuple(dict.fromkeys(job.whole for job in request.ids or ()))
    found: list[Json] = []
    if 0 < len(wholes) <= FEW:
        for whole in wholes:
            try:
                data = yield from asked(RestCall("GET", f"slurm/job/{whole.job}"))
            except UnknownJob:
                continue
            found += data["jobs"]
    else:
        data = yield from asked(RestCall("GET", "slurm/jobs/"))
        found += data["jobs"]
    elements = yield from _cut_elements(found)
    now = datetime.now(timezone.utc)
    jobs = (_readable_job(one, elements, now) for one in found if _is_wanted(one, request, site))
    return tuple(job for job in jobs if request.admits(job))


def _is_wanted(said: Json, request: ListJobs, site: Site) -> bool:
    if request.mine and said["user_name"] != site.user:
        return False
    if request.user and said["user_name"] != request.user:
        return False
    if request.partition and request.partition not in said["partition"].split(","):
        return False
    return not request.states or _has_state(JobState.parse(said["job_state"]), request.states)


def _has_state(state: JobState, wanted: Iterable[str]) -> bool:
    states = map(JobState.parse, wanted)
    return any((one.base is not None and one.base == state.base) or one.flags & state.flags for one in states)


def _cut_elements(found: list[Json]) -> Steps[dict[int, str]]:
    """Pending elements of arrays whose list slurmrestd has truncated at 64 characters."""
    cut = {one["array_job_id"]["number"]: one["array_task_string"] for one in found if _CUT in one["array_task_string"]}
    elements: dict[int, str] = {}
    for array, written in cut.items():
        data = yield from asked(RestCall("GET", "slurm/jobs/state/", (("job_id", str(array)),)))
        all_of_it = {JobId.parse(one["job_id"]).element for one in data["jobs"]}
        apart = {number(one["array_task_id"]) for one in found if number(one["array_job_id"]) == array}
        waiting = [element for element in all_of_it - apart if element is not None]
        limit = written.partition("%")[2]
        elements[array] = job_description.array_text(waiting, int(limit) if limit else None)
    return elements


def _ends(said: Json, now: datetime) -> datetime | None:
    """The end; None for a job without a limit, as in squeue, where slurmctld has a year from its start."""
    ends = moment(said["end_time"])
    unlimited = minutes(said["time_limit"], unset=NoDuration.PARTITION_LIMIT) is NoDuration.UNLIMITED
    return None if unlimited and ends and ends > now else ends


def _readable_job(said: Json, elements: Mapping[int, str], now: datetime) -> Job:
    try:
        return _job(said, elements, now)
    except UNREADABLE as error:
        return Job(id=_id(said, elements), name=said.get("name", ""), user=said["user_name"], unreadable=repr(error))


def _job(said: Json, elements: Mapping[int, str], now: datetime) -> Job:
    state = JobState.parse(said["job_state"])
    stdout = said["standard_output"]
    return Job(
        id=_id(said, elements),
        raw_id=said["job_id"],
        name=said["name"],
        user=said["user_name"],
        account=clean(said["account"]),
        partition=said["partition"],
        qos=clean(said["qos"]),
        state=state,
        reason=clean((said["state_description"] or said["state_reason"]).replace(" ", "_")),
        nodelist=clean(said["nodes"]),
        batch_host=clean(said["batch_host"]),
        submitted=moment(said["submit_time"]),
        started=moment(said["start_time"]),
        ends=_ends(said, now),
        time_limit=minutes(said["time_limit"], unset=NoDuration.PARTITION_LIMIT),
        time_used=_time_used(said, state, now),
        priority=number(said["priority"]),
        restarts=said["restart_cnt"],
        may_requeue=said.get("requeue", True),
        exit_code=exit_code(said["exit_code"]),
        dependency=clean(said["dependency"]),
        reservation=clean(said["resv_name"]),
        tres=said["tres_alloc_str"] or said["tres_req_str"],
        comment=clean(said["comment"]),
        workdir=said["current_working_directory"],
        stdout="" if _NO_ELEMENT in stdout else stdout,
        admin_comment=clean(said["admin_comment"]),
    )


def _id(said: Json, elements: Mapping[int, str]) -> JobId:
    if array := number(said["array_job_id"]):
        element = number(said["array_task_id"])
        if element is not None:
            return JobId(array, element=element)
        return JobId(array, elements=elements.get(array, said["array_task_string"]))
    if het := number(said["het_job_id"]):
        return JobId(het, part=number(said["het_job_offset"]))
    return JobId(said["job_id"])


def _time_used(said: Json, state: JobState, now: datetime) -> timedelta:
    """The time used as in ``squeue``: a suspended job does not use time."""
    started = moment(said["start_time"])
    if started is None or state.base is JobBase.PENDING:
        return timedelta()
    before = timedelta(seconds=number(said["pre_sus_time"]) or 0)
    if state.base is JobBase.SUSPENDED:
        return before
    ended = moment(said["end_time"])
    until = now.replace(microsecond=0) if state.base is JobBase.RUNNING or ended is None else ended
    resumed = moment(said["suspend_time"])
    return max(timedelta(), until - resumed + before if resumed else until - started)


@handles
def job_detail(request: JobDetail, site: Site) -> Steps[str]:
    data = yield from asked(RestCall("GET", f"slurm/job/{segment(request.job.whole)}"))
    jobs = [one for one in data["jobs"] if request.job.covers(_id(one, {})) or _id(one, {}).covers(request.job)]
    if not jobs:
        raise UnknownJob("Invalid job id specified")
    return "\n".join(map(as_lines, jobs))


@handles
def cancel(request: CancelJobs, site: Site) -> Steps[None]:
    """Cancel jobs in one call, even a single one: v0.0.41 reports no errors for calls about a single job."""
    request.command()
    flags = ["FULL_JOB"] * request.full + ["BATCH_JOB"] * request.batch
    # slurmrestd takes the name without the prefix.
    signal = request.signal.removeprefix("SIG") or _END
    body = {"jobs": [job.argument for job in request.ids], "signal": signal, **({"flags": flags} if flags else {})}
    if request.waiting:
        body["job_state"] = ["PENDING"]
    data = yield from asked(RestCall("DELETE", "slurm/jobs/", body=body))
    check_each(data, ignored=_GONE | {_OTHER_STATE} if request.waiting else _GONE)


@handles
def hold(request: HoldJobs, site: Site) -> Steps[None]:
    return _update_each(request.ids, {"hold": True}, "hold")


@handles
def release(request: ReleaseJobs, site: Site) -> Steps[None]:
    return _update_each(request.ids, {"hold": False}, "release")


def _update_each(ids: tuple[JobId, ...], change: Json, what: str) -> Steps[None]:
    """Update jobs one by one; after a missing one the others are updated nevertheless."""
    if not ids:
        raise InvalidRequest("no job is given")
    for job in ids:
        _refuse_elements(job, what)
    first: Exception | None = None
    for job in ids:
        try:
            # slurmrestd changes only one part of a heterogeneous job per call.
            data = yield from asked(RestCall("GET", f"slurm/job/{job.job}"))
            parts = [one["job_id"] for one in data["jobs"] if number(one["het_job_id"])]
            for part in parts or [job.job]:
                yield from asked(RestCall("POST", f"slurm/job/{part}", body=change))
        except UnknownJob as error:
            first = first or error
    if first:
        raise first


def _refuse_elements(job: JobId, what: str) -> None:
    if job.element is not None or job.elements:
        unsupported(f"{what} single elements of a job array")


@handles
def requeue(request: RequeueJobs, site: Site) -> Steps[None]:
    request.command()
    site.require(45, "requeue jobs")
    flags = {"flags": ["Hold"]} if request.hold else {}
    body = {"jobs": [job.argument for job in request.ids], **flags}
    check_each((yield from asked(RestCall("POST", "slurm/jobs/requeue", body=body))))


@handles
def top(request: TopJobs, site: Site) -> Steps[None]:
    unsupported("put jobs before the others of their user")


@handles
def update_job(request: UpdateJob, site: Site) -> Steps[None]:
    request.command()
    _refuse_elements(request.job, "change")
    change: dict[str, Any] = {}
    for name, value in request.changes.items():
        change |= _said(name, value)(value)
    yield from asked(RestCall("POST", f"slurm/job/{segment(request.job.without_step)}", body=change))


def _said(name: str, value: str) -> Callable[[str], dict[str, Any]]:
    if name.lower() == "admincomment":
        return lambda text: {"admin_comment": text}
    known = _UPDATES.get(name.lower())
    if known is None:
        unsupported(f"change a job's {name}; it can change {', '.join(sorted(_UPDATES))}")
    if value[:1] in ("+", "-") and name.lower() != "nice":
        unsupported(f"change a job's {name} by an amount")
    option = options.typed(known or name.lower())
    assert option
    assert option.rest
    return option.rest


@handles
def submit(request: Submit, site: Site) -> Steps[JobId]:
    return submitted(payload_of(request.job, site))


def payload_of(job: BatchJob, site: Site) -> dict[str, Any]:
    """The job's JSON; its default working folder is the user's home."""
    job.check()
    if site.home and sbatch_arguments.components(job)[0].chdir is None:
        job = job.replace(chdir=site.home)
    return job.to_payload(f"v0.0.{site.version}")


def submitted(body: Json) -> Steps[JobId]:
    data = yield from asked(RestCall("POST", "slurm/job/submit", body=body), "sbatch")
    return JobId(number(data["job_id"]) or 0)
