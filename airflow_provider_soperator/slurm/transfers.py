"""Transfers of files to and from the cluster: lists of files, staged pieces, and their move into place.

Every request can be repeated, as a connection may break during it. New content is assembled in a staging folder on the
same file system as its target, and moved there as a whole.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Literal

from airflow_provider_soperator.slurm.files import FileError, FileRequest, absolute, done
from airflow_provider_soperator.slurm.requests import Command, CommandOutput, Request

#: Seconds that the cluster may take to list or read a large folder.
_LONG = 3600.0
#: The name of new content within its staging folder.
_NEW = "new"

Kind = Literal["file", "folder", "link"]
_KINDS: dict[str, Kind] = {"f": "file", "d": "folder", "l": "link"}
_OWNER_MAY_ALL = 0o700


@dataclass(frozen=True)
class Entry:
    """A file, a folder or a symbolic link, by its path below the copied one, which itself is ``""``.

    Folders are writable by their owner, as they are filled piece by piece.

    >>> oct(Entry("src", "folder", 0o555).mode)
    '0o755'
    """

    path: str
    kind: Kind
    mode: int
    size: int = 0
    #: The target of a link.
    target: str = ""

    def __post_init__(self) -> None:
        # Other bits depend on the parent folder.
        mode = self.mode & 0o777 | (_OWNER_MAY_ALL if self.kind == "folder" else 0)
        object.__setattr__(self, "mode", 0 if self.kind == "link" else mode)
        object.__setattr__(self, "size", self.size if self.kind == "file" else 0)

    def is_like(self, other: Entry) -> bool:
        """True if the entries are equal, apart from their content."""
        # The top folder may be a home: it keeps its own mode.
        return self == other or (not self.path and self.kind == other.kind == "folder")


def decoded(name: bytes) -> str:
    """Decode a name; ``FileError`` if it is not UTF-8."""
    try:
        return name.decode()
    except UnicodeDecodeError:
        raise FileError(f"the name {name!r} is not UTF-8", remedy="rename the file") from None


@dataclass(frozen=True)
class WorkingFolder(FileRequest[PurePosixPath]):
    """Get the working folder of commands, and of jobs by default."""

    def command(self) -> Command:
        return Command(("pwd",))

    def read(self, answer: CommandOutput) -> PurePosixPath:
        return PurePosixPath(decoded(done(answer, "finding the working folder").stdout.removesuffix(b"\n")))


# The pattern is not split, and only expands to names: bash does not expand the result again.
_MATCH = """\
shopt -s nullglob globstar
IFS=
for name in $1; do printf '%s\\0' "$name"; done
"""


@dataclass(frozen=True)
class Match(FileRequest[tuple[str, ...]]):
    """Find the paths that match a shell pattern (``*``, ``?``, ``[a-z]``, and ``**`` for folders below)."""

    pattern: str

    def command(self) -> Command:
        return Command(("bash", "-c", _MATCH, "match", absolute(self.pattern)), timeout=_LONG)

    def read(self, answer: CommandOutput) -> tuple[str, ...]:
        return tuple(map(decoded, _ended(done(answer, f"looking for {self.pattern}").stdout)))


_FORMAT = "%y %m %s %l\\0"


@dataclass(frozen=True)
class ListAll(FileRequest[tuple[Entry, ...]]):
    """List a file, or a folder with all its content; the link at the top is followed, links below are not."""

    path: str

    def command(self) -> Command:
        return Command(("find", "-H", absolute(self.path), "-printf", f"{_FORMAT}%P\\0"), timeout=_LONG)

    def read(self, answer: CommandOutput) -> tuple[Entry, ...]:
        return _entries(done(answer, f"listing {self.path}"))


# Missing files are expected, so their errors are dropped.
_LIST_SOME = f"""\
cd -- "$1" 2>/dev/null || exit 0
xargs -0 sh -c 'find "$@" -maxdepth 0 -printf "{_FORMAT}%p\\\\0"' list 2>/dev/null
exit 0
"""


@dataclass(frozen=True)
class ListSome(FileRequest[tuple[Entry, ...]]):
    """List some paths below a folder, which need not exist itself."""

    folder: str
    paths: tuple[str, ...]

    def command(self) -> Command:
        return Command(
            ("sh", "-c", _LIST_SOME, "list", absolute(self.folder)), stdin=_dotted(self.paths), timeout=_LONG
        )

    def read(self, answer: CommandOutput) -> tuple[Entry, ...]:
        found = _entries(done(answer, f"listing {self.folder}"))
        return tuple(dataclasses.replace(entry, path=_undotted(entry.path)) for entry in found)


_HASH = 'cd -- "$1" && xargs -0 sha256sum --zero --'


@dataclass(frozen=True)
class HashFiles(FileRequest[dict[str, str]]):
    """Get the SHA-256 of files by their paths below a folder; unreadable files are left out."""

    folder: str
    paths: tuple[str, ...]

    def command(self) -> Command:
        return Command(("sh", "-c", _HASH, "hash", absolute(self.folder)), stdin=_dotted(self.paths), timeout=_LONG)

    def read(self, answer: CommandOutput) -> dict[str, str]:
        lines = (decoded(line).partition("  ") for line in _ended(answer.stdout))
        return {_undotted(path): digest for digest, _, path in lines}


# Within an existing folder: its parent may belong to others, or be on another file system.
_STAGE = """\
set -e
at=$2
if [ -d "$1" ]; then
    if [ "$4" = file ]; then echo "it is a folder; end its name with / to put a file into it" >&2; exit 1; fi
    at=$1
