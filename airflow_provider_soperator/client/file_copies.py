"""Copies of files and folders to and from the cluster: changed files only, in pieces, verified, all or nothing.

Pieces are small, so that they do not block other users of the connection, and are resent one by one if it breaks.
Files are verified by SHA-256 before they are moved into place.
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
from dataclasses import dataclass, replace
from pathlib import Path

from airflow_provider_soperator.slurm.errors import SlurmError
from airflow_provider_soperator.slurm.files import PIECE, FileError, Piece, ReadPieces
from airflow_provider_soperator.slurm.requests.commands import Steps
from airflow_provider_soperator.slurm.transfers import (
    DiscardFiles,
    Entry,
    HashFiles,
    Kind,
    ListAll,
    ListSome,
    PlaceFiles,
    StageFiles,
    UnpackFiles,
    WritePiece,
    decoded,
    member,
    staged,
)
from airflow_provider_soperator.transports.transport_errors import TransportError

pass

#: Files in one request.
_MOST_FILES = 500
#: Bytes of an archive member besides its content.
_HEADER = 1024
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
        said = f"{self.new} of {self.files} files, {_amount(self.size)}"
        said += "; the others were there already" if self.new < self.files else ""
        return said + (f"; {self.left_out} links that lead out of it were left out" if self.left_out else "")


def _amount(size: int) -> str:
    return f"{size} bytes" if size < _MEBIBYTE else f"{size / _MEBIBYTE:.1f} MiB"


# To the cluster


def send(local: Path, target: str, tag: str) -> Steps[Copied]:
    """Copy a file or folder to an absolute path of the cluster.

    ``tag`` identifies the task: the unfinished copy of an earlier try is found and removed by it.
    """
    entries = entries_on_disk(local)
    changed = yield from _changed_here(local, target, entries)
    if changed:
        folder = yield StageFiles(target, entries[0].kind, tag)
        try:
            sent = yield from _put_together(local, folder, _with_folders(changed, entries))
            arrived = yield from _digests(staged(folder), entries[0].kind, sent)
            if damaged := [path or local.name for path, digest in sent.items() if arrived.get(path) != digest]:
                raise FileError(f"{damaged[0]} was damaged on the way", remedy="check the disks of the cluster")
            yield PlaceFiles(folder, target)
        except (SlurmError, OSError):
            with suppress(SlurmError, TransportError):
                yield DiscardFiles(folder)
            raise
    return _copied(entries, changed)


def _changed_here(local: Path, target: str, entries: Sequence[Entry]) -> Steps[list[Entry]]:
    """Entries that are missing on the cluster or differ there."""
    kind = entries[0].kind
    folder, names = _asked(target, kind, [entry.path for entry in entries])
    found: tuple[Entry, ...] = yield ListSome(folder, tuple(names))
    there = {names[entry.path]: replace(entry, path=names[entry.path]) for entry in found}
    alike = [entry for entry in entries if entry.path in there and entry.is_like(there[entry.path])]
    digests = yield from _digests(target, kind, [entry.path for entry in alike if entry.kind == "file"])
    same = {
        entry.path
        for entry in alike
        if entry.kind != "file" or digests.get(entry.path) == digest_on_disk(local / entry.path)
    }
    return [entry for entry in entries if entry.path not in same]


def _put_together(local: Path, folder: str, entries: Iterable[Entry]) -> Steps[dict[str, str]]:
    """Send the entries; returns the SHA-256 of each file as it was sent."""
    digests: dict[str, str] = {}
    archive = _Archive()
    large = []
    for entry in entries:
        if entry.size > PIECE:
            large.append(entry)
            continue
        data = (local / entry.path).read_bytes() if entry.kind == "file" else b""
        archive.add(entry, data)
        if entry.kind == "file":
            digests[entry.path] = hashlib.sha256(data).hexdigest()
        if archive.size >= PIECE:
            yield UnpackFiles(folder, archive.taken())
    if archive.size:
        yield UnpackFiles(folder, archive.taken())
    # Their folders exist by now.
    for entry in large:
        digests[entry.path] = yield from _send_pieces(local / entry.path, staged(folder, entry.path), entry)
    return digests


def _send_pieces(file: Path, path: str, entry: Entry) -> Steps[str]:
    digest, offset = hashlib.sha256(), 0
    with open(file, "rb") as opened:
        while offset < entry.size:
            data = opened.read(PIECE)
            is_last = not data or offset + len(data) >= entry.size
            digest.update(data)
            yield WritePiece(path, offset, data, entry.mode if is_last else None)
            offset = entry.size if is_last else offset + len(data)
    return digest.hexdigest()


class _Archive:
    """A tar archive that grows until it is taken."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self.size = 0
        self._buffer = io.BytesIO()
        self._tar = tarfile.open(fileobj=self._buffer, mode="w", format=tarfile.PAX_FORMAT)  # noqa: SIM115

    def add(self, entry: Entry, data: bytes) -> None:
        about = tarfile.TarInfo(member(entry.path))
        about.mode, about.size, about.linkname = entry.mode, len(data), entry.target
        about.type = {"file": tarfile.REGTYPE, "folder": tarfile.DIRTYPE, "link": tarfile.SYMTYPE}[entry.kind]
        self._tar.addfile(about, io.BytesIO(data))
        self.size += _HEADER + len(data)

    def taken(self) -> bytes:
        self._tar.close()
        data = self._buffer.getvalue()
        self._begin()
        return data


