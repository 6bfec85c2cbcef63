"""Submission exactly once over slurmrestd: whose jobs are looked at."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_soperator.slurm.job_ids import JobId
from airflow_provider_soperator.slurm.requests import Accounting
from airflow_provider_soperator.slurm.requests.submission import SubmitOnce, Submitted, Withdraw
from airflow_provider_soperator.slurm.rest.calls import VERSIONS, RestAnswer, RestCall, Site, Unsupported, steps
from tests.submissions import new_jobs


class Slurmrestd:
    """Accounting with one job of each of some users, all of the same name."""

    def __init__(self, name: str, **ids: int) -> None:
        self.name, self.ids = name, ids

    def __call__(self, call: RestCall) -> RestAnswer:
        if call.path == "slurm/job/submit":
            return RestAnswer(200, {"job_id": 99})
        if call.path == "slurm/jobs/":
            return RestAnswer(200, {"jobs": []})
        assert call.path == "slurmdb/jobs/"
        assert "users" not in dict(call.query), "slurmrestd may know no user but root"
        return RestAnswer(200, {"jobs": [self._accounted(user) for user in self.ids]})

    def _accounted(self, user: str) -> dict[str, Any]:
        times = dict.fromkeys(("submission", "eligible", "start", "end", "elapsed"), 1795255200)
        return {
            "job_id": self.ids[user],
            "array": {"job_id": 0},
            "het": {"job_id": 0},
            "name": self.name,
            "user": user,
            "state": {"current": ["COMPLETED"]},
            "time": {**times, "limit": 1},
            "tres": {"allocated": []},
        }

    def run(self, request: Any, user: str) -> Any:
        calls = steps(request, Site(VERSIONS[-1], user, "/root"))
        try:
            call = next(calls)
            while True:
                call = calls.send(self(call))
        except StopIteration as end:
            return end.value


def test_a_job_of_another_user_with_the_same_name_is_not_adopted() -> None:
    [job] = new_jobs()
    slurmrestd = Slurmrestd(job.name or "", root=41, alice=42)
    assert slurmrestd.run(SubmitOnce(jobs=(job,)), "root") == (Submitted(JobId(41), adopted=True),)
    assert slurmrestd.run(SubmitOnce(jobs=(job,)), "bob") == (Submitted(JobId(99)),)


def test_a_job_whose_user_nobody_can_name_may_be_ones_own() -> None:
    [job] = new_jobs()
    slurmrestd = Slurmrestd(job.name or "", **{"": 43})
    assert slurmrestd.run(SubmitOnce(jobs=(job,)), "bob") == (Submitted(JobId(43), adopted=True),)


def test_ones_own_jobs_in_accounting_are_those_of_the_user_of_the_token() -> None:
    slurmrestd = Slurmrestd("train", root=41, alice=42)
    assert [job.user for job in slurmrestd.run(Accounting(names=("train",), mine=True), "alice")] == ["alice"]
    assert len(slurmrestd.run(Accounting(names=("train",)), "alice")) == 2
    with pytest.raises(Unsupported, match="names no user"):
        slurmrestd.run(Accounting(names=("train",), mine=True), "")


def test_there_is_nothing_to_withdraw_where_a_submission_ends_with_its_process() -> None:
    keys = SubmitOnce(jobs=new_jobs()).submission_keys()
    calls = steps(Withdraw(keys), Site(VERSIONS[-1], "root"))
    assert list(calls) == []
