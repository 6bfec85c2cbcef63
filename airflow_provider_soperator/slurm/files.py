"""Files in the jail: read pieces of many at once, list, write, place and remove some.

Every request can be repeated, as a connection may break during it. New content is assembled in a staging folder on the
same file system as its target, and moved there as a whole.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import ClassVar, Literal, TypeVar

from airflow_provider_soperator.slurm.errors import SlurmError
from airflow_provider_soperator.slurm.requests.commands import Command, CommandOutput, Order, Request
from airflow_provider_soperator.slurm.sbatch_arguments import by_bash

T = TypeVar("T")

#: Default bytes of a piece.
PIECE = 1024 * 1024
#: Seconds that the cluster may take to list, move or remove a large folder.
_LONG = 3600.0

#: Remedies by parts of messages.
_REMEDIES = {
    "no space left": "free space there",
    "quota exceeded": "free space there, or raise the quota",
    "no such file": "see whether it was written; relative paths begin at the job's working directory",
    "permission denied": "check its owner, and the user of the connection",
}


class FileError(SlurmError):
    """A file on the cluster could not be read or written; the message is the cluster's own."""

    def __init__(self, said: str, command: str = "", remedy: str = "") -> None:
        implied = next((known for words, known in _REMEDIES.items() if words in said.lower()), "")
        super().__init__(said, command, remedy or implied)


class FileRequest(Request[T]):
    """A request about files, which not every transport supports."""

    #: What it does, for messages, with its fields as placeholders.
    doing: ClassVar[str]

    def error(self, answer: CommandOutput) -> SlurmError:
        first, *more = answer.stderr.decode(errors="replace").strip().splitlines() or [f"status {answer.status}"]
        said = f"{self.doing.format_map(vars(self))}: {first}"
        return FileError(said + (f" (and {len(more)} more lines)" if more else ""))


class FileOrder(FileRequest[None], Order):
    """A request that changes files, and has no answer but success."""


def absolute(path: str) -> str:
    if not PurePosixPath(path).is_absolute():
        # Relative to the login shell's folder is hardly intended.
        raise FileError(f"{path!r} is not an absolute path on the cluster")
    return path


def decoded(name: bytes) -> str:
    try:
        return name.decode()
    except UnicodeDecodeError:
        raise FileError(f"the name {name!r} is not UTF-8", remedy="rename the file") from None


def _words(answer: CommandOutput) -> list[str]:
    return [decoded(word) for word in answer.stdout.split(b"\0")[:-1]]


@dataclass(frozen=True)
class Piece:
    """A part of a file to read: ``length`` bytes from ``offset`` on, which counts from the end if it is negative."""

    path: str
    offset: int = 0
    length: int = PIECE


@dataclass(frozen=True)
class FilePiece:
    """Bytes that were read from a file. ``size`` is None if the file does not exist (yet)."""

    data: bytes
    size: int | None


# Prints, for each piece, its bytes, then a mark and the file's size. Size and bytes are read at different moments, so
# there may be fewer bytes than the size says, and only the mark shows their end. One process gets the sizes of all
# files. Of a file that was opened before, NFS knows the size of this moment; a FIFO would wait for a writer. Where an
# older size will do, only files that have the piece are opened: of a thousand logs few have grown since the last read.
_READ = """\
mark=$1 cached=$2; shift 2
declare -A sizes
files=()
for ((word = 1; word <= $#; word += 3)); do
    files+=("${!word}")
    [ "$cached" ] || [ ! -f "${!word}" ] || true <"${!word}"
done 2>/dev/null
while IFS= read -r -d '' line; do sizes[${line#* }]=${line%% *}; done < <(
    stat -L --printf='%s %n\\0' -- "${files[@]}" 2>/dev/null)
while [ $# -gt 0 ]; do
    size=${sizes[$1]:--1} from=$2
    [ "$from" -ge 0 ] || from=$((size + from < 0 ? 0 : size + from))
    [ "$size" -gt "$from" ] && dd if="$1" iflag=skip_bytes,count_bytes skip="$from" count="$3" bs=256K status=none
    printf '\\n%s %s\\n' "$mark" "$size"
    shift 3
done
"""


