"""What a task's job is called, and where it writes."""

from __future__ import annotations

from pathlib import PurePosixPath
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_soperator.slurm.dependencies import Dependency
from airflow_provider_soperator.slurm.job import BatchJob, fields_of, job_of
from airflow_provider_soperator.slurm.job_description import InvalidJob
from airflow_provider_soperator.slurm.job_ids import JobId
from airflow_provider_soperator.slurm.job_records import Job, expand_filename
from airflow_provider_soperator.slurm.sbatch_arguments import asked_for, with_remote_lines
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


def test_names_in_a_script_on_the_cluster_win_once_they_are_read() -> None:
    job = job_for(task(20), None, {"remote_script": "/jobs/fit.sh", "comment": "ours"})
    ours = (job.name, job.output)
    for text, names in (
        (
            "#!/bin/sh\n\n# A note.\n#SBATCH -J fit -o fit.out\n#SBATCH -e fit.err --comment=theirs\n",
            ("fit", "fit.out"),
        ),
        ("#!/bin/sh\necho\n#SBATCH -J fit\n", ours),
        ("#!/bin/sh\n#SBATCH --array=1-3\n", (ours[0], str(ours[1]).replace("%j", "%A_%a"))),
    ):
        read = with_remote_lines(job_of(fields_of(job)), text)
        assert (read.name, read.output, read.by_default) == (*names, ())
        assert (read.error, asked_for(read).comment) == ("fit.err" if names[0] == "fit" else None, "ours")
        assert text.startswith(read.remote_lines or "")
    given = job_for(task(20), None, {"remote_script": "/jobs/fit.sh", "name": "ours", "output": "a-%j.out"})
    read = with_remote_lines(given, "#!/bin/sh\n#SBATCH -J fit -o fit.out --array=1-3\n")
    assert (read.name, read.output) == ("ours", "a-%j.out")


SINGLETON = "#!/bin/sh\n#SBATCH --dependency=afterok:7,singleton\n"


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"command": "true", "dependency": "singleton"}, "fit.model"),
        ({"command": "true", "dependency": [Dependency("afterok", 7), Dependency("singleton")]}, "fit.model"),
        ({"command": "true", "extra_args": ["-d", "Singleton"]}, "fit.model"),
        ({"script": SINGLETON}, "fit.model"),
        ({"script": SINGLETON, "name": "train"}, "train"),
        ({"script": f"{SINGLETON}#SBATCH -J train\n"}, "train"),
        ({"remote_script": "/jobs/fit.sh", "dependency": "singleton"}, "fit.sh"),
        ({"remote_script": "/jobs/fit.sh", "dependency": "singleton", "name": "train"}, "train"),
    ],
)
def test_a_job_that_waits_for_its_name_shares_it_with_those_of_other_runs(fields: dict[str, Any], name: str) -> None:
    for run, index in (("first", -1), ("second", 3)):
        ti = SimpleNamespace(dag_id="model", task_id="fit", run_id=run, map_index=index)
        said = dict(fields)
        assert job_for(ti, said.pop("script", None), said).name == name


def test_so_does_one_whose_script_on_the_cluster_says_so() -> None:
    asked, named = (job_for(task(20), None, {"remote_script": "/jobs/fit.sh", **more}) for more in ({}, {"name": "a"}))
    assert with_remote_lines(asked, SINGLETON).name == "fit.sh"
    assert with_remote_lines(asked, f"{SINGLETON}#SBATCH -J train\n").name == "train"
    assert with_remote_lines(named, SINGLETON).name == "a"


def test_a_file_with_the_name_that_the_user_gave_has_it_without_a_key() -> None:
    lines = "#!/bin/sh\n#SBATCH -J fit -o logs/%x-%j.out -e 100%%x-%x.err\n"
    asked = job_for(task(20), None, {"remote_script": "/jobs/fit.sh"})
    for job in (job_for(task(20), lines, {}), with_remote_lines(asked, lines)):
        assert (job.output, job.error) == ("logs/fit-%j.out", "100%%x-fit.err")
    assert job_for(task(20), lines, {"name": "5%", "error": r"\\%x"}).error == r"\\%x"
    assert job_for(task(20), lines, {"name": "5%"}).output == "logs/5%%-%j.out"
    # What is made for it tells it from others.
    assert job_for(task(20), None, {"command": "true", "output": "%x.out"}).output == "%x.out"


@pytest.mark.parametrize("nothing", ["", "None", None])
def test_an_empty_field_of_a_form_leaves_its_option_out(nothing: str | None) -> None:
    fields = {"command": "true", "partition": nothing, "mem": nothing, "time_limit": nothing, "hold": nothing}
    assert job_for(task(20), None, fields) == job_for(task(20), None, {"command": "true"})
    parts = {"command": "true", "het": [{"nodes": 2, "extra_args": ["", "--bbf=/x"], **fields, "command": None}, {}]}
    assert job_for(task(20), None, parts).het == (BatchJob(nodes=2, extra_args=["--bbf=/x"]), BatchJob())


def test_so_does_an_empty_word_of_its_arguments() -> None:
    job = job_for(task(20), None, {"command": "true", "extra_args": ["", "--bbf=/x", None]})
    assert list(job.extra_args) == ["--bbf=/x"]
    assert job_for(task(20), None, {"command": "true", "extra_args": [""]}).extra_args in ([], ())


@pytest.mark.parametrize("word", ["--wait", "bbf=/x", "--job-name"])
def test_what_is_wrong_with_the_arguments_is_said_of_the_parameter(word: str) -> None:
    with pytest.raises(InvalidJob) as refused:
        job_for(task(20), None, {"command": "true", "extra_args": [word]})
    assert str(refused.value).startswith("sbatch_args: ")
    assert "extra_args" not in str(refused.value)


@pytest.mark.parametrize("needed", ["array", "dependency"])
def test_what_makes_it_another_job_is_not_left_out_unseen(needed: str) -> None:
    for nothing in ("", "None"):
        with pytest.raises(InvalidJob, match=needed):
            job_for(task(20), None, {"command": "true", needed: nothing})
    assert job_for(task(20), None, {"command": "true", "profile": "None", "no_kill": ""}).no_kill == ""
