"""Templates of links: what they may name, and what becomes of what is not known yet."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest

from airflow_provider_soperator.slurm.job_ids import JobId
from airflow_provider_soperator.slurm.job_records import Job, JobStatus
from airflow_provider_soperator.slurm.links import PLACEHOLDERS, link_of, link_problem, placeholder_values
from airflow_provider_soperator.slurm.states import JobState


def moment(second: int) -> datetime:
    return datetime.fromtimestamp(second, timezone.utc)


def part(job: str, state: str, **fields: object) -> Job:
    about = {"name": "fit", "user": "alice", "submitted": moment(10), "stdout": "/root/%x-%j.out"} | fields
    return Job(id=JobId.parse(job), raw_id=7, state=JobState.parse(state), **about)  # type: ignore[arg-type]


def test_a_job_that_waits_has_no_nodes_and_no_end() -> None:
    # When Slurm expects it to start is not when it did.
    said = placeholder_values(JobStatus(id=JobId(7), parts=(part("7", "PENDING", started=moment(99)),)))
    assert (said["start_ms"], said["end_ms"]) == ("10000", "now")
    assert (said["node"], said["nodes"]) == ("", "")


def test_of_parts_there_are_all_nodes_and_the_time_of_all() -> None:
    parts = (
        part("7_0", "COMPLETED", started=moment(20), ends=moment(30), nodelist="worker-[0-1]"),
        part("7_1", "FAILED", started=moment(25), ends=moment(40), nodelist="worker-1,worker-5"),
    )
    said = placeholder_values(JobStatus(id=JobId(7), parts=parts))
    assert said["nodes"] == "worker-0|worker-1|worker-5"
    assert (said["start_ms"], said["end_ms"]) == ("20000", "40000")
    running = JobStatus(id=JobId(7), parts=(parts[0], part("7_1", "RUNNING", started=moment(25), ends=moment(40))))
    assert placeholder_values(running)["end_ms"] == "now"


def test_all_that_may_be_named_is_known_in_the_end() -> None:
    done = part("7", "COMPLETED", started=moment(20), ends=moment(30), nodelist="worker-0", batch_host="worker-0")
    said = placeholder_values(JobStatus(id=JobId(7), parts=(done,)))
    # The name of the cluster is nothing that a job has.
    assert {name for name, value in said.items() if value} | {"cluster"} == PLACEHOLDERS.keys()


def test_a_link_waits_for_what_it_names() -> None:
    template = "https://grafana.example.com/?var-node={node}&from={start_ms}"
    assert link_of(template, {"node": "", "start_ms": "1"}) == ""
    assert link_of(template, {"start_ms": "1"}) == ""
    assert link_of(template, {"node": "worker-0", "start_ms": "1"}).endswith("?var-node=worker-0&from=1")
    assert link_of("https://example.com/{{x}}", {}) == "https://example.com/{x}"


def test_no_value_can_lead_elsewhere() -> None:
    assert link_of("https://example.com/{name}?a={user}", {"name": "a?b#c", "user": "x&y=z d"}) == (
        "https://example.com/a%3Fb%23c?a=x%26y%3Dz%20d"
    )
    assert link_of("https://example.com/files{output}", {"output": "/root/a b.out"}).endswith("files/root/a%20b.out")


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("https://example.com/{job}", "has the unknown placeholder {job}: there are {job_id}, {name}, {user}"),
        ("https://example.com/{job_id.real}", "has the unknown placeholder {job_id.real}"),
        ("https://example.com/{}", "has the unknown placeholder {}"),
        ("https://example.com/{job_id", "cannot be parsed"),
        ("javascript:alert({job_id})", "is not a link: it must begin with http:// or https://"),
        ("{job_id}", "is not a link"),
    ],
)
def test_what_cannot_be_filled_is_refused(template: str, words: str) -> None:
    assert words in link_problem(template)


def test_what_can_be_filled_is_not() -> None:
    every = "".join(f"{{{name}}}" for name in PLACEHOLDERS)
    assert link_problem(f"https://example.com/{every}/{{{{") == ""
