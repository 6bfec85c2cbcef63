"""Runs of ActiveChecks: a CronJob for each check, and what becomes of the Jobs that are made from it.

A Job of a slurmJob check submits real jobs to the sandbox's Slurm, and the check's status follows them. A Job of a
k8sJob check only ends after a moment: nothing runs in its Pod, which there is none of.
"""

from __future__ import annotations

import logging
import random
import re
from typing import Any

from sandbox.cloud.conditions import condition, timestamp, with_conditions
from sandbox.cloud.landscape import labels
from sandbox.cloud.node_checks import SUSPICIOUS, add_reservation
from sandbox.cloud.slurm import AccountedJob, Slurm
from sandbox.kube.objects import dig
from sandbox.kube.store import ObjectStore
from sandbox.settings import NAMESPACE

ACTIVE_CHECK = "slurm.nebius.ai/activecheck"
#: On a Job: all its Slurm jobs, and those whose ends have not been seen yet.
SLURM_JOBS, UNHANDLED = "slurm-job-id", "unhandled-slurm-job-id"
NO_SLURM_JOB = "No slurm job"
PARTITION = "hidden"
_RESERVATION = "RESERVATION_NAME"

#: Nodes that no job of a check is sent to.
_UNUSABLE = {
    "DOWN", "ERROR", "DRAIN", "RESERVED", "INVALID_REG", "NOT_RESPONDING",
    "POWER_DOWN", "POWERING_DOWN", "POWERED_DOWN", "REBOOT_ISSUED", "REBOOT_REQUESTED",
}  # fmt: skip
#: The check that nodes in such a reservation are tested with, and how many looks pass until they are looked for.
_EXTENSIVE, _LOOKS = "extensive-check", 5
_log = logging.getLogger(__name__)


