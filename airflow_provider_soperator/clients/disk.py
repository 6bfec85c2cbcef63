"""This machine's side of a copy: what there is of a file or folder, and new ones that appear whole."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from airflow_provider_soperator.slurm.errors import SlurmError
from airflow_provider_soperator.slurm.files import PIECE
from airflow_provider_soperator.slurm.transfers import Entry, Kind, decoded


class LocalFileError(SlurmError):
    """A file on the machine that runs the task is not there, or cannot be what it is to be."""


def entries(top: Path) -> tuple[Entry, ...]:
    """A file, or a folder with all that is in it; a link that is named is followed, and one below is not."""
    if not top.exists():
        raise LocalFileError(
            f"there is no {top}", remedy="paths are relative to the DAG's file; see whether it lies beside that"
        )
    first = _entry(top, "", os.stat(top))
    if first is None:
        raise LocalFileError(f"{top} is neither a file nor a folder")
    return (first, *_below(top, ""))


def known(top: Path, path: str) -> Entry | None:
    """One path below a folder, if anything is there."""
    try:
        return _entry(top / path, path, os.stat(top) if not path else os.lstat(top / path))
    except (FileNotFoundError, NotADirectoryError):
        return None


def digest(file: Path) -> str:
    """The SHA-256 of a file's content."""
    found = hashlib.sha256()
    with open(file, "rb") as opened:
        while data := opened.read(PIECE):
            found.update(data)
    return found.hexdigest()


@contextmanager
def staging(target: Path, kind: Kind) -> Iterator[Path]:
    """A place for something that is put together, on the same file system as its place; gone in the end."""
    if kind == "folder" and target.is_file():
        raise LocalFileError(f"{target} is a file", remedy="name a folder to fetch a folder to")
    if kind == "file" and target.is_dir():
        raise LocalFileError(f"{target} is a folder", remedy="end its name with / to have a file put there")
    within = target if target.is_dir() else target.parent
    within.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=".incoming-", dir=within))
    try:
        yield folder / "new"
    finally:
        shutil.rmtree(folder)


def make(top: Path, entry: Entry) -> None:
    """A folder or a link; a file has its content to wait for."""
    if entry.kind == "folder":
        (top / entry.path).mkdir(entry.mode)
    elif entry.kind == "link":
        (top / entry.path).symlink_to(entry.target)


def place(new: Path, target: Path) -> None:
    """Move what was put together to its place: a folder that is there keeps what else is in it."""
    if not target.is_dir():
        os.replace(new, target)
        return
    for entry in _below(new, ""):
        if entry.kind == "folder":
            (target / entry.path).mkdir(exist_ok=True)
            (target / entry.path).chmod(entry.mode)
        else:
            os.replace(new / entry.path, target / entry.path)


def _below(top: Path, path: str) -> Iterator[Entry]:
    if not (top / path).is_dir():
        return
    with os.scandir(top / path) as found:
        listed = sorted(found, key=lambda one: one.name)
    for one in listed:
        below = decoded(os.fsencode(os.path.join(path, one.name)))
        entry = _entry(top / below, below, one.stat(follow_symlinks=False))
        if entry is None:
            continue
        yield entry
        if entry.kind == "folder":
            yield from _below(top, below)


def _entry(file: Path, path: str, about: os.stat_result) -> Entry | None:
    mode = stat.S_IMODE(about.st_mode)
    if stat.S_ISREG(about.st_mode):
        return Entry(path, "file", mode, about.st_size)
    if stat.S_ISDIR(about.st_mode):
        return Entry(path, "folder", mode)
    if stat.S_ISLNK(about.st_mode):
        return Entry(path, "link", mode, target=decoded(os.fsencode(os.readlink(file))))
    return None
