"""What a task returns about its job: the report, and what the job has computed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, NoReturn

from airflow_provider_soperator.errors import LastingError
from airflow_provider_soperator.slurm import hostlist
from airflow_provider_soperator.slurm.files import FileError, FilePiece, Piece, ReadPieces
from airflow_provider_soperator.slurm.job_description import InvalidJob, JobDescription
from airflow_provider_soperator.slurm.job_ids import JobId
from airflow_provider_soperator.slurm.job_records import (
    OF_ELEMENTS,
    AccountingJob,
    Job,
    JobStatus,
    Json,
    absolute_pattern,
    expand_filename,
    letters_of,
    resource,
)
from airflow_provider_soperator.slurm.notations import ExitCode, parse_bytes
from airflow_provider_soperator.slurm.requests.commands import Steps
from airflow_provider_soperator.slurm.sbatch_arguments import asked_for, indices_asked_for
from airflow_provider_soperator.slurm.states import UNKNOWN_JOB, JobState
from airflow_provider_soperator.values import is_template, shell_path, storable


def report_of(status: JobStatus) -> Json:
    """The report of a job. Elements of an array and components of a heterogeneous job are in ``parts``.

    A part has the fields of the whole. What is unknown is null; so are figures of accounting where there is none.
    """
    used = {job.id: usage_of(job) for job in status.accounted}
    if len(status.parts) == 1 and status.parts[0].id == status.id:
        [part] = status.parts
        return _report(part, part.output, used.values()) | {"lost": status.lost, "parts": []}
    parts = [_report(part, part.output, [used[part.id]] if part.id in used else []) for part in status.parts]
    whole = _report(_whole(status), _pattern(status), used.values())
    return whole | {"lost": status.lost, "parts": parts}


def status_of(said: Json) -> JobStatus:
    """The status that a report was made of, as far as the report has it."""
    is_known = said["state"] != str(UNKNOWN_JOB)
    parts = said["parts"] or [said] * is_known
    return JobStatus(id=JobId.parse(said["job_id"]), parts=tuple(map(_part_of, parts)), lost=said["lost"])


def _whole(status: JobStatus) -> Job:
    """A job with parts as one; its end is that of the most relevant part."""
    if status.telling is None:
        return Job(id=status.id)
    # Thousands of elements share some nodes, and reading hostlists takes time.
    nodes = {part.nodelist for part in status.parts if part.nodelist}
    return replace(
        status.telling,
        id=status.id,
        raw_id=status.id.job,
        nodelist=hostlist.fold(nodes) if nodes else "",
        restarts=sum(part.restarts for part in status.parts),
        submitted=min((part.submitted for part in status.parts if part.submitted), default=None),
        started=min((part.started for part in status.parts if part.started), default=None),
        ends=max((part.ends for part in status.parts if part.ends), default=None),
    )


def _pattern(status: JobStatus) -> str:
    """Where a job with parts writes: the pattern of an array's files; the file of a heterogeneous job."""
    if not status.parts:
        return ""
    first = status.parts[0]
    if first.id.part is not None:
        # The batch script runs in the first component only.
        return first.output
    # Before v0.0.43 slurmrestd has the files, and not their pattern. Elements that never ran may have none.
    patterns = {absolute_pattern(part.stdout, part): part for part in status.parts if part.stdout}
    if len(patterns) != 1:
        return ""
    [(pattern, part)] = patterns.items()
    return expand_filename(pattern, replace(part, id=status.id), OF_ELEMENTS)


def _report(job: Job, output: str, used: Iterable[Usage]) -> Json:
    is_over = job.state.is_finished
    elapsed = job.ends - job.started if is_over and job.started and job.ends else job.time_used
    return {
        "job_id": str(job.id),
        "raw_id": job.raw_id,
        "name": job.name,
        "state": str(job.state),
        "exit_code": f"{job.exit_code.code}:{job.exit_code.signal}" if is_over else None,
        "reason": job.reason,
        "cancelled_by": job.state.cancelled_by,
        "nodes": job.nodelist,
        "restarts": job.restarts,
        "submitted": _written(job.submitted),
        "started": _written(job.started),
        "ended": _written(job.ends) if is_over else None,
        "elapsed": elapsed.total_seconds() if isinstance(elapsed, timedelta) else None,
        "workdir": job.workdir,
        "output": output,
        **figures(used),
    }


def _part_of(said: Json) -> Job:
    return Job(
        id=JobId.parse(said["job_id"]),
        raw_id=said["raw_id"],
        name=said["name"],
        state=replace(JobState.parse(said["state"]), cancelled_by=said["cancelled_by"]),
        exit_code=ExitCode.parse(said["exit_code"] or "0:0"),
        nodelist=said["nodes"],
        reason=said["reason"],
        restarts=said["restarts"],
        submitted=_when(said["submitted"]),
        started=_when(said["started"]),
        ends=_when(said["ended"]),
        workdir=said["workdir"],
        stdout=said["output"].replace("%", "%%"),
    )