class CheckRuns:
    """Moves every Job of every check on by one step at each look."""

    def __init__(self, store: ObjectStore, slurm: Slurm) -> None:
        self._store, self._slurm = store, slurm
        #: Checks that are made to fail, by name; on one node or, if that is empty, on all.
        self.failing: dict[str, str] = {}
        self._looks = 0

    async def look(self) -> None:
        checks = {check["metadata"]["name"]: check for check in self._store.list("activechecks", NAMESPACE)}
        for check in checks.values():
            self._prepare(check)
        self._looks += 1
        if _EXTENSIVE in checks and self._looks % _LOOKS == 0:
            await self._test_suspects()
        jobs = sorted(self._store.list("jobs", NAMESPACE), key=lambda job: int(job["metadata"]["resourceVersion"]))
        for job in jobs:
            annotations = dig(job, "spec.template.metadata.annotations") or {}
            name = annotations.get(ACTIVE_CHECK)
            if name in checks:
                await self._advance(checks[name], job)
        for check in checks.values():
            self._forget_old(check)

    # What a check consists of

    def _prepare(self, check: dict[str, Any]) -> None:
        """Its CronJob, as its specification wants it, and its first run."""
        name, wanted = check["metadata"]["name"], _cron_job(check)
        found = self._store.list("cronjobs", NAMESPACE, fields=f"metadata.name={name}")
        if not found:
            found = [self._store.create("cronjobs", wanted, NAMESPACE)]
        elif found[0]["spec"] != wanted["spec"]:
            self._store.patch("cronjobs", name, {"spec": wanted["spec"]}, NAMESPACE)
        if check["spec"].get("runAfterCreation") and "status" not in check:
            job = f"{check['spec']['name']}-initial-run"
            if not self._store.list("jobs", NAMESPACE, fields=f"metadata.name={job}"):
                owner = _owned_by(found[0])
                made = {"metadata": {"name": job, **owner}, "spec": wanted["spec"]["jobTemplate"]["spec"]}
                self._store.create("jobs", made, NAMESPACE)

    def _forget_old(self, check: dict[str, Any]) -> None:
        """Keep as many Jobs as the limits of its history allow."""
        name, spec = check["metadata"]["name"], check["spec"]
        jobs = self._store.list("jobs", NAMESPACE)
        mine = [job for job in jobs if any(o.get("name") == name for o in job["metadata"].get("ownerReferences") or [])]
        mine.sort(key=lambda job: str(dig(job, "status.startTime")))
        for type_, limit in (("Complete", "successfulJobsHistoryLimit"), ("Failed", "failedJobsHistoryLimit")):
            over = [job for job in mine if _has_ended(job, type_) and not _unhandled(job)]
            for job in over[: max(0, len(over) - spec[limit])]:
                self._store.delete("jobs", job["metadata"]["name"], NAMESPACE)

    async def _test_suspects(self) -> None:
        """As the CronJob run-extensive-check-on-reservations: a run for each reservation, again when it has ended."""
        shown = (await self._slurm.run("scontrol", "show", "reservation", "--oneliner")).out
        for reservation in re.findall(rf"ReservationName=({SUSPICIOUS}\S*)", shown):
            name = f"{_EXTENSIVE}-{reservation}"
            found = self._store.list("jobs", NAMESPACE, fields=f"metadata.name={name}")
            if found and (_unhandled(found[0]) or dig(found[0], "status.active") or "status" not in found[0]):
                continue
            if found:
                self._store.delete("jobs", name, NAMESPACE)
            cron_job = self._store.get("cronjobs", _EXTENSIVE, NAMESPACE)
            spec = cron_job["spec"]["jobTemplate"]["spec"]
            spec["template"]["spec"]["containers"][0]["env"] = [{"name": _RESERVATION, "value": reservation}]
            self._store.create("jobs", {"metadata": {"name": name, **_owned_by(cron_job)}, "spec": spec}, NAMESPACE)

    # One run

    async def _advance(self, check: dict[str, Any], job: dict[str, Any]) -> None:
        is_slurm = check["spec"]["checkType"] == "slurmJob"
        if dig(job, "status.startTime") is None:
            if not job["spec"].get("suspend"):
                self._start(job)
                self._report_kubernetes(check, job, "Active")
        elif dig(job, "status.active"):
            failure = await self._submit(check, job) if is_slurm else self._fails(check)
            self._end(job, failure)
            if failure and is_slurm:
                status = {"lastRunId": NO_SLURM_JOB, "lastRunName": job["metadata"]["name"]}
                self._report_slurm(check, job, status, "Error")
            self._report_kubernetes(check, job, "Failed" if failure else "Complete")
        elif _unhandled(job) and _is_watched(job):
            await self._follow(check, job)

    def _start(self, job: dict[str, Any]) -> None:
        metadata = job["metadata"]
        if not metadata.get("labels"):
            # As the API server does: a Job without labels gets those of its Pods.
            inherited = dig(job, "spec.template.metadata.labels") or {}
            self._store.patch("jobs", metadata["name"], {"metadata": {"labels": inherited}}, NAMESPACE)
        status = {"active": 1, "ready": 1, "startTime": timestamp()}
        self._store.patch("jobs", metadata["name"], {"status": status}, NAMESPACE, part="status")

    def _end(self, job: dict[str, Any], failure: str) -> None:
        old = {key: value for key, value in job["status"].items() if key not in ("active", "ready")}
        if failure:
            status = with_conditions({**old, "failed": 1}, condition("Failed", True, "BackoffLimitExceeded", failure))
        else:
            ended = {**old, "succeeded": 1, "completionTime": timestamp()}
            status = with_conditions(ended, condition("Complete", True, "CompletionsReached"))

        def change(present: dict[str, Any]) -> dict[str, Any]:
            return {**present, "status": status}

        self._store.patch("jobs", job["metadata"]["name"], change, NAMESPACE, part="status")

    def _fails(self, check: dict[str, Any]) -> str:
        return "the check was made to fail" if check["metadata"]["name"] in self.failing else ""

    async def _submit(self, check: dict[str, Any], job: dict[str, Any]) -> str:
        """Submit the Slurm jobs of a run, and write down their ids; returns why there are none."""
        name, spec = check["metadata"]["name"], check["spec"].get("slurmJobSpec") or {}
        script = self._script(spec)
        if not script:
            return "there is no sbatch script"
        places: list[list[str]] = [[]]
        if spec.get("eachWorkerJobs"):
            await self._slurm.run("scancel", f"--partition={PARTITION}", f"--name={name}")
            nodes = await self._usable_nodes(needs_gpus="--gpus" in script or "--gres=gpu" in script)
            chosen = random.sample(nodes, min(spec.get("maxNumberOfJobs") or len(nodes), len(nodes)))
            places = [["--nodes=1", "--no-requeue", f"--nodelist={node}"] for node in sorted(chosen)]
        ids, refused = [], "no node can run the check"
        for place in places:
            options = [f"--job-name={name}", f"--partition={PARTITION}", *place, *_reserved(job)]
            said = await self._slurm.sbatch(self._with_failure(name, script), *options)
            if said.status:
                refused = said.err.strip()
                _log.warning("%s: %s", name, refused)
            else:
                ids.append(said.out.strip().partition(";")[0])
        if not ids:
            return refused
        noted = {SLURM_JOBS: ",".join(ids), UNHANDLED: ",".join(ids)}
        self._store.patch("jobs", job["metadata"]["name"], {"metadata": {"annotations": noted}}, NAMESPACE)
        self._report_slurm(check, job, {"lastRunId": ids[0], "lastRunName": name}, "InProgress")
        return ""

    def _script(self, spec: dict[str, Any]) -> str:
        if name := spec.get("sbatchScriptRefName"):
            found = self._store.list("configmaps", NAMESPACE, fields=f"metadata.name={name}")
            return next(iter((found[0].get("data") or {}).values()), "") if found else ""
        return str(spec.get("sbatchScript") or "")

    def _with_failure(self, check: str, script: str) -> str:
        """The script, made to fail where a fault wants it to."""
        if check not in self.failing:
            return script
        lines = script.splitlines()
        last = max((number for number, line in enumerate(lines) if line.startswith("#")), default=-1)
        node = self.failing[check] or "$SLURMD_NODENAME"
        lines.insert(last + 1, f'[ "$SLURMD_NODENAME" != "{node}" ] || {{ echo "made to fail"; exit 1; }}')
        return "\n".join(lines) + "\n"

    async def _usable_nodes(self, *, needs_gpus: bool) -> list[str]:
        nodes = await self._slurm.nodes()
        return [node.name for node in nodes if not node.state & _UNUSABLE and (node.gpus or not needs_gpus)]

    async def _follow(self, check: dict[str, Any], job: dict[str, Any]) -> None:
        """Look which jobs of a run have ended, and react to how."""
        everyone = job["metadata"]["annotations"][SLURM_JOBS].split(",")
        waiting = _unhandled(job)
        known = {one.id: one for one in await self._slurm.accounted(waiting)}
        ended = [known[id_] for id_ in waiting if id_ in known and known[id_].has_ended]
        old = (check.get("status") or {}).get("slurmJobsStatus") or {}
        status = old if old.get("lastRunId") == everyone[0] else {"lastRunId": everyone[0]}
        failed = list(status.get("lastRunFailJobsAndReasons") or [])
        errors = list(status.get("lastRunErrorJobsAndReasons") or [])
        cancelled = list(status.get("lastRunCancelledJobs") or [])
        for one in ended:
            because = {"jobID": one.id, "reason": one.reason}
            if one.state == "FAILED":
                failed.append(because)
                await self._react(check, one, "failureReactions")
            elif one.state == "CANCELLED":
                cancelled.append(one.id)
            elif one.state == "COMPLETED":
                await self._react(check, one, "successReactions")
            else:
                errors.append(because)
        left = [id_ for id_ in waiting if id_ not in {one.id for one in ended}]
        noted = {UNHANDLED: ",".join(left)}
        self._store.patch("jobs", job["metadata"]["name"], {"metadata": {"annotations": noted}}, NAMESPACE)
        first = known.get(everyone[0])
        if first:
            status = {**status, "lastRunName": first.name, "lastRunSubmitTime": first.submitted}
        lists = {
            "lastRunFailJobsAndReasons": failed,
            "lastRunErrorJobsAndReasons": errors,
            "lastRunCancelledJobs": cancelled,
        }
        outcome = "Failed" if failed else "Error" if errors else "Cancelled" if cancelled else "Complete"
        self._report_slurm(
            check,
            job,
            {**status, **{name: found for name, found in lists.items() if found}},
            "InProgress" if left else outcome,
        )

    async def _react(self, check: dict[str, Any], job: AccountedJob, reactions: str) -> None:
        wanted = check["spec"].get(reactions) or {}
        what = f"{check['metadata']['name']}: job {job.id} [slurm_job]"
        update = []
        if prefix := dig(wanted, "drainSlurmNode.drainReasonPrefix"):
            update += ["state=drain", f"reason={prefix} {what}"]
        if prefix := dig(wanted, "commentSlurmNode.commentPrefix"):
            update.append(f"comment={prefix} {what}")
        if update and job.nodes:
            await self._slurm.run("scontrol", "update", f"nodename={job.nodes}", *update)
        if job.nodes and {"addReservation", "removeReservation"} & wanted.keys():
            for node in (await self._slurm.run("scontrol", "show", "hostnames", job.nodes)).out.split():
                if prefix := dig(wanted, "addReservation.prefix"):
                    await add_reservation(self._slurm, f"{prefix}-{node}", node)
                if prefix := dig(wanted, "removeReservation.prefix"):
                    await self._slurm.run("scontrol", "delete", f"reservationname={prefix}-{node}")

    # What is said of it

    def _report_slurm(self, check: dict[str, Any], job: dict[str, Any], status: dict[str, Any], outcome: str) -> None:
        if _is_watched(job):
            self._report(check, "slurmJobsStatus", {**status, "lastRunStatus": outcome})

    def _report_kubernetes(self, check: dict[str, Any], job: dict[str, Any], outcome: str) -> None:
        if check["spec"]["checkType"] == "k8sJob" and _is_watched(job):
            times = {"lastJobSuccessfulTime": timestamp()} if outcome == "Complete" else {}
            self._report(
                check, "k8sJobsStatus", {"lastJobName": job["metadata"]["name"], "lastJobStatus": outcome, **times}
            )

    def _report(self, check: dict[str, Any], part: str, status: dict[str, Any]) -> None:
        name = check["metadata"]["name"]

        def change(present: dict[str, Any]) -> dict[str, Any]:
            old = present.get("status") or {}
            said = {key: value for key, value in (old.get(part) or {}).items() if key != "lastTransitionTime"}
            if said == status:
                return present
            return {**present, "status": {**old, part: {**status, "lastTransitionTime": timestamp()}}}

        check["status"] = self._store.patch("activechecks", name, change, NAMESPACE, part="status").get("status", {})


