"""Copies of files and folders to and from the cluster: changed files only, in pieces, verified, all or nothing.

Pieces are small, so that they do not block other users of the connection, and are resent one by one if it breaks.
Files are verified by SHA-256 before they are moved into place. Nothing on the cluster is trusted with the places of
files on this machine: all that is fetched stays in the folder that it is fetched to, and goes through no link there.
"""

from __future__ import annotations

import hashlib
import io
import os
import posixpath
import shutil
import stat
import tarfile
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path, PurePath, PurePosixPath

from airflow_provider_soperator.errors import ClusterError
from airflow_provider_soperator.slurm.errors import SlurmError
from airflow_provider_soperator.slurm.files import (
    PIECE,
    Entry,
    FileError,
    Kind,
    ListFiles,
    Piece,
    PlaceFiles,
    ReadPieces,
    RemoveFiles,
    StageFiles,
    UnpackFiles,
    WritePiece,
    decoded,
    staged,
)
from airflow_provider_soperator.slurm.requests.commands import Steps

#: Entries in one request.
_MOST_FILES = 500
_MEBIBYTE = 1 << 20


@dataclass(frozen=True)
class Copied:
    """The outcome of a copy: all files, the new ones among them, and the bytes of those."""

    files: int
    new: int
    size: int
    #: Links that were left out because they lead out of the folder.
    left_out: int = 0

    def __str__(self) -> str:
        amount = f"{self.size} bytes" if self.size < _MEBIBYTE else f"{self.size / _MEBIBYTE:.1f} MiB"
        said = f"{self.new} of {self.files} files, {amount}"
        said += "; the others were there already" if self.new < self.files else ""
        return said + (f"; {self.left_out} links that lead out of it were left out" if self.left_out else "")


# To the cluster


def send(local: Path, target: str, tag: str) -> Steps[Copied]:
    """Copy a file or folder to an absolute path of the cluster.

    ``tag`` identifies the task: the unfinished copy of an earlier try is found and removed by it.
    """
    entries = entries_on_disk(local)
    kind = entries[0].kind
    paths = tuple(entry.path for entry in entries)
    there: dict[str, Entry] = yield ListFiles(f"{target}/" if kind == "folder" else target, paths)
    changed = _changed(entries, there)
    if changed:
        folder = yield StageFiles(target, kind, tag)
        try:
            yield from _put_together(local, folder, changed)
            _verify(local, changed, (yield ListFiles(staged(folder))))
            yield PlaceFiles(folder, target)
        except (SlurmError, OSError):
            with suppress(ClusterError):
                yield RemoveFiles((folder,))
            raise
    return _copied(entries, changed)


def _put_together(local: Path, folder: str, entries: Iterable[Entry]) -> Steps[None]:
    for batch in _batches(entries):
        if batch[0].size <= PIECE:
            yield UnpackFiles(folder, _archive(local, batch))
            continue
        [large] = batch
        with open(local / large.path, "rb") as opened:
            for offset in range(0, large.size, PIECE):
                yield WritePiece(staged(folder, large.path), offset, opened.read(PIECE), large.mode)


