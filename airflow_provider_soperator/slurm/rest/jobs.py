"""Jobs in the queue over slurmrestd."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from typing import Any

from airflow_provider_soperator.slurm import job_description, notations, requests
from airflow_provider_soperator.slurm.errors import InvalidRequest, SlurmError, UnknownJob
from airflow_provider_soperator.slurm.job import BatchJob
from airflow_provider_soperator.slurm.job_description import Option
from airflow_provider_soperator.slurm.job_ids import JobId, array_text
from airflow_provider_soperator.slurm.job_records import Job
from airflow_provider_soperator.slurm.notations import NoDuration
from airflow_provider_soperator.slurm.rest import calls
from airflow_provider_soperator.slurm.rest.calls import (
    UNREADABLE,
    Json,
    RestCall,
    RestSteps,
    Site,
    asked,
    handles,
    steps,
)
from airflow_provider_soperator.slurm.states import JobBase, JobState

#: Up to this many jobs are requested one by one; more with the whole queue, in one call.
FEW = 4
#: The index of no array element, which slurmrestd writes into file names.
_NO_ELEMENT = "4294967294"
#: The end of a list of array elements that slurmrestd has truncated.
_CUT = "..."
#: The name of the job that tells the number of the connection's user.
_PROBE = "soperator.whose"
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
def list_jobs(request: requests.ListJobs, site: Site) -> RestSteps[tuple[Job, ...]]:
    """List jobs. slurmrestd returns the whole queue or single jobs; all other conditions are applied here.

    Before v0.0.43 ``stdout`` has its patterns expanded, and is empty for pending elements of an array.
    """
    request.command()  # rejects invalid states, users and partitions
    if request.mine:
        yield from steps(requests.WhoAmI(), site)
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
    jobs = [(one, _readable_job(one, elements, now)) for one in found if _is_wanted(one, request, site)]
    jobs = [(one, job) for one, job in jobs if request.admits(job)]
    if request.mine:
        for one in found:
            if one["user_name"] == site.user or one["job_id"] == site.owner.job:
                site.owner.number, site.owner.job = one["user_id"], None
        # Ids are those of one's own submissions; a name, which anybody can give, is no proof.
        if request.ids is None and not all(job.user for _, job in jobs):
            yield from _learn_number(site)
        jobs = [(one, job) for one, job in jobs if job.user or site.owner.number in (None, one["user_id"])]
    return tuple(job for _, job in jobs)


def _learn_number(site: Site) -> RestSteps[None]:
    """Learn the number of the connection's user from a job, which is cancelled: no other answer has it for certain."""
    if site.owner.number is not None:
        return
    # If its cancellation fails, it ends by itself.
    probe = BatchJob(name=_PROBE, command=":", begin="now+1hour")
    try:
        job = yield from submitted(probe.to_payload(f"v0.0.{site.version}", site.user, site.home), site)
    except SlurmError as error:
        if error.passing:
            raise
        calls.unsupported(
            f"tell whose jobs these are: it does not know their users, and a job that would tell is rejected ({error})",
            "have the host of slurmrestd know the connection's user",
        )
    data = yield from asked(RestCall("GET", f"slurm/job/{job}"))
    site.owner.number = data["jobs"][0]["user_id"]
    yield from cancel(requests.CancelJobs(ids=(job,)), site)


def _is_wanted(said: Json, request: requests.ListJobs, site: Site) -> bool:
    # slurmrestd looks names up where it runs, and may know no user but root there: then their numbers tell.
    if request.mine and said["user_name"] not in ("", site.user):
        return False
    if request.user and not said["user_name"]:
        calls.unsupported("tell whose jobs these are, as it does not know their users")
    if request.user and said["user_name"] != request.user:
        return False
    if request.partition and request.partition not in said["partition"].split(","):
        return False
    state, wanted = JobState.parse(said["job_state"]), map(JobState.parse, request.states)
    fits = ((one.base is not None and one.base == state.base) or one.flags & state.flags for one in wanted)
    return not request.states or any(fits)