def _has_ended(job: dict[str, Any], type_: str) -> bool:
    return bool(dig(job, f"status.conditions[{type_}].status") == "True")


def _is_watched(job: dict[str, Any]) -> bool:
    """Soperator knows the Jobs of checks by this label, which those that have none get from their Pods."""
    inherited = dig(job, "spec.template.metadata.labels")
    own = job["metadata"].get("labels") or inherited or {}
    return bool(own.get("app.kubernetes.io/component") == "soperatorchecks")


def _unhandled(job: dict[str, Any]) -> list[str]:
    said = (job["metadata"].get("annotations") or {}).get(UNHANDLED, "")
    return said.split(",") if said else []


def _reserved(job: dict[str, Any]) -> list[str]:
    """The option for a run in a reservation."""
    said = (dig(job, "spec.template.spec.containers") or [{}])[0].get("env") or []
    return [f"--reservation={one['value']}" for one in said if one["name"] == _RESERVATION]


def _owned_by(owner: dict[str, Any]) -> dict[str, Any]:
    identity = {key: owner[key] for key in ("apiVersion", "kind")}
    identity |= {key: owner["metadata"][key] for key in ("name", "uid")}
    return {"ownerReferences": [{**identity, "controller": True}]}


def _cron_job(check: dict[str, Any]) -> dict[str, Any]:
    name, spec = check["metadata"]["name"], check["spec"]
    container = {"name": spec["name"], "image": "sandbox"}
    return {
        "metadata": {"name": name, "labels": labels("soperatorchecks"), **_owned_by(check)},
        "spec": {
            "schedule": spec["schedule"],
            "suspend": spec["suspend"],
            "concurrencyPolicy": "Forbid",
            "successfulJobsHistoryLimit": spec["successfulJobsHistoryLimit"],
            "failedJobsHistoryLimit": spec["failedJobsHistoryLimit"],
            "jobTemplate": {
                "spec": {
                    "parallelism": 1,
                    "completions": 1,
                    "backoffLimit": 0,
                    "template": {
                        "metadata": {"labels": labels("soperatorchecks"), "annotations": {ACTIVE_CHECK: name}},
                        "spec": {"restartPolicy": "Never", "containers": [container]},
                    },
                }
            },
        },
    }
