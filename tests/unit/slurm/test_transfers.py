"""What is said of files on the cluster is read as it is meant, whatever they are called."""

from __future__ import annotations

import pytest

from airflow_provider_soperator.slurm.files import FileError
from airflow_provider_soperator.slurm.requests import CommandOutput
from airflow_provider_soperator.slurm.transfers import Entry, HashFiles, ListAll, ListSome, PlaceFiles, WorkingFolder


def test_kinds_and_modes() -> None:
    said = b"d 2555 4096 \0\0f 4644 7 \0a\nb\0l 777 3 ../x y\0sub/link\0s 755 0 \0socket\0"
    assert ListAll("/root").read(CommandOutput(0, said)) == (
        Entry("", "folder", 0o755),
        Entry("a\nb", "file", 0o644, 7),
        Entry("sub/link", "link", 0, target="../x y"),
    )


def test_paths_are_given_and_taken_without_looking_like_options() -> None:
    request = ListSome("/root", ("", "-a"))
    assert request.command().stdin == b"./\0./-a\0"
    said = b"d 755 1 \0./\0f 600 1 \0./-a\0"
    assert [entry.path for entry in request.read(CommandOutput(0, said))] == ["", "-a"]


def test_digests_of_what_can_be_read() -> None:
    answer = CommandOutput(123, b"ab  ./a  b\0cd  ./c\nd\0", b"sha256sum: ./e: Permission denied")
    assert HashFiles("/root", ("a  b", "c\nd", "e")).read(answer) == {"a  b": "ab", "c\nd": "cd"}


def test_a_name_that_cannot_be_said_is_refused() -> None:
    with pytest.raises(FileError, match=r"is not UTF-8.*rename"):
        ListAll("/root").read(CommandOutput(0, b"f 644 7 \0\xff\0"))


def test_an_error_is_the_first_line_with_a_remedy() -> None:
    said = b"tar: a: Cannot write: No space left on device\ntar: b: Cannot write: No space left on device\n"
    with pytest.raises(FileError) as caught:
        WorkingFolder().read(CommandOutput(2, b"", said))
    assert str(caught.value) == (
        "finding the working folder: tar: a: Cannot write: No space left on device (and 1 more lines): free space there"
    )


def test_a_folder_of_somebody_is_named_with_the_remedy() -> None:
    with pytest.raises(FileError, match="check its owner"):
        ListAll("/x").read(CommandOutput(1, b"", b"find: '/x': Permission denied"))


def test_a_move_that_may_have_been_done_says_so() -> None:
    first = PlaceFiles("/root/.incoming-1", "/root/a")
    again = first.again()
    assert first.command().argv[-1] == ""
    assert again is not None
    assert again.command().argv[-1] == "again"