def _archive(local: Path, entries: Iterable[Entry]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for entry in entries:
            member = tarfile.TarInfo(staged("", entry.path))
            member.mode = entry.mode
            data = b""
            if entry.kind == "folder":
                member.type = tarfile.DIRTYPE
            elif entry.kind == "link":
                member.type, member.linkname = tarfile.SYMTYPE, entry.content
            else:
                data = (local / entry.path).read_bytes()
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


# From the cluster


def bring(path: str, local: Path, tag: str) -> Steps[Copied]:
    """Copy a file or folder from an absolute path of the cluster; ``tag`` as in ``send``."""
    listed: dict[str, Entry] = yield ListFiles(path)
    _check_listing(path, listed)
    entries = [entry for entry in listed.values() if _stays_within(entry)]
    there = _found_on_disk(local, entries)
    _check_kinds(local, entries, there)
    changed = _changed(entries, there)
    if changed:
        with staging_on_disk(local, tag) as new:
            yield from _fetch(path, new, changed)
            _verify(PurePosixPath(path), changed, _found_on_disk(new, changed))
            place_on_disk(new, local, changed)
    return _copied(entries, changed, len(listed) - len(entries))


def _check_listing(path: str, listed: Mapping[str, Entry]) -> None:
    """Reject a listing with any path that is not a plain name in a folder listed before it."""
    if "" not in listed or listed[""].kind == "link":
        raise FileError(f"{path} is neither a file nor a folder")
    folders = set()
    for entry in listed.values():
        above, name = posixpath.split(entry.path)
        is_plain = name not in ("", ".", "..") and posixpath.join(above, name) == entry.path
        if entry.path and not (is_plain and above in folders):
            raise FileError(
                f"the listing of {path} has {entry.path!r}, which is in no folder of it",
                remedy="see what the login shell on the cluster does to the commands find and sha256sum",
            )
        if entry.kind == "folder":
            folders.add(entry.path)


def _stays_within(entry: Entry) -> bool:
    """True unless it is a link that leads out: such a path may be anything on this machine.

    ``..`` may be at the beginning only, where it is seen from the link's own folder: a name before it may be a link.
    """
    steps = [step for step in entry.content.split("/") if step not in ("", ".")]
    up = sum(1 for _ in takewhile("..".__eq__, steps))
    leads_out = entry.content.startswith("/") or up > entry.path.count("/") or ".." in steps[up:]
    return entry.kind != "link" or not leads_out


def _check_kinds(local: Path, entries: Iterable[Entry], there: Mapping[str, Entry]) -> None:
    """Reject what cannot be replaced: a folder by another kind, or a file by a folder."""
    for entry in entries:
        kind = there[entry.path].kind if entry.path in there else "link"
        if kind not in (entry.kind, "link") and "folder" in (kind, entry.kind):
            raise LocalFileError(
                f"{local / entry.path} is a {kind}, and on the cluster a {entry.kind}",
                remedy="remove it, or fetch to another path; one that ends in / is a folder to put a file into",
            )


def _fetch(path: str, new: Path, entries: Sequence[Entry]) -> Steps[None]:
    for entry in entries:
        if entry.kind == "folder":
            (new / entry.path).mkdir()
        elif entry.kind == "link":
            (new / entry.path).symlink_to(entry.content)
    for batch in _batches(entry for entry in entries if entry.kind == "file"):
        for offset in range(0, batch[-1].size or 1, PIECE):
            # An empty one is read, too, which creates it.
            pieces = tuple(
                Piece(str(PurePosixPath(path, entry.path)), offset, min(PIECE, entry.size - offset)) for entry in batch
            )
            for entry, piece in zip(batch, (yield ReadPieces(pieces)), strict=True):
                with open(new / entry.path, "ab") as opened:
                    opened.write(piece.data)
    for entry in entries:
        if entry.kind != "link":
            (new / entry.path).chmod(entry.mode)


# Both directions


def _changed(entries: Sequence[Entry], others: Mapping[str, Entry]) -> list[Entry]:
    """Entries that are missing among the others or differ, each after the folders that lead to it."""
    changed = {entry for entry in entries if not _is_same(entry, others.get(entry.path))}
    above = {str(folder) for entry in changed for folder in PurePosixPath(entry.path).parents}
    return [entry for entry in entries if entry in changed or (entry.path or ".") in above]


def _is_same(entry: Entry, other: Entry | None) -> bool:
    # A folder keeps its own mode: it may be a home, or that of another user.
    return entry == other or (other is not None and entry.kind == other.kind == "folder")


def _batches(entries: Iterable[Entry]) -> Iterator[list[Entry]]:
    """Entries whose contents fit into one piece together; an entry with more is alone."""
    batch: list[Entry] = []
    size = 0
    for entry in entries:
        if batch and (len(batch) == _MOST_FILES or size + entry.size > PIECE):
            yield batch
            batch, size = [], 0
        batch.append(entry)
        size += entry.size
    if batch:
        yield batch


def _verify(top: PurePath, entries: Iterable[Entry], arrived: Mapping[str, Entry]) -> None:
    # Some file systems have no modes.
    for entry in entries:
        found = arrived.get(entry.path)
        if found is None or (found.kind, found.content) != (entry.kind, entry.content):
            raise FileError(
                f"{top / entry.path} changed while it was read, or was damaged on the way",
                remedy="copy it once nothing writes to it any more",
            )


def _copied(entries: Iterable[Entry], changed: Iterable[Entry], left_out: int = 0) -> Copied:
    new = [entry.size for entry in changed if entry.kind == "file"]
    return Copied(sum(1 for entry in entries if entry.kind == "file"), len(new), sum(new), left_out)


# This machine's side


class LocalFileError(SlurmError):
    """A file on the machine that runs the task is missing or of the wrong kind."""


_KINDS: dict[int, Kind] = {stat.S_IFREG: "file", stat.S_IFDIR: "folder", stat.S_IFLNK: "link"}


def entries_on_disk(top: Path) -> list[Entry]:
    """List a file, or a folder with all its content: its parents come before an entry."""
    if not top.exists():
        raise LocalFileError(
            f"there is no {top}", remedy="paths are relative to the DAG's file; check that it is beside that"
        )
    entries = list(_entries_below(top, ""))
    if not entries:
        raise LocalFileError(f"{top} is neither a file nor a folder")
    return entries


def _entries_below(top: Path, path: str) -> Iterator[Entry]:
    entry = entry_on_disk(top, path)
    if entry:
        yield entry
        if entry.kind == "folder":
            for name in sorted(os.listdir(top / path)):
                yield from _entries_below(top, os.path.join(path, name))


def entry_on_disk(top: Path, path: str) -> Entry | None:
    """The entry at a path below a folder, if it exists; the link at the top is followed, links below are not."""
    content = ""
    try:
        about = os.stat(top / path, follow_symlinks=not path)
        kind = _KINDS.get(stat.S_IFMT(about.st_mode))
        if kind == "file":
            content = _sha256(top / path)
        elif kind == "link":
            content = decoded(os.fsencode(os.readlink(top / path)))
    except (FileNotFoundError, NotADirectoryError):
        return None
    return Entry(decoded(os.fsencode(path)), kind, about.st_mode, about.st_size, content) if kind else None


def _sha256(file: Path) -> str:
    found = hashlib.sha256()
    with open(file, "rb") as opened:
        while data := opened.read(PIECE):
            found.update(data)
    return found.hexdigest()


def _found_on_disk(top: Path, entries: Iterable[Entry]) -> dict[str, Entry]:
    """Those of the entries that exist, by their paths; what is behind a link below the top does not count."""
    found: dict[str, Entry] = {}
    for entry in entries:
        above = found.get(posixpath.dirname(entry.path))
        is_within = not entry.path or (above is not None and above.kind == "folder")
        if is_within and (there := entry_on_disk(top, entry.path)):
            found[entry.path] = there
    return found


def check_place_on_disk(target: Path) -> None:
    """Reject a target at which this process cannot write."""
    there = next(folder for folder in (target, *target.parents) if folder.is_dir())
    if not os.access(there, os.W_OK | os.X_OK):
        raise LocalFileError(
            f"{target} cannot be written: {there} is read-only, or belongs to another user",
            remedy="download to an absolute path where the Airflow worker may write",
        )


@contextmanager
def staging_on_disk(target: Path, tag: str) -> Iterator[Path]:
    """A temporary path on the same file system as the target; removed in the end, or by the next with the same tag."""
    check_place_on_disk(target)
    within = target if target.is_dir() else target.parent
    within.mkdir(parents=True, exist_ok=True)
    for left in within.glob(f".incoming-{tag}-*"):
        shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=f".incoming-{tag}-", dir=within) as folder:
        yield Path(folder, "new")


def place_on_disk(new: Path, target: Path, entries: Sequence[Entry]) -> None:
    """Move new content into place; existing folders keep their modes and other files. A folder replaces a link."""
    if not target.is_dir():
        os.replace(new, target)
        return
    for entry in entries[1:]:
        place = target / entry.path
        if entry.kind != "folder":
            os.replace(new / entry.path, place)
            continue
        if place.is_symlink():
            place.unlink()
        with suppress(FileExistsError):
            place.mkdir()
            place.chmod(entry.mode)