def _cut_elements(found: list[Json]) -> RestSteps[dict[int, str]]:
    """Pending elements of arrays whose list slurmrestd has truncated at 64 characters."""
    cut = {one["array_job_id"]["number"]: one["array_task_string"] for one in found if _CUT in one["array_task_string"]}
    elements: dict[int, str] = {}
    for array, written in cut.items():
        data = yield from asked(RestCall("GET", "slurm/jobs/state/", (("job_id", str(array)),)))
        all_of_it = {JobId.parse(one["job_id"]).element for one in data["jobs"]}
        apart = {calls.number(one["array_task_id"]) for one in found if calls.number(one["array_job_id"]) == array}
        waiting = [element for element in all_of_it - apart if element is not None]
        elements[array] = array_text(waiting, JobId(array, elements=written).limit)
    return elements


def _ends(said: Json, now: datetime) -> datetime | None:
    """The end; None for a job without a limit, as in squeue, where slurmctld has a year from its start."""
    ends = calls.moment(said["end_time"])
    unlimited = calls.time_limit(said["time_limit"]) is NoDuration.UNLIMITED
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
        account=notations.clean(said["account"]),
        partition=said["partition"],
        qos=notations.clean(said["qos"]),
        state=state,
        reason=notations.clean((said["state_description"] or said["state_reason"]).replace(" ", "_")),
        nodelist=notations.clean(said["nodes"]),
        batch_host=notations.clean(said["batch_host"]),
        submitted=calls.moment(said["submit_time"]),
        eligible=calls.moment(said["eligible_time"]),
        started=calls.moment(said["start_time"]),
        ends=_ends(said, now),
        time_limit=calls.time_limit(said["time_limit"]),
        time_used=_time_used(said, state, now),
        priority=calls.number(said["priority"]),
        restarts=said["restart_cnt"],
        may_requeue=said.get("requeue", True),
        exit_code=calls.exit_code(said["exit_code"]),
        dependency=notations.clean(said["dependency"]),
        reservation=notations.clean(said["resv_name"]),
        tres=said["tres_alloc_str"] or said["tres_req_str"],
        comment=notations.clean(said["comment"]),
        workdir=said["current_working_directory"],
        stdout="" if _NO_ELEMENT in stdout else stdout,
        admin_comment=notations.clean(said["admin_comment"]),
    )


def _id(said: Json, elements: Mapping[int, str]) -> JobId:
    if array := calls.number(said["array_job_id"]):
        element = calls.number(said["array_task_id"])
        if element is not None:
            return JobId(array, element=element)
        return JobId(array, elements=elements.get(array, said["array_task_string"]))
    if het := calls.number(said["het_job_id"]):
        return JobId(het, part=calls.number(said["het_job_offset"]))
    return JobId(said["job_id"])


def _time_used(said: Json, state: JobState, now: datetime) -> timedelta:
    """The time used as in ``squeue``: a suspended job does not use time."""
    started = calls.moment(said["start_time"])
    if started is None or state.base is JobBase.PENDING:
        return timedelta()
    before = timedelta(seconds=calls.number(said["pre_sus_time"]) or 0)
    if state.base is JobBase.SUSPENDED:
        return before
    ended = calls.moment(said["end_time"])
    until = now.replace(microsecond=0) if state.base is JobBase.RUNNING or ended is None else ended
    resumed = calls.moment(said["suspend_time"])
    return max(timedelta(), until - resumed + before if resumed else until - started)


@handles
def job_detail(request: requests.JobDetail, site: Site) -> RestSteps[str]:
    data = yield from asked(RestCall("GET", f"slurm/job/{calls.segment(request.job.whole)}"))
    jobs = [one for one in data["jobs"] if request.job.covers(_id(one, {})) or _id(one, {}).covers(request.job)]
    if not jobs:
        raise UnknownJob("Invalid job id specified")
    return "\n".join(json.dumps(one, indent=1) for one in jobs)