@dataclass(frozen=True)
class ReadPieces(FileRequest[list[FilePiece]]):
    """Read pieces of any number of files in one request; a missing file is not an error.

    If ``cached``, a file may seem to be as short as it was some seconds ago.
    """

    doing = "reading files"
    pieces: tuple[Piece, ...]
    cached: bool = False
    _mark: str = field(default_factory=lambda: secrets.token_hex(16), repr=False, compare=False)

    def command(self) -> Command:
        words = [word for p in self.pieces for word in (absolute(p.path), str(p.offset), str(p.length))]
        return Command(
            by_bash(_READ, "read", self._mark, "cached" * self.cached, *words),
            # Marks, and pieces of full length.
            max_output=sum(p.length + 128 for p in self.pieces) + 65536,
        )

    def read(self, answer: CommandOutput) -> list[FilePiece]:
        rest, found = self.check(answer).stdout, []
        for piece in self.pieces:
            data, mark, rest = rest.partition(f"\n{self._mark} ".encode())
            size, newline, rest = rest.partition(b"\n")
            if not mark or not newline:
                raise FileError(f"reading {piece.path}: the answer is truncated")
            found.append(FilePiece(data, int(size) if int(size) >= 0 else None))
        return found


@dataclass(frozen=True)
class RemoveFiles(FileOrder):
    """Remove files, and folders with their content; missing ones are not an error."""

    doing = "removing files"
    paths: tuple[str, ...]

    def command(self) -> Command:
        # There may be more than fit into one command line.
        names = b"".join(f"{absolute(path)}\0".encode() for path in self.paths)
        return Command(("xargs", "-0", "rm", "-rf", "--"), stdin=names, timeout=_LONG)


@dataclass(frozen=True)
class JobFolder(Request[PurePosixPath]):
    """Get the folder in which jobs run by default: it is that of their user, and not of the one of files."""

    def command(self) -> Command:
        return Command(("pwd",))

    def read(self, answer: CommandOutput) -> PurePosixPath:
        return PurePosixPath(decoded(self.check(answer).stdout.removesuffix(b"\n")))


@dataclass(frozen=True)
class WorkingFolder(FileRequest[PurePosixPath], JobFolder):
    """Get the folder in which commands about files run."""

    doing = "finding the working folder"


# The pattern is not split, and only expands to names: bash does not expand the result again.
_MATCH = """\
shopt -s nullglob globstar
IFS=
for name in $1; do printf '%s\\0' "$name"; done
"""


@dataclass(frozen=True)
class Match(FileRequest[tuple[str, ...]]):
    """Find the paths that match a shell pattern (``*``, ``?``, ``[a-z]``, and ``**`` for folders below)."""

    doing = "looking for {pattern}"
    pattern: str

    def command(self) -> Command:
        return Command(by_bash(_MATCH, "match", absolute(self.pattern)), timeout=_LONG)

    def read(self, answer: CommandOutput) -> tuple[str, ...]:
        return tuple(_words(self.check(answer)))


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
    #: The SHA-256 of a file; the target of a link.
    content: str = ""

    def __post_init__(self) -> None:
        # Other bits depend on the parent folder.
        mode = self.mode & 0o777 | (_OWNER_MAY_ALL if self.kind == "folder" else 0)
        object.__setattr__(self, "mode", 0 if self.kind == "link" else mode)
        object.__setattr__(self, "size", self.size if self.kind == "file" else 0)


# Entries, each as two words, and before or after others a word for each file, as sha256sum prints it.
_FIND = """\
find %s \\( -type f -o -type d -o -type l \\) -printf "%%y %%m %%s %%l\\0%%p\\0" -type f -exec sha256sum --zero -- {} +
"""


