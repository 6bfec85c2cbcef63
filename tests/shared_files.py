"""The shared file system of a cluster in memory, as requests read and change it."""

from __future__ import annotations

import io
import tarfile
from collections.abc import MutableMapping
from typing import Any

from airflow_provider_soperator.slurm.files import FilePiece, ReadPieces, RemoveFiles, UnpackFiles


def carried_out(request: ReadPieces | UnpackFiles | RemoveFiles, files: MutableMapping[str, bytes]) -> Any:
    """The answer to a request about files, by their paths."""
    if isinstance(request, ReadPieces):
        found = [(piece, files.get(piece.path)) for piece in request.pieces]
        return [
            FilePiece((data or b"")[piece.offset :][: piece.length], None if data is None else len(data))
            for piece, data in found
        ]
    if isinstance(request, RemoveFiles):
        for path in request.paths:
            files.pop(path, None)
        return None
    with tarfile.open(fileobj=io.BytesIO(request.archive)) as archive:
        for member in archive.getmembers():
            content = archive.extractfile(member)
            assert content is not None
            files[f"{request.folder}/{member.name}"] = content.read()
    return None
