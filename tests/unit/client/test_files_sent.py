"""What is sent is there as a whole, whoever sends it at the same time, and though requests were made twice."""

from __future__ import annotations

import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_soperator.client import file_copies
from airflow_provider_soperator.slurm.files import (
    ListFiles,
    PlaceFiles,
    ReadPieces,
    StageFiles,
    UnpackFiles,
    WritePiece,
)
from airflow_provider_soperator.slurm.requests import Request
from airflow_provider_soperator.slurm.requests.commands import run_steps
from tests.patience import PATIENCE
from tests.unit.client.test_file_copies import ask

RACERS = 3


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One that goes in several pieces."""
    monkeypatch.setattr(file_copies, "PIECE", 1000)
    folder = tmp_path / "project"
    (folder / "src").mkdir(parents=True)
    (folder / "large").write_bytes(bytes(range(256)) * 10)
    for number in range(5):
        (folder / "src" / f"{number}.txt").write_text(f"{number}\n" * 100)
    return folder


def content(folder: Path) -> dict[Path, bytes]:
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_many_may_send_the_same_at_the_same_time(folder: Path, tmp_path: Path) -> None:
    """All have sent all of it before the first has its place."""
    there = tmp_path / "there"
    for text in ("new", "newer"):
        (folder / "src" / "5.txt").write_text(text)
        all_sent = threading.Barrier(RACERS)

        def ask_late(request: Request[Any], all_sent: threading.Barrier = all_sent) -> Any:
            if isinstance(request, PlaceFiles):
                all_sent.wait(PATIENCE)
            return ask(request)

        def send(tag: int, ask_late: Any = ask_late) -> int:
            return run_steps(file_copies.send(folder, str(there), str(tag)), ask_late).files

        with ThreadPoolExecutor(RACERS) as pool:
            assert list(pool.map(send, range(RACERS))) == [7] * RACERS
        assert content(there) == content(folder)
        assert {path.name for path in tmp_path.iterdir()} == {"project", "there"}


def test_requests_whose_answers_were_lost_are_made_again(folder: Path, tmp_path: Path) -> None:
    repeated = set[type[Request[Any]]]()

    def ask_twice(request: Request[Any]) -> Any:
        again = request.again()
        if again is not None:
            repeated.add(type(request))
            ask(request)
        return ask(again or request)

    run_steps(file_copies.send(folder, str(tmp_path / "there"), "tag"), ask_twice)
    run_steps(file_copies.bring(str(tmp_path / "there"), tmp_path / "back", "tag"), ask_twice)
    assert content(tmp_path / "back") == content(folder)
    assert {StageFiles, UnpackFiles, WritePiece, PlaceFiles, ReadPieces} <= repeated
    assert {path.name for path in tmp_path.iterdir()} == {"project", "there", "back"}


def test_folders_that_exist_keep_their_modes_and_new_ones_get_theirs(folder: Path, tmp_path: Path) -> None:
    """Those of a team are one user's, who alone may change the mode, and others write into them."""
    (folder / "new").mkdir()
    (folder / "new").chmod(0o775)
    tops = tmp_path / "there", tmp_path / "back"
    for top in tops:
        (top / "src").mkdir(parents=True)
        (top / "src").chmod(0o777)
    asked = list[type[Request[Any]]]()

    def note(request: Request[Any]) -> Any:
        asked.append(type(request))
        return ask(request)

    for _ in range(2):
        asked.clear()
        run_steps(file_copies.send(folder, str(tops[0]), "tag"), note)
        run_steps(file_copies.bring(str(tops[0]), tops[1], "tag"), note)
        for top in tops:
            assert [stat.S_IMODE((top / name).stat().st_mode) for name in ("src", "new")] == [0o777, 0o775]
    # That they differ in nothing else is no reason to send them again.
    assert set(asked) == {ListFiles}
