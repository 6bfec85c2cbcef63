"""What a job has computed, read from files by the program that runs on the cluster."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_soperator.slurm.files import FileError
from airflow_provider_soperator.slurm.job_description import InvalidJob
from airflow_provider_soperator.slurm.job_ids import JobId
from airflow_provider_soperator.slurm.job_records import Job, JobStatus
from airflow_provider_soperator.slurm.job_reports import LONGEST_LINE, MOST, ResultError, check_result, read_result
from airflow_provider_soperator.slurm.requests import CommandOutput, Request
from airflow_provider_soperator.slurm.requests.commands import run_steps
from airflow_provider_soperator.slurm.states import JobState


def bash(request: Request[Any]) -> Any:
    command = request.command()
    ran = subprocess.run(command.argv, input=command.stdin, capture_output=True)
    return request.read(CommandOutput(ran.returncode, ran.stdout, ran.stderr))


def ended(folder: Path, *parts: str, stdout: str = "%A_%a.out") -> JobStatus:
    done = JobState.parse("COMPLETED")
    records = (Job(id=JobId.parse(part), raw_id=7, state=done, workdir=str(folder), stdout=stdout) for part in parts)
    return JobStatus(id=JobId(7), parts=tuple(records))


def result(said: str, status: JobStatus) -> Any:
    return run_steps(read_result(said, status), bash)


def printed(folder: Path, text: str | bytes, name: str = "7.out") -> JobStatus:
    (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    return ended(folder, "7", stdout="%j.out")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("step 1\nloss 0.1\n", "loss 0.1"),
        ("loss 0.1", "loss 0.1"),
        ("a\nb\n\n  \n", "b"),
        ("10 %\r50 %\r100 %\n", "100 %"),
        ("windows\r\n", "windows"),
        ("a\u2028b\n", "a\u2028b"),
        ("", ""),
        (b"caf\xe9\n", "caf\ufffd"),
        pytest.param(b"\0\0\0loss 0.2\n\0\0", "loss 0.2", id="of a file that was cut"),
        pytest.param("x" * LONGEST_LINE * 2 + "\nend\n", "end", id="after a long one"),
    ],
)
def test_the_last_line_is_the_last_with_something_on_it(tmp_path: Path, text: str | bytes, line: str) -> None:
    assert result("last_line", printed(tmp_path, text)) == line


def test_the_last_line_as_json(tmp_path: Path) -> None:
    assert result("json", printed(tmp_path, 'epoch 20\n{"loss": 0.1, "steps": [1, 2]}\n')) == {
        "loss": 0.1,
        "steps": [1, 2],
    }
    assert result("json", printed(tmp_path, f"[1e308, {(1 << 64) - 1}]")) == [1e308, (1 << 64) - 1]


@pytest.mark.parametrize(("name", "value"), [("metrics.json", {"loss": 0.1}), ("metrics.txt", '{"loss":\n0.1}\n')])
@pytest.mark.parametrize("is_absolute", [False, True])
def test_a_file_below_the_working_directory_or_anywhere(
    tmp_path: Path, name: str, value: Any, is_absolute: bool
) -> None:
    status = printed(tmp_path, '{"loss":\n0.1}\n', name)
    assert result(f"file:{tmp_path / name if is_absolute else name}", status) == value


def test_of_an_array_a_list_in_the_order_of_the_indices(tmp_path: Path) -> None:
    indices = range(0, 500, 2)
    for index in indices:
        (tmp_path / f"7_{index}.out").write_text(f"begun\n{index}\n")
        (tmp_path / f"m{index}.json").write_text(f'{{"index": {index}}}')
    status = ended(tmp_path, *(f"7_{index}" for index in indices))
    assert result("json", status) == list(indices)
    assert result("file:m%a.json", status) == [{"index": index} for index in indices]
    # One element is a list, too.
    assert result("last_line", ended(tmp_path, "7_4")) == ["4"]


def test_of_a_heterogeneous_job_that_of_the_component_with_the_batch_script(tmp_path: Path) -> None:
    (tmp_path / "7.out").write_text("first\n")
    assert result("last_line", ended(tmp_path, "7+0", "7+1", stdout="%A.out")) == "first"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{\n}\n", "expected JSON as the last line of .*7.out, got '}' .*print it on one line"),
        ("", "got ''"),
        ('{"loss": NaN}\n', "NaN is not JSON: write null"),
        ('{"loss": 1e999}\n', "1e999 is too large for a number: write null, or a text"),
        (f"[{1 << 64}]\n", f"{1 << 64} is too large for a number"),
        pytest.param("[" * 50_000, "expected JSON", id="deep"),
    ],
)
def test_what_is_no_json_is_refused(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ResultError, match=said):
        result("json", printed(tmp_path, text))


@pytest.mark.parametrize(
    ("said", "text"),
    [
        ("json", '{"loss": "a\\u0000b"}'),
        ("json", '[{"\\u0000": 1}]'),
        ("json", '"\\ud800"'),
        ("file:7.out", "loss\0"),
        ("file:7.out", "loss 0.1\n".encode("utf-16")),
    ],
)
def test_what_airflows_database_cannot_hold_is_refused(tmp_path: Path, said: str, text: str | bytes) -> None:
    with pytest.raises(ResultError, match=r"cannot hold what is (in|as the last line of) .*7.out, .*: write text in"):
        result(said, printed(tmp_path, text))


def test_what_is_too_large_is_refused(tmp_path: Path) -> None:
    status = printed(tmp_path, "x" * (LONGEST_LINE + 1))
    with pytest.raises(ResultError, match=r"the last line of .*7.out has more than 64 KiB: write it to a file"):
        result("last_line", status)
    printed(tmp_path, "x" * MOST, "most")
    assert len(result("file:most", status)) == MOST
    printed(tmp_path, "x" * (MOST + 1024), "more")
    with pytest.raises(ResultError, match=r"more has 1025 KiB, .* 1024 KiB at most"):
        result("file:more", status)
    for index in range(20):
        (tmp_path / f"7_{index}.out").write_text("x" * LONGEST_LINE)
    with pytest.raises(ResultError, match=r"20 files, such as .*7_0.out, has 1280 KiB"):
        result("last_line", ended(tmp_path, *(f"7_{index}" for index in range(20))))


@pytest.mark.parametrize(
    ("said", "stdout", "remedy"),
    [("json", "same.out", "put %a into output"), ("file:metrics.json", "%a.out", "name it with %a")],
)
def test_elements_that_write_the_same_file_have_no_results(tmp_path: Path, said: str, stdout: str, remedy: str) -> None:
    with pytest.raises(ResultError, match=remedy):
        result(said, ended(tmp_path, "7_0", "7_1", stdout=stdout))


def test_a_file_that_is_missing_or_unknown_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"there is no file .*/metrics.json: see whether the job has written it"):
        result("file:metrics.json", ended(tmp_path, "7"))
    with pytest.raises(ResultError, match="which file job 7 has written"):
        result("json", ended(tmp_path, "7", stdout=""))


def test_what_cannot_be_read_is_no_empty_result(tmp_path: Path) -> None:
    (tmp_path / "metrics").mkdir()
    with pytest.raises(FileError, match=r"/metrics cannot be read: see whether it is a file"):
        result("file:metrics", ended(tmp_path, "7"))


@pytest.mark.parametrize("said", ["stdout", "file:", "", 7, True])
def test_a_result_that_means_nothing_is_refused(said: Any) -> None:
    with pytest.raises(InvalidJob, match="must be 'json', 'last_line' or 'file:PATH'"):
        check_result(said)


@pytest.mark.parametrize("path", ["~/m.json", "runs/$RUN/m.json"])
def test_a_file_that_only_a_shell_would_find_is_refused(path: str) -> None:
    with pytest.raises(InvalidJob, match=r"result: '.*m\.json' is for a shell to understand: write the whole path"):
        check_result(f"file:{path}")
