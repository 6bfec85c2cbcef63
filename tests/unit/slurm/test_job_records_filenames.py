"""Patterns of file names come out as Slurm writes them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_provider_soperator.slurm.job_ids import JobId
from airflow_provider_soperator.slurm.job_records import Job, expand_filename

PLAIN = Job(id=JobId(12), raw_id=12, name="fit", user="ann", workdir="/home/ann", batch_host="worker-3.x.y", restarts=2)
ELEMENT = Job(id=JobId.parse("12_7"), raw_id=19, name="fit", user="ann", workdir="/home/ann")

#: The batch script of a heterogeneous job runs in its first component.
SECOND = Job(id=JobId.parse("12+1"), raw_id=13, name="fit", user="ann", workdir="/home/ann")


@pytest.mark.parametrize(
    ("pattern", "job", "path"),
    [
        ("slurm-%j.out", PLAIN, "/home/ann/slurm-12.out"),
        ("/logs/%x.%u.%N.%r", PLAIN, "/logs/fit.ann.worker-3.2"),
        ("%A_%a-%j-%b", ELEMENT, "/home/ann/12_7-19-7"),
        ("%5j-%99a-%3x", ELEMENT, "/home/ann/00019-0000000007-fit"),
        ("100%%-%j", PLAIN, "/home/ann/100%-12"),
        ("%q-%5q", PLAIN, "/home/ann/%q-%5q"),
        ("%n%t-%s", PLAIN, "/home/ann/00-batch"),
        ("%a", PLAIN, "/home/ann/4294967294"),
        ("as\\%j", PLAIN, "/home/ann/as%j"),
        ("%j.out", SECOND, "/home/ann/12.out"),
        # As run ids are in links.
        ("%j.out", replace(PLAIN, workdir="/runs/10%3A00"), "/runs/10%3A00/12.out"),
        ("a\\%j", replace(PLAIN, workdir="/runs/10%3A00"), "/runs/10%3A00/a%j"),
    ],
)
def test_patterns(pattern: str, job: Job, path: str) -> None:
    assert expand_filename(pattern, job) == path


@pytest.mark.parametrize(
    ("pattern", "job"),
    [("%N.out", ELEMENT), ("%S.out", PLAIN), ("", PLAIN), ("%A_%a", Job(id=JobId.parse("12_[3-5]")))],
    ids=["no host yet", "not in the queue", "none", "still many"],
)
def test_what_cannot_be_told_is_not_guessed(pattern: str, job: Job) -> None:
    assert expand_filename(pattern, job) == ""
