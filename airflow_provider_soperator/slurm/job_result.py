"""What a job has computed, for the next task: the last line of its output, or a small file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NoReturn

from airflow_provider_soperator.slurm.files import FileError, FilePiece, Piece, ReadPieces
from airflow_provider_soperator.slurm.job_description import InvalidJob
from airflow_provider_soperator.slurm.job_records import Job, JobStatus, expand_filename
from airflow_provider_soperator.slurm.requests.commands import Steps
from airflow_provider_soperator.values import is_template

#: Bytes of the results of all elements of an array together, as they go to Airflow's database.
MOST = 1 << 20
#: Bytes of a last line.
LONGEST_LINE = 64 << 10
#: Files in one request; the last lines of so many have a few MiB.
_AT_ONCE = 100
#: An offset beyond the end of any file: only the size is read.
_BEYOND = (1 << 63) - 1
_FILE = "file:"
_FORMS = ("json", "last_line")


class ResultError(ValueError):
    """A job has succeeded, but what it left is no result. The message ends with the remedy."""


def check_result(said: Any) -> None:
    """Raise ``InvalidJob`` for a parameter ``result`` that means nothing; a template is checked once it is rendered."""
    is_file = isinstance(said, str) and said.startswith(_FILE) and said != _FILE
    if said is not None and said not in _FORMS and not is_file and not is_template(said):
        raise InvalidJob([f"result must be 'json', 'last_line' or 'file:PATH', got {said!r}"])


def read_result(said: str, status: JobStatus) -> Steps[Any]:
    """Read the result of a job that has succeeded; of an array a list, in the order of the indices.

    ``FileError`` if there is no file; ``ResultError`` if it is none that could be a result.
    """
    is_array = status.is_array
    # The batch script of a heterogeneous job runs in the first component.
    parts = status.parts if is_array else status.parts[:1]
    paths = [_path(said, part) for part in parts]
    if len(set(paths)) < len(paths):
        what = "name it with %a" if said.startswith(_FILE) else "put %a into output"
        raise ResultError(f"result: elements of the array have written the same file, {paths[0]}: {what}")
    sizes = [piece.size or 0 for piece in (yield from _read([Piece(path, _BEYOND, 0) for path in paths]))]
    if said.startswith(_FILE):
        if sum(sizes) > MOST:
            _too_much(sum(sizes), paths)
        found = yield from _read([Piece(path, 0, size) for path, size in zip(paths, sizes, strict=True)])
        texts = [piece.data for piece in found]
    else:
        tails = [
            Piece(path, max(0, size - LONGEST_LINE), LONGEST_LINE) for path, size in zip(paths, sizes, strict=True)
        ]
        found = yield from _read(tails)
        texts = [_last_line(tail, piece.data) for tail, piece in zip(tails, found, strict=True)]
        if sum(map(len, texts)) > MOST:
            _too_much(sum(map(len, texts)), paths)
    is_json = said == "json" or (said.startswith(_FILE) and said.endswith(".json"))
    if is_json:
        where = "in" if said.startswith(_FILE) else "as the last line of"
        values = [_json(text, f"{where} {path}") for path, text in zip(paths, texts, strict=True)]
    else:
        values = [text.decode(errors="replace") for text in texts]
    return values if is_array else values[0]


def _path(said: str, part: Job) -> str:
    pattern = said.removeprefix(_FILE) if said.startswith(_FILE) else part.stdout
    path = expand_filename(pattern, part)
    if not path:
        raise ResultError(f"result: it is not known which file job {part.id} has written: name one (file:PATH)")
    return path


def _read(pieces: Sequence[Piece]) -> Steps[list[FilePiece]]:
    found: list[FilePiece] = []
    for start in range(0, len(pieces), _AT_ONCE):
        found += yield ReadPieces(tuple(pieces[start : start + _AT_ONCE]))
    for piece, one in zip(pieces, found, strict=True):
        if one.size is None:
            raise FileError(
                f"result: there is no file {piece.path}", remedy="see whether the job has written it, and chdir"
            )
    return found


def _last_line(tail: Piece, data: bytes) -> bytes:
    """The last line with something on it. Of one that was overwritten, as by a progress bar, the last version."""
    _, newline, line = data.rstrip().replace(b"\r", b"\n").rpartition(b"\n")
    if tail.offset and not newline:
        raise ResultError(
            f"result: the last line of {tail.path} has more than {LONGEST_LINE >> 10} KiB: write it to a file "
            f"(file:PATH), and large data to the jail, with its path as the result"
        )
    return line


def _json(text: bytes, where: str) -> Any:
    try:
        return json.loads(text, parse_constant=_no_constant)
    except (RecursionError, ValueError) as error:
        shown = text[:200].decode(errors="replace")
        raise ResultError(
            f"result: expected JSON {where}, got {shown!r} ({error}): print it on one line, after all else, or write "
            f"it to a file (file:PATH.json)"
        ) from None


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON: write null")


def _too_much(count: int, paths: Sequence[str]) -> NoReturn:
    where = paths[0] if len(paths) == 1 else f"{len(paths)} files, such as {paths[0]},"
    raise ResultError(
        f"result: {where} has {count >> 10} KiB, but results go to Airflow's database, and have {MOST >> 10} KiB at "
        f"most: leave large data in the jail, with its path as the result, or copy it (download)"
    )
