"""Submission exactly once over slurmrestd: whose jobs are looked at, and what slurmctld may have forgotten."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from airflow_provider_soperator.slurm.errors import QueueFull, TryAgain
from airflow_provider_soperator.slurm.job_ids import JobId
from airflow_provider_soperator.slurm.job_records import Job
from airflow_provider_soperator.slurm.requests import Accounting
from airflow_provider_soperator.slurm.requests.submission import HELD, SubmitOnce, Submitted, Together, Withdraw
from airflow_provider_soperator.slurm.rest import submission
from airflow_provider_soperator.slurm.rest.calls import VERSIONS, RestAnswer, RestCall, Site, Unsupported, steps
from airflow_provider_soperator.slurm.states import JobState
from tests.submissions import after, new_jobs


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
        return run(request, self, user)


def run(request: Any, answer: Callable[[RestCall], RestAnswer], user: str) -> Any:
    calls = steps(request, Site(VERSIONS[-1], user, "/root"))
    try:
        call = next(calls)
        while True:
            call = calls.send(answer(call))
    except StopIteration as end:
        return end.value


def test_a_job_of_another_user_with_the_same_name_is_not_adopted() -> None:
    [job] = new_jobs()
    slurmrestd = Slurmrestd(job.name or "", root=41, alice=42)
    assert slurmrestd.run(SubmitOnce(jobs=(job,)), "root") == (Submitted(JobId(41), adopted=True),)
    assert slurmrestd.run(SubmitOnce(jobs=(job,)), "bob") == (Submitted(JobId(99)),)


def test_a_job_in_accounting_whose_user_nobody_can_name_is_ones_own_by_its_id_alone() -> None:
    [job] = new_jobs()
    slurmrestd = Slurmrestd(job.name or "", **{"": 43})
    assert slurmrestd.run(SubmitOnce(jobs=(job,)), "bob") == (Submitted(JobId(99)),)
    assert [one.id for one in slurmrestd.run(Accounting(ids=(JobId(43),), mine=True), "bob")] == [JobId(43)]


class NamelessQueue:
    """A queue with jobs of users whom slurmrestd does not know; it is bob (1003) who asks."""

    def __init__(self, name: str, users: dict[int, int]) -> None:
        self.jobs = {number: self._job(number, name, user) for number, user in users.items()}
        self.submitted: list[str] = []
        self.cancelled: list[str] = []

    def _job(self, number: int, name: str, user: int) -> dict[str, Any]:
        return {
            "job_id": number, "array_job_id": None, "array_task_string": "", "het_job_id": None,
            "job_state": ["PENDING"], "name": name, "user_name": "", "user_id": user,
        }  # fmt: skip

    def __call__(self, call: RestCall) -> RestAnswer:
        if call.path == "slurm/job/submit":
            assert call.body is not None
            name, number = call.body["job"]["name"], 99 + len(self.submitted)
            self.submitted.append(name)
            self.jobs[number] = self._job(number, name, 1003)
            return RestAnswer(200, {"job_id": number})
        if call.method == "DELETE":
            assert call.body is not None
            self.cancelled += call.body["jobs"]
            return RestAnswer(200, {})
        one = call.path.removeprefix("slurm/job/")
        wanted = [self.jobs[int(one)]] if one.isdigit() else list(self.jobs.values())
        return RestAnswer(200, {"jobs": wanted if call.path.startswith("slurm/") else []})


def test_a_job_of_a_nameless_user_is_adopted_if_it_has_ones_own_number() -> None:
    [job] = new_jobs()
    # A colleague saw its key in squeue; of bob's own one the answer was lost.
    slurmrestd = NamelessQueue(job.name or "", {41: 1001, 42: 1003})
    assert run(SubmitOnce(jobs=(job,)), slurmrestd, "bob") == (Submitted(JobId(42), adopted=True),)
    assert (slurmrestd.submitted, slurmrestd.cancelled) == (["soperator.whose"], ["99"])


def test_a_job_of_another_nameless_user_is_not_adopted() -> None:
    [job] = new_jobs()
    slurmrestd = NamelessQueue(job.name or "", {41: 1001})
    assert run(SubmitOnce(jobs=(job,)), slurmrestd, "bob") == (Submitted(JobId(100)),)
    assert slurmrestd.cancelled == ["99"]


def test_the_job_of_a_nameless_user_tells_its_own_number() -> None:
    [job] = new_jobs()
    slurmrestd = NamelessQueue(job.name or "", {})
    assert run(SubmitOnce(jobs=(job,)), slurmrestd, "bob") == (Submitted(JobId(99)),)
    assert (slurmrestd.submitted, slurmrestd.cancelled) == ([job.name], [])


def test_without_a_user_in_the_token_nothing_is_submitted_once() -> None:
    with pytest.raises(Unsupported, match="names no user"):
        run(SubmitOnce(jobs=new_jobs()), NamelessQueue("", {}), "")


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


class Slurmctld:
    """A queue; it is killed before the third submission, and has forgotten the second job."""

    def __init__(self, *, refuses: bool) -> None:
        self.jobs: list[Job] = []
        self.dependencies: dict[str, str] = {}
        self._refuses, self._submissions = refuses, 0

    def list_jobs(self, request: Any, site: Site) -> Iterator[RestCall]:
        yield from ()
        return tuple(job for job in self.jobs if request.admits(job))  # type: ignore[return-value]

    def __call__(self, call: RestCall) -> RestAnswer:
        if call.path.removeprefix("slurm/job/").isdigit():
            if "dependency" in call.body:
                self.dependencies[call.path] = call.body["dependency"]
            return RestAnswer(200, {})
        assert call.path == "slurm/job/submit"
        self._submissions += 1
        if self._submissions == 3:
            del self.jobs[1]
            if self._refuses:
                return RestAnswer(500, {"errors": [{"error_number": 2033, "error": "Job dependency problem"}]})
        said, number = call.body["job"], 40 + self._submissions
        self.jobs.append(Job(id=JobId(number), name=said["name"], comment=HELD, state=JobState.parse("PENDING")))
        self.dependencies[f"slurm/job/{number}"] = said.get("dependency", "")
        return RestAnswer(200, {"job_id": number})


@pytest.mark.parametrize("refuses", [True, False])
def test_what_slurmctld_forgets_in_the_midst_is_submitted_anew(refuses: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """It refuses a job that waits for one that it has forgotten, unless that number is another's by now."""
    slurmctld = Slurmctld(refuses=refuses)
    monkeypatch.setattr(submission, "list_jobs", slurmctld.list_jobs)
    first, second, third = new_jobs(3)
    jobs = (first, after(second, first), after(third, second, kind="afterany"))
    request = SubmitOnce(jobs=jobs, fresh=True, together=Together.START)
    with pytest.raises(TryAgain, match="has forgotten jobs"):
        run(request, slurmctld, "alice")
    answers = run(request, slurmctld, "alice")
    assert [one.adopted for one in answers] == [True, False, not refuses]
    assert slurmctld.dependencies[f"slurm/job/{answers[2].id}"] == f"afterany:{answers[1].id}"


