"""What is said of files on the cluster is read as it is meant, whatever they are called."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
from pathlib import Path

import pytest

from airflow_provider_soperator.slurm.files import (
    Entry,
    FileError,
    FilePiece,
    ListFiles,
    Piece,
    PlaceFiles,
    ReadPieces,
    WorkingFolder,
)
from airflow_provider_soperator.slurm.requests import CommandOutput
from tests.patience import PATIENCE


def test_kinds_modes_and_contents() -> None:
    said = b"d 2555 4096 \0/root\0f 4644 7 \0/root/a\nb\0l 777 3 ../x  y\0/root/sub/link\0ab  /root/a\nb\0"
    said += b"f 600 1 \0/root/c  d\0cd  /root/c  d\0"
    assert ListFiles("/root").read(CommandOutput(0, said)) == {
        "": Entry("", "folder", 0o755),
        "a\nb": Entry("a\nb", "file", 0o644, 7, "ab"),
        "sub/link": Entry("sub/link", "link", 0, content="../x  y"),
        "c  d": Entry("c  d", "file", 0o600, 1, "cd"),
    }


def test_some_paths_of_which_others_are_missing() -> None:
    request = ListFiles("/root/", ("", "-a", "b"))
    assert request.command().stdin == b"/root/\0/root/-a\0/root/b\0"
    answer = CommandOutput(123, b"d 755 1 \0/root/\0f 600 1 \0/root/-a\0", b"find: '/root/b': No such file")
    assert request.read(answer) == {"": Entry("", "folder", 0o755), "-a": Entry("-a", "file", 0o600, 1)}


def test_a_name_that_cannot_be_said_is_refused() -> None:
    with pytest.raises(FileError, match=r"is not UTF-8.*rename"):
        ListFiles("/root").read(CommandOutput(0, b"f 644 7 \0\xff\0"))


def test_an_error_is_the_first_line_with_a_remedy() -> None:
    said = b"tar: a: Cannot write: No space left on device\ntar: b: Cannot write: No space left on device\n"
    with pytest.raises(FileError) as caught:
        WorkingFolder().read(CommandOutput(2, b"", said))
    assert str(caught.value) == (
        "finding the working folder: tar: a: Cannot write: No space left on device (and 1 more lines): free space there"
    )


def test_a_folder_of_somebody_is_named_with_the_remedy() -> None:
    with pytest.raises(FileError, match="check its owner"):
        ListFiles("/x").read(CommandOutput(1, b"", b"find: '/x': Permission denied"))


def test_a_file_that_a_job_has_not_written_is_named_with_the_remedy() -> None:
    with pytest.raises(FileError, match="see whether it was written"):
        ListFiles("/x").read(CommandOutput(1, b"", b"find: '/x': No such file or directory"))


def test_a_move_that_has_been_done_can_be_repeated(tmp_path: Path) -> None:
    (tmp_path / "staging").mkdir()
    (tmp_path / "staging" / "new").write_text("x")
    request = PlaceFiles(str(tmp_path / "staging"), str(tmp_path / "target"))
    for _ in range(2):
        subprocess.run(request.command().argv, check=True)
    assert [path.name for path in tmp_path.iterdir()] == ["target"]
    assert (tmp_path / "target").read_text() == "x"


def test_the_end_of_a_file_is_read_without_its_size(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("0123456789")
    pieces = [Piece(str(tmp_path / name), offset, 4) for name, offset in (("log", -4), ("log", -40), ("none", -4))]
    request = ReadPieces(tuple(pieces))
    ran = subprocess.run(request.command().argv, capture_output=True, check=True)
    found = request.read(CommandOutput(0, ran.stdout))
    assert found == [FilePiece(b"6789", 10), FilePiece(b"0123", 10), FilePiece(b"", None)]


@pytest.mark.parametrize(("cached", "found"), [(False, FilePiece(b"new\n", 8)), (True, FilePiece(b"old\n", 4))])
def test_a_file_is_opened_before_its_size_counts(tmp_path: Path, cached: bool, found: FilePiece) -> None:
    # As on NFS: until the file is opened, others see it as it was.
    with open(tmp_path / "log", "ab", buffering=0) as log:

        def write_the_rest(*_: object) -> None:
            log.write(b"new\n")
            fcntl.fcntl(log, fcntl.F_SETLEASE, fcntl.F_UNLCK)

        log.write(b"old\n")
        before = signal.signal(signal.SIGIO, write_the_rest)
        try:
            fcntl.fcntl(log, fcntl.F_SETLEASE, fcntl.F_WRLCK)
            request = ReadPieces((Piece(str(tmp_path / "log"), -4, 4),), cached)
            ran = subprocess.run(request.command().argv, capture_output=True, check=True)
        finally:
            signal.signal(signal.SIGIO, before)
    assert request.read(CommandOutput(0, ran.stdout)) == [found]


def test_what_is_no_file_or_cannot_be_opened_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    request = ReadPieces((Piece(str(tmp_path / "fifo")), Piece("/dev/null"), Piece(str(tmp_path))))
    ran = subprocess.run(request.command().argv, capture_output=True, check=True, timeout=PATIENCE)
    assert [piece.data for piece in request.read(CommandOutput(0, ran.stdout))] == [b"", b"", b""]
