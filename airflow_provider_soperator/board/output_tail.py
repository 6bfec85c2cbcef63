"""The last lines of a job's output, read when a viewer asks for them."""

from __future__ import annotations

from airflow_provider_soperator.client.output import Console
from airflow_provider_soperator.hooks.slurm import SlurmHook
from airflow_provider_soperator.slurm.files import FileError, Piece, ReadPieces
from airflow_provider_soperator.slurm.job_records import Job, expand_filename

#: Bytes that are read of the end of a file, and lines that are shown.
_BYTES, _LINES = 32 << 10, 200
#: An offset beyond the end of any file: only its size is read.
_BEYOND = (1 << 63) - 1
#: Seconds for which viewers share what was read.
_MAX_AGE = 5.0


async def output_tail(connection: str, job: Job) -> str:
    """The last lines of what a job has printed; raises ``ClusterError`` if they cannot be read."""
    path = expand_filename(job.stdout, job)
    if not path:
        raise FileError("it is not known yet which file the job writes")
    async with SlurmHook(connection).async_client() as client:
        [found] = await client.ask_shared(ReadPieces((Piece(path, _BEYOND, 0),)), _MAX_AGE)
        if found.size is None:
            raise FileError("the job has written no output yet")
        begin = max(0, found.size - _BYTES)
        [piece] = await client.ask_shared(ReadPieces((Piece(path, begin, _BYTES),)), _MAX_AGE)
    console = Console()
    lines = [*console.feed(piece.data), *console.end()]
    # The first one is cut.
    return "\n".join(lines[1 if begin and len(lines) > 1 else 0 :][-_LINES:])
