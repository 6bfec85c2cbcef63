"""Where files of a job go on the machine that runs its task."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG

from airflow_provider_soperator.client.file_copies import Copied, LocalFileError
from airflow_provider_soperator.operators import files
from airflow_provider_soperator.operators.files import JobFiles
from airflow_provider_soperator.operators.sbatch import SbatchOperator
from airflow_provider_soperator.slurm.files import FileError, JobFolder, Match, WorkingFolder, absolute
from airflow_provider_soperator.slurm.job import BatchJob
from airflow_provider_soperator.slurm.job_description import InvalidJob
from airflow_provider_soperator.slurm.job_ids import JobId
from airflow_provider_soperator.slurm.job_records import Job, JobStatus
from airflow_provider_soperator.slurm.job_reports import report_of
from airflow_provider_soperator.slurm.requests import Request
from airflow_provider_soperator.slurm.requests.submission import Submitted
from airflow_provider_soperator.slurm.sbatch_arguments import with_remote_lines
from airflow_provider_soperator.slurm.states import JobState
from airflow_provider_soperator.slurm.submission_keys import SubmissionKey
from airflow_provider_soperator.work.protocols import succeeded


class Cluster:
    """A connection, and its client: what patterns match, jobs of earlier tries, and what went to where.

    Its script ``jobs/fit.sbatch`` runs in /shared/run, once it is there.
    """

    def __init__(self, *matches: str, earlier: Submitted | None = None) -> None:
        self.matches, self.earlier = matches, earlier
        self.downloaded: list[tuple[str, Path]] = []
        self.uploaded: list[str] = []
        #: Whether it is there, and whether it was when it was last read.
        self.has_script = False
        self.known: bool | None = None

    @contextmanager
    def client(self) -> Iterator[Cluster]:
        yield self

    def patient(self, log: Any) -> Cluster:
        return self

    def ask(self, request: Request[Any]) -> Any:
        if isinstance(request, JobFolder):
            # Files are root's, as over slurmrestd with SSH beside it.
            return PurePosixPath("/root" if isinstance(request, WorkingFolder) else "/home/ann")
        assert isinstance(request, Match)
        return self.matches

    def with_lines(self, job: BatchJob, max_age: float = 1) -> BatchJob:
        if self.known is None or not max_age:
            self.known = self.has_script
        return with_remote_lines(job, "#!/bin/sh\n#SBATCH --chdir=/shared/run\n") if self.known else job

    def find(self, *_: Any, **__: Any) -> Submitted | None:
        return self.earlier

    def upload(self, source: Path, target: str, *, tag: str) -> Copied:
        self.uploaded.append(target)
        self.has_script |= target == "/home/ann/jobs"
        return Copied(1, 1, 1)

    def download(self, path: str, local: Path, *, tag: str) -> Copied:
        self.downloaded.append((absolute(path), local))
        return Copied(1, 1, 1)


def download(cluster: Cluster, pair: tuple[str, str], here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "SlurmHook", lambda _: cluster)
    JobFiles("east", here, "owner", logging.getLogger(__name__)).download([pair], "/data")


def test_matches_keep_their_folders_below_the_local_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "disk").mkdir()
    # The path that is named may be a link.
    (tmp_path / "got").symlink_to("disk")
    cluster = Cluster("/data/plots/", "/data/plots/a/1.png", "/data/plots/..2.png")
    download(cluster, ("plots/**", "got"), tmp_path, monkeypatch)
    assert [local for _, local in cluster.downloaded] == [
        tmp_path / "got", tmp_path / "got" / "a" / "1.png", tmp_path / "got" / "..2.png"
    ]  # fmt: skip


@pytest.mark.parametrize("path", ["/data/evil.py", "/data/plots/../evil.py", "/etc/evil.py", "/data/plots/out/evil.py"])
def test_a_match_that_would_go_elsewhere_is_not_downloaded(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "got").mkdir()
    (tmp_path / "got" / "out").symlink_to("..")
    cluster = Cluster(path)
    with pytest.raises(LocalFileError, match=f"{path} would be downloaded to {tmp_path}/.*evil.py, out of "):
        download(cluster, ("plots/**", "got"), tmp_path, monkeypatch)
    assert not cluster.downloaded


@pytest.mark.parametrize("has_script", [False, True])
def test_files_go_where_the_lines_of_a_script_on_the_cluster_say_and_the_script_where_it_is_looked_for(
    has_script: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster()
    monkeypatch.setattr(files, "SlurmHook", lambda _: cluster)
    upload = JobFiles("east", tmp_path, "owner", logging.getLogger(__name__)).upload
    cluster.has_script = has_script
    earlier = [SubmissionKey("a" * 12)]
    brought = {"in.csv": "data/", "jobs": "jobs", "a$B~.txt": "data/"}
    upload(brought, BatchJob(remote_script="jobs/fit.sbatch"), earlier=earlier)
    assert cluster.uploaded == ["/home/ann/jobs", "/shared/run/data/in.csv", "/shared/run/data/a$B~.txt"]


@pytest.mark.parametrize(
    ("script", "chdir", "place"),
    [
        # sbatch looks below the folder in which it is called, whatever the job's own is to be.
        ("fit.sh", "/shared/run", "/home/ann"),
        ("fit.sh", "run", "/home/ann"),
        ("/shared/run/fit.sh", "/shared/run", "/shared/run"),
        ("/home/ann/run/fit.sh", "run", "/home/ann/run"),
    ],
)
def test_the_script_goes_where_sbatch_looks_for_it_and_the_rest_to_the_jobs_folder(
    script: str, chdir: str, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster()
    monkeypatch.setattr(files, "SlurmHook", lambda _: cluster)
    upload = JobFiles("east", tmp_path, "owner", logging.getLogger(__name__)).upload
    upload({"fit.sh": "fit.sh", "in.csv": "in.csv"}, BatchJob(remote_script=script, chdir=chdir))
    assert cluster.uploaded == [f"{place}/fit.sh", str(PurePosixPath("/home/ann", chdir, "in.csv"))]


def test_a_folder_above_goes_under_its_name_and_a_path_of_nothing_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a name the one would be put among the job's files; the other would be the whole folder of the DAG."""
    cluster = Cluster()
    monkeypatch.setattr(files, "SlurmHook", lambda _: cluster)
    here = tmp_path / "repo" / "dags" / "train"
    job_files = JobFiles("east", here, "owner", logging.getLogger(__name__))
    brought = [["..", "a/"], ["../../", "b/"], [".", "c/"], ["", "d/"], ["None", "e/"], ["../src", ""]]
    job_files.upload(brought, BatchJob(command="true"))
    names = ["a/dags", "b/repo", "c/train", ""]
    assert cluster.uploaded == [str(PurePosixPath("/home/ann", name)) for name in names]
    job_files.download({"": "got", "None": "got"}, "/data")
    assert not cluster.downloaded


