"""Files in the jail: read pieces of many at once, write one whole, remove some."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import TypeVar

from airflow_provider_soperator.slurm.errors import SlurmError
from airflow_provider_soperator.slurm.requests import Command, CommandOutput, Request

T = TypeVar("T")

#: Default bytes of a piece.
PIECE = 1024 * 1024


#: Remedies by parts of messages.
_REMEDIES = {
    "no space left": "free space there",
    "quota exceeded": "free space there, or raise the quota",
    "permission denied": "check its owner, and the user of the connection",
}


class FileError(SlurmError):
    """A file on the cluster could not be read or written; the message is the cluster's own."""

    def __init__(self, said: str, command: str = "", remedy: str = "") -> None:
        implied = next((known for words, known in _REMEDIES.items() if words in said.lower()), "")
        super().__init__(said, command, remedy or implied)


class FileRequest(Request[T]):
    """A request about files, which not every transport supports."""


def absolute(path: str) -> str:
    """The path, if it is absolute."""
    if not PurePosixPath(path).is_absolute():
        # Relative to the login shell's folder is hardly intended.
        raise FileError(f"{path!r} is not an absolute path on the cluster")
    return path


def done(answer: CommandOutput, doing: str) -> CommandOutput:
    """The answer of a command that succeeded; raises ``FileError`` if it failed."""
    if answer.status:
        first, *more = answer.stderr.decode(errors="replace").strip().splitlines() or [f"status {answer.status}"]
        raise FileError(f"{doing}: {first}" + (f" (and {len(more)} more lines)" if more else ""))
    return answer


@dataclass(frozen=True)
class Piece:
    """A part of a file to read: ``length`` bytes from ``offset`` on."""

    path: str
    offset: int = 0
    length: int = PIECE


@dataclass(frozen=True)
class FilePiece:
    """Bytes that were read from a file. ``size`` is None if the file does not exist (yet)."""

    path: str
    offset: int
    data: bytes
    size: int | None

    @property
    def next_offset(self) -> int:
        return self.offset + len(self.data)


# Prints, for each piece, its bytes, then a mark and the file's size. Size and bytes are read at different moments, so
# there may be fewer bytes than the size says, and only the mark shows their end. One process gets the sizes of all
# files, and only files that have the piece are opened: of a thousand logs few have grown since the last read.
_READ = """\
mark=$1; shift
declare -A sizes
files=(); for ((word = 1; word <= $#; word += 3)); do files+=("${!word}"); done
while IFS= read -r -d '' line; do sizes[${line#* }]=${line%% *}; done < <(
    stat -L --printf='%s %n\\0' -- "${files[@]}" 2>/dev/null)
while [ $# -gt 0 ]; do
    size=${sizes[$1]:--1}
    [ "$size" -gt "$2" ] && dd if="$1" iflag=skip_bytes,count_bytes skip="$2" count="$3" bs=256K status=none
    printf '\\n%s %s\\n' "$mark" "$size"
    shift 3
done
"""


@dataclass(frozen=True)
class ReadPieces(FileRequest[list[FilePiece]]):
    """Read pieces of any number of files in one request; a missing file is not an error."""

    pieces: tuple[Piece, ...]
    _mark: str = field(default_factory=lambda: secrets.token_hex(16), repr=False, compare=False)

    def command(self) -> Command:
        words = [word for p in self.pieces for word in (absolute(p.path), str(p.offset), str(p.length))]
        return Command(
            ("bash", "-c", _READ, "read", self._mark, *words),
            # Marks, and pieces of full length.
            max_output=sum(p.length + 128 for p in self.pieces) + 65536,
        )

    def read(self, answer: CommandOutput) -> list[FilePiece]:
        done(answer, "reading files")
        rest, found = answer.stdout, []
        for piece in self.pieces:
            data, mark, rest = rest.partition(f"\n{self._mark} ".encode())
            size, newline, rest = rest.partition(b"\n")
            if not mark or not newline:
                raise FileError(f"reading {piece.path}: the answer is truncated")
            found.append(FilePiece(piece.path, piece.offset, data, int(size) if int(size) >= 0 else None))
        return found


# A file appears whole or not at all: it is written beside its place and moved there.
_WRITE = """\
set -e
partial=$(mktemp -- "$1.XXXXXX")
trap 'rm -f -- "$partial"' EXIT
cat >"$partial"
chmod -- "$2" "$partial"
mv -f -- "$partial" "$1"
trap - EXIT
"""


@dataclass(frozen=True)
class WriteFile(FileRequest[None]):
    """Write a whole file, replacing any that exists; its folder must exist."""

    path: str
    data: bytes = field(repr=False)
    mode: int = 0o644

    def command(self) -> Command:
        return Command(("sh", "-c", _WRITE, "write", absolute(self.path), f"{self.mode:o}"), stdin=self.data or b"")

    def read(self, answer: CommandOutput) -> None:
        done(answer, f"writing {self.path}")


@dataclass(frozen=True)
class MakeFolder(FileRequest[None]):
    """Create a folder and its parents; an existing one is not changed."""

    path: str
    mode: int = 0o755

    def command(self) -> Command:
        return Command(("mkdir", "-p", "-m", f"{self.mode:o}", "--", absolute(self.path)))

    def read(self, answer: CommandOutput) -> None:
        done(answer, f"making {self.path}")


@dataclass(frozen=True)
class RemoveFiles(FileRequest[None]):
    """Remove files; missing ones are not an error."""

    paths: tuple[str, ...]

    def command(self) -> Command:
        return Command(("rm", "-f", "--", *map(absolute, self.paths)))

    def read(self, answer: CommandOutput) -> None:
        done(answer, "removing files")