elif [ -e "$1" ] && [ "$4" = folder ]; then
    echo "it is a file" >&2
    exit 1
fi
mkdir -p -- "$at"
rm -rf -- "$at/$3"
mkdir -m 700 -- "$at/$3"
printf %s "$at/$3"
"""


@dataclass(frozen=True)
class StageFiles(FileRequest[str]):
    """Create an empty staging folder near the target; a leftover one with the same tag is removed."""

    target: str
    kind: Kind
    tag: str

    def command(self) -> Command:
        above = str(PurePosixPath(absolute(self.target)).parent)
        return Command(("sh", "-c", _STAGE, "stage", self.target, above, f".incoming-{self.tag}", self.kind))

    def read(self, answer: CommandOutput) -> str:
        return decoded(done(answer, f"writing to {self.target}").stdout)


def staged(folder: str, path: str = "") -> str:
    """The path of a part within a staging folder."""
    return str(PurePosixPath(folder, _NEW, path))


def member(path: str) -> str:
    """The name of a part as a member of an archive."""
    return str(PurePosixPath(_NEW, path))


@dataclass(frozen=True)
class UnpackFiles(FileRequest[None]):
    """Unpack a tar archive in a folder."""

    folder: str
    archive: bytes = field(repr=False)

    def command(self) -> Command:
        words = ("tar", "-x", "-f", "-", "--touch", "--preserve-permissions", "--no-same-owner")
        return Command((*words, "-C", absolute(self.folder)), stdin=self.archive)

    def read(self, answer: CommandOutput) -> None:
        done(answer, f"writing to {self.folder}")


# The mode comes last, as it may forbid writing.
_WRITE_PIECE = """\
set -e
dd of="$1" bs=1M seek="$2" oflag=seek_bytes conv=notrunc iflag=fullblock status=none
[ -z "$3" ] || chmod -- "$3" "$1"
"""


@dataclass(frozen=True)
class WritePiece(FileRequest[None]):
    """Write a part of a file at its offset; the last one sets the file's mode."""

    path: str
    offset: int
    data: bytes = field(repr=False)
    mode: int | None = None

    def command(self) -> Command:
        mode = "" if self.mode is None else f"{self.mode:o}"
        words = ("sh", "-c", _WRITE_PIECE, "write", absolute(self.path), str(self.offset), mode)
        return Command(words, stdin=self.data)

    def read(self, answer: CommandOutput) -> None:
        done(answer, f"writing {self.path}")


# In an existing folder, links to the new files replace the old ones: no file is ever incomplete, and processes in the
# folder are not disturbed. The folder keeps its mode, which its owner has chosen.
_PLACE = f"""\
set -e
merge() {{
    chmod --reference="$2" -- "$1/{_NEW}"
    cp -rdlfT --preserve=mode -- "$1/{_NEW}" "$2/"
}}
if [ -n "$3" ] && ! [ -e "$1" ]; then exit; fi
if [ -d "$2" ]; then
    merge "$@"
else
    # Another process may put a folder there at this moment.
    mv -fT -- "$1/{_NEW}" "$2" || merge "$@"
fi
rm -rf -- "$1"
"""


@dataclass(frozen=True)
class PlaceFiles(FileRequest[None]):
    """Move the content of a staging folder to its target, or into the target if that is a folder."""

    folder: str
    target: str
    #: True if the move may have been done already.
    is_repeated: bool = False

    def command(self) -> Command:
        words = (absolute(self.folder), absolute(self.target), "again" if self.is_repeated else "")
        return Command(("sh", "-c", _PLACE, "place", *words), timeout=_LONG)

    def read(self, answer: CommandOutput) -> None:
        done(answer, f"moving to {self.target}")

    def again(self) -> Request[None]:
        return dataclasses.replace(self, is_repeated=True)


@dataclass(frozen=True)
class DiscardFiles(FileRequest[None]):
    """Remove a staging folder with its content."""

    folder: str

    def command(self) -> Command:
        return Command(("rm", "-rf", "--", absolute(self.folder)), timeout=_LONG)

    def read(self, answer: CommandOutput) -> None:
        done(answer, f"removing {self.folder}")


def _ended(said: bytes) -> list[bytes]:
    return said.split(b"\0")[:-1]


def _entries(answer: CommandOutput) -> tuple[Entry, ...]:
    words = iter(_ended(answer.stdout))
    return tuple(entry for about, path in zip(words, words, strict=True) if (entry := _entry(about, path)))


def _entry(about: bytes, path: bytes) -> Entry | None:
    """The entry of a line; None for anything but a file, a folder or a link, such as a socket."""
    kind, mode, size, target = decoded(about).split(" ", 3)
    if kind not in _KINDS:
        return None
    return Entry(decoded(path), _KINDS[kind], int(mode, 8), int(size), target)


def _dotted(paths: Iterable[str]) -> bytes:
    """Paths for a command's standard input, with a prefix so that none looks like an option."""
    return b"".join(f"./{path}\0".encode() for path in paths)


def _undotted(path: str) -> str:
    return path.removeprefix("./")
