"""What is fetched stays below the folder that it is fetched to, whatever lies on the cluster or in that folder."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_soperator.client import file_copies
from airflow_provider_soperator.client.file_copies import Copied, LocalFileError
from airflow_provider_soperator.slurm.files import Entry, FileError, FilePiece, ListFiles, ReadPieces
from airflow_provider_soperator.slurm.requests import CommandOutput, Request
from airflow_provider_soperator.slurm.requests.commands import run_steps


def ask(request: Request[Any]) -> Any:
    """The answer of a cluster that is this machine."""
    command = request.command()
    done = subprocess.run(command.argv, input=command.stdin, capture_output=True)
    return request.read(CommandOutput(done.returncode, done.stdout, done.stderr))


@pytest.fixture
def there(tmp_path: Path) -> Path:
    """A folder of the cluster's."""
    folder = tmp_path / "there"
    folder.mkdir()
    return folder


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """The folder of the DAG: files go to a folder in it."""
    (tmp_path / "here" / "plugins").mkdir(parents=True)
    return tmp_path / "here"


def fetch(there: Path, local: Path) -> Copied:
    return run_steps(file_copies.bring(str(there), local, "tag"), ask)


@pytest.mark.parametrize(
    "target", ["a/b/s/../../plugins", "a/b/../../../plugins", "../plugins", "..", "/plugins", "a/../../plugins"]
)
def test_a_link_that_leads_out_is_left_out_also_if_it_does_so_through_another_link(
    target: str, there: Path, here: Path
) -> None:
    (there / "a" / "b").mkdir(parents=True)
    (there / "top").mkdir()
    (there / "a" / "b" / "s").symlink_to("../../top")
    (there / "x").symlink_to(target)
    assert fetch(there, here / "results").left_out == 1
    assert not (here / "results" / "x").is_symlink()
    assert os.readlink(here / "results" / "a" / "b" / "s") == "../../top"


def test_links_within_the_folder_are_fetched(there: Path, here: Path) -> None:
    (there / "a" / "b").mkdir(parents=True)
    links = {"latest": "a/b", "a/up": "..", "a/b/top": "../../latest/./new", "itself": "itself", "a/b/beside": "../b"}
    for name, target in links.items():
        (there / name).symlink_to(target)
    assert fetch(there, here / "results").left_out == 0
    assert {name: os.readlink(here / "results" / name) for name in links} == links


def test_a_link_that_leads_nowhere_is_not_fetched_by_its_own_name(there: Path, here: Path) -> None:
    (there / "x").symlink_to("plugins")
    with pytest.raises(FileError, match="x is neither a file nor a folder"):
        fetch(there / "x", here / "x")
    assert os.listdir(here) == ["plugins"]


def test_a_folder_takes_the_place_of_a_link_and_does_not_go_through_it(there: Path, here: Path) -> None:
    (here / "results").mkdir()
    (here / "results" / "x").symlink_to("../plugins")
    (there / "x" / "deep").mkdir(parents=True)
    (there / "x" / "deep" / "evil.py").write_text("evil")
    (there / "x" / "same").write_text("same")
    (here / "plugins" / "same").write_text("same")
    (here / "plugins" / "same").chmod((there / "x" / "same").stat().st_mode)
    fetch(there, here / "results")
    assert os.listdir(here / "plugins") == ["same"]
    assert not (here / "results" / "x").is_symlink()
    assert (here / "results" / "x" / "deep" / "evil.py").read_text() == "evil"
    # What the link led to does not count as a copy.
    assert (here / "results" / "x" / "same").read_text() == "same"
    assert fetch(there, here / "results").new == 0


def test_a_file_and_a_link_take_the_place_of_a_link(there: Path, here: Path) -> None:
    (here / "results").mkdir()
    (here / "plugins" / "good.py").write_text("good")
    for name in ("file", "link"):
        (here / "results" / name).symlink_to("../plugins/good.py")
    (there / "file").write_text("evil")
    (there / "link").symlink_to("file")
    fetch(there, here / "results")
    assert (here / "plugins" / "good.py").read_text() == "good"
    assert not (here / "results" / "file").is_symlink()
    assert os.readlink(here / "results" / "link") == "file"


def test_the_folder_that_is_named_may_be_a_link(there: Path, here: Path, tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (here / "results").symlink_to(tmp_path / "disk")
    (there / "a").write_text("a")
    fetch(there, here / "results")
    assert (here / "results").is_symlink()
    assert (tmp_path / "disk" / "a").read_text() == "a"


@pytest.mark.parametrize(("kind", "other"), [("folder", "link"), ("folder", "file"), ("file", "folder")])
def test_nothing_is_placed_where_a_folder_meets_another_kind(kind: str, other: str, there: Path, here: Path) -> None:
    make = {"folder": Path.mkdir, "file": Path.touch, "link": lambda path: path.symlink_to("a")}
    (here / "results").mkdir()
    make[kind](here / "results" / "x")
    make[other](there / "x")
    (there / "a").write_text("a")
    with pytest.raises(LocalFileError, match=f"results/x is a {kind}, and on the cluster a {other}: "):
        fetch(there, here / "results")
    assert os.listdir(here / "results") == ["x"]


def test_what_a_killed_try_has_left_is_removed_by_the_next(there: Path, here: Path) -> None:
    (there / "a").write_text("a")
    killed = file_copies.bring(str(there), here / "results", "tag")
    killed.send(ask(next(killed)))
    assert len(os.listdir(here)) == 2
    fetch(there, here / "results")
    assert sorted(os.listdir(here)) == ["plugins", "results"]


FOLDER = Entry("", "folder", 0o755)


@pytest.mark.parametrize(
    "entries",
    [
        [FOLDER, Entry("..", "folder", 0o755), Entry("../evil", "file", 0o644, 4)],
        [FOLDER, Entry("../evil", "file", 0o644, 4)],
        [FOLDER, Entry("a", "folder", 0o755), Entry("a/..", "folder", 0o755), Entry("a/../../evil", "file", 0o644, 4)],
        [FOLDER, Entry(".", "folder", 0o755)],
        [FOLDER, Entry("a", "link", 0, content="b"), Entry("a/evil", "file", 0o644, 4)],
        [FOLDER, Entry("a/evil", "file", 0o644, 4), Entry("a", "folder", 0o755)],
        [FOLDER, Entry("/evil", "file", 0o644, 4)],
        [Entry("", "file", 0o644), Entry("evil", "file", 0o644, 4)],
        [Entry("evil", "file", 0o644, 4), FOLDER],
    ],
)
def test_a_listing_with_names_that_no_folder_has_is_refused(entries: Iterable[Entry], here: Path) -> None:
    asked: list[Request[Any]] = []

    def hostile(request: Request[Any]) -> Any:
        asked.append(request)
        if isinstance(request, ListFiles):
            return {entry.path: entry for entry in entries}
        assert isinstance(request, ReadPieces)
        return [FilePiece(b"evil", 4) for _ in request.pieces]

    with pytest.raises(FileError, match="the listing of /there"):
        run_steps(file_copies.bring("/there", here / "results", "tag"), hostile)
    assert [type(request) for request in asked] == [ListFiles]
    assert os.listdir(here) == ["plugins"]
