"""The files of a task: where its paths begin, what its patterns stand for, and when nothing is to be sent."""

from __future__ import annotations

import logging
import uuid
from pathlib import Path

import pytest
from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_soperator.hooks.slurm import SlurmHook
from airflow_provider_soperator.operators.files import JobFiles
from airflow_provider_soperator.slurm.files import FileError
from airflow_provider_soperator.slurm.job import BatchJob, job_of
from airflow_provider_soperator.slurm.submission_keys import SubmissionKey
from tests.integration.cluster import Cluster
from tests.integration.connections import Connections

LOG = logging.getLogger(__name__)


def key(attempt: int = 1, run: str = "") -> SubmissionKey:
    return SubmissionKey.derive("dag", run or uuid.uuid4().hex, "files", -1, attempt)


@pytest.fixture
def hook(connections: Connections) -> SlurmHook:
    return connections.login_node()


@pytest.fixture
def files(hook: SlurmHook, tmp_path: Path) -> JobFiles:
    return JobFiles(hook.slurm_conn_id, tmp_path, "owner", LOG)


@pytest.mark.parametrize(
    ("job", "remote", "place"),
    [
        ({}, "a", "/root/a"),
        ({}, "in/", "/root/in/input"),
        ({"chdir": "jobs"}, "a", "/root/jobs/a"),
        ({"chdir": "/tmp/jobs"}, "in/../a", "/tmp/jobs/a"),
        ({"chdir": "jobs"}, "/tmp/a", "/tmp/a"),
        ({"script": "#!/bin/sh\n#SBATCH --chdir=/tmp/jobs\n"}, "a", "/tmp/jobs/a"),
        ({"script": "#!/bin/sh\n#SBATCH --chdir=/tmp/jobs\n", "chdir": "/tmp/other"}, "a", "/tmp/other/a"),
    ],
)
def test_paths_begin_where_the_job_runs(
    job: dict[str, str], remote: str, place: str, files: JobFiles, cluster: Cluster, tmp_path: Path
) -> None:
    (tmp_path / "input").write_text("x")
    files.upload({"input": remote}, job_of(job))
    assert cluster.run("cat", place) == "x"
    cluster.run("rm", "-r", place)


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ({"a": "got"}, ["got"]),
        ({"a": "got/"}, ["got/a"]),
        ({"*.csv": "got"}, ["got/1.csv", "got/2 '$(touch x).csv"]),
        ({"sub/*/[12].csv": "got"}, ["got/x/1.csv", "got/y/1.csv"]),
        ({"**/1.csv": "got"}, ["got/1.csv", "got/sub/x/1.csv", "got/sub/y/1.csv"]),
        ({"su?": "got"}, ["got/sub/x/1.csv", "got/sub/y/1.csv"]),
        ({"a": "got/a", "1.csv": "got/b/"}, ["got/a", "got/b/1.csv"]),
    ],
)
def test_patterns_are_the_shells(
    said: dict[str, str], found: list[str], files: JobFiles, cluster: Cluster, tmp_path: Path
) -> None:
    # A folder whose own name would be a pattern.
    folder = "/root/[x] *"
    names = ["a", "1.csv", "2 '$(touch x).csv", "sub/x/1.csv", "sub/y/1.csv"]
    script = 'mkdir -p "$1/sub/x" "$1/sub/y" && cd "$1" && shift && touch -- "$@"'
    cluster.run("sh", "-c", script, "make", folder, *names)
    files.download(said, folder)
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()) == found
    cluster.run("rm", "-r", folder)


def test_what_nothing_fits_is_named(files: JobFiles) -> None:
    with pytest.raises(FileError, match=r"nothing on the cluster is called /root/none/\*\.csv"):
        files.download({"none/*.csv": "got"}, "/root")
    with pytest.raises(FileError, match="'~/data' is for a shell to understand"):
        files.download({"~/data": "got"}, "/root")


@pytest.mark.leaves("jobs")
@pytest.mark.parametrize(("hold", "is_sent"), [(True, False), (False, True)])
def test_files_of_a_job_that_goes_on_are_left_alone(
    hold: bool, is_sent: bool, hook: SlurmHook, files: JobFiles, cluster: Cluster, tmp_path: Path
) -> None:
    (tmp_path / "input").write_text("x")
    run = uuid.uuid4().hex
    # One that failed is done anew, with the files of now.
    job = BatchJob(command="false", name="files", output="/dev/null", hold=hold)
    with hook.client() as slurm:
        earlier = slurm.submit(job, key(1, run))
        if not hold:
            slurm.watch(earlier.id).end()
    files.upload({"input": "input"}, job, earlier=[key(1, run)])
    assert (cluster.try_run("rm", "/root/input").returncode == 0) is is_sent


def test_without_a_way_to_files_nothing_begins(connections: Connections, cluster: Cluster, tmp_path: Path) -> None:
    rest = connections.other(rest_url=cluster.access["rest"]["url"], jwt_token="a.b.c")
    with pytest.raises(AirflowFailException, match="name an SSH or Kubernetes connection"):
        JobFiles(rest.slurm_conn_id, tmp_path, "owner", LOG).upload({"input": "input"}, BatchJob(command="true"))