@handles
def cancel(request: requests.CancelJobs, site: Site) -> RestSteps[None]:
    """Cancel jobs in one call, even a single one: v0.0.41 reports no errors for calls about a single job."""
    request.command()
    # slurmrestd takes the name without the prefix.
    signal = request.signal.removeprefix("SIG") or _END
    body = {"jobs": [job.argument for job in request.ids], "signal": signal}
    if request.waiting:
        body["job_state"] = ["PENDING"]
    data = yield from asked(RestCall("DELETE", "slurm/jobs/", body=body))
    calls.check_each(data, ignored=_GONE | {_OTHER_STATE} if request.waiting else _GONE)


@handles
def hold(request: requests.HoldJobs, site: Site) -> RestSteps[None]:
    return _update_each(request.ids, {"hold": True}, "hold")


@handles
def release(request: requests.ReleaseJobs, site: Site) -> RestSteps[None]:
    return _update_each(request.ids, {"hold": False}, "release")


def _update_each(ids: tuple[JobId, ...], change: Json, what: str) -> RestSteps[None]:
    """Update jobs one by one; after a missing one the others are updated nevertheless."""
    if not ids:
        raise InvalidRequest("no job is given")
    for job in ids:
        _refuse_elements(job, what)
    first: Exception | None = None
    for job in ids:
        try:
            # slurmrestd changes one record per call, by its own number: with 7+1 the first part of a heterogeneous job,
            # and of an array the elements that are one entry of the queue.
            data = yield from asked(RestCall("GET", f"slurm/job/{job.job}"))
            found = [one for one in data["jobs"] if calls.number(one["het_job_id"]) or _waits_in_array(one)]
            parts = [one["job_id"] for one in found if job.covers(_id(one, {}))]
            if job.part is not None and not parts:
                raise UnknownJob("Invalid job id specified")
            for part in parts or [job.job]:
                yield from asked(RestCall("POST", f"slurm/job/{part}", body=change))
        except UnknownJob as error:
            first = first or error
    if first:
        raise first


def _waits_in_array(said: Json) -> bool:
    return bool(calls.number(said["array_job_id"])) and JobState.parse(said["job_state"]).is_pending


def _refuse_elements(job: JobId, what: str) -> None:
    if job.element is not None or job.elements:
        calls.unsupported(f"{what} single elements of a job array")


@handles
def requeue(request: requests.RequeueJobs, site: Site) -> RestSteps[None]:
    request.command()
    site.require(45, "requeue jobs")
    flags = {"flags": ["Hold"]} if request.hold else {}
    body = {"jobs": [job.argument for job in request.ids], **flags}
    data = yield from asked(RestCall("POST", "slurm/jobs/requeue", body=body))
    # A list for each id of array elements, with their outcomes.
    outcomes = [one for of_id in data.get("status") or () for one in of_id]
    if failed := [{"description": one["error"]} for one in outcomes if one["error_code"]]:
        raise calls.error(failed)


@handles
def top(request: requests.TopJobs, site: Site) -> RestSteps[None]:
    calls.unsupported("put jobs before the others of their user")


@handles
def update_job(request: requests.UpdateJob, site: Site) -> RestSteps[None]:
    request.command()
    change: dict[str, Any] = {}
    for name, value in request.changes.items():
        if name.lower() == "admincomment":
            change["admin_comment"] = value
        else:
            change |= _option(name, value).to_json(value)
    return _update_each((request.job.without_step,), change, "change")


def _option(name: str, value: str) -> Option:
    known = _UPDATES.get(name.lower())
    if known is None:
        calls.unsupported(f"change a job's {name}; it can change {', '.join(sorted(_UPDATES))}")
    if value[:1] in ("+", "-") and name.lower() != "nice":
        calls.unsupported(f"change a job's {name} by an amount")
    option = job_description.BY_LONG.get(known or name.lower())
    assert option
    return option


def submitted(body: Json, site: Site) -> RestSteps[JobId]:
    data = yield from asked(RestCall("POST", "slurm/job/submit", body=body), "sbatch")
    job = JobId(calls.number(data["job_id"]) or 0)
    site.owner.job = job.job
    return job
