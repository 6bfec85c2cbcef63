"""Accounting over slurmrestd: past jobs, rights of users, and fair shares."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

from airflow_provider_soperator.slurm import notations, requests
from airflow_provider_soperator.slurm.cluster_records import Association, Share, UserRights
from airflow_provider_soperator.slurm.errors import AccountingUnreachable, SlurmError
from airflow_provider_soperator.slurm.job_ids import JobId, array_text
from airflow_provider_soperator.slurm.job_records import AccountingJob, AccountingStep
from airflow_provider_soperator.slurm.requests.accounting import by_name, with_earlier_runs
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

Query = tuple[tuple[str, str], ...]

#: Characters of ids or names in one URL; longer URLs are truncated or rejected.
LONGEST = 4000


@handles
def accounting(request: requests.Accounting, site: Site) -> RestSteps[tuple[AccountingJob, ...]]:
    """List jobs; many ids or names take several calls, as they are part of the URL.

    Exit codes equal those of the queue, on every version of Slurm.
    """
    request.command()
    # Not asked for as ``users``: slurmrestd would have to know them, and its host may know root alone.
    user = (yield from steps(requests.WhoAmI(), site)) if request.mine else None
    runs: dict[JobId, list[AccountingJob]] = {}
    for query in _queries(request):
        data = yield from _asked(RestCall("GET", "slurmdb/jobs/", query))
        for said in data.get("jobs") or ():
            job = _readable_job(said, request.steps)
            # A job without an association has no user then, nor a number: a name, which anybody can give, is no proof.
            if user in (None, job.user) or (request.ids is not None and not job.user):
                runs.setdefault(job.id, []).append(job)
    return tuple(job for job in map(with_earlier_runs, runs.values()) if request.admits(job))


@handles
def list_usage(request: requests.ListUsage, site: Site) -> RestSteps[tuple[AccountingJob, ...]]:
    jobs = yield from accounting(request, site)
    return tuple(replace(run, earlier_runs=()) for job in jobs for run in (*job.earlier_runs, job))


def _asked(call: RestCall, unclear: type[SlurmError] = AccountingUnreachable) -> RestSteps[Json]:
    try:
        return (yield from asked(call))
    except unclear:
        # slurmdbd has the same error for a rejected token, and shares have none of their own; slurmctld says more.
        yield from asked(RestCall("GET", "slurm/diag/"))
        raise


def _queries(request: requests.Accounting) -> Iterator[Query]:
    # Otherwise times are cut to the requested period, and jobs that have not started get times.
    general: Query = (("disable_truncate_usage_time", "true"), ("show_duplicates", "true"))
    general += (("skip_steps", "false" if request.steps else "true"),)
    if request.user:
        general += (("users", request.user),)
    if request.since:
        # Selection by state also finds jobs that ended before they were ever eligible.
        general += (("start_time", notations.format_time(request.since)), ("end_time", request.end))
        general += tuple(("state", base.value) for base in JobBase)
    elif request.ids is None:
        general += (("start_time", "today"),)
    if request.ids is not None:
        chosen = [("step", str(whole)) for whole in dict.fromkeys(job.whole for job in request.ids)]
    else:
        chosen = [("job_name", name) for name in request.safe_names()]
    if not chosen:
        yield general
    while chosen:
        part: list[tuple[str, str]] = []
        length = 0
        while chosen and length < LONGEST:
            part.append(chosen.pop())
            length += len(part[-1][0]) + len(part[-1][1]) + 2
        yield (*general, *part)


def _readable_job(said: Json, steps: bool) -> AccountingJob:
    try:
        return _job(said, steps)
    except UNREADABLE as error:
        user = said.get("user") or ""
        return AccountingJob(id=_id(said), name=said.get("name", ""), user=user, unreadable=repr(error))


def _job(said: Json, steps: bool) -> AccountingJob:
    job_id = _id(said)
    time, state = said["time"], said["state"]
    # Of other users slurmrestd has the names alone.
    is_by_root = state["current"] == ["CANCELLED"] and said.get("kill_request_user") == "root"
    return AccountingJob(
        id=job_id,
        raw_id=said["job_id"],
        name=said["name"],
        user=said.get("user") or "",
        account=said.get("account") or "",
        partition=said.get("partition") or "",
        qos=said.get("qos") or "",
        state=JobState.parse("CANCELLED by 0" if is_by_root else state["current"]),
        reason=notations.clean(state.get("reason") or ""),
        exit_code=calls.exit_code(said.get("exit_code")),
        nodelist=notations.clean(said.get("nodes") or ""),
        submitted=calls.moment(time["submission"]),
        eligible=calls.moment(time["eligible"]),
        started=calls.moment(time["start"]),
        ended=calls.moment(time["end"]),
        elapsed=calls.seconds(time["elapsed"]),
        time_limit=calls.time_limit(time["limit"]),
        tres=_tres(said["tres"].get("allocated")),
        comment=(said.get("comment") or {}).get("job") or "",
        submit_line=said.get("submit_line") or "",
        workdir=said.get("working_directory") or "",
        steps=tuple(_step(step, job_id) for step in said.get("steps") or ()) if steps else (),
    )


def _id(said: Json) -> JobId:
    if array := said["array"]["job_id"]:
        element = calls.number(said["array"]["task_id"])
        if element is not None:
            return JobId(array, element=element)
        return JobId(array, elements=_elements(said["array"]))
    if het := said["het"]["job_id"]:
        return JobId(het, part=calls.number(said["het"]["job_offset"]))
    return JobId(said["job_id"])


def _elements(array: Json) -> str:
    """The elements, from the database's bitmap in hexadecimal digits.

    >>> _elements({"task": "0x124", "limits": {"max": {"running": {"tasks": 2}}}})
    '2-8:3%2'
    """
    bits = int(array["task"] or "0", 16)
    indices = [index for index in range(bits.bit_length()) if bits >> index & 1]
    return array_text(indices, array["limits"]["max"]["running"]["tasks"] or None)


def _step(said: Json, job_id: JobId) -> AccountingStep:
    time = said["time"]
    # It has its job's own id, even for an element of an array.
    step = str(said["step"]["id"]).partition(".")[2]
    measured = said["tres"].get("requested", {})
    return AccountingStep(
        id=replace(job_id, step=step),
        state=JobState.parse(said["state"]),
        exit_code=calls.exit_code(said["exit_code"]),
        elapsed=calls.seconds(time["elapsed"]),
        nodelist=notations.clean((said.get("nodes") or {}).get("range") or ""),
        cpu_time=_cpu_time(time.get("total")),
        max_rss=_memory(measured.get("max")),
        total_rss=_memory(measured.get("total")),
    )


def _cpu_time(said: Json | None) -> timedelta | None:
    """A time of CPUs, in the units of ``sacct``: milliseconds, and from an hour on seconds."""
    whole = calls.number(said["seconds"]) if said else None
    if said is None or whole is None:
        return None
    time = timedelta(seconds=whole, microseconds=calls.number(said["microseconds"]) or 0)
    return time - time % (timedelta(seconds=1) if time >= timedelta(hours=1) else timedelta(milliseconds=1))


def _memory(tres: list[Json] | None) -> int | None:
    return next((one["count"] for one in tres or () if one["type"] == "mem"), None)


def _tres(said: list[Json] | None) -> str:
    """Resources in the notation of ``sacct``.

    >>> _tres([{"type": "gres", "name": "gpu", "count": 8}, {"type": "mem", "name": "", "count": 1000}])
    'gres/gpu=8,mem=1000M'
    """
    written = {"/".join(filter(None, (one["type"], one["name"]))): one["count"] for one in said or ()}
    # Unknown counts are negative.
    return ",".join(f"{name}={count}{'M' * (name == 'mem')}" for name, count in sorted(written.items()) if count >= 0)


@handles
def show_rights(request: requests.ShowRights, site: Site) -> RestSteps[UserRights]:
    request.command()
    data = yield from _asked(RestCall("GET", f"slurmdb/user/{calls.segment(request.user)}"))
    if not data.get("users"):
        return UserRights(user=request.user, is_known=False)
    user = data["users"][0]
    query = (("user", request.user), ("cluster", data["meta"]["slurm"]["cluster"]))
    data = yield from _asked(RestCall("GET", "slurmdb/associations/", query))
    associations = data.get("associations") or ()
    levels = [level for level in user["administrator_level"] if level.lower() not in ("none", "not set", "not_set")]
    return UserRights(
        user=request.user,
        admin_level=levels[0] if levels else "None",
        default_account=next((one["account"] for one in associations if one.get("is_default")), ""),
        associations=tuple(
            Association(one["account"], one.get("partition") or "", tuple(one["qos"])) for one in associations
        ),
    )


#: From here on a number of shares means those of the parent.
_PARENTS = 0x7FFF_FFFF
#: From here on a level is one of Slurm's marks, for none or infinity.
_NO_LEVEL = 0xFFFF_FFFD
#: Decimals that ``sshare`` prints.
_DIGITS = 6


@handles
def list_shares(request: requests.ListShares, site: Site) -> RestSteps[tuple[Share, ...]]:
    data = yield from _asked(RestCall("GET", "slurm/shares"), SlurmError)
    return by_name(map(_share, (data.get("shares") or {}).get("shares") or ()))


def _share(said: Json) -> Share:
    is_user = "USER" in said["type"]
    shares = calls.number(said["shares"])
    has_own = shares is not None and shares < _PARENTS
    fair = said["fairshare"]
    return Share(
        account=said["parent"] if is_user else said["name"],
        user=said["name"] if is_user else "",
        partition=said.get("partition") or "",
        shares=shares if has_own else None,
        normal_shares=_rest_fraction(said["shares_normalized"]),
        usage=said["usage"],
        normal_usage=_rest_fraction(said["usage_normalized"]),
        effective_usage=_rest_fraction(said["effective_usage"]),
        fair_share=_rest_fraction(fair["factor"]) if is_user else None,
        # Without shares of one's own there is no level.
        level=_level(fair["level"]) if has_own else None,
    )


def _rest_fraction(value: Any) -> float | None:
    """A fraction: a plain number before v0.0.42."""
    if isinstance(value, Mapping):
        if not value["set"] and not value["infinite"]:
            return None
        value = math.inf if value["infinite"] else value["number"]
    return round(float(value), _DIGITS)


def _level(value: Any) -> float | None:
    level = _rest_fraction(value)
    if level is None or level < _NO_LEVEL:
        return level
    return math.inf if level > _NO_LEVEL + 2 else None