# From the cluster


def bring(path: str, local: Path) -> Steps[Copied]:
    """Copy a file or folder from an absolute path of the cluster."""
    listed: tuple[Entry, ...] = yield ListAll(path)
    if not listed:
        raise FileError(f"{path} is neither a file nor a folder")
    entries = [entry for entry in listed if _stays_within(entry)]
    files = [entry for entry in entries if entry.kind == "file"]
    digests = yield from _digests(path, entries[0].kind, [entry.path for entry in files])
    if unread := [entry.path for entry in files if entry.path not in digests]:
        raise FileError(f"{_joined(path, unread[0])} cannot be read, or was removed meanwhile")
    changed = [entry for entry in entries if not _is_here(entry, local, digests)]
    if changed:
        with staging_on_disk(local, entries[0].kind) as new:
            for entry in _with_folders(changed, entries):
                make_on_disk(new, entry)
            missing = [entry for entry in changed if entry.kind == "file"]
            yield from _fetch(path, new, missing)
            for entry in missing:
                if digest_on_disk(new / entry.path) != digests[entry.path]:
                    raise FileError(
                        f"{_joined(path, entry.path)} changed while it was read",
                        remedy="fetch it once nothing writes to it any more",
                    )
                (new / entry.path).chmod(entry.mode)
            place_on_disk(new, local)
    return _copied(entries, changed, len(listed) - len(entries))


def _is_here(entry: Entry, local: Path, digests: Mapping[str, str]) -> bool:
    found = entry_on_disk(local, entry.path)
    if found is None or not entry.is_like(found):
        return False
    return entry.kind != "file" or digest_on_disk(local / entry.path) == digests[entry.path]


def _stays_within(entry: Entry) -> bool:
    """True unless it is a link that leads out: such a path may be anything on this machine."""
    leads_to = posixpath.normpath(posixpath.join(posixpath.dirname(entry.path), entry.target))
    return entry.kind != "link" or not leads_to.startswith(("/", ".."))


def _fetch(path: str, new: Path, files: Iterable[Entry]) -> Steps[None]:
    """Fetch small files in batches, large ones piece by piece."""
    batch: list[tuple[Piece, Path]] = []
    size = 0
    for entry in files:
        for offset in range(0, max(1, entry.size), PIECE):
            length = min(PIECE, entry.size - offset)
            if len(batch) == _MOST_FILES or size + length > PIECE:
                yield from _fetch_batch(batch)
                batch, size = [], 0
            batch.append((Piece(_joined(path, entry.path), offset, length), new / entry.path))
            size += length
    if batch:
        yield from _fetch_batch(batch)


def _fetch_batch(batch: list[tuple[Piece, Path]]) -> Steps[None]:
    found = yield ReadPieces(tuple(piece for piece, _ in batch))
    for piece, (_, file) in zip(found, batch, strict=True):
        with open(file, "ab") as opened:
            opened.write(piece.data)


# Both directions


def _with_folders(changed: Iterable[Entry], entries: Iterable[Entry]) -> list[Entry]:
    """Changed entries, each after its parent folders."""
    by_path = {entry.path: entry for entry in entries}
    needed = {"": by_path[""]}
    for entry in changed:
        parts = entry.path.split("/")
        for count in range(1, len(parts) + 1):
            path = "/".join(parts[:count])
            needed[path] = by_path[path]
    return list(needed.values())


def _digests(path: str, kind: Kind, below: Iterable[str]) -> Steps[dict[str, str]]:
    """The SHA-256 of files below a path of the cluster; unreadable files are left out."""
    folder, names = _asked(path, kind, below)
    if not names:
        return {}
    found = yield HashFiles(folder, tuple(names))
    return {names[name]: digest for name, digest in found.items()}


