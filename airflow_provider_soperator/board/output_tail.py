"""The last lines of a job's output, read when a viewer asks for them."""

from __future__ import annotations

from airflow_provider_soperator.hooks.slurm import SlurmHook
from airflow_provider_soperator.slurm.files import FileError, Piece, ReadPieces
from airflow_provider_soperator.slurm.job_records import Job

#: Bytes that are read of the end of a file, and lines that are shown.
_BYTES, _LINES = 32 << 10, 200
#: An offset beyond the end of any file: only its size is read.
_BEYOND = (1 << 63) - 1
#: Seconds for which viewers share what was read.
_MAX_AGE = 5.0


async def output_tail(connection: str, job: Job) -> str:
    """The last lines of what a job has printed; raises ``ClusterError`` if they cannot be read."""
    path = job.output
    if not path:
        raise FileError("it is not known yet which file the job writes")
    async with SlurmHook(connection).async_client() as client:
        [found] = await client.ask_shared(ReadPieces((Piece(path, _BEYOND, 0),)), _MAX_AGE)
        if found.size is None:
            raise FileError("the job has written no output yet")
        begin = max(0, found.size - _BYTES)
        [piece] = await client.ask_shared(ReadPieces((Piece(path, begin, _BYTES),)), _MAX_AGE)
    # What a progress bar has overwritten is not shown.
    lines = piece.data.decode(errors="replace").replace("\r\n", "\n").split("\n")
    whole = lines[1:] if begin and len(lines) > 1 else lines
    return "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in whole[-_LINES - 1 :]).strip("\n")
