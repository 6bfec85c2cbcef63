"""Files that a task takes to the cluster ahead of its job, and brings back after it."""

from __future__ import annotations

import glob
import posixpath
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from hashlib import sha256
from os.path import abspath, realpath
from pathlib import Path, PurePosixPath
from typing import Any

from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_soperator.client.file_copies import LocalFileError, check_place_on_disk
from airflow_provider_soperator.client.sync import SlurmClient
from airflow_provider_soperator.errors import ClusterError, LastingError
from airflow_provider_soperator.hooks.slurm import SlurmHook
from airflow_provider_soperator.logger import Logger
from airflow_provider_soperator.slurm.files import FileError, JobFolder, Match, WorkingFolder
from airflow_provider_soperator.slurm.job import BatchJob
from airflow_provider_soperator.slurm.job_records import JobStatus
from airflow_provider_soperator.slurm.job_reports import read_result
from airflow_provider_soperator.slurm.requests.commands import run_steps
from airflow_provider_soperator.slurm.sbatch_arguments import asked_for, submit_folder
from airflow_provider_soperator.slurm.submission_keys import SubmissionKey
from airflow_provider_soperator.values import shell_path

#: From where to where; a mapping, or what Airflow has made of one.
Pairs = Mapping[str, str] | Sequence[Sequence[str]]

_WILD = frozenset("*?[")


class JobFiles:
    """Copies between the machine that runs a task and the folder in which its job runs.

    ``here`` is where local paths begin, ``owner`` identifies a task across its tries.
    """

    def __init__(self, slurm_conn_id: str, here: Path, owner: str, log: Logger) -> None:
        self._hook = SlurmHook(slurm_conn_id)
        self._here, self._owner, self._log = here, owner, log

    def upload(
        self,
        files: Pairs,
        job: BatchJob,
        *,
        earlier: Sequence[SubmissionKey] = (),
        since: datetime | None = None,
        downloads: Pairs = (),
    ) -> None:
        """Copy all of them, unless the job of an earlier try is there to go on with: it has them, and may read them.

        ``earlier`` has the keys of these tries, ``since`` the earliest time of the first of them. Where no files can be
        reached, or the ``downloads`` after the job cannot be written, this fails before anything is submitted.
        """
        uploads, planned = pairs(files), pairs(downloads)
        if not uploads and not planned:
            return
        with self._client() as client:
            # Fails where there is no way to files.
            client.ask(WorkingFolder())
            home = client.ask(JobFolder())
            submitted_in = home / submit_folder(asked_for(job))
            if earlier and (adopted := client.find(client.with_lines(job), earlier, since=since)):
                if uploads:
                    self._log.info("Nothing is uploaded, as job %s of an earlier try has its files", adopted.id)
                return
            for remote, local in planned:
                _path(home, remote)
                check_place_on_disk(self._here / local)
            script = _path(submitted_in, job.remote_script) if job.remote_script else ""
            others = []
            # What brings its script goes where that is looked for. Only then is it known what it asks for.
            for local, remote in uploads:
                target = self._target(submitted_in, local, remote)
                if PurePosixPath(script).is_relative_to(target):
                    self._send(client, local, target)
                else:
                    others.append((local, remote))
            working = home / (asked_for(client.with_lines(job, max_age=0)).chdir or "")
            for local, remote in others:
                self._send(client, local, self._target(working, local, remote))

    def _target(self, working: PurePosixPath, local: str, remote: str) -> str:
        # One that ends in ``..`` has a name as well.
        return _path(working, remote, Path(abspath(self._here / local)).name)

    def _send(self, client: SlurmClient, local: str, target: str) -> None:
        copied = client.upload(self._here / local, target, tag=self._tag(target))
        self._log.info("Uploaded %s to %s: %s", local, target, copied)

    def download(self, files: Pairs, working: str) -> None:
        """Copy all of them from the folder in which the job has run."""
        with self._client() as client:
            for remote, local in pairs(files):
                for path, target in _found(client, PurePosixPath(working), remote, local, self._here):
                    copied = client.download(path, self._here / target, tag=self._tag(target))
                    self._log.info("Downloaded %s to %s: %s", path, target, copied)

    def bring_back(self, files: Pairs, status: JobStatus) -> None:
        """Download all of them, or what is there of a job that has failed: its end is what counts for the task."""
        working = next((part.workdir for part in status.parts if part.workdir), "")
        if status.succeeded:
            self.download(files, working)
            return
        for pair in pairs(files):
            try:
                self.download([pair], working)
            except (ClusterError, OSError, AirflowFailException) as error:
                self._log.warning("%s is not downloaded: %s", pair[0], error)

    def result(self, said: str, status: JobStatus) -> Any:
        """What a job has computed, for a task that asks for it since its trigger waits; None after a failure."""
        if not status.succeeded:
            return None
        with self._client() as client:
            return run_steps(read_result(said, status), client.ask)

    def _tag(self, target: str) -> str:
        return sha256(f"{self._owner}\0{target}".encode()).hexdigest()[:16]

    @contextmanager
    def _client(self) -> Iterator[SlurmClient]:
        try:
            with self._hook.client() as client:
                yield client.patient(self._log)
        except LastingError as error:
            raise AirflowFailException(str(error)) from error


def pairs(files: Pairs) -> list[Sequence[str]]:
    """Pairs of source and target, without those that an empty field of a form leaves without a source."""
    said = files.items() if isinstance(files, Mapping) else files
    return [pair for pair in said if pair[0] not in (None, "", "None")]


def _within(target: str, name: str) -> str:
    """A name that ends in a slash is that of a folder to put it in."""
    return posixpath.join(target, name) if target.endswith("/") else target


def _path(working: PurePosixPath, path: str, name: str = "") -> str:
    if problem := shell_path(path):
        raise FileError(problem)
    return posixpath.normpath(str(working / _within(path, name)))


def _found(
    client: SlurmClient, working: PurePosixPath, remote: str, local: str, here: Path
) -> Iterator[tuple[str, str]]:
    """The paths on the cluster that a path or pattern matches, each with its target."""
    parts = PurePosixPath(remote).parts
    wild = next((number for number, part in enumerate(parts) if _WILD & set(part)), None)
    if wild is None:
        path = _path(working, remote)
        yield path, _within(local, posixpath.basename(path))
        return
    fixed = _path(working, str(PurePosixPath(*parts[:wild])))
    matches = client.ask(Match(posixpath.join(glob.escape(fixed), *parts[wild:])))
    if not matches:
        raise FileError(f"nothing on the cluster is called {posixpath.join(fixed, *parts[wild:])}")
    for path in matches:
        # Below the part that has no wildcards they keep their folders, so that no two of them meet.
        target = posixpath.join(local, posixpath.relpath(path, fixed))
        if not Path(realpath(here / target)).is_relative_to(realpath(here / local)):
            raise LocalFileError(
                f"{path} would be downloaded to {here / target}, out of {here / local}",
                remedy="remove the link in that path, or download to another folder",
            )
        yield path, target