@dataclass(frozen=True)
class ListFiles(FileRequest[dict[str, Entry]]):
    """List a file, or a folder with all its content: its parents come before an entry.

    The link at the top is followed, links below are not. With ``paths``, only those are listed that exist, each added
    to the text of ``top``, which ends in a slash if it has to be a folder.
    """

    doing = "listing {top}"
    top: str
    paths: tuple[str, ...] | None = None

    def command(self) -> Command:
        absolute(self.top)
        find = _FIND % ('-H "$@"' if self.paths is None else '"$@" -maxdepth 0')
        names = b"".join(f"{self.top}{path}\0".encode() for path in self.paths or [""])
        return Command(("xargs", "-0", "sh", "-c", find, "list"), stdin=names, timeout=_LONG)

    def read(self, answer: CommandOutput) -> dict[str, Entry]:
        if self.paths is None:
            # Otherwise missing files are expected.
            self.check(answer)
        found: dict[str, Entry] = {}
        words = iter(_words(answer))
        for word in words:
            if word[1] == " ":
                kind, mode, size, target = word.split(" ", 3)
                path = self._below(next(words))
                found[path] = Entry(path, _KINDS[kind], int(mode, 8), int(size), target)
            else:
                digest, _, name = word.partition("  ")
                path = self._below(name)
                found[path] = replace(found[path], content=digest)
        return found

    def _below(self, path: str) -> str:
        return path.removeprefix(self.top).lstrip("/")


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

    doing = "writing to {target}"
    target: str
    kind: Kind
    tag: str

    def command(self) -> Command:
        above = str(PurePosixPath(absolute(self.target)).parent)
        return Command(("sh", "-c", _STAGE, "stage", self.target, above, f".incoming-{self.tag}", self.kind))

    def read(self, answer: CommandOutput) -> str:
        return decoded(self.check(answer).stdout)


def staged(folder: str, path: str = "") -> str:
    """The path of a part of the new content within a staging folder."""
    return str(PurePosixPath(folder, "new", path))


@dataclass(frozen=True)
class UnpackFiles(FileOrder):
    """Unpack a tar archive in a folder."""

    doing = "writing to {folder}"
    folder: str
    archive: bytes = field(repr=False)

    def command(self) -> Command:
        words = ("tar", "-x", "-f", "-", "--touch", "--preserve-permissions", "--no-same-owner")
        return Command((*words, "-C", absolute(self.folder)), stdin=self.archive)


# The mode may forbid writing.
_WRITE_PIECE = """\
set -e
[ ! -e "$1" ] || chmod u+w -- "$1"
dd of="$1" bs=1M seek="$2" oflag=seek_bytes conv=notrunc iflag=fullblock status=none
chmod -- "$3" "$1"
"""


@dataclass(frozen=True)
class WritePiece(FileOrder):
    """Write a part of a file at its offset, and set the file's mode."""

    doing = "writing {path}"
    path: str
    offset: int
    data: bytes = field(repr=False)
    mode: int

    def command(self) -> Command:
        words = (absolute(self.path), str(self.offset), f"{self.mode:o}")
        return Command(("sh", "-c", _WRITE_PIECE, "write", *words), stdin=self.data)


# In an existing folder, links to the new files replace the old ones: no file is ever incomplete, and processes in the
# folder are not disturbed. Folders that exist keep their modes, which their owners have chosen; new ones get theirs.
_PLACE = """\
set -e
merge() { (umask 0; cp -rdlfT -- "$1/new" "$2/"); }
# Otherwise it was moved before the connection broke.
if [ -e "$1/new" ]; then
    if [ -d "$2" ]; then
        merge "$@"
    else
        # Another process may put a folder there at this moment.
        mv -fT -- "$1/new" "$2" || merge "$@"
    fi
fi
rm -rf -- "$1"
"""


@dataclass(frozen=True)
class PlaceFiles(FileOrder):
    """Move the content of a staging folder to its target, or into the target if that is a folder."""

    doing = "moving to {target}"
    folder: str
    target: str

    def command(self) -> Command:
        return Command(("sh", "-c", _PLACE, "place", absolute(self.folder), absolute(self.target)), timeout=_LONG)