def test_what_has_nothing_to_copy_does_without_a_way_to_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def ask(*_: Any) -> None:
        raise FileError("this way reaches no files")

    cluster = Cluster()
    monkeypatch.setattr(cluster, "ask", ask)
    monkeypatch.setattr(files, "SlurmHook", lambda _: cluster)
    job_files = JobFiles("east", tmp_path, "owner", logging.getLogger(__name__))
    job_files.upload([["", "in/"]], BatchJob(command="true"), downloads=[["None", "got"]])
    with pytest.raises(FileError):
        job_files.upload([], BatchJob(command="true"), downloads=[["out", "got"]])


class Begun(Exception):
    """The job would be submitted now."""


def task(number: int = 1) -> dict[str, Any]:
    """The context of a try of a task."""
    ti = SimpleNamespace(dag_id="d", run_id="r", task_id="t", map_index=-1, try_number=number, max_tries=3)
    return {"ti": ti, "dag_run": SimpleNamespace(start_date=None)}


@pytest.fixture
def operator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SbatchOperator:
    """A task beside whose DAG is a folder on a file system that is mounted read-only."""
    (tmp_path / "mounted").mkdir()
    is_writable = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path).name != "mounted" and is_writable(path, mode))
    with DAG("d", schedule=None) as dag:
        made = SbatchOperator(task_id="t", command="true", retries=3, download={"metrics.json": "mounted/a/b/"})
    dag.fileloc = str(tmp_path / "dag.py")

    def begin(*_: Any) -> None:
        raise Begun

    monkeypatch.setattr(made, "wait_for", begin)
    return made