def _written(when: datetime | None) -> str | None:
    return when.isoformat() if when else None


def _when(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None


_HOUR = 3600.0
_NOTHING = timedelta(0)


@dataclass(frozen=True, kw_only=True)
class Usage:
    """What a job, or a part of one, has used."""

    #: Of its runs before a requeue, too: they were charged as well. None if Slurm does not count GPUs.
    gpu_seconds: float | None
    #: Seconds of its CPUs while it had them; and while they computed, if its steps were measured.
    core_seconds: float
    cpu_seconds: float | None
    #: Bytes of memory that it had, and of the most that it used at a time.
    memory: int | None
    peak_memory: int | None


def usage_of(job: AccountingJob) -> Usage:
    """What a job has used: the CPU time of all steps, and the peak of the step with the largest, of all its tasks."""
    runs = (*job.earlier_runs, job)
    cpu_times = [step.cpu_time for step in job.steps if step.cpu_time is not None]
    peaks = [step.total_rss for step in job.steps if step.total_rss]
    gpu_seconds = sum(run.gpus * (run.elapsed or _NOTHING).total_seconds() for run in runs)
    return Usage(
        gpu_seconds=gpu_seconds if job.counts_gpus else None,
        core_seconds=int(resource(job.tres, "cpu") or 1) * (job.elapsed or _NOTHING).total_seconds(),
        cpu_seconds=sum(cpu_times, _NOTHING).total_seconds() if cpu_times else None,
        memory=parse_bytes(resource(job.tres, "mem")),
        peak_memory=max(peaks, default=None),
    )


def figures(used: Iterable[Usage]) -> dict[str, float | None]:
    """The figures of a job from those of its parts: sums, and of memory the part that came closest to its limit."""
    used = list(used)
    gpu_seconds = [one.gpu_seconds for one in used if one.gpu_seconds is not None]
    measured = [one for one in used if one.cpu_seconds is not None]
    cores = sum(one.core_seconds for one in measured)
    computed = sum(one.cpu_seconds or 0.0 for one in measured)
    shares = [one.peak_memory / one.memory for one in used if one.peak_memory and one.memory]
    return {
        "gpu_hours": round(sum(gpu_seconds) / _HOUR, 4) if gpu_seconds else None,
        "cpu_efficiency": round(computed / cores, 4) if cores else None,
        "memory_efficiency": round(max(shares), 4) if shares else None,
        "peak_memory": max((one.peak_memory for one in used if one.peak_memory), default=None),
    }


def gauges(report: Mapping[str, Any]) -> list[tuple[str, float | None, dict[str, str]]]:
    names = ("elapsed", "gpu_hours", "cpu_efficiency", "memory_efficiency", "peak_memory")
    return [(f"job.{name}", report[name], {"state": report["state"]}) for name in names]


def in_words(report: Mapping[str, Any]) -> str:
    """Figures as a sentence without its subject; empty without any.

    >>> in_words({"gpu_hours": 1.5, "cpu_efficiency": 0.784, "memory_efficiency": 0.25, "peak_memory": 3 << 30})
    'used 1.50 GPU-hours, 78 % of its CPU time, at most 3.00 GiB of memory (25 %)'
    """
    said = []
    if report["gpu_hours"]:
        said.append(f"{report['gpu_hours']:.2f} GPU-hours")
    if report["cpu_efficiency"] is not None:
        said.append(f"{_percent(report['cpu_efficiency'])} of its CPU time")
    if report["peak_memory"] is not None:
        share = report["memory_efficiency"]
        of_all = "" if share is None else f" ({_percent(share)})"
        said.append(f"at most {_size(report['peak_memory'])} of memory{of_all}")
    return f"used {', '.join(said)}" if said else ""


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _size(count: int) -> str:
    return f"{count / 2**30:.2f} GiB" if count >= 1 << 30 else f"{count / 2**20:.1f} MiB"


# Results

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


class ResultError(LastingError, ValueError):
    """A job has succeeded, but what it left is no result. The message ends with the remedy."""


def check_result(said: Any, job: JobDescription | None = None) -> None:
    """Raise ``InvalidJob`` for a parameter ``result`` that means nothing; a template is checked once it is rendered.

    Or that all elements of the ``job``, an array, would leave in one file.
    """
    if said is None or is_template(said):
        return
    is_file = isinstance(said, str) and said.startswith(_FILE) and said != _FILE
    if said not in _FORMS and not is_file:
        raise InvalidJob([f"result must be 'json', 'last_line' or 'file:PATH', got {said!r}"])
    if is_file and (problem := shell_path(said.removeprefix(_FILE))):
        raise InvalidJob([f"result: {problem}"])
    if job is None:
        return
    pattern = said.removeprefix(_FILE) if said.startswith(_FILE) else asked_for(job).output
    if not isinstance(pattern, str) or is_template(pattern) or not letters_of(pattern).isdisjoint(OF_ELEMENTS):
        return
    if len(indices_asked_for(job)) > 1:
        raise InvalidJob([f"result: all elements of the array would write the same file, {pattern}: {_apart(said)}"])


def _apart(said: str) -> str:
    return "name it with %a" if said.startswith(_FILE) else "put %a into output"


def read_result(said: str, status: JobStatus) -> Steps[Any]:
    """Read the result of a job that has succeeded; of an array a list, in the order of the indices.

    ``FileError`` if there is no file; ``ResultError`` if it is none that could be a result.
    """
    is_array = status.is_array
    # The batch script of a heterogeneous job runs in the first component.
    parts = status.parts if is_array else status.parts[:1]
    paths = [_path(said, part) for part in parts]
    if len(set(paths)) < len(paths):
        raise ResultError(f"result: elements of the array have written the same file, {paths[0]}: {_apart(said)}")
    if said.startswith(_FILE):
        sizes = [piece.size or 0 for piece in (yield from _read([Piece(path, _BEYOND, 0) for path in paths]))]
        if sum(sizes) > MOST:
            _too_much(sum(sizes), paths)
        found = yield from _read([Piece(path, 0, size) for path, size in zip(paths, sizes, strict=True)])
        texts = [piece.data for piece in found]
    else:
        found = yield from _read([Piece(path, -LONGEST_LINE, LONGEST_LINE) for path in paths])
        texts = [_last_line(path, piece) for path, piece in zip(paths, found, strict=True)]
        if sum(map(len, texts)) > MOST:
            _too_much(sum(map(len, texts)), paths)
    is_json = said == "json" or (said.startswith(_FILE) and said.endswith(".json"))
    where = "in" if said.startswith(_FILE) else "as the last line of"
    values = [_value(text, f"{where} {path}", is_json) for path, text in zip(paths, texts, strict=True)]
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
        if len(one.data) < min(piece.length, one.size - max(0, piece.offset)):
            raise FileError(
                f"result: {piece.path} cannot be read",
                remedy="see whether it is a file, and the connection's user may read it",
            )
    return found


def _last_line(path: str, end: FilePiece) -> bytes:
    """The last line with something on it. Of one that was overwritten, as by a progress bar, the last version."""
    # A file that was cut, as by a requeue, while a process still wrote to it has NULs where it was.
    _, newline, line = end.data.replace(b"\0", b"").rstrip().replace(b"\r", b"\n").rpartition(b"\n")
    if (end.size or 0) > LONGEST_LINE and not newline:
        raise ResultError(
            f"result: the last line of {path} has more than {LONGEST_LINE >> 10} KiB: write it to a file "
            f"(file:PATH), and large data to the jail, with its path as the result"
        )
    return line


def _value(text: bytes, where: str, is_json: bool) -> Any:
    try:
        value = json.loads(text, **_NUMBERS) if is_json else text.decode(errors="replace")
        is_storable = storable(value) == value
    except (RecursionError, ValueError) as error:
        shown = text[:200].decode(errors="replace")
        raise ResultError(
            f"result: expected JSON {where}, got {shown!r} ({error}): print it on one line, after all else, or write "
            f"it to a file (file:PATH.json)"
        ) from None
    if not is_storable:
        raise ResultError(
            f"result: Airflow's database cannot hold what is {where}, which has a NUL character or half of another "
            f"one: write text in UTF-8, or leave such data in the jail, with its path as the result"
        )
    return value


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON: write null")


def _number(read: Callable[[str], float], text: str) -> float:
    number = read(text)
    if storable(number) is None:
        raise ValueError(f"{text[:40]} is too large for a number: write null, or a text")
    return number


#: Python takes more for numbers than Airflow can hold.
_NUMBERS: Any = {
    "parse_constant": _no_constant,
    "parse_float": partial(_number, float),
    "parse_int": partial(_number, int),
}


def _too_much(count: int, paths: Sequence[str]) -> NoReturn:
    where = paths[0] if len(paths) == 1 else f"{len(paths)} files, such as {paths[0]},"
    raise ResultError(
        f"result: {where} has {count >> 10} KiB, but results go to Airflow's database, and have {MOST >> 10} KiB at "
        f"most: leave large data in the jail, with its path as the result, or copy it (download)"
    )
