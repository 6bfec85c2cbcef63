"""What a task's job is called, and where it writes."""

from __future__ import annotations

from pathlib import PurePosixPath
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_soperator.slurm.job_description import InvalidJob
from airflow_provider_soperator.slurm.job_ids import JobId
from airflow_provider_soperator.slurm.job_records import Job, expand_filename
from airflow_provider_soperator.work.sbatch import job_for

#: The most that Linux takes for one name.
MOST = 255
LARGEST = 4_294_967_294


def task(length: int) -> Any:
    """An instance of a mapped task whose DAG, task and run have names of so many characters."""
    names = {"dag_id": "d" * length, "task_id": "t" * length, "run_id": "scheduled__" + "r" * (length - 11)}
    return SimpleNamespace(**names, map_index=12)


@pytest.mark.parametrize(
    ("fields", "part"),
    [
        ({}, Job(id=JobId(LARGEST), raw_id=LARGEST)),
        ({"array": "0-3"}, Job(id=JobId(LARGEST, element=LARGEST), raw_id=LARGEST)),
        ({"het": [{"nodes": 1}]}, Job(id=JobId(LARGEST, part=1), raw_id=LARGEST)),
    ],
)
def test_the_name_of_the_output_is_never_too_long_for_the_file_system(fields: dict[str, Any], part: Job) -> None:
    job = job_for(task(250), "#!/bin/sh\ntrue\n", fields)
    assert job.output
    path = PurePosixPath(expand_filename(job.output, part))
    assert len(path.name) <= MOST
    assert path.name.startswith("ttt")
    assert all(len(part) <= MOST for part in path.parts)
    assert str(LARGEST) in path.name


def test_short_names_are_whole() -> None:
    job = job_for(task(20), "#!/bin/sh\ntrue\n", {})
    assert job.output == f"airflow/{'d' * 20}/scheduled__{'r' * 9}/{'t' * 20}.12-%j.out"


def test_names_in_further_words_win_too() -> None:
    words = ["--output=x.out", "-J", "x", "--of-a-plugin"]
    job = job_for(task(20), None, {"command": "true", "extra_args": words})
    assert job.problems() == []
    assert (job.name, job.output, list(job.extra_args)) == ("x", "x.out", ["--of-a-plugin"])


@pytest.mark.parametrize("nothing", ["", "None", None])
def test_an_empty_field_of_a_form_leaves_its_option_out(nothing: str | None) -> None:
    fields = {"command": "true", "partition": nothing, "mem": nothing, "time_limit": nothing, "hold": nothing}
    assert job_for(task(20), None, fields) == job_for(task(20), None, {"command": "true"})


@pytest.mark.parametrize("needed", ["array", "dependency"])
def test_what_makes_it_another_job_is_not_left_out_unseen(needed: str) -> None:
    for nothing in ("", "None"):
        with pytest.raises(InvalidJob, match=needed):
            job_for(task(20), None, {"command": "true", needed: nothing})
    assert job_for(task(20), None, {"command": "true", "profile": "None", "no_kill": ""}).no_kill == ""