def test_a_job_starts_while_a_full_queue_has_no_room_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = new_jobs(2)
    held = Job(id=JobId(41), name=first.name or "", comment=HELD, state=JobState.parse("PENDING"))
    released: list[str] = []

    def list_jobs(request: Any, site: Site) -> Iterator[RestCall]:
        yield from ()
        return (held,)  # type: ignore[return-value]

    def answer(call: RestCall) -> RestAnswer:
        if call.path == "slurm/job/submit":
            return RestAnswer(500, {"errors": [{"error_number": 11, "error": "Resource temporarily unavailable"}]})
        released.append(call.path)
        return RestAnswer(200, {})

    monkeypatch.setattr(submission, "list_jobs", list_jobs)
    with pytest.raises(QueueFull):
        run(SubmitOnce(jobs=(first, second), fresh=True, together=Together.START), answer, "alice")
    assert released == []
    [there, refused] = run(SubmitOnce(jobs=(first, second), fresh=True), answer, "alice")
    assert (there.id, type(refused.error), released) == (held.id, QueueFull, ["slurm/job/41"])


def test_a_job_knows_the_ids_of_those_that_it_waits_for() -> None:
    sent: list[dict[str, Any]] = []

    def answer(call: RestCall) -> RestAnswer:
        if call.path == "slurm/job/submit":
            sent.append(dict(call.body["job"]))
            return RestAnswer(200, {"job_id": 40 + len(sent)})
        return RestAnswer(200, {"jobs": []})

    first, second = new_jobs(2)
    run(SubmitOnce(jobs=(first, after(second, first)), fresh=True), answer, "alice")
    assert sent[1]["dependency"] == "afterok:41"
    assert "SLURM_JOB_DEPENDENCY=afterok:41" in sent[1]["environment"]