def _asked(path: str, kind: Kind, below: Iterable[str]) -> tuple[str, dict[str, str]]:
    """The folder to look in, and the entries' paths by their names there; a single file goes by its own name."""
    if kind == "folder":
        return path, {one: one for one in below}
    return posixpath.dirname(path), {posixpath.basename(path): one for one in below}


def _joined(path: str, below: str) -> str:
    return posixpath.join(path, below) if below else path


def _copied(entries: Iterable[Entry], changed: Iterable[Entry], left_out: int = 0) -> Copied:
    new = [entry.size for entry in changed if entry.kind == "file"]
    return Copied(sum(1 for entry in entries if entry.kind == "file"), len(new), sum(new), left_out)


# This machine's side


class LocalFileError(SlurmError):
    """A file on the machine that runs the task is missing or of the wrong kind."""


def entries_on_disk(top: Path) -> tuple[Entry, ...]:
    """List a file, or a folder with all its content; the link at the top is followed, links below are not."""
    if not top.exists():
        raise LocalFileError(
            f"there is no {top}", remedy="paths are relative to the DAG's file; check that it is beside that"
        )
    first = _disk_entry(top, "", os.stat(top))
    if first is None:
        raise LocalFileError(f"{top} is neither a file nor a folder")
    return (first, *_entries_below(top, ""))


def entry_on_disk(top: Path, path: str) -> Entry | None:
    """The entry at a path below a folder, if it exists."""
    try:
        return _disk_entry(top / path, path, os.stat(top) if not path else os.lstat(top / path))
    except (FileNotFoundError, NotADirectoryError):
        return None


def digest_on_disk(file: Path) -> str:
    """The SHA-256 of a file's content."""
    found = hashlib.sha256()
    with open(file, "rb") as opened:
        while data := opened.read(PIECE):
            found.update(data)
    return found.hexdigest()


@contextmanager
def staging_on_disk(target: Path, kind: Kind) -> Iterator[Path]:
    """A temporary path on the same file system as the target; removed in the end."""
    if kind == "folder" and target.is_file():
        raise LocalFileError(f"{target} is a file", remedy="fetch a folder to a folder")
    if kind == "file" and target.is_dir():
        raise LocalFileError(f"{target} is a folder", remedy="end its name with / to put a file into it")
    within = target if target.is_dir() else target.parent
    within.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=".incoming-", dir=within))
    try:
        yield folder / "new"
    finally:
        shutil.rmtree(folder)


def make_on_disk(top: Path, entry: Entry) -> None:
    """Create a folder or a link; files come with their content later."""
    if entry.kind == "folder":
        (top / entry.path).mkdir(entry.mode)
    elif entry.kind == "link":
        (top / entry.path).symlink_to(entry.target)


def place_on_disk(new: Path, target: Path) -> None:
    """Move new content into place; an existing folder keeps its other files."""
    if not target.is_dir():
        os.replace(new, target)
        return
    for entry in _entries_below(new, ""):
        if entry.kind == "folder":
            (target / entry.path).mkdir(exist_ok=True)
            (target / entry.path).chmod(entry.mode)
        else:
            os.replace(new / entry.path, target / entry.path)


def _entries_below(top: Path, path: str) -> Iterator[Entry]:
    if not (top / path).is_dir():
        return
    with os.scandir(top / path) as found:
        listed = sorted(found, key=lambda one: one.name)
    for one in listed:
        below = decoded(os.fsencode(os.path.join(path, one.name)))
        entry = _disk_entry(top / below, below, one.stat(follow_symlinks=False))
        if entry is None:
            continue
        yield entry
        if entry.kind == "folder":
            yield from _entries_below(top, below)


def _disk_entry(file: Path, path: str, about: os.stat_result) -> Entry | None:
    mode = stat.S_IMODE(about.st_mode)
    if stat.S_ISREG(about.st_mode):
        return Entry(path, "file", mode, about.st_size)
    if stat.S_ISDIR(about.st_mode):
        return Entry(path, "folder", mode)
    if stat.S_ISLNK(about.st_mode):
        return Entry(path, "link", mode, target=decoded(os.fsencode(os.readlink(file))))
    return None


#: Default limit on the bytes of a file that is read whole.
MOST_OF_A_FILE = 64 << 20


def read_file(path: str, most: int) -> Steps[bytes]:
    """Read a whole file, even while it grows; ``FileError`` if it is missing or longer than ``most``."""
    data = bytearray()
    while True:
        [piece] = yield ReadPieces((Piece(path, len(data), min(PIECE, most + 1 - len(data))),))
        if piece.size is None:
            raise FileError(f"there is no file {path}")
        data += piece.data
        if len(data) > most:
            raise FileError(f"{path} has more than {most} bytes")
        if not piece.data or len(data) >= piece.size:
            return bytes(data)
