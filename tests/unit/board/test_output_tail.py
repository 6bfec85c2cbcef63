"""The last lines of a job's output."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_soperator.board import queue_rows
from airflow_provider_soperator.board.queue_rows import output_tail
from airflow_provider_soperator.slurm.files import FileError, FilePiece, ReadPieces
from airflow_provider_soperator.slurm.job_ids import JobId
from airflow_provider_soperator.slurm.job_records import Job
from airflow_provider_soperator.slurm.requests import WhoAmI

JOB = Job(id=JobId(7), raw_id=7, user="ann", workdir="/home/ann", stdout="out.%j")


class Files:
    """The files of a cluster."""

    def __init__(self, **files: bytes) -> None:
        self.files = {f"/home/ann/{name.replace('_', '.')}": data for name, data in files.items()}
        self.read = 0

    async def ask_shared(self, request: Any, max_age: float) -> Any:
        if isinstance(request, WhoAmI):
            return "ann"
        assert isinstance(request, ReadPieces)
        found = []
        for piece in request.pieces:
            data = self.files.get(piece.path)
            part = (data or b"")[piece.offset :][: piece.length]
            self.read += len(part)
            found.append(FilePiece(part, None if data is None else len(data)))
        return found

    @asynccontextmanager
    async def async_client(self) -> AsyncIterator[Files]:
        yield self


def tail(files: Files, job: Job = JOB) -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(queue_rows, "SlurmHook", lambda connection: files)
        return asyncio.run(output_tail("c", job))


def test_a_short_output_is_shown_whole() -> None:
    assert tail(Files(out_7=b"one\ntwo\n")) == "one\ntwo"


def test_of_a_long_output_the_end_is_read_in_whole_lines() -> None:
    files = Files(out_7=b"".join(b"line %d of many, and more of it so that it is long\n" % n for n in range(100_000)))
    lines = tail(files).split("\n")
    assert len(lines) == 200
    assert lines[-1].startswith("line 99999 ")
    assert files.read <= 32 << 10


def test_a_progress_bar_is_shown_as_it_is_now() -> None:
    assert tail(Files(out_7=b"a\r\n10 %\r50 %\r90 %\nbytes \xff\n")) == "a\n90 %\nbytes \ufffd"


def test_what_cannot_be_read_is_told() -> None:
    with pytest.raises(FileError, match="no output yet"):
        tail(Files())
    with pytest.raises(FileError, match="not known yet"):
        tail(Files(), Job(id=JobId(8)))


def test_the_file_of_a_job_of_another_user_is_not_opened() -> None:
    """Their job may have the name of a task's, and its output may be a link to what only this user may read."""
    files = Files(out_7=b"secret\n")
    with pytest.raises(FileError, match="it is a job of mallory: the connection c reads those of ann"):
        tail(files, replace(JOB, user="mallory"))
    assert files.read == 0