def test_a_path_that_will_not_do_fails_before_there_is_a_job(
    operator: SbatchOperator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "SlurmHook", lambda _: Cluster())
    words = f"{tmp_path}/mounted/a/b cannot be written: {tmp_path}/mounted is read-only"
    with pytest.raises(LocalFileError, match=words):
        operator.execute(task())
    with pytest.raises(LocalFileError, match=words):
        operator.prepare(task(), SubmissionKey("a" * 12), uploads=True)
    # As a template has rendered it.
    operator.download = [["$OUT/metrics.json", "beside/a/b/"]]
    with pytest.raises(FileError, match=r"'\$OUT/metrics\.json' is for a shell to understand"):
        operator.execute(task())
    operator.download = [["metrics.json", "beside/a/b/"]]
    with pytest.raises(Begun):
        operator.execute(task())
    assert os.listdir(tmp_path) == ["mounted"]


def test_a_job_whose_elements_have_one_file_is_not_submitted_ahead(operator: SbatchOperator) -> None:
    # As a template has rendered it.
    operator.result = "file:metrics.json"
    operator.job |= {"extra_args": ["--array=0-3"]}
    with pytest.raises(InvalidJob, match=r"all elements of the array would write the same file, metrics\.json"):
        operator.prepare(task(), SubmissionKey("a" * 12), uploads=False)


def test_it_does_not_keep_a_try_from_the_job_of_an_earlier_one(
    operator: SbatchOperator, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster(earlier=Submitted(JobId(7), adopted=True))
    monkeypatch.setattr(files, "SlurmHook", lambda _: cluster)
    with pytest.raises(Begun):
        operator.execute(task(2))


def test_files_come_from_where_the_job_ran_also_if_an_element_was_cancelled_before(
    operator: SbatchOperator, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(JobFiles, "download", lambda _files, _pairs, working: asked.append(working))
    # Of an element that never ran nothing is known.
    never = Job(id=JobId(7, 0), state=JobState.parse("CANCELLED"))
    ran = Job(id=JobId(7, 1), state=JobState.parse("COMPLETED"), workdir="/data")
    operator.on_finish = {"CANCELLED": "succeed"}
    operator._settled(task(), succeeded(report_of(JobStatus(id=JobId(7), parts=(never, ran)))))
    assert asked == ["/data"]


def test_a_job_whose_failure_is_a_success_brings_what_is_there(
    operator: SbatchOperator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster()
    monkeypatch.setattr(files, "SlurmHook", lambda _: cluster)
    operator.download = {"plots/*.png": "plots", "metrics.json": "metrics.json"}
    operator.on_finish = {"FAILED": "succeed", "LOST": "succeed"}
    # Where a lost one has run is not known.
    lost = JobStatus(id=JobId(7), parts=(), lost="no accounting")
    failed, done = (
        JobStatus(id=JobId(7), parts=(Job(id=JobId(7), state=JobState.parse(state), workdir="/data"),))
        for state in ("FAILED", "COMPLETED")
    )
    for status in (lost, failed):
        operator._settled(task(), succeeded(report_of(status)))
    assert cluster.downloaded == [("/data/metrics.json", tmp_path / "metrics.json")]
    # The next try would go on with this job.
    with pytest.raises(FileError, match="nothing on the cluster is called /data/plots/"):
        operator._settled(task(), succeeded(report_of(done)))
